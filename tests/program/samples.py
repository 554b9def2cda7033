"""Programs that the tests of `program` share: one that uses every part of the language."""

from tilewright.base.dtypes import F32, I64
from tilewright.base.errors import Origin
from tilewright.graph.ir import Role, TensorType
from tilewright.program import (
    Buffer,
    Input,
    KernelSource,
    Launch,
    LibraryCall,
    Program,
    Segment,
    View,
    Vjp,
    whole,
)

SCALE = """int scale(char **p, long part, long end, long parts) {
  const float *x = (const float *)p[0];
  float *y = (float *)p[1];
  for (long i = part * 16; i < end * 16; i++)
    y[i] = 2.0f * x[i];  // "quoted" \\ and |bars|
  return 0;
}
"""
HERE = Origin("model.py", 12, 'x * "two"\n', "layers.0")


def f32(*shape: int) -> TensorType:
    return TensorType(shape, F32)


X = Buffer("x", f32(4, 8), "input")
W = Buffer("w.1", f32(8, 8), "input", strides=(1, 8))
IDS = Buffer("ids", TensorType((), I64), "input")
A = Buffer("a", f32(4, 8), "arena", offset=64)
B = Buffer("b", f32(4, 8), "arena", offset=192)
C = Buffer("c", f32(2), "constant", data=bytes(range(8)))
L = Buffer("l", f32(8, 4), "library", strides=(1, 8))
G = Buffer("g", f32(4, 8), "library")
Y = Buffer("y", f32(4, 8), "output")

EVERYTHING = Program(
    name='the "whole" language',
    buffers=(X, W, IDS, A, B, C, L, G, Y),
    kernels=(KernelSource("scale", SCALE),),
    instructions=(
        Segment((Launch("scale", (whole(X),), (whole(A),), parts=2, origin=HERE, flops=32),)),
        LibraryCall(
            "aten.mm.out",
            (("%", 0), ("%", 1)),
            (),
            inputs=(whole(A), View("w.1", (8, 8), (8, 1))),
            outputs=(whole(B),),
            origin=HERE,
        ),
        LibraryCall(
            "aten.cat.default",
            (("list", ("%", 0), ("%", 0)), -1, (1, (2.5, 1e-05)), ("dtype", "bf16"), (), None),
            (("alpha", True), ("eps", float("-inf")), ("name", 'a "b"\n')),
            inputs=(whole(B),),
            outputs=(whole(L),),
            results=(1,),
        ),
        LibraryCall(
            "aten.tanh.default",
            (("%", 0),),
            (),
            inputs=(whole(B), whole(B)),
            outputs=(whole(G),),
            vjp=Vjp((0,), (0,)),
        ),
        Segment(
            (
                Launch("scale", (whole(G), View("c", (), (), 1)), (whole(X),)),
                Launch("scale", (View("x", (2, 4), (8, -1), 3),), (whole(Y),)),
            )
        ),
    ),
    inputs=(Input("x", Role("state", "step")), Input("w.1", Role("parameter", "w")), Input("ids")),
    outputs=(whole(Y), View("l", (4, 8), (8, 1)), whole(X)),
    updates=("x",),
    arena_bytes=320,
)
