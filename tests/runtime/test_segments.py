"""Barriers stand where memory says so, and nowhere else."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.program import Buffer, Launch, Loop, Program, Segment, View, contiguous, whole
from tilewright.runtime import segments
from tilewright.runtime.segments import ALONE, ALWAYS, AWAKE, SHORT, barriers, is_wide, width

from .programs import chain, f32

X, W = Buffer("x", f32(8), "input"), Buffer("w", f32(8), "input")
A, B = Buffer("a", f32(8), "arena"), Buffer("b", f32(8), "arena", offset=32)
OVER = Buffer("over", f32(8), "arena", offset=16)
Y = Buffer("y", f32(8), "output")
BUFFERS = {b.name: b for b in (X, W, A, B, OVER, Y)}


def launch(reads: str, writes: str, parts: int = 2) -> Launch:
    return Launch(
        "k",
        tuple(whole(BUFFERS[name]) for name in reads.split()),
        tuple(whole(BUFFERS[name]) for name in writes.split()),
        parts,
    )


def test_reading_what_was_written_needs_a_barrier() -> None:
    found = barriers([launch("x", "a"), launch("a", "b"), launch("b", "y")], BUFFERS)
    assert found == [False, True, True]


def test_independent_launches_need_none() -> None:
    assert barriers([launch("x", "a"), launch("x", "b"), launch("w", "y")], BUFFERS) == [False] * 3


def test_writing_what_is_read_or_written_needs_a_barrier() -> None:
    assert barriers([launch("a", "y"), launch("x", "a")], BUFFERS) == [False, True]
    assert barriers([launch("x", "a"), launch("w", "a")], BUFFERS) == [False, True]


def test_arena_buffers_meet_by_their_bytes() -> None:
    assert barriers([launch("x", "a"), launch("x", "over")], BUFFERS) == [False, True]
    assert barriers([launch("x", "b"), launch("x", "over")], BUFFERS) == [False, True]


def test_a_barrier_covers_all_launches_before_it() -> None:
    launches = [launch("x", "a"), launch("x", "b"), launch("a", "y"), launch("b", "y")]
    assert barriers(launches, BUFFERS) == [False, False, True, True]
    launches = [launch("x", "a"), launch("x", "b"), launch("a", "w"), launch("b", "y")]
    assert barriers(launches, BUFFERS) == [False, False, True, False]


def test_an_input_is_written_after_all_that_may_refuse() -> None:
    look, write = replace(launch("x", "a"), kernel="look"), launch("x", "w")
    assert barriers([look, launch("x", "b"), write], BUFFERS) == [False] * 3
    assert barriers([look, launch("x", "b"), write], BUFFERS, ["look"]) == [False, False, True]
    assert barriers([look, launch("a", "b"), write], BUFFERS, ["look"]) == [False, True, False]
    alone = [replace(one, parts=1) for one in (look, write)]
    assert barriers(alone, BUFFERS, ["look"]) == [False, False]


def test_launches_of_one_part_share_a_thread_and_need_none_among_themselves() -> None:
    small = [launch("x", "a", 1), launch("a", "b", 1), launch("b", "y", 1)]
    assert barriers(small, BUFFERS) == [False] * 3
    mixed = [launch("x", "a", 1), launch("a", "b", 1), launch("b", "y", 2)]
    assert barriers(mixed, BUFFERS) == [False, False, True]
    assert barriers([launch("x", "a", 2), launch("a", "b", 1)], BUFFERS) == [False, True]


def test_a_team_meets_where_there_is_enough_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LITTLE", 12)
    assert is_wide(chain(4, 1000, parts=4))
    assert not is_wide(chain(4, 1000, parts=3))
    assert not is_wide(chain(20, 1000, parts=1))
    short = chain(4, 1000, parts=3)
    assert is_wide(replace(short, instructions=(Loop(short.instructions, 2),)))


def test_little_work_is_for_a_team_that_is_awake() -> None:
    assert [width(chain(1, 1000, parts).instructions) for parts in (6, 7, 32, 33)] == [
        ALONE,
        AWAKE,
        AWAKE,
        SHORT,
    ]


def test_whether_much_work_is_worth_a_team_is_not_asked() -> None:
    chains = [chain(50, 1000, parts).instructions for parts in (20, 21)]
    assert list(map(width, chains)) == [SHORT, ALWAYS]


def test_large_launches_of_few_parts_are_worth_a_team() -> None:
    def alone(*shapes: tuple[int, ...], parts: int, flops: int = 0) -> Program:
        *reads, result = (View("x", shape, contiguous(shape)) for shape in shapes)
        launch = Launch("shift", tuple(reads), (result,), parts, flops=flops)
        return replace(chain(1, 8, 1), instructions=(Segment((launch,)),))

    assert is_wide(alone((64, 512), (512, 512), (64, 512), parts=8, flops=33_554_432))
    assert is_wide(alone((32, 128), (128, 128), (32, 128), parts=4, flops=1_048_576))
    assert not is_wide(alone((64, 64), (64, 64), (64, 64), parts=4, flops=524_288))
    assert is_wide(alone((24, 50257), (24, 50257), parts=24))
    assert not is_wide(alone((64, 512), (512, 512), (64, 512), parts=1, flops=33_554_432))


def test_halves_of_a_buffer_are_apart() -> None:
    low, high = View("a", (4,), (1,), 0), View("a", (4,), (1,), 4)
    first = Launch("k", (), (low,), 2)
    assert barriers([first, Launch("k", (low,), (high,), 2)], BUFFERS) == [False, True]
    assert barriers([first, Launch("k", (), (high,), 2)], BUFFERS) == [False, False]


def test_barriers_make_any_order_of_parts_right() -> None:
    """Random launches over a small arena: between barriers, any two that share a byte only read it,
    or are both of one part."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        launches = []
        for _ in range(int(rng.integers(2, 8))):
            views = [
                View("a", (int(n),), (int(rng.integers(1, 3)),), int(rng.integers(0, 3)))
                for n in rng.integers(1, 4, size=2)
            ]
            launches.append(Launch("k", (views[0],), (views[1],), int(rng.integers(1, 3))))
        needed = barriers(launches, BUFFERS)
        group: list[Launch] = []
        for item, barrier in zip(launches, needed, strict=True):
            if barrier:
                group = []
            for other in group:
                if item.parts > 1 or other.parts > 1:
                    assert not touched(item.outputs) & touched((*other.inputs, *other.outputs))
                    assert not touched(item.inputs) & touched(other.outputs)
            group.append(item)


def touched(views: tuple[View, ...]) -> set[int]:
    return {v.offset + i * v.strides[0] for v in views for i in range(v.shape[0])}
