"""In half types every operator is as near to the exact result as torch is, or nearer."""

import numpy as np
import pytest
from tests.sweep import few

from tilewright.base.dtypes import BF16, F16, F64, DType
from tilewright.ops import Operator, Sample

from .cases import Case, in_torch, make, parameters, run, to_numpy, to_torch


def smooth(operator: Operator, sample: Sample) -> bool:
    """Drawn operands of a floating function; torch has no half form of a few."""
    texts = [item for item in sample.inputs if isinstance(item, str)]
    drawn = any(item[0] in "fc" and "=" not in item for item in texts)
    # The mean of no rows; an eps that is the type's own.
    odd = "i[2] = -100, -100" in texts or dict(sample.attrs).get("eps", 0) is None
    odd |= operator.name == "rms_norm" and "eps" not in dict(sample.attrs)
    return drawn and not odd and operator.name not in STEPS


# One rounding of an operand moves these by a whole step.
STEPS = {"remainder", "fmod", "floor_divide", "argmax", "argmin", "sign", "floor", "ceil", "trunc",
         "round", "eq", "ne", "lt", "le", "gt", "ge", "cast", "rand"}  # fmt: skip
CASES = [
    p
    for p in parameters(eager_only=True)
    if isinstance(p.values[0], Operator)
    and isinstance(p.values[1], Sample)
    and smooth(p.values[0], p.values[1])
]


def in_type(operator: Operator, sample: Sample, dtype: DType) -> Case:
    chosen = {
        at: dtype
        for at, item in enumerate(sample.inputs)
        if isinstance(item, str) and item[0] in "fc"
    }
    return make(operator, sample, chosen)


@pytest.mark.parametrize("dtype", few([BF16, F16], BF16))
@pytest.mark.parametrize(("operator", "sample"), CASES)
def test_half_types_are_as_exact_as_torchs(
    operator: Operator, sample: Sample, dtype: DType
) -> None:
    half, wide = in_type(operator, sample, dtype), in_type(operator, sample, F64)
    exact_inputs = [x.astype(np.float64) if x.dtype == dtype.numpy else x for x in half.inputs]
    try:
        theirs = in_torch(half, [to_torch(array) for array in half.inputs])
    except (RuntimeError, NotImplementedError):
        pytest.skip("torch has no such form")
    exact = run(wide.graph, exact_inputs)
    for value, ours, them, truth in zip(
        half.graph.outputs, run(half.graph, half.inputs), theirs, exact, strict=False
    ):
        assert value.type.dtype.torch_name == str(them.dtype).removeprefix("torch.")
        if value.type.dtype.kind != "float":
            continue
        step = float(np.finfo(np.float16).eps) if dtype == F16 else 2.0**-7
        scale = np.abs(truth).max(initial=0.0)
        mine = np.abs(ours.astype(np.float64) - truth).max(initial=0.0)
        other = np.abs(to_numpy(them).astype(np.float64) - truth).max(initial=0.0)
        assert mine <= 1.01 * other + step / 2 * scale
