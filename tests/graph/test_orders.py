"""The order of dims in memory is that of torch's strides, and has one spelling."""

import itertools

import pytest
import torch

from tilewright.base.sizes import Limits, Sizes
from tilewright.graph.orders import canonical, is_row_major, order_of


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 3), (1, 1, 3, 2), (1, 1, 1, 1)])
def test_the_order_of_a_permuted_tensor_is_the_permutation(
    order: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    x = torch.empty([shape[dim] for dim in order]).permute([order.index(dim) for dim in range(4)])
    found = order_of(shape, x.stride())
    assert found == canonical(order, shape)
    assert x.permute(found).is_contiguous()
    assert is_row_major(found) == x.is_contiguous()


def test_memory_that_is_left_out_or_shared_has_no_order() -> None:
    whole = torch.empty(4, 6)
    for x in (whole[:, ::2], whole[:, :5], whole[:1].expand(4, 6), whole.expand(2, 4, 6)):
        assert order_of(tuple(x.shape), x.stride()) is None
    assert order_of((0, 3), (1, 1)) is None
    assert order_of((2, 3), (1,)) is None
    assert order_of((), ()) == ()


def test_sizes_that_vary_have_no_order_and_nothing_is_assumed_of_them() -> None:
    sizes = Sizes({"n_0": 4}, {"n_0": Limits(2, 8)})
    before = sizes.describe()
    assert order_of((sizes.size("n_0"), 3), (1, 4)) is None
    assert order_of((4, 3), (1, sizes.size("n_0"))) is None
    assert sizes.describe() == before
