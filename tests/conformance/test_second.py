"""Derivatives of derivatives: reverse of reverse, and forward of reverse, equal torch's."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.versions import OLD_TORCH
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright.autodiff import forward, reverse
from tilewright.autodiff.reverse import Joint
from tilewright.ops import Operator, Sample

from .cases import Array, Case, in_torch, make, parameters, run, to_numpy, to_torch
from .test_gradients import ROUGH, tangents

TOLERANCE = 1e-11


def wrt_of(case: Case) -> list[str]:
    return [v.name for v, want in zip(case.graph.inputs, case.wanted, strict=True) if want]


def first(case: Case, of: Sequence[int]) -> Joint:
    return reverse(case.graph, wrt_of(case), of=list(of))


def given(case: Case, joint: Joint, seeds: Sequence[Array]) -> dict[str, Array]:
    found = dict(zip((v.name for v in case.graph.inputs), case.inputs, strict=True))
    types = {v.name: v.type for v in joint.graph.inputs}
    for position, name in joint.tangents:
        found[name] = seeds[position].astype(types[name].dtype.numpy)
    return found


def in_torch_twice(
    case: Case, seeds: Sequence[Array], weights: Sequence[Array]
) -> tuple[list[int], list[Array]]:
    """Return the differentiated outputs, and the gradient of sum(weights * gradients)."""
    tensors = [to_torch(array) for array in case.inputs]
    leaves = [t.requires_grad_() for t, want in zip(tensors, case.wanted, strict=True) if want]
    with sdpa_kernel(SDPBackend.MATH):
        made = in_torch(case, tensors)
        of = [at for at, result in enumerate(made) if result.requires_grad]
        zeros = [np.zeros(leaf.shape) for leaf in leaves]
        if not of:
            return of, zeros
        cotangents = [torch.tensor(seeds[at]).to(made[at].dtype) for at in of]
        found = torch.autograd.grad(
            [made[at] for at in of], leaves, cotangents, create_graph=True, allow_unused=True
        )
        total = sum(
            (g * torch.tensor(w)).sum()
            for g, w in zip(found, weights, strict=True)
            if g is not None and g.requires_grad
        )
        if not isinstance(total, torch.Tensor):
            return of, zeros
        second = torch.autograd.grad(total, leaves, allow_unused=True)
    return of, [z if g is None else to_numpy(g + 0.0) for z, g in zip(zeros, second, strict=True)]


def is_smooth(operator: Operator, sample: Sample) -> bool:
    """Whether torch itself has a second derivative to compare with."""
    literal = any(isinstance(item, str) and "=" in item and "f[" in item for item in sample.inputs)
    return (not literal or operator.name == "prod") and operator.name not in ROUGH


SMOOTH = [item for item in parameters(eager_only=True) if is_smooth(*item.values[:2])]  # type: ignore[arg-type]


# Torch has no second derivative; forward of reverse is checked against reverse of reverse below.
NO_SECOND = {"cdist", "multi_margin_loss", *(("grid_sample",) if OLD_TORCH else ())}


@pytest.mark.parametrize(("operator", "sample"), SMOOTH)
def test_second_derivatives_equal_torch(operator: Operator, sample: Sample) -> None:
    case = make(operator, sample)
    if not any(case.wanted) or operator.name in NO_SECOND:
        return
    generator = np.random.default_rng(4)
    weights = [
        generator.standard_normal(array.shape)
        for array, want in zip(case.inputs, case.wanted, strict=True)
        if want
    ]
    seeds = tangents(case)
    of, wanted = in_torch_twice(case, seeds, weights)
    if not of:
        return
    joint = first(case, of)
    places = [at for at in joint.gradients if at is not None]
    along = [w for w, at in zip(weights, joint.gradients, strict=True) if at is not None]
    values = given(case, joint, seeds)
    twice = reverse(joint.graph, wrt_of(case), of=places)
    for position, name in twice.tangents:
        values[name] = along[places.index(position)]
    found = run(twice.graph, values)
    for at, theirs in zip(twice.gradients, wanted, strict=True):
        ours = np.zeros(theirs.shape) if at is None else found[at]
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(("operator", "sample"), SMOOTH)
def test_forward_of_reverse_is_reverse_of_reverse(operator: Operator, sample: Sample) -> None:
    """The Hessian is symmetric: u (H v) by forward of reverse is v (H u) by reverse of reverse."""
    case = make(operator, sample)
    of = [at for at, v in enumerate(case.graph.outputs) if v.type.dtype.kind == "float"][:1]
    if not any(case.wanted) or not of:
        return
    seeds, generator = tangents(case), np.random.default_rng(5)
    joint = first(case, of)
    places = [at for at in joint.gradients if at is not None]
    names = [n for n, at in zip(joint.wrt, joint.gradients, strict=True) if at is not None]
    values = given(case, joint, seeds)
    shapes = [values[name].shape for name in names]
    v, u = ([generator.standard_normal(shape) for shape in shapes] for _ in range(2))
    pushed = forward(joint.graph, names)
    found = run(pushed.graph, {**values, **dict(zip(pushed.tangents, v, strict=True))})
    left = _paired(u, [pushed.changes[at] for at in places], found)
    twice = reverse(joint.graph, names, of=places)
    more = {name: u[places.index(at)] for at, name in twice.tangents}
    right = _paired(v, twice.gradients, run(twice.graph, {**values, **more}))
    np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-10)


def _paired(
    weights: Sequence[Array], places: Sequence[int | None], found: Sequence[Array]
) -> float:
    return sum(
        float((w * found[at]).sum())
        for w, at in zip(weights, places, strict=True)
        if at is not None
    )
