"""What is proved to work row by row does: other rows at the end change none before them."""

import numpy as np
import pytest

from tilewright.base.errors import SizesError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.rows import Rows, follow_rows
from tilewright.ops import Operator, Sample

from .cases import Array, expanded, make, parameters

PROVED = ("add", "relu", "matmul", "linear", "conv2d", "embedding", "layer_norm", "softmax")


@pytest.mark.parametrize(("operator", "sample"), parameters())
def test_rows_before_the_last_do_not_depend_on_it(operator: Operator, sample: Sample) -> None:
    case = make(operator, sample)
    graph = expanded(case.graph)
    count = next((len(array) for array in case.inputs if array.ndim), 0)
    if count < 2:
        return
    with_rows = [array.ndim > 0 and len(array) == count for array in case.inputs]
    first = [array.ndim > 0 and at == 0 for at, array in enumerate(case.inputs)]
    whole = evaluate(graph, case.inputs)
    for flags in (with_rows, first):
        pairs = zip(graph.inputs, flags, strict=True)
        try:
            found = follow_rows(graph, {value.name: Rows(0) for value, has in pairs if has})
        except SizesError:
            continue
        moved = [_another_end(a) if has else a for a, has in zip(case.inputs, flags, strict=True)]
        with np.errstate(all="ignore"):
            again = evaluate(graph, moved)
        for value, one, other in zip(graph.outputs, whole, again, strict=True):
            rows = found.get(value.name)
            if rows is not None:
                kept = [slice(None)] * one.ndim
                kept[rows.dim] = slice(0, rows.each * (count - 1))
                one, other = one[tuple(kept)], other[tuple(kept)]
            # A product may be summed in another order where numbers are others.
            wide = (one.astype(np.float64), other.astype(np.float64))
            np.testing.assert_allclose(*wide, rtol=1e-12, atol=1e-12)


def _another_end(array: Array) -> Array:
    """The last row with values that others have: indices stay where they may be."""
    made = array.copy()
    made[-1] = array[0] if array.dtype.kind in "ib" else array[-1] * 3 + 1
    return made


@pytest.mark.parametrize(
    ("operator", "sample"), [case for case in parameters(PROVED) if str(case.id).endswith("-0")]
)
def test_what_works_row_by_row_is_proved_to(operator: Operator, sample: Sample) -> None:
    """Without this the test above could hold by refusing everything."""
    case = make(operator, sample)
    graph = expanded(case.graph)
    value = graph.inputs[1 if operator.name == "embedding" else 0]
    found = follow_rows(graph, {value.name: Rows(0)})
    assert found[graph.outputs[0].name] == Rows(0)
