"""Recurrent nets run as scans of our own, and equal eager: values, gradients, every flag."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.sweep import few, swept
from torch import nn

import tilewright as tw
from tilewright.program import Instruction, LibraryCall, Loop, Segment, flat

Flags = dict[str, Any]
NETS: dict[str, tuple[Callable[..., nn.Module], Flags]] = {
    "lstm": (nn.LSTM, {}),
    "lstm of two layers, both directions, batch first": (
        nn.LSTM,
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
    ),
    "lstm without biases": (nn.LSTM, {"bias": False, "num_layers": 2}),
    "gru": (nn.GRU, {"batch_first": True}),
    "gru of two layers, both directions": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "gru without biases": (nn.GRU, {"bias": False}),
    "tanh net": (nn.RNN, {"num_layers": 2, "batch_first": True}),
    "relu net": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
}


def _inputs(net: nn.Module, steps: int, batch: int) -> tuple[torch.Tensor, Any]:
    shape = (batch, steps, 3) if net.batch_first else (steps, batch, 3)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert isinstance(net.num_layers, int)
    assert isinstance(net.hidden_size, int)
    layers = net.num_layers * (2 if net.bidirectional else 1)
    first = [
        torch.randn(layers, batch, net.hidden_size, dtype=torch.float64, requires_grad=True)
        for _ in range(2 if isinstance(net, nn.LSTM) else 1)
    ]
    return x, tuple(first) if isinstance(net, nn.LSTM) else first[0]


def _leaves(result: Any) -> list[torch.Tensor]:
    out, last = result
    return [out, *(last if isinstance(last, tuple) else (last,))]


def _compare(net: nn.Module, x: torch.Tensor, first: Any, compiled: Callable[..., Any]) -> None:
    states = first if isinstance(first, tuple) else (first,)
    wrt = [x, *states, *net.parameters()]
    expected, found = _leaves(net(x, first)), _leaves(compiled(x, first))
    weights = [torch.randn_like(value) for value in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    theirs_too = torch.autograd.grad(expected, wrt, weights)
    for ours, theirs in zip(torch.autograd.grad(found, wrt, weights), theirs_too, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", few(NETS, "lstm", "gru without biases"))
def test_a_recurrent_net_has_eager_s_values_and_gradients(name: str) -> None:
    kind, flags = NETS[name]
    net = kind(3, 4, **flags).double()
    x, first = _inputs(net, steps=5, batch=2)
    compiled = tw.compile(net, x, first)
    _compare(net, x, first, compiled)
    _compare(net, *_inputs(net, steps=5, batch=2), compiled)


@pytest.mark.parametrize(
    ("kind", "hidden", "batch"), few([(nn.LSTM, 32, 3), (nn.GRU, 64, 1), (nn.RNN, 96, 5)], nn.LSTM)
)
def test_weights_that_are_sliced_for_all_steps_are_right(
    kind: type[nn.RNNBase], hidden: int, batch: int
) -> None:
    net = kind(3, hidden, num_layers=2).double()
    x, first = _inputs(net, steps=4, batch=batch)
    _compare(net, x, first, tw.compile(net, x, first))


@pytest.mark.parametrize(
    ("steps", "batch", "sliced"), [(4, 3, 1), (8, 64, 1), (4, 64, 0), (8, 300, 0)]
)
def test_weights_are_sliced_once_and_before_the_steps_unless_rows_are_many_or_steps_few(
    steps: int, batch: int, sliced: int
) -> None:
    net, x = nn.LSTM(3, 32), torch.randn(steps, batch, 3)
    with torch.no_grad():
        program = tw.compile(net, x).program
    at, loop = _first_loop(program.instructions)
    assert reads("weight_hh_l0", program.instructions[:at]) == sliced
    assert reads("weight_hh_l0", loop.body) == 1 - sliced


def test_large_products_of_steps_whose_weights_are_sliced_need_no_library() -> None:
    net, x = nn.LSTM(3, 256), torch.randn(8, 100, 3)  # 52 million operations a step
    with torch.no_grad():
        compiled = tw.compile(net, x)
        found, expected = compiled(x), net.double()(x.double())
    _, loop = _first_loop(compiled.program.instructions)
    assert not any(isinstance(item, LibraryCall) for item in flat(loop.body))
    for ours, theirs in zip(_leaves(found), _leaves(expected), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)


def _first_loop(instructions: Sequence[Instruction]) -> tuple[int, Loop]:
    return next((k, item) for k, item in enumerate(instructions) if isinstance(item, Loop))


def reads(buffer: str, block: Sequence[Instruction]) -> int:
    """Return how many launches of a block read a buffer."""
    launches = [
        launch for part in flat(block) if isinstance(part, Segment) for launch in part.launches
    ]
    return sum(any(view.buffer == buffer for view in launch.inputs) for launch in launches)


@pytest.mark.parametrize(("steps", "batch"), [swept(1, 1), (1, 3), swept(6, 1)])
def test_short_and_thin_sequences_are_right(steps: int, batch: int) -> None:
    net = nn.LSTM(3, 4).double()
    x, first = _inputs(net, steps, batch)
    _compare(net, x, first, tw.compile(net, x, first))


def test_a_net_without_a_batch_or_a_first_state_is_right() -> None:
    net = nn.GRU(3, 4).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    for ours, theirs in zip(tw.compile(net, x)(x), net(x), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", few([nn.LSTM, nn.GRU, nn.RNN], nn.GRU))
def test_a_recurrent_net_runs_as_loops_and_needs_no_library(kind: type[nn.Module]) -> None:
    net, x = kind(3, 4, num_layers=2), torch.randn(5, 2, 3)
    with torch.no_grad():
        compiled = tw.compile(net, x, options=tw.Options(library=False))
        torch.testing.assert_close(compiled(x)[0], net(x)[0])
    program = compiled.program
    assert not any(isinstance(item, LibraryCall) for item in flat(program.instructions))
    assert [item.count for item in program.instructions if isinstance(item, Loop)] == [5, 5]


def test_a_projected_state_is_left_to_the_library() -> None:
    net = nn.LSTM(3, 4, proj_size=2).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    compiled = tw.compile(net, x)
    ours, theirs = compiled(x)[0], net(x)[0]
    torch.testing.assert_close(ours, theirs)
    wrt = [x, *net.parameters()]
    pairs = zip(
        torch.autograd.grad(ours.sum(), wrt), torch.autograd.grad(theirs.sum(), wrt), strict=True
    )
    for mine, other in pairs:
        torch.testing.assert_close(mine, other)
    assert "aten.lstm.input" in compiled.explain()


@pytest.mark.parametrize("dtype", few([torch.bfloat16, torch.float16], torch.bfloat16))
def test_half_types_are_as_exact_as_eager_s(dtype: torch.dtype) -> None:
    net, exact = nn.LSTM(3, 4).to(dtype), nn.LSTM(3, 4).double()
    exact.load_state_dict(net.state_dict())
    x = torch.randn(5, 2, 3).to(dtype)
    with torch.no_grad():
        ours, theirs, truth = tw.compile(net, x)(x)[0], net(x)[0], exact(x.double())[0]
    assert ours.dtype == dtype
    scale = float(truth.abs().max())
    other = float((theirs.double() - truth).abs().max())
    assert float((ours.double() - truth).abs().max()) <= 1.01 * other + 2.0**-8 * scale


def test_dropout_between_layers_is_drawn_once_for_forward_and_backward() -> None:
    net = nn.LSTM(3, 4, num_layers=2, dropout=0.5).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    compiled = tw.compile(net, x)
    torch.manual_seed(3)
    theirs = net(x)[0]
    torch.manual_seed(3)
    ours = compiled(x)[0]
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(value.pow(2).sum(), x)[0] for value in (ours, theirs))
    torch.testing.assert_close(*gradients)


class Packed(nn.Module):
    """Sequences of several lengths, packed for the recurrent layers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rnn = nn.utils.rnn
        packed = rnn.pack_padded_sequence(torch.tanh(x) * 2, lengths, True, enforce_sorted=False)
        out, _ = rnn.pad_packed_sequence(self.net(packed)[0], True)
        made: torch.Tensor = torch.relu(self.head(out))
        return made


