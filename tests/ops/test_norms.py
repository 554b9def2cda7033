"""Norms: what their statistics survive, and what is said by default."""

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.base.dtypes import BF16, F16, F32, F64, DType
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Attr, TensorType
from tilewright.ops import TABLE, composites, expand_where
from tilewright.ops.operator import apply

Array = np.ndarray


def run(name: str, *arrays: Array, dtype: DType = F32, **attrs: Attr) -> tuple[Array, ...]:
    builder = Builder()
    operands = [builder.input("x", TensorType(array.shape, dtype)) for array in arrays]
    graph = builder.finish(apply(builder, TABLE[name], *operands, names=(), **attrs))  # type: ignore[arg-type]
    while chosen := composites(graph):
        graph = expand_where(graph, chosen)
    return evaluate(graph, [array.astype(dtype.numpy) for array in arrays])


@pytest.mark.parametrize("name", ["var", "std", "layer_norm", "batch_norm_fresh"])
def test_a_large_mean_does_not_cancel_the_variance(name: str) -> None:
    # A one-pass variance in float32 is wrong in every digit here.
    x = 4096.0 + np.random.default_rng(0).integers(-4, 5, (64, 32)) / 4
    exact = run(name, x, dtype=F64)[0]
    found = run(name, x)[0]
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("shape", [(3, 1), (3, 10), (2, 96), (2, 770), (2, 6, 385), (2, 4100)])
@pytest.mark.parametrize("dtype", [F64, F32, BF16])
def test_equal_elements_are_zero_without_their_mean(shape: tuple[int, ...], dtype: DType) -> None:
    # What the mean is rounded by is as large as a deviation of sqrt(eps).
    for value in (0.1, 1 / 3, -7.77, 12345.678):
        x = np.full(shape, value)
        assert not run("layer_norm", x, dtype=dtype, dims=len(shape) - 1)[0].any()
        assert not run("group_norm", x, dtype=dtype, groups=1)[0].any()
        if dtype != F64:
            assert not run("batch_norm_fresh", x.T, dtype=dtype)[0].any()


@pytest.mark.parametrize("shape", [(3, 2), (3, 10), (96, 2), (2, 770), (2, 3, 385), (2, 4100)])
@pytest.mark.parametrize("dtype", [F64, F32, BF16])
@pytest.mark.parametrize("name", ["var", "std"])
def test_equal_elements_are_not_spread(name: str, shape: tuple[int, ...], dtype: DType) -> None:
    # Their sum is not always a multiple of one: a mean that is off by its last place is a
    # deviation.
    for value in (0.1, 1e4 / 3, -12345.678, 1e18):
        x = np.full(shape, value)
        for dims in (None, (0,), (1,), (-1,)):
            assert not run(name, x, dtype=dtype, dims=dims)[0].any()
            assert not run(name, x, dtype=dtype, dims=dims, correction=0)[0].any()


def test_one_element_far_from_all_others_keeps_the_variance() -> None:
    # The mean is summed from the first one.
    x = np.random.default_rng(0).standard_normal((8, 4000))
    for place in (0, 17):
        far = x.copy()
        far[:, place] = 1e6
        exact, found = (run("var", far, dtype=dtype, dims=(1,))[0] for dtype in (F64, F32))
        np.testing.assert_allclose(exact, far.var(1, ddof=1), rtol=1e-13)
        np.testing.assert_allclose(found, exact, rtol=1e-6)


@pytest.mark.parametrize("value", [1e9, 1e4, -1e4])
def test_one_element_far_from_all_others_keeps_the_gradient_of_the_variance(value: float) -> None:
    # It is in the mean, of which each element's distance is the gradient.
    x = torch.randn(3, 4000, generator=torch.Generator().manual_seed(0))
    x[:, 0] = value
    compiled = tw.compile(lambda x: x.var(1), x.clone().requires_grad_())
    found = []
    for variance, given in (
        (compiled, x),
        (lambda x: x.var(1), x),
        (lambda x: x.var(1), x.double()),
    ):
        given = given.clone().requires_grad_()
        found.append(torch.autograd.grad(variance(given).sum(), given)[0].double())
    ours, eager, exact = (gradient[:, 1:] for gradient in found)
    assert (ours - exact).norm() <= 1.1 * (eager - exact).norm()


def test_the_mean_that_is_taken_out_is_rounded_once() -> None:
    x = 1e4 + np.random.default_rng(0).standard_normal((64, 770))
    x = x.astype(np.float32).astype(np.float64)
    exact = run("layer_norm", x, dtype=F64)[0]
    found = run("layer_norm", x)[0]
    step = np.spacing(
        np.float32(1e4)
    )  # half of it for the mean, and the last place of what is left
    np.testing.assert_allclose(found, exact, rtol=0, atol=step)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_an_epsilon_not_given_is_that_of_the_type_computed_in(dtype: DType) -> None:
    x = np.full(4, 2.0**-6)
    eager = torch.nn.functional.rms_norm(torch.tensor(x).to(getattr(torch, dtype.torch_name)), (4,))
    found = run("rms_norm", x, dtype=dtype)[0].astype(np.float64)
    np.testing.assert_allclose(found, eager.double().numpy(), rtol=1e-7)


def test_the_softmax_of_large_numbers_is_finite_and_of_a_masked_row_nan() -> None:
    x = np.array([[1e4, 1e4, -np.inf], [-np.inf, -np.inf, -np.inf]])
    with np.errstate(invalid="ignore"):
        found = run("softmax", x, dim=1)[0]
    assert found[0].tolist() == [0.5, 0.5, 0.0]
    assert np.isnan(found[1]).all()


def test_running_statistics_take_the_unbiased_variance() -> None:
    x = np.random.default_rng(0).standard_normal((6, 3))
    mean, variance = np.zeros(3), np.ones(3)
    _, moved_mean, moved_variance = run("batch_norm", x, mean, variance, dtype=F64, momentum=0.25)
    np.testing.assert_allclose(moved_mean, 0.25 * x.mean(0), rtol=1e-14)
    np.testing.assert_allclose(moved_variance, 0.75 + 0.25 * x.var(0, ddof=1), rtol=1e-14)
