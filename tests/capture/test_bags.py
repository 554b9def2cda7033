"""Bags of embeddings are sums of rows by our own loops: values, gradients, errors are eager's."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few

import tilewright as tw
from tilewright.base.errors import IndexRangeError

ROWS = 7
MATRIX = [[1, 2, 6], [0, 3, 3], [2, 6, 2], [5, 5, 5]]
LINE = [1, 2, 6, 0, 3, 3, 2, 6, 2, 5]

# name -> indices, offsets, and other arguments
CASES: dict[str, tuple[list[Any], list[int] | None, dict[str, Any]]] = {
    "a matrix": (MATRIX, None, {}),
    "a matrix, padded": (MATRIX, None, {"padding_idx": 2}),
    "a matrix, padded from behind": (MATRIX, None, {"padding_idx": -1}),
    "a bag of padding": (MATRIX, None, {"padding_idx": 5}),
    "bags of one": ([[3], [0]], None, {}),
    "offsets": (LINE, [0, 3, 4, 8], {}),
    "offsets of equal bags": (LINE, [0, 5], {}),
    "offsets, padded": (LINE, [0, 3, 4, 8], {"padding_idx": 6}),
    "empty bags": (LINE, [0, 0, 3, 3, 10, 10], {}),
    "one bag": (LINE, [0], {}),
    "nothing in any bag": ([], [0, 0, 0], {}),
    "ends": (LINE, [0, 3, 4, 8, 10], {"include_last_offset": True}),
    "an empty bag at the end": (LINE, [0, 3, 10, 10], {"include_last_offset": True}),
}
KEPT = ("a matrix", "a matrix, padded from behind", "offsets", "empty bags", "ends")


def outcome(
    function: Any, w: torch.Tensor, ids: torch.Tensor, offsets: Any, each: Any
) -> list[torch.Tensor]:
    y = function(w, ids, offsets, each)
    dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    asked = [value for value in (w, each) if value is not None]
    return [y, *torch.autograd.grad(y, asked, dy)]


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
@pytest.mark.parametrize("case", few(CASES, *KEPT))
def test_bags_and_their_gradients_are_eagers(case: str, mode: str, kind: torch.dtype) -> None:
    listed, begins, other = CASES[case]
    ids = torch.tensor(listed, dtype=kind)
    offsets = None if begins is None else torch.tensor(begins, dtype=kind)
    torch.manual_seed(0)
    w = torch.randn(ROWS, 5, dtype=torch.float64, requires_grad=True)
    each = torch.rand(ids.shape, dtype=torch.float64, requires_grad=True)
    weights = each if mode == "weighted" else None
    how = "sum" if mode == "weighted" else mode

    def bag(w: torch.Tensor, ids: torch.Tensor, offsets: Any, each: Any) -> torch.Tensor:
        return F.embedding_bag(ids, w, offsets, mode=how, per_sample_weights=each, **other)

    compiled = tw.compile(bag, w, ids, offsets, weights, options=tw.Options(library=False))
    expected = outcome(bag, w, ids, offsets, weights)
    for found, right in zip(outcome(compiled, w, ids, offsets, weights), expected, strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_of_bags_are_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    w, ids = torch.randn(50, 16).to(dtype), torch.randint(50, (6, 40))
    offsets = torch.tensor([0, 1, 100, 130])
    for at, begins in ((ids, None), (ids.flatten(), offsets)):
        compiled = tw.compile(lambda w, at, o: F.embedding_bag(at, w, o, mode="sum"), w, at, begins)
        found = compiled(w, at, begins).double()
        exact = F.embedding_bag(at, w.double(), begins, mode="sum")
        sizes = F.embedding_bag(at, w.double().abs(), begins, mode="sum")
        ulp = torch.finfo(dtype).eps / 2
        assert ((found - exact).abs() <= ulp * exact.abs() + 1e-6 * sizes).all()


def test_what_is_behind_the_last_end_is_in_no_bag() -> None:
    # As in eager's float32; its float64 adds it to the last bag, its gradients are not written.
    w, ids, ends = torch.randn(ROWS, 5), torch.tensor(LINE), torch.tensor([0, 3, 4, 8])

    def bag(w: torch.Tensor, ids: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(ids, w, ends, mode="sum", include_last_offset=True)

    torch.testing.assert_close(tw.compile(bag, w, ids, ends)(w, ids, ends), bag(w, ids, ends))


@pytest.mark.parametrize("bad", [-1, ROWS])
@pytest.mark.parametrize("offsets", [None, torch.tensor([0, 3])])
def test_an_index_that_is_no_row_is_an_error(bad: int, offsets: torch.Tensor | None) -> None:
    w, ids = torch.randn(ROWS, 5), torch.tensor(MATRIX)
    ids = ids if offsets is None else ids.flatten()

    def bag(w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(ids, w, offsets, mode="sum")

    compiled = tw.compile(bag, w, ids)
    ids.flatten()[4] = bad
    with pytest.raises(IndexRangeError):
        compiled(w, ids)


def test_how_long_bags_are_is_torchs_to_say() -> None:
    w, ids, offsets = torch.randn(ROWS, 5), torch.tensor(LINE), torch.tensor([0, 3, 4, 8])

    def sizes(w: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> Any:
        y, _, size, _ = torch.embedding_bag(w, ids, offsets, False, 0, False, None, False, None)
        return y, size

    found = tw.compile(sizes, w, ids, offsets)(w, ids, offsets)
    for ours, right in zip(found, sizes(w, ids, offsets), strict=True):
        torch.testing.assert_close(ours, right)


def test_largest_elements_and_bags_of_sizes_that_vary_stay_torchs() -> None:
    w = torch.randn(ROWS, 5, requires_grad=True)
    ids, offsets = torch.tensor(LINE), torch.tensor([0, 3, 4, 8])

    def bag(w: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(ids, w, offsets, mode="max")

    assert "library" in tw.compile(bag, w, ids, offsets).explain()
    layer = torch.nn.EmbeddingBag(ROWS, 5, mode="sum")
    compiled = torch.compile(layer, backend="tilewright", dynamic=True)
    for length in (10, 8, 9):
        found = compiled(ids[:length], offsets[: length - 6])
        torch.testing.assert_close(found, layer(ids[:length], offsets[: length - 6]))
