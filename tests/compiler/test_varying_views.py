"""Views whose sizes vary: one compilation for all sizes; values and strides are eager's."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few
from torch import Tensor, nn

from tilewright.capture.layout import layout_of
from tilewright.compiler.backend import COMPILED, SPECIALIZED


@pytest.fixture(autouse=True)
def _counted(fallbacks: list[str]) -> Iterator[None]:
    COMPILED.clear()
    SPECIALIZED.clear()
    yield
    assert fallbacks == []


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "a slice": lambda x: x[:, :-1],
    "one that begins later": lambda x: x[1:, 1:],
    "every other one": lambda x: x[::2, ::2],
    "turned": lambda x: x.T,
    "a slice, turned": lambda x: x[:, 1:-2].T,
    "repeated": lambda x: x[0].expand(7, -1),
    "rows in order": lambda x: x[1:],
}


@pytest.mark.parametrize("name", few(VIEWS, "a slice, turned", "repeated"))
def test_a_view_is_compiled_once_and_laid_out_as_in_eager(name: str) -> None:
    view = VIEWS[name]

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.exp(), x.softmax(1).reshape(-1), x[1:]

    compiled = torch.compile(function, backend="tilewright", dynamic=True)
    for rows, columns in ((9, 14), (6, 31), (20, 8)):
        whole = torch.randn(rows, columns)
        whole.requires_grad_(name != "repeated")  # views of such are not differentiated
        ours, theirs = (call(view(whole * 1)) for call in (compiled, function))
        for found, expected in zip(ours, theirs, strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)
        if not whole.requires_grad:
            continue
        gradients = (
            torch.autograd.grad(sum((r * r).sum() for r in results), whole)
            for results in (ours, theirs)
        )
        torch.testing.assert_close(*gradients)
    assert SPECIALIZED == []
    assert len(COMPILED) == 1


def test_a_layout_gives_the_strides_that_it_was_read_from() -> None:
    base = torch.empty(4, 6, 8, 5)
    views = [
        base,
        base[:, 1:],
        base[:, :, ::2],
        base.permute(2, 0, 3, 1),
        base[:, :1],
        base[..., 2],
    ]
    for view in [
        *views,
        base[:1].expand(3, -1, -1, -1),
        base.to(memory_format=torch.channels_last),
    ]:
        layout, gaps = layout_of(view)
        assert not layout.overlaps
        assert layout.begins == (view.storage_offset() == 0)
        found = layout.strides(view.shape, gaps)
        sizes = zip(view.shape, found, view.stride(), strict=True)
        assert all(size == 1 or ours == real for size, ours, real in sizes)
    assert layout_of(base.as_strided((4, 4), (1, 1)))[0].overlaps


class Language(nn.Module):
    """A small language model that makes its loss of the tokens and the tokens after them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)
        self.register_buffer("places", torch.randn(32, 8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(self.places, Tensor)
        h = torch.tanh(self.table(x) + self.places[: x.shape[1]])
        return F.cross_entropy(self.head(h).view(-1, 11), y.reshape(-1))


@pytest.mark.parametrize(
    "mark", few([False, True], False), ids={False: "automatic", True: "marked"}.get
)
def test_tokens_and_those_after_them_are_compiled_once_for_all_lengths(mark: bool) -> None:
    torch.manual_seed(0)
    model = Language()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="tilewright")
    for length in (8, 9, 10, 12):
        tokens = torch.randint(0, 11, (2, length + 1))
        x, y = tokens[:, :-1], tokens[:, 1:]
        if mark:
            for part in (x, y):
                torch._dynamo.mark_dynamic(part, 1)
        losses = compiled(x, y), eager(x, y)
        torch.testing.assert_close(*losses)
        found, expected = (
            torch.autograd.grad(loss, list(each.parameters()))
            for loss, each in zip(losses, (model, eager), strict=True)
        )
        torch.testing.assert_close(found, expected)
    assert SPECIALIZED == []
    assert len(COMPILED) == (1 if mark else 2)


def test_views_of_one_tensor_after_a_graph_break_are_compiled_once() -> None:
    table = torch.randn(40, 6)

    def function(x: Tensor) -> Tensor:
        rows = table[: len(x)]
        y = x * rows
        torch._dynamo.graph_break()
        return y + rows + table[len(x)]

    compiled = torch.compile(function, backend="tilewright", dynamic=True)
    for length in (5, 8, 30):
        x = torch.randn(length, 6)
        torch.testing.assert_close(compiled(x), function(x))
    assert SPECIALIZED == []
    assert len(COMPILED) == 2


def test_a_part_that_is_changed_in_place_is_eager() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y + 1

    compiled = torch.compile(function, backend="tilewright", dynamic=True)
    for length in (5, 9):
        ours, theirs = torch.arange(2.0 * length), torch.arange(2.0 * length)
        a, b = compiled(ours[:-2], ours[2:].clone()), function(theirs[:-2], theirs[2:].clone())
        assert torch.equal(a, b)
        assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:a graph is left to eager")
def test_what_shares_memory_with_an_argument_that_is_changed_is_left_to_eager(
    fallbacks: list[str],
) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y + 1

    compiled = torch.compile(function, backend="tilewright", dynamic=True)
    for length in (5, 9):
        ours, theirs = torch.arange(2.0 * length), torch.arange(2.0 * length)
        assert torch.equal(compiled(ours, ours[1:]), function(theirs, theirs[1:]))
        assert torch.equal(ours, theirs)
    assert all("shares memory with another one is changed" in reason for reason in fallbacks)
    assert len(fallbacks) == 2
    fallbacks.clear()
