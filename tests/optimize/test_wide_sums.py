"""Sums of half types that meet where an index says are formed in float32, and rounded once."""

from collections.abc import Callable, Iterator

import pytest
import torch

import tilewright as tw
from tilewright.optimize import WideSums

from .test_passes import assert_rewrites

HALVES = [torch.bfloat16, torch.float16]
SHAPES = [(9, 40, 17), (3, 1, 1), (5, 0, 4), (1, 300, 64), (64, 64, 3)]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_they_get_a_value_of_their_own() -> None:
    assert_rewrites(
        WideSums(),
        """graph g(%x : bf16[9, 4], %t : i64[9], %z : bf16[5, 4]) {
          %y = {y[t[r<9], d<4] += x[r, d] from z}(%t, %x, %z) : bf16[5, 4]
          %s = {y[d<4] += y_[r<5, d]}(%y) : bf16[4]
          return %y, %s
        }""",
        """graph g(%x : bf16[9, 4], %t : i64[9], %z : bf16[5, 4]) {
          %y_wide = {y[t[r<9], d<4] += x[r, d] from z}(%t, %x, %z) : f32[5, 4]
          %y = {y[i0<5, i1<4] = x[i0, i1]}(%y_wide) : bf16[5, 4]
          %s = {y[d<4] += y_[r<5, d]}(%y) : bf16[4]
          return %y, %s
        }""",
        bits=False,
    )


def added(x: torch.Tensor, ids: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, ids, src)


def scattered(x: torch.Tensor, ids: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return x.scatter_add(0, ids[:, None].expand_as(src), src)


def put(x: torch.Tensor, ids: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return x.index_put((ids,), src, accumulate=True)


@pytest.mark.parametrize("fn", [added, scattered, put])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_sum_is_rounded_once(
    fn: Callable[..., torch.Tensor], dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    rows, terms, width = shape
    draw = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, width, generator=draw).to(dtype)
    src = torch.randn(width, terms, generator=draw).to(dtype).mT  # not contiguous
    ids = torch.randint(rows, (terms,), generator=draw)
    if terms:
        src[0, 0], src[-1, -1] = float("nan"), float("inf")
    compiled, found = tw.compile(fn, x, ids, src), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(compiled(x, ids, src))
    assert all(torch.equal(found[0].view(torch.int16), y.view(torch.int16)) for y in found)
    exact = fn(x.double(), ids, src.double())
    step = torch.finfo(dtype).eps
    size = fn(x.double().abs(), ids, src.double().abs())
    torch.testing.assert_close(found[0].double().isnan(), exact.isnan())
    off = (found[0].double() - exact).abs() - step / 2 * exact.abs() - 1e-5 * size - 1e-7
    assert (off[exact.isfinite()] <= 0).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_the_gradient_of_an_embedding_is_no_further_off_than_one_rounding(
    dtype: torch.dtype,
) -> None:
    table = torch.randn(7, 33).to(dtype).requires_grad_()
    ids = torch.tensor([[3, 3, 0], [6, 3, 3]])
    tangent = torch.randn(2, 3, 33).to(dtype)
    compiled = tw.compile(lambda t, i: torch.nn.functional.embedding(i, t), table, ids)
    (found,) = torch.autograd.grad(compiled(table, ids), table, tangent)
    exact = torch.zeros(7, 33, dtype=torch.float64).index_add(
        0, ids.flatten(), tangent.double().flatten(0, 1)
    )
    off = (found.double() - exact).abs() - torch.finfo(dtype).eps / 2 * exact.abs()
    assert (off <= 1e-6).all()
