"""Attention against a plain computation in float64: both results, masks, shared heads, halves."""

import numpy as np
import pytest
import torch

from tilewright.autodiff import reverse
from tilewright.base.dtypes import BF16, BOOL, F32, F64, DType
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Graph, TensorType
from tilewright.ops import composites, emit, expand_where

Array = np.ndarray


def graph_of(arrays: list[tuple[Array, DType]], **attrs: bool | float) -> Graph:
    builder = Builder()
    operands = [builder.input("x", TensorType(array.shape, dtype)) for array, dtype in arrays]
    causal, scale = bool(attrs.get("causal", False)), attrs.get("scale")
    made = emit(builder, "attention", *operands, causal=causal, scale=scale)
    assert isinstance(made, tuple), "attention has two results"
    return builder.finish(made)


def run(graph: Graph, arrays: list[Array]) -> tuple[Array, ...]:
    while chosen := composites(graph):
        graph = expand_where(graph, chosen)
    return evaluate(graph, arrays)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def plain(q: Array, k: Array, v: Array, bias: Array, scale: float) -> tuple[Array, Array]:
    scores = q @ np.swapaxes(k, -1, -2) * scale + bias
    total = np.log(np.sum(np.exp(scores), -1))
    return np.exp(scores - total[..., None]) @ v, total


@pytest.mark.parametrize("causal", [False, True])
def test_both_results_equal_the_plain_computation(causal: bool) -> None:
    q, k, v = drawn(2, 3, 5, 4), drawn(2, 3, 6, 4), drawn(2, 3, 6, 7)
    bias = np.where(np.tri(5, 6, dtype=bool) if causal else np.ones((5, 6), bool), 0.0, -np.inf)
    found = run(graph_of([(x, F64) for x in (q, k, v)], causal=causal), [q, k, v])
    for ours, wanted in zip(found, plain(q, k, v, bias, 0.5), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-13)


def test_a_row_masked_everywhere_gives_zeros_and_no_gradient() -> None:
    q, k, v = drawn(1, 2, 4), drawn(1, 3, 4), drawn(1, 3, 4)
    mask = np.array([[True, False, True], [False, False, False]])
    graph = graph_of([(q, F64), (k, F64), (v, F64), (mask, BOOL)])
    out, total = run(graph, [q, k, v, mask])
    assert (out[0, 1] == 0).all()
    assert total[0, 1] == -np.inf
    names = [value.name for value in graph.inputs[:3]]
    joint = reverse(graph, names, of=[0])
    given = [q, k, v, mask, np.ones_like(out)]
    found = run(joint.graph, given)
    dq = found[joint.gradients[0] or 0]
    assert np.isfinite(dq).all()
    assert (dq[0, 1] == 0).all()


def test_shared_heads_equal_repeated_ones() -> None:
    q, k, v = drawn(2, 6, 3, 4), drawn(2, 2, 5, 4), drawn(2, 2, 5, 4)
    shared = run(graph_of([(x, F64) for x in (q, k, v)]), [q, k, v])
    wide = [q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1)]
    repeated = run(graph_of([(x, F64) for x in wide]), wide)
    for ours, wanted in zip(shared, repeated, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-13)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_narrow_types_are_computed_in_float32(dtype: DType) -> None:
    arrays = [x.astype(dtype.numpy) for x in (drawn(2, 8, 4), drawn(2, 8, 4), drawn(2, 8, 4))]
    graph = graph_of([(x, dtype) for x in arrays])
    assert [value.type.dtype for value in graph.outputs] == [dtype, F32]
    out, _ = run(graph, arrays)
    wide = [x.astype(np.float64) for x in arrays]
    exact, _ = plain(wide[0], wide[1], wide[2], np.zeros((8, 8)), 0.5)
    narrow = [torch.tensor(x).to(getattr(torch, dtype.torch_name)) for x in wide]
    eager = torch.nn.functional.scaled_dot_product_attention(narrow[0], narrow[1], narrow[2])
    theirs = np.abs(eager.double().numpy() - exact).max()
    assert np.abs(out.astype(np.float64) - exact).max() <= 2 * theirs + 1e-7
