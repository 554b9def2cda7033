"""The arguments of a library call as nested tuples, and back."""

from typing import Any

import pytest
import torch

from tilewright.base.errors import CaptureError
from tilewright.capture.template import decode, dtype_of, encode, torch_dtype
from tilewright.graph.ir import Attr

TENSOR = torch.ones(2)


def _number(value: Any) -> int | None:
    return 0 if value is TENSOR else None


@pytest.mark.parametrize(
    ("value", "template"),
    [
        (TENSOR, ("%", 0)),
        (None, None),
        (True, True),
        (2, 2),
        (0.5, 0.5),
        ("mean", "mean"),
        ([1, 2], ("list", 1, 2)),
        ([None, TENSOR], ("list", None, ("%", 0))),
        (torch.bfloat16, ("dtype", "bf16")),
        (torch.device("cpu"), ("device", "cpu")),
        (torch.strided, ("layout", "strided")),
        (torch.channels_last, ("memory_format", "channels_last")),
    ],
)
def test_an_argument_survives_as_a_template(value: Any, template: Attr) -> None:
    made = encode(value, _number)
    assert made == template
    assert (
        decode(made, [TENSOR]) == value if value is not TENSOR else decode(made, [TENSOR]) is TENSOR
    )


def test_an_argument_that_no_graph_can_hold_is_refused() -> None:
    with pytest.raises(CaptureError) as caught:
        encode(1j, _number)
    assert str(caught.value) == (
        "an operator has an argument that a graph cannot hold\n"
        "  expected  tensors, numbers, texts, element types, and lists of these\n"
        "  found     1j, of type complex"
    )


def test_element_types_map_both_ways() -> None:
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64):
        ours = dtype_of(dtype)
        assert ours is not None
        assert torch_dtype(ours) == dtype
    assert dtype_of(torch.complex64) is None
