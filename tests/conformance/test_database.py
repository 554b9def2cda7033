"""PyTorch's operator database: a few samples of many operators, and the runner of them all."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sweep import few
from torch.testing._internal.opinfo.core import SampleInput

import operator_database as script

from .database import (
    BROKEN,
    EMPTY,
    FALLBACK,
    KINDS,
    LIBRARY,
    OURS,
    OUTSIDE,
    REFUSED,
    RUNS,
    case_of,
    judge,
    judge_all,
    judge_samples,
    name_of,
    operators,
    samples,
    together,
)
from .seen import Case, Tensor, compare, exact, run

# Some of every kind; `python scripts/operator_database.py run` judges all samples of all.
CHOSEN = (
    "add", "div.floor_rounding", "pow", "clamp", "where", "expm1", "nn.functional.elu",
    "nn.functional.gelu", "sum", "amax", "std", "softmax", "nn.functional.layer_norm", "matmul",
    "einsum", "nn.functional.conv2d", "nn.functional.max_pool2d", "nn.functional.cross_entropy",
    "nn.functional.embedding", "gather", "scatter_add", "index_put", "flip", "cat", "split",
    "transpose", "view", "expand", "as_strided_scatter", "sort", "fill", "tril", "linalg.inv",
    "linalg.matrix_power",
)  # fmt: skip
OFTEN = (
    "sum", "expm1", "gather", "index_put", "linalg.inv", "view", "nn.functional.cross_entropy",
)  # fmt: skip
HALF = ("add", "nn.functional.silu", "softmax", "matmul", "sum")


@pytest.mark.parametrize(
    ("name", "dtype"),
    few([*((n, torch.float32) for n in CHOSEN), *((n, torch.bfloat16) for n in HALF)], *OFTEN),
    ids=str,
)
def test_the_database_agrees(name: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    (operator,) = [found for found in operators(dtype) if name_of(found) == name]
    verdicts = list(judge_samples(operator, dtype, most=2))
    assert verdicts
    for at, verdict in verdicts:
        assert verdict.kind in (*RUNS, REFUSED), f"sample {at}: {verdict}"


# Samples that were not as eager's once.
MENDED = (
    ("arange", 10),  # downwards from 0, which is no negative zero
    ("nn.functional.hardswish", 0),  # but this is, where it ends
    ("nn.functional.dropout", 1),  # eager returns its argument, and so do we
    ("nn.functional.grid_sample", 6),  # the places get a gradient: zeros
    ("nn.functional.max_unpool2d", 160),  # laid out with the channels last, as its argument is
    ("nn.functional.conv_transpose2d", 2),  # its output padded by more than a stride
)


@pytest.mark.parametrize(
    ("name", "at"), few(MENDED, "nn.functional.dropout", "nn.functional.max_unpool2d")
)
def test_what_was_mended_stays_so(name: str, at: int) -> None:
    torch._dynamo.reset()
    (operator,) = [found for found in operators(torch.float32) if name_of(found) == name]
    verdict = judge(next(itertools.islice(samples(operator, torch.float32), at, None)))
    assert verdict.kind in RUNS, verdict


# ---------------------------------------------------------------------------- the judge itself


def test_cases_judged_together_are_judged_as_each_alone() -> None:
    right = case_of("add", torch.add, SampleInput(X.detach(), args=(1,)))
    assert judge_all([right, right]) == [judge(right)] * 2
    verdicts = judge_all([right, Case(_broken, (X.detach(),)), right])
    assert [verdict.kind for verdict in verdicts] == [OURS, BROKEN, OURS]


def test_what_is_wrong_in_one_case_is_found_in_a_group() -> None:
    def told(made: Tensor, shift: float) -> Tensor:
        return made + shift

    x, y = X.detach(), X.detach() + 1
    cases = [Case(lambda t: told(t, 0.0), (x,)), Case(lambda t: told(t, 0.0), (y,))]
    both = together(cases)
    eager = run(both.function, both)
    ours = run(lambda a, b: (told(a, 0.0), told(b, 1e-3)), both)
    assert "result 1" in compare(ours, eager, lambda: exact(both, eager))


def differs(ours: Any, eager: Any, *tensors: Tensor) -> str:
    case = Case(eager, tensors)
    found = run(eager, case)
    return compare(run(ours, case), found, lambda: exact(case, found))


def _broken(x: Tensor) -> Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


X = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], requires_grad=True)


@pytest.mark.parametrize(
    ("ours", "eager", "said"),
    [
        (lambda x: x + 1e-3, lambda x: x, "aliases"),
        (lambda x: x * 1.001, lambda x: x * 1, "from float64"),
        (lambda x: x.detach() * 2, lambda x: x * 2, "requires_grad"),
        (lambda x: (x * 2).double(), lambda x: x * 2, "torch.float64[2, 3]"),
        (lambda x: (x * 2).t(), lambda x: x * 2, "in place of torch.float32[2, 3]"),
        (lambda x: (x * 2).t().contiguous().t(), lambda x: x * 2, "strides"),
        (lambda x: x[:1].clone(), lambda x: x[:1], "aliases"),
        (lambda x: x * 2 + (x * 2 - (x * 2).detach()), lambda x: x * 2, "gradient 0"),
        (lambda x: x.argmin(), lambda x: x.argmax(), "other values"),
        (lambda x: x / 0, lambda x: x.abs() / 0, "special values"),
        (lambda x: (x, x), lambda x: x, "gives"),
        (lambda x: x @ x, lambda x: x * 2, "raises RuntimeError"),
        (lambda x: x.detach().zero_() + x, lambda x: x.detach() * 0 + x * 0, "requires"),
    ],
)
def test_the_judge_sees_what_differs(ours: Any, eager: Any, said: str) -> None:
    if said == "requires":
        # The input that was written into is other than eager's; so is the result.
        assert differs(ours, eager, X) != ""
    else:
        assert said in differs(ours, eager, X)
        assert differs(eager, eager, X) == ""


def test_what_a_case_is_left_to_is_said() -> None:
    kinds = {
        OURS: lambda x: x * 2,
        LIBRARY: lambda x: torch.linalg.qr(x).R,
        EMPTY: lambda _: 3,
        BROKEN: _broken,
        FALLBACK: lambda x: (x.view(torch.uint64) if x.dtype == torch.int64 else x).clone(),
        OUTSIDE: lambda x: torch.fft.rfft(x),
    }
    for kind, function in kinds.items():
        x = torch.ones(2, dtype=torch.int64) if kind == FALLBACK else X
        assert judge(Case(function, (x,))).kind == kind
    assert judge(Case(lambda x: x.nonzero(), (X,))).kind == OUTSIDE


# ---------------------------------------------------------------------------- the page


def line(op: str, kind: str, detail: str = "", sample: int = 0) -> dict[str, Any]:
    return {"op": op, "sample": sample, "kind": kind, "detail": detail}


def test_an_operator_is_as_its_worst_sample() -> None:
    assert script.state_of([line("f", "ours"), line("f", "library")]) == "library"
    assert script.state_of([line("f", "fallback"), line("f", "wrong")]) == "wrong"
    assert script.state_of([line("f", "outside"), line("f", "ours")]) == "ours"
    assert script.state_of([line("f", "outside"), line("f", "refused")]) == "outside"
    assert set(KINDS) <= {*script.BAD, "ours", "library", "refused", "outside"}


def test_the_page_counts_and_says_why(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(script, "KEPT", tmp_path)
    lines = [
        line("f", "ours"),
        line("g", "library", "aten.g.default"),
        line("h", "fallback", "h cannot be\n  found     a | b"),
        line("k", "outside", "complex numbers"),
        line("f", "refused"),
    ]
    text = "".join(json.dumps(item) + "\n" for item in lines)
    (tmp_path / "float32.jsonl").write_text(text)
    page = script.render({"float32": script.read("float32")}, {"float32": 9}, {"s": "of a mistake"})
    assert "| samples judged | 4 of 9 |" in page
    assert "| of these, inside and compared | 3 |" in page
    assert "| bad indices, refused as eager does | 1 |" in page
    assert "| run | 2 (66.7 %) |" in page
    assert "| **wrong** | 0 |" in page
    assert "| `h` | float32 | 1 of 1 | h cannot be (a \\| b) |" in page
    assert "| `aten.g.default` | `g` |" in page
    assert "- complex numbers: `k`" in page
