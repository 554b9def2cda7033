"""What is prepared: read back as written, parted as it runs, and refused where it breaks a rule."""

from dataclasses import replace

import pytest

from tilewright.base.dtypes import F32
from tilewright.base.errors import ProgramError
from tilewright.base.sizes import Limits, Sizes
from tilewright.graph.ir import Role, TensorType
from tilewright.program import (
    Buffer,
    Input,
    KernelSource,
    Launch,
    Program,
    Segment,
    View,
    in_one,
    parted,
    read,
    show,
    verify,
    whole,
)

from .samples import SCALE, f32

X, W, V = Buffer("x", f32(8), "input"), Buffer("w", f32(8), "input"), Buffer("v", f32(8), "input")
S, K, Y = Buffer("s", f32(8), "kept"), Buffer("k", f32(8), "kept"), Buffer("y", f32(8), "output")
A = Buffer("a", f32(8), "arena")


def scale(source: Buffer, target: Buffer) -> Launch:
    return Launch("scale", (whole(source),), (whole(target),))


ADD = Launch("add", (whole(X), whole(K)), (whole(Y),))
PROGRAM = Program(
    name="keeps",
    buffers=(W, X, V, S, K, Y, A),
    kernels=(KernelSource("scale", SCALE), KernelSource("add", "int add(char **p);")),
    instructions=(Segment((scale(X, A), ADD)),),
    inputs=(Input("x"), Input("w", Role("parameter", "w")), Input("v", Role("buffer", "v"))),
    outputs=(whole(Y),),
    arena_bytes=32,
    prepare=(Segment((scale(W, S), scale(S, K))),),
)


def test_what_is_prepared_is_read_back() -> None:
    verify(PROGRAM)
    text = show(PROGRAM)
    assert read(text) == PROGRAM
    assert "\nprepare\nsegment\n  launch scale (w) -> (s)\n  launch scale (s) -> (k)\nend\n" in text


def test_a_program_is_parted_in_what_prepares_and_what_runs() -> None:
    first, main = parted(PROGRAM)
    verify(first)
    verify(main)
    assert [item.buffer for item in first.inputs] == ["w"]
    assert first.outputs == (whole(K),)  # what only makes others is not kept
    assert [item.buffer for item in main.inputs] == ["x", "v", "k"]
    assert [kernel.name for kernel in first.kernels] == ["scale"]
    assert (first.arena_bytes, main.arena_bytes) == (0, 32)
    assert (main.instructions, main.outputs) == (PROGRAM.instructions, PROGRAM.outputs)


def test_what_runs_takes_an_input_that_is_read_by_both() -> None:
    again = Launch("add", (whole(W), whole(K)), (whole(Y),))
    first, main = parted(replace(PROGRAM, instructions=(Segment((again,)),)))
    assert [item.buffer for item in first.inputs] == ["w"]
    assert [item.buffer for item in main.inputs] == ["x", "w", "v", "k"]


def test_in_one_everything_runs_in_order() -> None:
    one = in_one(PROGRAM)
    verify(one)
    assert one.instructions == (*PROGRAM.prepare, *PROGRAM.instructions)
    assert not any(buffer.kind == "kept" for buffer in one.buffers)


def prepare(*launches: Launch) -> Program:
    return replace(PROGRAM, prepare=(Segment((*launches, scale(W, S), scale(S, K))),))


BROKEN = {
    "buffer 'x' is read before it is written": prepare(scale(X, S)),
    "buffer 'v' is read before it is written": replace(prepare(scale(V, S)), updates=("v",)),
    "arena buffer 'a' is written while values are prepared": prepare(scale(W, A)),
    "output buffer 'y' is written while values are prepared": prepare(scale(W, Y)),
    "buffer 'k' is read before it is written": prepare(scale(K, S)),
    "kept buffer 'k' is written by a run": replace(
        PROGRAM, instructions=(Segment((scale(X, K), ADD)),)
    ),
    "a kept buffer is never prepared": replace(PROGRAM, prepare=(Segment((scale(W, K),)),)),
    "an output views kept memory": replace(PROGRAM, outputs=(whole(K),)),
    "no kernel has the name 'none'": prepare(Launch("none", (whole(W),), (whole(S),))),
    "a view reaches outside buffer 'w'": prepare(
        Launch("scale", (View("w", (9,), (1,)),), (whole(S),))
    ),
}


@pytest.mark.parametrize("summary", BROKEN)
def test_a_broken_rule_is_refused(summary: str) -> None:
    with pytest.raises(ProgramError) as refused:
        verify(BROKEN[summary])
    assert refused.value.summary.startswith(summary)


def test_no_size_varies_in_what_is_prepared() -> None:
    sizes = Sizes({"n_0": 4}, {"n_0": Limits(2, 8)})
    n = sizes.size("n_0")
    varying = replace(
        PROGRAM,
        buffers=(W, replace(X, type=TensorType((n,), F32), strides=(1,)), V, S, K, Y, A),
        instructions=(Segment((replace(ADD, inputs=(View("x", (n,), (1,)), whole(K))),)),),
        sizes=sizes,
    )
    verify(varying)
    some = Launch("scale", (View("w", (n,), (1,)),), (View("s", (n,), (1,)),))
    with pytest.raises(ProgramError, match="a size varies in what is prepared"):
        verify(replace(varying, prepare=(Segment((some, scale(W, S), scale(S, K))),)))


def test_what_is_prepared_stands_first_in_the_text() -> None:
    text = show(PROGRAM)
    late = text.replace("output y\n", "prepare\nsegment\nend\noutput y\n")
    with pytest.raises(ProgramError, match="does not stand first"):
        read(late)
