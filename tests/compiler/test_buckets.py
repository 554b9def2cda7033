"""`Options(buckets=("batch",))`: padded to a power of two where the loops prove it right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few
from torch import Tensor, nn

import tilewright as tw
from tilewright.base.errors import CaptureError, OptionError, ShapeError, SizesError
from tilewright.compiler import Bucketed
from tilewright.compiler.buckets import bucket_of

BUCKETS = tw.Options(buckets=("batch",))


class Attending(nn.Module):
    """Tokens through embedding, norm, attention and a flattened product."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 5)

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.shape
        x = self.norm(self.table(ids)).view(b, t, 2, 4).transpose(1, 2)
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        flat = y.transpose(1, 2).reshape(b * t, 8)
        return self.out(flat).view(b, t, 5).softmax(-1)


def _images() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    return net.eval()


def _ids(batch: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 11, (batch, 6)),)


def _matrix(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 6),)


SERVED: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Tensor, ...]]]] = {
    "tokens": (Attending(), _ids),
    "images": (_images(), lambda batch: (torch.randn(batch, 2, 4, 4),)),
    "two arguments": (lambda x, y: (x * y).sum(1), lambda b: (*_matrix(b), *_matrix(b))),
    "a transposed result": (lambda x: (torch.relu(x).t() * 2, x.exp()), _matrix),
    "zeros of its length": (lambda x: x + torch.zeros(x.shape[0], 6), _matrix),
    "a result that has none": (lambda x: (x * 2, torch.arange(3.0) + 1), _matrix),
}


@pytest.mark.parametrize("name", few(SERVED, "tokens", "two arguments", "zeros of its length"))
def test_every_batch_is_as_in_eager_with_a_compilation_for_each_power_of_two(name: str) -> None:
    fn, example = SERVED[name]
    with torch.no_grad():
        compiled = tw.compile(fn, *example(5), options=BUCKETS)
        assert isinstance(compiled, Bucketed)
        for batch in (5, 3, 8, 1, 7, 6):
            args = example(batch)
            ours, theirs = compiled(*args), fn(*args)
            pairs = (
                zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]
            )
            for one, other in pairs:
                assert one.shape == other.shape
                seen = [dim for dim, size in enumerate(other.shape) if size > 1]
                assert all(one.stride(dim) == other.stride(dim) for dim in seen)
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert compiled.batches == (1, 4, 8)
    assert compiled.explain().startswith("batches up to 1\n")


def test_what_the_function_reads_is_compiled_anew_when_it_changes() -> None:
    net = nn.Sequential(nn.Linear(6, 3), nn.ReLU())
    with torch.no_grad():
        compiled = tw.compile(net, *_matrix(5), options=BUCKETS)
        net[0] = nn.Linear(6, 3)
        (x,) = _matrix(7)
        torch.testing.assert_close(compiled(x), net(x))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * 2


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "mean": (lambda x: x - x.mean(0), "reduces over the rows"),
    "loss": (lambda x: F.mse_loss(x, x * 2), "reduces over the rows"),
    "batch norm in training": (nn.BatchNorm1d(6), "changes tensors in place"),
    "reversed": (lambda x: x.flip(0) + 1, "in another order"),
    "similarities": (lambda x: x @ x.t(), "reads its rows in two ways"),
    "running sum": (lambda x: x.cumsum(0), "the number of a row"),
    "some rows": (lambda x: x[:3] * 2, "takes a part of the rows"),
    "more rows": (lambda x: F.pad(x, (0, 0, 0, 2)) * 2, "takes a part of the rows"),
    "rows joined": (lambda x: torch.cat([x, x]) * 2, "rows"),
    "rows regrouped": (lambda x: x.repeat_interleave(2, 0).view(2, -1, 6) * 2, "rows"),
    "first row": (lambda x: x - x[0], "rows"),
    "its length": (lambda x: x * x.shape[0], "depends on how long it is"),
    "length as a result": (lambda x: (x * 2, x.shape[0]), "no tensor depends on it"),
    "positions": (lambda x: x + torch.arange(x.shape[0])[:, None], "the number of a row"),
    "sorted": (lambda x: x.sort(0)[0] + 1, "rows"),
    "dropout": (lambda x: F.dropout(x, 0.5), "draws random numbers"),
    "counting": (Counting(), "changes tensors in place"),
    "a view": (lambda x: x[:, 1:], "a view of one"),
    "the argument": (lambda x: (x, x + 1), "is an argument"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proved_is_refused_when_it_is_compiled(name: str) -> None:
    fn, why = REFUSED[name]
    with torch.no_grad(), pytest.raises(SizesError, match="the batch cannot be padded") as caught:
        tw.compile(fn, *_matrix(5), options=BUCKETS)
    assert why in str(caught.value)


def test_calls_that_do_not_fit_are_refused() -> None:
    fn, _ = SERVED["two arguments"]
    with pytest.raises(ShapeError, match="no batch in common"):
        tw.compile(fn, torch.ones(3, 6), torch.ones(4, 6), options=BUCKETS)
    compiled = tw.compile(fn, torch.ones(3, 6), torch.ones(3, 6), options=BUCKETS)
    with pytest.raises(ShapeError):
        compiled(torch.ones(3, 7), torch.ones(3, 7))
    with pytest.raises(CaptureError, match="gives no gradients"):
        compiled(torch.ones(3, 6, requires_grad=True), torch.ones(3, 6))


def test_only_tw_compile_has_buckets() -> None:
    net = nn.Linear(6, 3)
    x = torch.ones(2, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(OptionError, match="buckets are an option of"):
        tw.train_step(net, F.mse_loss, optimizer, x, torch.ones(2, 3), options=BUCKETS)
    with pytest.raises(OptionError, match="unknown sizes to round up"):
        tw.Options(buckets=("length",))


def test_buckets_are_powers_of_two() -> None:
    assert [bucket_of(n) for n in (0, 1, 2, 3, 4, 5, 8, 9)] == [0, 1, 2, 4, 4, 8, 8, 16]
