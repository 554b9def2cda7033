"""Which kernels of a model write their results past the caches, and that `explain` says so."""

import pytest
import torch

import tilewright as tw
from tilewright.compiler.choices import last_cache

PAST = ", past the caches"
OPTIONS = tw.Options(verify=True)  # compiled here, not looked up


def of_caches(share: float) -> torch.Tensor:
    """Return a tensor that holds so many times what the last cache does; nobody touches it."""
    return torch.empty(int(share * last_cache(OPTIONS)) // 4096, 1024)


def explained(function: object, x: torch.Tensor) -> str:
    return str(tw.compile(function, x, options=OPTIONS).explain())  # type: ignore[call-overload]


@pytest.mark.parametrize("function", [torch.neg, torch.clone, lambda x: x.softmax(-1)])
def test_a_result_that_no_cache_holds_is_written_past_them(function: object) -> None:
    assert PAST in explained(function, of_caches(1.5))
    assert PAST not in explained(function, of_caches(0.4))


def test_an_update_in_place_is_written_where_it_was_read() -> None:
    assert PAST not in explained(lambda x: x.mul_(2), of_caches(1.5))