def test_around_packed_sequences_torch_compile_leaves_the_layers_to_python() -> None:
    net, x = Packed().double(), torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(net, backend="tilewright")
    for lengths in (torch.tensor([3, 5]), torch.tensor([4, 2])):
        ours, theirs = compiled(x, lengths), net(x, lengths)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
        wrt = [x, *net.parameters()]
        pairs = (torch.autograd.grad(value.pow(2).sum(), wrt) for value in (ours, theirs))
        torch.testing.assert_close(*pairs, rtol=1e-11, atol=1e-13)


def test_a_replaced_parameter_is_seen_at_the_next_call() -> None:
    net, x = nn.GRU(3, 4).double(), torch.randn(2, 5, 3, dtype=torch.float64)
    compiled = tw.compile(net, x)
    before = compiled(x)[0]
    net.weight_hh_l0 = nn.Parameter(torch.randn(12, 4, dtype=torch.float64))
    ours = compiled(x)[0]
    assert not torch.equal(ours, before)
    torch.testing.assert_close(ours, net(x)[0])
    net.weight_hh_l0 = nn.Parameter(torch.randn(12, 4, dtype=torch.float64))
    inside = tw.compile(lambda x: net(x)[0] * 2, x)
    torch.testing.assert_close(inside(x), net(x)[0] * 2)


@pytest.mark.parametrize("name", NETS)
def test_weights_may_be_arguments(name: str) -> None:
    kind, flags = NETS[name]
    net = kind(3, 4, **flags).double()
    x, _ = _inputs(net, 5, 2)

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.func.functional_call(net, weights, (x,))[0].pow(2).sum()
        return made

    plain = tw.compile(lambda x: net(x)[0], x)
    before = net(x)[0]
    gradient = tw.grad(loss)
    for _ in range(2):  # other weights by the same compilation
        weights = {at: torch.randn_like(w) for at, w in net.named_parameters()}
        found, exact = gradient(weights, x.detach()), torch.func.grad(loss)(weights, x.detach())
        for at, expected in exact.items():
            torch.testing.assert_close(found[at], expected)
    # The net has kept its own.
    assert torch.equal(net(x)[0], before)
    torch.testing.assert_close(plain(x), before)
    torch.testing.assert_close(tw.compile(lambda x: net(x)[0], x)(x), before)
