"""Values that are put one after another are made where they go, where kernels of loops make all."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tilewright as tw
from tilewright.program import Launch, steps

OURS = tw.Options(library=False, verify=True)
LEFT, RIGHT = (6, 40, 9), (6, 8, 40)


def given(*shapes: tuple[int, ...]) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=source) for shape in shapes]


def total(x: Tensor) -> Tensor:
    return x.exp().sum(-1)


def most(x: Tensor) -> Tensor:
    return x.amax(-2)


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = total(x)
    return torch.cat((first, most(y)), -1), first.sum(0)


def twice(x: Tensor, y: Tensor) -> Tensor:
    first = total(x)
    return torch.cat((first, most(y), first), 1)


def handed_out(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = total(x)
    return torch.cat((first, most(y)), 1), first


def in_two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first, second = total(x), most(y)
    return torch.cat((first, second), 1), torch.cat((second, first), 0)


def followed(x: Tensor, y: Tensor) -> Tensor:
    whole = torch.cat((total(x), most(y)), 0)
    return whole @ whole.T


# What is joined, and how many kernels are launched for it.
CASES: dict[str, tuple[Callable[..., object], list[Tensor], int]] = {
    "last dim": (lambda x, y: torch.cat((total(x), most(y)), -1), given(LEFT, (6, 8, 70)), 2),
    "first dim": (lambda x, y: torch.cat((total(x), most(y)), 0), given(LEFT, (3, 8, 40)), 2),
    "middle": (
        lambda x, y, z: torch.cat((total(x), most(y), total(z)), 1),
        given((2, 3, 40, 9), (2, 1, 8, 40), (2, 5, 40, 9)),
        3,
    ),
    "one row": (lambda x, y: torch.cat((total(x), most(y)), -1), given((1, 40, 9), (1, 8, 30)), 2),
    "one element": (lambda x, y: torch.cat((total(x), most(y)), 1), given(LEFT, (6, 8, 1)), 2),
    "read again": (both, given(LEFT, RIGHT), 3),
    "followed": (followed, given(LEFT, RIGHT), 3),
    # Where a part lies elsewhere too, or is given, it is copied.
    "twice": (twice, given(LEFT, RIGHT), 3),
    "handed out": (handed_out, given(LEFT, RIGHT), 3),
    "given": (lambda x, y: torch.cat((total(x), y), 1), given(LEFT, (6, 40)), 2),
    "in two": (in_two, given(LEFT, RIGHT), 3),
}


def tensors(result: object) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]  # type: ignore[list-item]


@pytest.mark.parametrize("name", CASES)
def test_parts_of_a_whole_are_right_and_copied_only_where_they_have_to_be(name: str) -> None:
    function, operands, launches = CASES[name]
    compiled = tw.compile(function, *operands, options=OURS)
    assert sum(isinstance(step, Launch) for step in steps(compiled.program)) == launches
    exact = tensors(function(*(x.double() for x in operands)))
    for made, expected in zip(tensors(compiled(*operands)), exact, strict=True):
        torch.testing.assert_close(made.double(), expected, rtol=1e-5, atol=1e-5)


def test_special_values_keep_their_places() -> None:
    function, (x, y), _ = CASES["last dim"]
    x, y = x.clone(), y.clone()
    x[0, 3, 0], x[1, 2, 0], y[2, 5, 7] = torch.nan, torch.inf, -torch.inf
    y[3, :, 4] = torch.nan
    (made,) = tensors(tw.compile(function, x, y, options=OURS)(x, y))
    (expected,) = tensors(function(x, y))
    torch.testing.assert_close(made, expected, equal_nan=True)
