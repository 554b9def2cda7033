"""Loops over launches in native code: nested, of any count, failing, around library calls."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.runtime.programs import affine, f32, kernel, split

from tilewright.base.errors import IndexRangeError, Origin
from tilewright.program import (
    Buffer,
    Input,
    Instruction,
    KernelSource,
    Launch,
    LibraryCall,
    Loop,
    Program,
    Segment,
    View,
    whole,
)
from tilewright.runtime.executable import Executable
from tilewright.runtime.segments import stretches_of

pytestmark = pytest.mark.usefixtures("any_parts")

N = 640
OUTER, INNER, PARTS = 3, 4, 5


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def turned(name: str) -> KernelSource:
    """y = reversed(x) + 1: each part reads what another has written."""
    return kernel(
        name,
        f"{split(N)}\n  const float *x = (const float *)p[0];\n  float *y = (float *)p[1];\n"
        f"  for (long i = lo; i < hi; i++) y[i] = x[{N - 1} - i] + 1.0f;\n  return 0;",
    )


def added(name: str) -> KernelSource:
    """y += x in place."""
    return kernel(
        name,
        f"{split(N)}\n  const float *x = (const float *)p[1];\n  float *y = (float *)p[2];\n"
        "  for (long i = lo; i < hi; i++) y[i] += x[i];\n  return 0;",
    )


def zero(name: str, count: int) -> KernelSource:
    """y = 0"""
    return kernel(
        name,
        f"{split(count)}\n  float *y = (float *)p[0];\n"
        "  for (long i = lo; i < hi; i++) y[i] = 0;\n  return 0;",
    )


def nested(*, called: bool, outer: int = OUTER, inner: int = INNER) -> Program:
    """Return what `expected` computes; called: with a library call in the outer loop."""
    x, s = Buffer("x", f32(N), "input"), Buffer("s", f32(OUTER, N), "input")
    h = Buffer("h", f32(N), "arena")
    t = Buffer("t", f32(N), "arena", offset=4 * N)
    z = Buffer("z", f32(N), "arena", offset=8 * N)
    y = Buffer("y", f32(OUTER, INNER, N), "output")
    moving = View("s", (N,), (1,), 0, (N,))
    slot = View("y", (N,), (1,), 0, (INNER * N, N))

    def launches(*items: Launch) -> Segment:
        return Segment(items)

    body: list[Instruction] = [
        launches(Launch("add", (whole(h), moving), (whole(h),), PARTS)),
        Loop(
            (
                launches(
                    Launch("turn", (whole(h),), (whole(t),), PARTS),
                    Launch("turn", (whole(t),), (whole(h),), PARTS),
                ),
                launches(Launch("same", (whole(h),), (slot,), PARTS)),
            ),
            inner,
        ),
    ]
    if called:
        body.append(LibraryCall("aten.neg.out", (("%", 0),), (), (whole(h),), (whole(z),)))
        body.append(launches(Launch("same", (whole(z),), (whole(h),), PARTS)))
    instructions = (
        launches(Launch("zero", (), (whole(y),))),
        launches(Launch("same", (whole(x),), (whole(h),), PARTS)),
        Loop(tuple(body), outer),
    )
    return Program(
        "nested", (x, s, h, t, z, y),
        (turned("turn"), added("add"), affine("same", N, 1.0, 0.0),
         zero("zero", OUTER * INNER * N)),
        instructions, (Input("x"), Input("s")), (whole(y),), arena_bytes=12 * N,
    )  # fmt: skip


def expected(x: torch.Tensor, s: torch.Tensor, *, called: bool, outer: int, inner: int) -> object:
    h, y = x.numpy().copy(), np.zeros((OUTER, INNER, N), np.float32)
    for i in range(outer):
        h = h + s[i].numpy()
        for j in range(inner):
            h = (h[::-1] + 1)[::-1] + 1
            y[i, j] = h
        if called:
            h = -h
    return torch.from_numpy(y)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize(("outer", "inner"), [(OUTER, INNER), (1, 1), (0, INNER), (OUTER, 0)])
def test_nested_loops_compute_what_plain_ones_do(called: bool, outer: int, inner: int) -> None:
    executable = Executable(nested(called=called, outer=outer, inner=inner))
    x, s = torch.randn(N), torch.randn(OUTER, N)
    wanted = expected(x, s, called=called, outer=outer, inner=inner)
    for _ in range(20):
        assert torch.equal(executable.run([x, s])[0], wanted)


def test_only_what_calls_no_library_is_one_native_entry() -> None:
    assert len(stretches_of(nested(called=False))) == 1
    assert [len(stretch) for stretch in stretches_of(nested(called=True))] == [2, 2, 1]


def test_loops_run_on_arrays_without_torch() -> None:
    x, s = np.ones(N, np.float32), np.ones((OUTER, N), np.float32)
    (found,) = Executable(nested(called=False)).run_arrays([x, s])
    given = (torch.from_numpy(x), torch.from_numpy(s))
    assert torch.equal(
        torch.from_numpy(found), expected(*given, called=False, outer=OUTER, inner=INNER)
    )


@pytest.mark.usefixtures("threads")
def test_a_launch_that_fails_inside_of_a_loop_is_named() -> None:
    y = Buffer("y", f32(1), "output")
    fine = kernel("fine", "  return 0;")
    bad = kernel("bad", "  return end == parts ? 1 : 0;")
    origins = [Origin(f"line{i}.py", i) for i in range(3)]
    segments = [
        Segment((Launch(name, (), (whole(y),), 4, origin),))
        for name, origin in zip(("fine", "bad", "fine"), origins, strict=True)
    ]
    loop = Loop((segments[0], Loop((segments[1],), 3), segments[2]), 50)
    program = Program("bad", (y,), (fine, bad), (loop,), (), (whole(y),))
    executable = Executable(program)
    for _ in range(50):
        with pytest.raises(IndexRangeError, match=r"line1\.py"):
            executable.run([])
