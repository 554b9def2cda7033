"""What a half type holds as it is goes back to it without being rounded; all else is rounded."""

from collections.abc import Callable

import pytest
import torch
from tests.kernels.harness import body

import tilewright as tw
from tilewright.base.dtypes import BF16, F16, F32, DType
from tilewright.kernels.conversion import held_exactly, literal, load
from tilewright.kernels.emit import emit
from tilewright.kernels.text import Term

Tensor = torch.Tensor


def every(dtype: torch.dtype) -> Tensor:
    """Return all numbers of a half type, NaN and infinities too."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


KEPT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "neg": lambda x, _: -x,
    "abs": lambda x, _: x.abs(),
    "sign": lambda x, _: x.sign(),
    "floor": lambda x, _: x.floor(),
    "ceil": lambda x, _: x.ceil(),
    "trunc": lambda x, _: x.trunc(),
    "round": lambda x, _: x.round(),
    "relu": lambda x, _: x.relu(),
    "clamp": lambda x, _: x.clamp(-1.5, 2),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "copysign": torch.copysign,
    "where": lambda x, y: torch.where(x > y, -x, y.abs()),
    "where number": lambda x, y: torch.where(x > y, x, 0.25),
    "several": lambda x, y: torch.maximum(x.abs().floor(), -y).clamp(max=3),
}
ROUNDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "number that is none": lambda x, y: torch.where(x > y, x, 0.1),
    "clamp to such": lambda x, _: x.clamp(-0.1, 0.3),
    "leaky": lambda x, _: torch.nn.functional.leaky_relu(x, 0.3),
    "sum": lambda x, y: torch.maximum(x, y) + y,
    "product": lambda x, y: -x * y,
    "hardtanh of a sum": lambda x, y: torch.nn.functional.hardtanh(x + y),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*KEPT, *ROUNDED])
def test_bits_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    function = {**KEPT, **ROUNDED}[name]
    x = every(dtype)
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    ours, eager = tw.compile(function, x, y)(x, y), function(x, y)
    assert ours.dtype == eager.dtype
    same = (ours.view(torch.int16) == eager.view(torch.int16)) | (ours.isnan() & eager.isnan())
    zeros = (ours == 0) & (eager == 0)  # of equal numbers, torch's vectors take either
    assert bool((same | (zeros & (name in ("relu", "maximum", "minimum", "several")))).all())


@pytest.mark.parametrize(
    ("value", "rounds"),
    [
        ("-x[i]", False),
        ("abs(x[i])", False),
        ("max(x[i], z[i])", False),
        ("0.25 if x[i] > 0 else x[i]", False),
        ("0.1 if x[i] > 0 else x[i]", True),
        ("max(x[i], 0.1)", True),
        ("max(x[i], w[i])", True),  # of float32
        ("x[i] + z[i]", True),
    ],
)
def test_only_what_may_be_longer_is_rounded(value: str, rounds: bool) -> None:
    inputs = {"x": "bf16[64]", "z": "bf16[64]", "w": "f32[64]"}
    taken = {name: type_ for name, type_ in inputs.items() if f"{name}[" in value}
    graph = body(taken, {"y": f"bf16[64]: y[i<64] = {value}"})
    text = emit(graph).text
    kernel = text[text.index("\nint k_") :]
    assert ("store_bf16" in kernel) == rounds


@pytest.mark.parametrize(
    ("half", "number", "held"),
    [
        (BF16, 1.0, True),
        (BF16, 0.1, False),
        (BF16, -0.0, True),
        (BF16, 257.0, False),
        (BF16, 3.0e38, False),
        (BF16, float("inf"), True),
        (BF16, float("nan"), True),
        (BF16, 1e300, False),
        (F16, 2049.0, False),
        (F16, 65504.0, True),
        (F16, 70000.0, False),
        (F16, 2.0**-24, True),
        (F16, 2.0**-25, False),
    ],
)
def test_numbers_that_a_half_type_holds(half: DType, number: float, held: bool) -> None:
    element = load(half, "a0[i]", 9, set())
    assert held_exactly([element, literal(number)]) == (half if held else None)


def test_what_no_half_type_was_told_of_is_not_held() -> None:
    plain, number = Term("x", F32), literal(1.0)
    halves = [load(half, "a0[i]", 9, set()) for half in (BF16, F16)]
    assert held_exactly([number]) is None
    assert held_exactly([plain]) is None
    assert held_exactly([halves[0], plain]) is None
    assert held_exactly(halves) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [0.1, -0.3, 1 / 3, 257, 2049, 0, -0.0, 3e-8, float("nan")])
def test_a_number_is_rounded_before_it_is_compared(dtype: torch.dtype, number: float) -> None:
    near = torch.tensor(number, dtype=torch.float64).to(dtype).view(torch.int16)
    x = torch.stack([near - 1, near, near + 1]).view(dtype)

    def compared(x: Tensor) -> tuple[Tensor, ...]:
        return x > number, x < number, x >= number, x <= number, x == number, number != x

    for ours, eager in zip(tw.compile(compared, x)(x), compared(x), strict=True):
        assert torch.equal(ours, eager)
    ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()

    def bounded(x: Tensor) -> Tensor:
        return x.clamp(min=number)

    found = tw.compile(bounded, ours)(ours)
    found.sum().backward()
    expected = bounded(eager)
    expected.sum().backward()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())
    assert torch.equal(ours.grad, eager.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_size_that_varies_is_compared_as_it_is_in_each_call(dtype: torch.dtype) -> None:
    def compared(x: Tensor) -> tuple[Tensor, ...]:
        return x > x.shape[0], x == x.shape[0], x.clamp(max=x.shape[0])

    compiled = torch.compile(compared, backend="tilewright", dynamic=True)
    for size in (8, 20, 200, 17):
        x = (torch.arange(size) * 1.5).to(dtype)
        for ours, eager in zip(compiled(x), compared(x), strict=True):
            assert torch.equal(ours, eager)
