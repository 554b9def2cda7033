"""A function compiled, and the assertion that it is as in eager."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tests.conformance.seen import Case, compare, exact, run

Tensor = torch.Tensor


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn, backend="tilewright", dynamic=False)


def agree(fn: Callable[..., Any], *tensors: Tensor) -> None:
    """Assert that nothing a caller can see is other than in eager, twice."""
    case = Case(fn, tensors)
    ours = compiled(fn)
    for _ in range(2):
        eager = run(fn, case)
        assert eager.error is None, eager.error
        found = run(ours, case)
        assert compare(found, eager, partial(exact, case, eager)) == ""


def asking(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)
