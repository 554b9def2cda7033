"""Reverse mode of every operator equals torch's in float64, and finite differences where smooth."""

import numpy as np
import pytest
import torch

from tilewright.autodiff import reverse
from tilewright.base.dtypes import F64, I64
from tilewright.graph.build import Builder
from tilewright.graph.ir import TensorType
from tilewright.ops import Operator, Sample
from tilewright.ops.operator import write

from .cases import Array, Case, expanded, in_torch, make, parameters, run, to_numpy, to_torch

TOLERANCE = 1e-12


def tangents(case: Case) -> list[Array]:
    generator = np.random.default_rng(1)
    return [
        generator.standard_normal(
            tuple(int(dim) for dim in value.type.shape if isinstance(dim, int))
        )
        for value in case.graph.outputs
    ]


def our_gradients(case: Case, of: list[int], seeds: list[Array]) -> list[Array]:
    """Return the gradient of every operand asked for (zeros where nothing depends on it)."""
    values = case.graph.inputs
    wrt = [value.name for value, want in zip(values, case.wanted, strict=True) if want]
    joint = reverse(case.graph, wrt, of=of)
    given = dict(zip((value.name for value in values), case.inputs, strict=True))
    for position, name in joint.tangents:
        dtype = case.graph.outputs[position].type.dtype
        given[name] = seeds[position].astype(dtype.numpy)
    found = run(joint.graph, given)
    shapes = [array.shape for array, want in zip(case.inputs, case.wanted, strict=True) if want]
    return [
        np.zeros(shape) if position is None else np.asarray(found[position])
        for shape, position in zip(shapes, joint.gradients, strict=True)
    ]


def torch_gradients(case: Case, seeds: list[Array]) -> tuple[list[int], list[Array]]:
    """Return which outputs torch differentiates, and the gradients."""
    tensors = [to_torch(array) for array in case.inputs]
    leaves = [t.requires_grad_() for t, want in zip(tensors, case.wanted, strict=True) if want]
    made = in_torch(case, tensors)
    of = [at for at, result in enumerate(made) if result.requires_grad]
    if not of:
        return [], [np.zeros(leaf.shape) for leaf in leaves]
    gradients = torch.autograd.grad(
        [made[at] for at in of],
        leaves,
        [torch.tensor(seeds[at]).to(made[at].dtype) for at in of],
        allow_unused=True,
    )
    return of, [
        np.zeros(leaf.shape) if gradient is None else to_numpy(gradient)
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


@pytest.mark.parametrize(("operator", "sample"), parameters(eager_only=True))
def test_reverse_mode_equals_torch(operator: Operator, sample: Sample) -> None:
    case = make(operator, sample)
    if not any(case.wanted):
        return
    seeds = tangents(case)
    of, wanted = torch_gradients(case, seeds)
    floating = [at for at, v in enumerate(case.graph.outputs) if v.type.dtype.kind == "float"]
    found = our_gradients(case, of or floating, seeds)
    # A conversion to a narrower type rounds the tangent too, in torch as here.
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def is_smooth(operator: Operator, sample: Sample) -> bool:
    """Whether a finite difference of this sample means anything: drawn operands, no kinks."""
    literal = any(isinstance(item, str) and "=" in item and "f[" in item for item in sample.inputs)
    if literal or operator.name in ROUGH or dict(sample.attrs).get("padding_idx", -1) != -1:
        return False
    case = make(operator, sample)
    floats = all(v.type.dtype in (F64,) for v in case.graph.outputs if v.type.dtype.kind == "float")
    some = any(value.type.dtype.kind == "float" for value in case.graph.outputs)
    return any(case.wanted) and floats and some and not _is_nan(case)


def _is_nan(case: Case) -> bool:
    """Whether the mean of no rows was taken."""
    return any(bool(np.isnan(array).any()) for array in run(case.graph, case.inputs))


# Steps, and operators whose gradient is not the derivative by design.
ROUGH = {"floor_divide", "remainder", "fmod", "sign", "floor", "ceil", "trunc", "round",
         "stop_gradient", "index_put", "scatter", "hardsigmoid"}  # fmt: skip
# attention's second result and batch norm's statistics carry no gradient in the override.
FIRST_ONLY = {"attention", "batch_norm"}
SMOOTH = [item for item in parameters() if is_smooth(*item.values[:2])]  # type: ignore[arg-type]


@pytest.mark.parametrize(("operator", "sample"), SMOOTH)
def test_reverse_mode_equals_finite_differences(operator: Operator, sample: Sample) -> None:
    case = make(operator, sample)
    seeds, of = tangents(case), list(range(len(case.graph.outputs)))
    of = [at for at in of if case.graph.outputs[at].type.dtype.kind == "float"]
    of = of[:1] if operator.name in FIRST_ONLY else of
    found = iter(our_gradients(case, of, seeds))
    graph = expanded(case.graph)
    generator = np.random.default_rng(2)
    step = 1e-6

    def weighted(inputs: list[Array]) -> float:
        results = run(graph, inputs)
        return float(sum(np.sum(results[at] * seeds[at]) for at in of))

    for at, want in enumerate(case.wanted):
        if not want:
            continue
        direction = generator.standard_normal(case.inputs[at].shape)
        ends = []
        for sign in (1, -1):
            moved = list(case.inputs)
            moved[at] = moved[at] + sign * step * direction
            ends.append(weighted(moved))
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(np.sum(next(found) * direction), slope, rtol=2e-6, atol=2e-8)


@pytest.mark.parametrize(
    "value", ["x[t[i]] if t[i] >= 0 else 0", "0 if t[i] < 0 else x[t[i]] * x[t[i]]"]
)
def test_what_a_select_guards_is_no_place_for_a_gradient_either(value: str) -> None:
    builder = Builder()
    x = builder.input("x", TensorType((3,), F64))
    t = builder.input("t", TensorType((4,), I64))
    y = write(builder, f"y[i] = {value}", x=x, t=t)
    joint = reverse(builder.finish((y,)), ["x"])
    arrays = [np.array([1.0, 2.0, 0.5]), np.array([0, -1, 2, 2]), np.ones(4)]
    gradient = run(joint.graph, arrays)[joint.gradients[0] or 0]
    assert gradient.tolist() == ([1, 0, 2] if "if t[i] >=" in value else [2, 0, 2])
