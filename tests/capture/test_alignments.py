"""The loss of alignments compiles whole, with eager's values and gradients."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw

STEPS, BATCH, CLASSES = 6, 4, 5
# Of the batch: one as long as can be, one that fits in no way, one without labels, one that needs
# blanks between equal labels.
LABELS = ((1, 2, 3), (1, 2, 3), (9, 9, 9), (2, 2, -1))
FRAMES, COUNTS = (6, 2, 4, 5), (3, 3, 0, 2)

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"reduction": "none"},
    {"reduction": "sum", "blank": 4},
    {"reduction": "none", "zero_infinity": True},
    {"reduction": "mean", "zero_infinity": True},
)


def _loss(x: torch.Tensor, labels: torch.Tensor, *lengths: Any, **options: Any) -> torch.Tensor:
    return F.ctc_loss(x.log_softmax(-1), labels, *lengths, **options)


def _labels(form: str) -> tuple[Any, ...]:
    """The labels and lengths: tensors, tuples, 32 bits wide, or without what pads them."""
    labels, tensors = torch.tensor(LABELS), (torch.tensor(FRAMES), torch.tensor(COUNTS))
    if form == "tuples":
        return labels, FRAMES, COUNTS
    if form == "int32":
        return labels.int(), *(lengths.int() for lengths in tensors)
    if form == "joined":
        return torch.cat([labels[at, :n] for at, n in enumerate(COUNTS)]), *tensors
    return labels, *tensors


def _agree(ours: Any, x: torch.Tensor, given: tuple[Any, ...], options: dict[str, Any]) -> None:
    found, expected = ours(x, *given, **options), _loss(x, *given, **options)
    exact = _loss(x.double(), *given, **options)
    torch.testing.assert_close(found, exact.float(), equal_nan=True)
    assert torch.equal(found.isfinite(), expected.isfinite())
    (mine,), (theirs,) = (torch.autograd.grad(y.sum(), x) for y in (found, exact))
    torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("form", ["tensors", "tuples", "int32", "joined"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_and_gradients_are_eagers(form: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(STEPS, BATCH, CLASSES, requires_grad=True)
    given = _labels(form)
    _agree(tw.compile(_loss, x, *given, **options), x, given, options)
    torch._dynamo.reset()
    _agree(torch.compile(_loss, backend="tilewright", fullgraph=True), x, given, options)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_one_sequence_alone_has_no_batch(reduction: str) -> None:
    x = torch.randn(STEPS, CLASSES, requires_grad=True)
    given = (torch.tensor([1, 2, 2]), torch.tensor(STEPS), torch.tensor(3))
    options = {"reduction": reduction}
    _agree(tw.compile(_loss, x, *given, **options), x, given, options)


def test_lengths_are_read_at_each_call() -> None:
    x = torch.randn(STEPS, BATCH, CLASSES, requires_grad=True)
    labels, frames, counts = _labels("tensors")
    ours = tw.compile(_loss, x, labels, frames, counts)
    _agree(ours, x, (labels, frames.clamp(min=4).flip(0), torch.tensor([2, 1, 0, 2])), {})


def test_under_autocast_it_is_computed_in_float32() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.ctc_loss(x, *_labels("tensors"), zero_infinity=True)

    x = torch.randn(STEPS, BATCH, CLASSES).bfloat16()
    found = tw.compile(loss, x)(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loss(x))


def test_a_step_trains_through_it() -> None:
    def loss_fn(out: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return nn.CTCLoss(zero_infinity=True)(out.log_softmax(-1), *given)

    x, given = torch.randn(STEPS, BATCH, 3), _labels("tensors")
    torch.manual_seed(1)
    model = nn.Linear(3, CLASSES)
    torch.manual_seed(1)
    other = nn.Linear(3, CLASSES)
    step = tw.train_step(model, loss_fn, torch.optim.SGD(model.parameters(), lr=0.1), x, *given)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        expected = loss_fn(other(x), *given)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(step(x, *given), expected.detach())
    torch.testing.assert_close(model.weight, other.weight)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends_are_given_torchs_gradient(backend: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(STEPS, BATCH, CLASSES, requires_grad=True)
    for options in OPTIONS:
        given = _labels("tensors")
        _agree(torch.compile(_loss, backend=backend, fullgraph=True), x, given, options)
