"""What may refuse its operands does so before anything is written into an input."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tilewright as tw
from tilewright.base.errors import IndexRangeError, IntegerDivisionError
from tilewright.compiler import Options

ROWS = 64


def _after(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """Writes, and then reads at indices that are given."""
    cache.mul_(2)
    return x[at] * 3


def _computed(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """Reads at indices that are made of what was written."""
    cache.add_(1)
    return x[(cache[0, 0].to(torch.int64) * 0 + at)]


def _itself(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """Adds rows in the place where it writes."""
    cache.add_(x[at])
    return cache.sum()


def _scattered(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache.index_add_(0, at, x[: at.shape[0]])
    return cache * 2


def _put(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache[at] = x[: at.shape[0]]
    return cache.sum()


def _masked(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """Refuses only what it takes."""
    cache.mul_(2)
    return torch.nn.functional.cross_entropy(x, at, ignore_index=10**6)


CASES: list[Callable[..., Tensor]] = [_after, _computed, _itself, _scattered, _put, _masked]


@pytest.mark.parametrize("options", [Options(), Options(library=False, verify=True)])
@pytest.mark.parametrize("function", CASES)
def test_a_call_that_is_refused_has_written_nothing(
    function: Callable[..., Tensor], options: Options
) -> None:
    torch.manual_seed(1)
    cache, x = torch.randn(ROWS, 700), torch.randn(ROWS, 700)
    at = torch.randperm(ROWS)
    compiled = tw.compile(function, cache.clone(), x, at, options=options)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2) * 5:
            torch.set_num_threads(threads)
            for place, value in ((-1, 10**5), (0, -(10**5)), (ROWS // 2, 10**5)):
                bad, mine = at.clone(), cache.clone()
                bad[place] = value
                with pytest.raises(IndexRangeError):
                    compiled(mine, x, bad)
                assert torch.equal(mine, cache)
            mine, eager = cache.clone(), cache.clone()
            torch.testing.assert_close(compiled(mine, x, at), function(eager, x, at))
            torch.testing.assert_close(mine, eager)
    finally:
        torch.set_num_threads(before)


def test_what_is_masked_is_not_looked_at() -> None:
    cache, x, at = torch.randn(8, 8), torch.randn(8, 8), torch.arange(8)
    at[3] = 10**6
    compiled = tw.compile(_masked, cache.clone(), x, at)
    eager = cache.clone()
    torch.testing.assert_close(compiled(cache, x, at), _masked(eager, x, at))
    torch.testing.assert_close(cache, eager)


def test_a_divisor_is_looked_at_before_what_is_written() -> None:
    def function(cache: Tensor, a: Tensor, b: Tensor) -> Tensor:
        cache.add_(1)
        return a // b

    cache, a, b = torch.randn(40_000), torch.arange(40_000), torch.arange(1, 40_001)
    compiled = tw.compile(function, cache.clone(), a, b)
    found, kept = compiled(cache, a, b), cache.clone()
    assert torch.equal(found, a // b)
    b[-1] = 0
    for _ in range(5):
        with pytest.raises(IntegerDivisionError):
            compiled(cache, a, b)
        assert torch.equal(cache, kept)


def test_what_was_looked_at_before_costs_nothing() -> None:
    """The table's gradient asks what reading the table asked: its update stays where it is."""
    model = torch.nn.Sequential(torch.nn.Embedding(40, 32), torch.nn.Linear(32, 7))
    ids, targets = torch.arange(12), torch.zeros(12, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = tw.train_step(model, torch.nn.functional.cross_entropy, optimizer, ids, targets)
    told = step.explain()
    assert "allowed_indices" not in told
    assert "is written at the end" not in told


def test_where_sizes_vary_a_refused_call_has_written_nothing() -> None:
    compiled = torch.compile(_after, backend="tilewright", dynamic=True)
    for rows in (5, 9, 3000):
        cache, x, at = torch.randn(rows, 6), torch.randn(rows, 6), torch.arange(rows)
        eager = cache.clone()
        torch.testing.assert_close(compiled(cache, x, at), _after(eager, x, at))
        torch.testing.assert_close(cache, eager)
        at[-1] = rows
        with pytest.raises(IndexRangeError):
            compiled(cache, x, at)
        assert torch.equal(cache, eager)


def test_indices_that_stay_are_looked_at_once() -> None:
    class Places(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("at", torch.arange(8).flip(0))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x[self.at] * self.calls

    module, x = Places(), torch.randn(8, 3)
    compiled = tw.compile(module, x, options=Options(frozen=True))
    for k in range(3):
        torch.testing.assert_close(compiled(x), x.flip(0) * (k + 1))
    module.at[0] = 8
    with pytest.raises(IndexRangeError):
        compiled(x)
    assert module.calls == 3


def test_a_large_cache_is_written_where_it_is_though_what_is_drawn_from_it_may_refuse() -> None:
    def decode(cache: Tensor, x: Tensor, position: Tensor, experts: Tensor) -> Tensor:
        here = (torch.arange(cache.shape[0]) == position)[:, None]
        cache.copy_(torch.where(here, x, cache))
        weights = torch.softmax(cache[:64] @ x[0], 0)
        return experts[weights.topk(2).indices] @ x[0]

    torch.manual_seed(0)
    for rows, in_place in ((64, False), (4096, True)):
        cache, position = torch.randn(rows, 32), torch.tensor([3])
        given = torch.randn(1, 32), position, torch.randn(64, 8, 32)
        reference = cache.clone()
        compiled = tw.compile(decode, cache, *given)
        torch.testing.assert_close(compiled(cache, *given), decode(reference, *given))
        torch.testing.assert_close(cache, reference)
        assert ("is written at the end" not in compiled.explain()) == in_place
