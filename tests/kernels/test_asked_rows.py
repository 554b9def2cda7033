"""Rows that indices choose are asked for ahead of their sums, and nothing beyond the indices is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.kernels.harness import body
from tests.standalone import run_standalone

import tilewright as tw
from tilewright.kernels import emit
from tilewright.program import Program
from tilewright.runtime import observe, write_standalone

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LARGE, SMALL = 1100, 900
"""Rows of 64 elements in float32 that are worth asking for, and that are not."""

CASES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "rows, one by one": (lambda w, at: F.embedding(at, w), (5,)),  # the next is, in blocks
    "a row": (lambda w, at: F.embedding(at, w), ()),
    "bags": (lambda w, at: F.embedding(at, w).sum(1), (7, 5)),
    "bags across": (lambda w, at: F.embedding(at.T, w).sum(1), (7, 5)),
    "every other": (lambda w, at: F.embedding(at[:, ::2], w).sum(1), (3, 8)),
    "repeated": (lambda w, at: F.embedding(at[:, None].expand(4, 3), w).sum(1), (4,)),
}
ASKED = {"bags", "bags across", "repeated"}


def program(case: str, rows: int) -> tuple[Program, torch.Tensor, torch.Tensor]:
    function, shape = CASES[case]
    torch.manual_seed(0)
    w, at = torch.randn(rows, 64), torch.randint(rows, shape)
    compiled = tw.compile(function, w, at)
    torch.testing.assert_close(compiled(w, at), function(w, at))
    return compiled.program, w, at


def by_name(made: Program, w: torch.Tensor, at: torch.Tensor) -> list[np.ndarray]:
    given = {"w": w.numpy(), "at": at.numpy()}
    return [given[item.buffer] for item in made.inputs]


@pytest.mark.parametrize("case", CASES)
def test_rows_of_large_tables_are_asked_for(case: str) -> None:
    for rows, worth in ((LARGE, True), (SMALL, False)):
        made, *_ = program(case, rows)
        asked = any("chosen0" in kernel.text for kernel in made.kernels)
        assert asked == (worth and case in ASKED)


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("t[ids[i * 5 + k], d]", True),
        ("t[ids[i * 5 + k], d] if ids[i * 5 + k] >= 0 else 1", True),
        ("t[ids[i * 5 + k - 16], d] if i * 5 + k >= 16 else 1", False),
        ("t[ids[i * 5 + k - 16] ?? 0, d]", False),
        ("t[ids[i * 5 + k] + 1, d]", False),
    ],
)
def test_rows_are_not_asked_for_where_a_turn_may_have_no_index(value: str, asked: bool) -> None:
    graph = body(
        {"t": "f32[1100, 64]", "ids": "i64[40]"},
        {"y": f"f32[8, 64]: y[i<8, d<64] += ({value}) for k<5"},
    )
    assert ("chosen0" in emit(graph).text) == asked


@pytest.mark.parametrize("case", sorted(ASKED))
def test_nothing_but_indices_is_read_of_them(case: str, tmp_path: Path) -> None:
    made, *inputs = program(case, LARGE)
    observed = observe(made, by_name(made, *inputs))
    write_standalone(made, observed, tmp_path)
    assert run_standalone(tmp_path, "sanitize") == ""


@pytest.mark.parametrize("bad", [-(2**62), -1, LARGE, 2**62])
def test_an_index_that_is_no_row_is_asked_for_in_vain(bad: int, tmp_path: Path) -> None:
    made, *inputs = program("bags", LARGE)
    observed = observe(made, by_name(made, *inputs))
    (name,) = (name for name, value in observed.before.items() if len(value) == 7 * 5 * 8)
    ids = np.frombuffer(observed.before[name], np.int64).copy()
    ids[9] = bad
    changed = replace(observed, before={**observed.before, name: ids.tobytes()})
    write_standalone(made, changed, tmp_path)
    assert "fails: an index is out of range\n" in run_standalone(tmp_path, "sanitize")
