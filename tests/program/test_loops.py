"""Loops and branches of a Program: their text, their rules, and how long buffers live in them."""

from dataclasses import replace

import pytest

from tilewright.base.dtypes import BOOL, F32
from tilewright.base.errors import ProgramError
from tilewright.graph.ir import TensorType
from tilewright.program import (
    Branch,
    Buffer,
    Input,
    Instruction,
    KernelSource,
    Launch,
    Loop,
    Program,
    Segment,
    View,
    While,
    depth,
    lifetimes,
    read,
    show,
    verify,
    whole,
)

X = Buffer("x", TensorType((3, 4), F32), "input")
P = Buffer("p", TensorType((), BOOL), "input")
H = Buffer("h", TensorType((4,), F32), "arena", offset=0)
T = Buffer("t", TensorType((4,), F32), "arena", offset=64)
Y = Buffer("y", TensorType((3, 4), F32), "output")
ROW = View("x", (4,), (1,), 0, (4,))


def run(*pairs: tuple[View, View]) -> Segment:
    """Return a segment of copies."""
    return Segment(tuple(Launch("copy", (source,), (target,)) for source, target in pairs))


START = run((View("x", (4,), (1,)), whole(H)))
STEP = run((whole(H), whole(T)), (ROW, whole(H)), (whole(T), View("y", (4,), (1,), 8, (-4,))))
LOOP = Loop((STEP, Branch(whole(P), (run((whole(T), whole(H))),), ())), 3)
WHILE = While((run((whole(H), whole(T))),), whole(P), (LOOP,))


def program(*instructions: Instruction, outputs: tuple[View, ...] = (whole(Y),)) -> Program:
    return Program(
        "loops",
        (X, P, H, T, Y),
        (
            KernelSource(
                "copy", "int copy(char **p, long part, long end, long parts) { return 0; }"
            ),
        ),
        instructions,
        (Input("x"), Input("p")),
        outputs,
        arena_bytes=128,
    )


def test_loops_and_branches_read_back() -> None:
    for made in (program(START, LOOP), program(START, WHILE, LOOP)):
        verify(made)
        assert read(show(made)) == made


def test_depth_counts_loops_in_loops() -> None:
    assert depth((START,)) == 0
    assert depth((WHILE,)) == 1
    assert depth((Loop((LOOP,), 2), LOOP)) == 2


def test_what_a_loop_hands_on_lives_through_it() -> None:
    lives = lifetimes(program(START, LOOP))
    inside = lives["y"]
    assert lives["h"][0] < inside[0], "written before"
    assert lives["h"][1] >= inside[1], "needed until the last step has ended"
    assert inside[0] <= lives["t"][0], "made anew in each step"
    assert lives["t"][1] < inside[1]
    assert lives["x"][1] >= inside[1], "it moves with the loop"


BROKEN: dict[str, Program] = {
    "reaches outside": program(START, replace(LOOP, count=4)),
    "reaches outside buffer 'y'": program(
        START, Loop((run((whole(H), View("y", (4,), (1,), 4, (-4,)))),), 3)
    ),
    "moves with a loop that is not there": program(run((ROW, whole(H)))),
    "read before it is written": program(LOOP),
    "an impossible number of times": program(START, replace(LOOP, count=-1)),
    "is no truth value": program(START, Branch(View("x", (), ()), (), ()), LOOP),
    "never written": program(START, replace(WHILE, body=(LOOP,))),
    "'t' is read before": program(
        START, Branch(whole(P), (run((whole(H), whole(T))),), ()), run((whole(T), whole(Y)))
    ),
    "never written ": program(START, Loop((STEP,), 0)),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_every_rule_of_loops_broken_is_refused(reason: str) -> None:
    with pytest.raises(ProgramError, match=reason.strip()):
        verify(BROKEN[reason])


def test_memory_of_one_step_is_not_that_of_what_is_handed_on() -> None:
    with pytest.raises(ProgramError, match="share memory"):
        verify(replace(program(START, LOOP), buffers=(X, P, H, replace(T, offset=0), Y)))


@pytest.mark.parametrize(
    "text", ["loop 3\n", "loop\nend\n", "branch p\nend\n", "while p\nend\n", "end\n", "do\n"]
)
def test_blocks_that_do_not_end_as_they_began_are_refused(text: str) -> None:
    with pytest.raises(ProgramError):
        read(show(program(START, LOOP)) + text)


def test_text_nested_too_deep_is_refused() -> None:
    with pytest.raises(ProgramError):
        read(show(program(START, LOOP)) + "loop 1\n" * 10_000)
