"""Forward mode of every operator equals torch's in float64, on the samples of reverse mode."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright.autodiff import forward
from tilewright.ops import Operator, Sample

from .cases import Array, Case, in_torch, make, parameters, run, to_numpy, to_torch

TOLERANCE = 1e-12


def changes(case: Case) -> list[Array]:
    """Return a change for each operand that has one."""
    generator = np.random.default_rng(3)
    wanted = [array for array, want in zip(case.inputs, case.wanted, strict=True) if want]
    return [generator.standard_normal(array.shape) for array in wanted]


def our_changes(case: Case, along: Sequence[Array]) -> list[Array | None]:
    """Return the change of each result; None where it has none."""
    values = case.graph.inputs
    wrt = [value.name for value, want in zip(values, case.wanted, strict=True) if want]
    pushed = forward(case.graph, wrt)
    given = dict(zip((value.name for value in values), case.inputs, strict=True))
    types = {value.name: value.type for value in pushed.graph.inputs}
    for name, change in zip(pushed.tangents, along, strict=True):
        given[name] = change.astype(types[name].dtype.numpy)
    found = run(pushed.graph, given)
    return [None if at is None else np.asarray(found[at]) for at in pushed.changes]


def torch_changes(case: Case, along: Sequence[Array]) -> list[Array]:
    """Return the changes by torch."""
    tensors = [to_torch(array) for array in case.inputs]
    moved = iter(along)
    # Of attention's kernels, the one of plain operators alone has a forward derivative.
    with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
        duals = [
            forward_ad.make_dual(tensor, to_torch(next(moved)).to(tensor.dtype)) if want else tensor
            for tensor, want in zip(tensors, case.wanted, strict=True)
        ]
        made = [forward_ad.unpack_dual(result) for result in in_torch(case, duals)]
    return [np.zeros(primal.shape) if t is None else to_numpy(t) for primal, t in made]


def torch_by_reverse(case: Case, along: Sequence[Array]) -> list[Array]:
    """Return the changes by torch's reverse mode, one row of the Jacobian after the other."""
    tensors = [to_torch(array) for array in case.inputs]
    leaves = [t.requires_grad_() for t, want in zip(tensors, case.wanted, strict=True) if want]
    directions = [to_torch(change) for change in along]
    found = []
    for result in in_torch(case, tensors):
        change = np.zeros(result.shape)
        for at in np.ndindex(*result.shape) if result.requires_grad else ():
            rows = torch.autograd.grad(result[at], leaves, retain_graph=True, allow_unused=True)
            pairs = [(g, v) for g, v in zip(rows, directions, strict=True) if g is not None]
            change[at] = sum(float((g * v).sum()) for g, v in pairs)
        found.append(change)
    return found


# Torch's own two modes differ at a tie or an infinity: ours are one derivative, that of reverse.
DIFFERS = {"fmax", "fmin", "clamp_min", "clamp_max", "prelu"}
# Torch has no forward mode.
NO_FORWARD = {"cdist", "grid_sample", "multi_margin_loss"}


@pytest.mark.parametrize(("operator", "sample"), parameters(eager_only=True))
def test_forward_mode_equals_torch(operator: Operator, sample: Sample) -> None:
    case = make(operator, sample)
    if not any(case.wanted):
        return
    along = changes(case)
    if operator.name == "logcumsumexp" and "inf" in str(sample.inputs):
        return  # the sum of nothing: its change is NaN by reverse mode, 0 by torch's forward mode
    reverse = operator.name in DIFFERS | NO_FORWARD
    wanted = (torch_by_reverse if reverse else torch_changes)(case, along)
    for ours, theirs in zip(our_changes(case, along), wanted, strict=False):
        if theirs.dtype.kind == "f":
            shown = np.zeros(theirs.shape) if ours is None else ours
            np.testing.assert_allclose(shown, theirs, rtol=TOLERANCE, atol=TOLERANCE)
