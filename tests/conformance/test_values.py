"""Every operator at the values where arithmetic is odd, against torch, and in kernels.

The idea: the operands that a sample leaves to chance are drawn from NaN, infinities, zeros of both
signs, denormals, huge numbers, kinks and ties; once with all of these, once without NaN, once
finite, since one NaN hides everything else in a sum.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.sweep import few

from tilewright.autodiff import reverse
from tilewright.base.dtypes import F64, DType
from tilewright.graph.build import Builder
from tilewright.graph.ir import TensorType
from tilewright.ops import Operator, Sample
from tilewright.ops.pointwise import ARITHMETIC, ELEMENTARY

from .cases import Array, Case, in_torch, make, parameters, put, run, to_numpy, to_torch

FINITE = (0.0, -0.0, 1.0, -1.0, 1.0, 2.0, 0.5, -0.5, 3.0, -3.0, 6.0, 1e-42, -1e-42, 20.5)
HUGE = (1e-38, 89.0, -104.0, np.inf, -np.inf)
MIXES = {"finite": FINITE, "infinite": FINITE + HUGE, "nan": (*FINITE, *HUGE, np.nan, np.nan)}

# Only the first operand is odd: torch rearranges what infinite weights enter (padding times them,
# scale and shift), and reads memory that is not its own at an infinite place of a grid.
FIRST = {
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "group_norm", "batch_norm_eval", "grid_sample",
}  # fmt: skip
# The last NaN of a window is the one that torch points at; ours is the first, as in argmax.
SEVERAL_NANS = {
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d",
}  # fmt: skip
# Where a value is already infinite or NaN, the same mathematics by other steps ends elsewhere: in
# the value itself...
OTHER_VALUES = {
    "attention": "torch's kernel rescales its sums as it goes along the keys",
}
# ... or in the gradient alone.
OTHER_GRADIENTS = {
    **OTHER_VALUES,
    "grid_sample": "a neighbour of weight 0 counts, or does not",
    "resize_linear": "a neighbour of weight 0 counts, or does not",
    "resize_bilinear": "a neighbour of weight 0 counts, or does not",
    "resize_trilinear": "a neighbour of weight 0 counts, or does not",
    "cdist": "torch takes a distance that is NaN for no distance",
    "scatter_max": "torch compares with the result, which a NaN never equals",
    "scatter_min": "torch compares with the result, which a NaN never equals",
    "prod": "torch divides the product by each factor; ours multiplies the others",
    "var": "torch subtracts an infinite mean; ours is counted from the first element, and NaN",
    "layer_norm": "torch rearranges its two sums",
    "binary_cross_entropy_with_logits": "torch multiplies what the weights leave out by 0",
    "cross_entropy": "torch multiplies ignored rows by 0, which keeps their NaN",
    "conv_transpose1d": "torch multiplies padding by what is infinite",
    "conv_transpose2d": "torch multiplies padding by what is infinite",
    "conv_transpose3d": "torch multiplies padding by what is infinite",
}


def odd(operator: Operator, sample: Sample, dtype: DType, mix: str, seed: int = 0) -> Case:
    """Return the case with odd values for every operand that was drawn freely."""
    free = [at for at, item in enumerate(sample.inputs) if isinstance(item, str) and _free(item)]
    free = [at for at in free if at == 0 or operator.name not in FIRST]
    case = make(operator, sample, {at: dtype for at, i in enumerate(sample.inputs) if _float(i)})
    tensors = [at for at, item in enumerate(sample.inputs) if isinstance(item, str)]
    generator = np.random.default_rng(seed)
    arrays = list(case.inputs)
    for at in free:
        place = tensors.index(at)
        drawn = generator.choice(np.array(MIXES[mix]), arrays[place].shape)
        arrays[place] = np.asarray(drawn).astype(dtype.numpy)
    return Case(operator, sample, case.graph, tuple(arrays), case.wanted)


def _free(item: str) -> bool:
    return item[0] in "fc" and not any(sign in item for sign in "=<>")


def _float(item: object) -> bool:
    return isinstance(item, str) and item[0] in "fc"


def same(ours: Array, theirs: Array, rounding: float, name: str) -> None:
    """Assert that NaN and infinities are in the same places, and the rest is near."""
    mine, other = ours.astype(np.float64), theirs.astype(np.float64)
    special = ~np.isfinite(mine) | ~np.isfinite(other)
    np.testing.assert_array_equal(mine[special], other[special], err_msg=name)
    scale = np.abs(other[~special]).max(initial=0.0)
    np.testing.assert_allclose(
        mine[~special], other[~special], rtol=rounding, atol=rounding * scale, err_msg=name
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mix", few(MIXES, "nan"))
@pytest.mark.parametrize(("operator", "sample"), parameters(eager_only=True))
def test_odd_values_are_torchs(operator: Operator, sample: Sample, mix: str) -> None:
    if operator.name in OTHER_VALUES and mix != "finite":
        return
    case = odd(operator, sample, F64, mix)
    theirs = in_torch(case, [to_torch(array) for array in case.inputs])
    found = run(case.graph, case.inputs)
    if mix == "nan" and operator.name in SEVERAL_NANS:
        found = found[:1]
    for mine, other in zip(found, theirs, strict=False):
        same(mine, to_numpy(other), 1e-11, operator.name)


def our_gradients(case: Case, seeds: Sequence[Array], of: list[int]) -> list[Array | None]:
    names = [v.name for v, want in zip(case.graph.inputs, case.wanted, strict=True) if want]
    joint = reverse(case.graph, names, of=of)
    given = dict(zip((value.name for value in case.graph.inputs), case.inputs, strict=True))
    for position, name in joint.tangents:
        given[name] = seeds[position]
    found = run(joint.graph, given)
    return [None if at is None else np.asarray(found[at]) for at in joint.gradients]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mix", few(MIXES, "nan"))
@pytest.mark.parametrize(("operator", "sample"), parameters(eager_only=True))
def test_gradients_at_odd_values_are_torchs(operator: Operator, sample: Sample, mix: str) -> None:
    case = odd(operator, sample, F64, mix)
    hidden = operator.name in OTHER_GRADIENTS or (mix == "nan" and operator.name in SEVERAL_NANS)
    if not any(case.wanted) or (hidden and mix != "finite"):
        return
    tensors = [to_torch(array) for array in case.inputs]
    leaves = [t.requires_grad_() for t, want in zip(tensors, case.wanted, strict=True) if want]
    made = in_torch(case, tensors)
    of = [at for at, result in enumerate(made) if result.requires_grad]
    if not of:
        return
    generator = np.random.default_rng(1)
    seeds = [generator.standard_normal(tuple(result.shape)) for result in made]
    theirs = torch.autograd.grad(
        [made[at] for at in of],
        leaves,
        [torch.tensor(seeds[at]).to(made[at].dtype) for at in of],
        allow_unused=True,
    )
    seeds = [seed.astype(to_numpy(result).dtype) for seed, result in zip(seeds, made, strict=True)]
    for mine, other in zip(our_gradients(case, seeds, of), theirs, strict=True):
        if mine is not None and other is not None:
            same(mine, to_numpy(other), 1e-10, operator.name)


# ---------------------------------------------------------------------------- any values at all


POINTWISE = [
    operator
    for operator in (*ARITHMETIC, *ELEMENTARY)
    if operator.eager and set(operator.signature.operands) <= {"a", "b", "x"}
]
# Between its own steps torch's vectors and scalars differ by more than rounding.
ROUGH = {"remainder", "fmod", "floor_divide"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("operator", [pytest.param(op, id=op.name) for op in POINTWISE])
@given(data=st.data())
def test_pointwise_operators_are_torchs_anywhere(operator: Operator, data: st.DataObject) -> None:
    if operator.name in ROUGH:
        values = st.integers(-50, 50).map(lambda k: k / 4)
    else:
        values = st.floats(allow_subnormal=True, width=64)
    shape = data.draw(st.sampled_from([(), (0,), (1,), (3,), (2, 1, 2)]))
    arrays = tuple(
        data.draw(hnp.arrays(np.float64, shape, elements=values))
        for _ in operator.signature.operands
    )
    builder = Builder("case")
    operands = [builder.input("x", TensorType(shape, F64)) for _ in arrays]
    graph = builder.finish(put(builder, operator.name, operands, dict(operator.samples[0].attrs)))
    case = Case(operator, operator.samples[0], graph, arrays, ())
    (found,) = run(graph, arrays)
    (theirs,) = in_torch(case, [to_torch(array) for array in arrays])
    mine, other = found.astype(np.float64), to_numpy(theirs).astype(np.float64)
    np.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-290)
