"""Small Programs with kernels written by hand, which the tests of `runtime` share."""

import itertools

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

HERE = Origin("model.py", 7, "table[ids]")


def f32(*shape: int) -> TensorType:
    return TensorType(shape, F32)


def i64(*shape: int) -> TensorType:
    return TensorType(shape, I64)


def kernel(name: str, body: str) -> KernelSource:
    return KernelSource(
        name, f"int {name}(char **p, long part, long end, long parts) {{\n{body}\n}}\n"
    )


def split(n: int) -> str:
    """C text: the range `lo` to `hi` of `n` elements that a part does."""
    return f"  long lo = {n}L * part / parts, hi = {n}L * end / parts;"


def affine(name: str, n: int, scale: float, shift: float) -> KernelSource:
    """y = scale * x + shift, over n contiguous floats."""
    return kernel(
        name,
        f"{split(n)}\n  const float *x = (const float *)p[0];\n  float *y = (float *)p[1];\n"
        f"  for (long i = lo; i < hi; i++) y[i] = {scale}f * x[i] + {shift}f;\n  return 0;",
    )


def chain(length: int, n: int, parts: int) -> Program:
    """Return y = x shifted `length` times, each launch reading all parts of the last reversed."""
    shift = kernel(
        "shift",
        f"{split(n)}\n  const float *x = (const float *)p[0];\n  float *y = (float *)p[1];\n"
        f"  for (long i = lo; i < hi; i++) y[i] = x[{n - 1} - i] + 1.0f;\n  return 0;",
    )
    x, y = Buffer("x", f32(n), "input"), Buffer("y", f32(n), "output")
    ping = [Buffer(f"t{i}", f32(n), "arena", offset=(i % 2) * 4 * n) for i in range(length - 1)]
    values = [x, *ping, y]
    launches = [
        Launch("shift", (whole(a),), (whole(b),), parts) for a, b in itertools.pairwise(values)
    ]
    return Program(
        "chain", tuple(values), (shift,), (Segment(tuple(launches)),), (Input("x"),),
        (whole(y),), arena_bytes=8 * n,
    )  # fmt: skip


def gather(rows: int, columns: int, count: int, parts: int = 1) -> Program:
    """Return y[i] = table[ids[i]]; an id out of range is an error."""
    table, ids = Buffer("table", f32(rows, columns), "input"), Buffer("ids", i64(count), "input")
    y = Buffer("y", f32(count, columns), "output")
    take = kernel(
        "take",
        f"{split(count)}\n  const float *table = (const float *)p[0];\n"
        f"  const long long *ids = (const long long *)p[1];\n  float *y = (float *)p[2];\n"
        f"  for (long i = lo; i < hi; i++) {{\n    if (ids[i] < 0 || ids[i] >= {rows}) return 1;\n"
        f"    for (long j = 0; j < {columns}; j++) y[i * {columns} + j] ="
        f" table[ids[i] * {columns} + j];\n  }}\n  return 0;",
    )
    launch = Launch("take", (whole(table), whole(ids)), (whole(y),), parts, HERE)
    return Program(
        "gather", (table, ids, y), (take,), (Segment((launch,)),),
        (Input("table", Role("parameter", "embedding.weight")), Input("ids")), (whole(y),),
    )  # fmt: skip


def linear_relu(m: int, k: int, n: int) -> Program:
    """Return relu(2x @ w^T): a kernel, a library call on a transposed view, a kernel."""
    x, w = Buffer("x", f32(m, k), "input"), Buffer("w", f32(n, k), "input")
    a = Buffer("a", f32(m, k), "arena")
    b = Buffer("b", f32(m, n), "arena", offset=-(-4 * m * k // 64) * 64)
    y = Buffer("y", f32(m, n), "output")
    relu = kernel(
        "relu",
        f"{split(m * n)}\n  const float *x = (const float *)p[0];\n  float *y = (float *)p[1];\n"
        "  for (long i = lo; i < hi; i++) y[i] = x[i] > 0 ? x[i] : 0;\n  return 0;",
    )
    return Program(
        "linear_relu",
        (x, w, a, b, y),
        (affine("twice", m * k, 2.0, 0.0), relu),
        (
            Segment((Launch("twice", (whole(x),), (whole(a),)),)),
            LibraryCall(
                "aten.mm.out", (("%", 0), ("%", 1)), (), (whole(a), View("w", (k, n), (1, k))),
                (whole(b),),
            ),
            Segment((Launch("relu", (whole(b),), (whole(y),)),)),
        ),
        (Input("x"), Input("w", Role("parameter", "linear.weight"))),
        (whole(y),),
        arena_bytes=b.offset + b.bytes,
    )  # fmt: skip


def counter() -> Program:
    """Return the Program that adds `step` to `state`, and gives both back doubled."""
    state, step, y = (
        Buffer(n, f32(4), k) for n, k in (("s", "input"), ("x", "input"), ("y", "output"))
    )
    add = kernel(
        "add",
        "  const float *x = (const float *)p[1];\n  float *s = (float *)p[2], *y = (float *)p[3];\n"
        "  for (int i = 0; i < 4; i++) { s[i] += x[i]; y[i] = 2 * s[i]; }\n  return 0;",
    )
    launch = Launch("add", (whole(state), whole(step)), (whole(state), whole(y)))
    return Program(
        "counter", (state, step, y), (add,), (Segment((launch,)),), (Input("s"), Input("x")),
        (whole(y),), updates=("s",),
    )  # fmt: skip


def two_counters() -> Program:
    """Return the Program that adds `step` to two states."""
    buffers = tuple(Buffer(name, f32(4), "input") for name in ("s", "t", "x"))
    states, step = buffers[:2], buffers[2]
    add = kernel(
        "add",
        "  const float *x = (const float *)p[1];\n  float *s = (float *)p[2];\n"
        "  for (int i = 0; i < 4; i++) s[i] += x[i];\n  return 0;",
    )
    launches = [Launch("add", (whole(s), whole(step)), (whole(s),)) for s in states]
    return Program(
        "two_counters", buffers, (add,), tuple(Segment((launch,)) for launch in launches),
        tuple(Input(buffer.name) for buffer in buffers), (whole(step),), updates=("s", "t"),
    )  # fmt: skip


def calling(call: LibraryCall, inputs: list[Buffer], outputs: list[Buffer]) -> Program:
    """Return the Program that is one library call."""
    return Program(
        "call", (*inputs, *outputs), (), (call,), tuple(Input(b.name) for b in inputs),
        tuple(whole(b) for b in outputs),
    )  # fmt: skip


def gradient(
    target: str, args: tuple[object, ...], operands: list[Buffer], wrt: tuple[int, ...],
    tangents: list[Buffer], results: tuple[int, ...] = (0,),
) -> Program:  # fmt: skip
    """Return the Program that is the gradient of one ATen operator."""
    found = [Buffer(f"d{i}", operands[i].type, "library") for i in wrt]
    call = LibraryCall(
        target, args, (), tuple(whole(b) for b in (*operands, *tangents)),  # type: ignore[arg-type]
        tuple(whole(b) for b in found), vjp=Vjp(wrt, results),
    )  # fmt: skip
    return calling(call, [*operands, *tangents], found)
