"""Inputs and results keep the order that their dims have in memory: strides are those of eager."""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.sweep import collected, swept
from torch import nn

import tilewright as tw
from tilewright.compiler import backend
from tilewright.compiler.compiled import Compiled

LAST = torch.channels_last


def permuted(shape: tuple[int, ...], order: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Return a tensor of that shape whose dims lie in an order, the outermost first."""
    made = torch.randn([shape[dim] for dim in order], generator=torch.Generator().manual_seed(seed))
    return made.permute([order.index(dim) for dim in range(len(shape))])


def results_of(call: Callable[..., Any], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Return what a call gives, then the gradients of its inputs (their strides as given)."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    found = call(*leaves)
    made = list(found) if isinstance(found, tuple) else [found]
    sum((y * torch.arange(y.numel()).view(y.shape).cos()).sum() for y in made).backward()
    return [*made, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def assert_as_eager(fn: Callable[..., Any], *inputs: torch.Tensor, bound: float = 1e-5) -> None:
    compiled = tw.compile(fn, *[x.detach().requires_grad_() for x in inputs])
    with torch.no_grad():
        plain = compiled(*inputs), fn(*inputs)
    pairs = list(zip(results_of(compiled, *inputs), results_of(fn, *inputs), strict=True))
    both = [one if isinstance(one, tuple) else (one,) for one in plain]
    pairs += zip(*both, strict=True)
    for ours, eager in pairs:
        assert ours.stride() == eager.stride()
        torch.testing.assert_close(ours, eager, rtol=bound, atol=bound)


def several(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    one = torch.relu(x) * 2 + y
    return one, torch.softmax(x, 1), torch.exp(y), one.sum(0), torch.cat([x, y], 1), x * y.mean()


ORDERS = list(itertools.product(itertools.permutations(range(3)), repeat=2))


SOME = [pytest.param(each) if k % 7 == 0 else swept(each) for k, each in enumerate(ORDERS)]


@pytest.mark.parametrize("orders", collected(SOME))
def test_results_and_gradients_have_the_values_and_strides_of_eager(
    orders: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    shape = (3, 4, 5)
    assert_as_eager(several, permuted(shape, orders[0]), permuted(shape, orders[1], 1))


SHAPES = [(1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 4, 1), (1, 1, 1), (0, 4, 5), (3, 0, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", [(2, 0, 1), (0, 2, 1)])
def test_dims_of_one_element_and_of_none(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    x = permuted(shape, order)
    compiled = tw.compile(lambda x: torch.tanh(x) + 1, x)
    ours, eager = compiled(x), torch.tanh(x) + 1
    assert ours.stride() == eager.stride()
    torch.testing.assert_close(ours, eager)


def test_expanded_and_strided_inputs_and_scalars_go_the_way_they_went() -> None:
    inputs = torch.randn(3, 1, 5).expand(3, 4, 5), torch.randn(3, 8, 5)[:, ::2], torch.randn(())
    compiled = tw.compile(lambda x, y, z: x * y + z, *inputs)
    torch.testing.assert_close(compiled(*inputs), inputs[0] * inputs[1] + inputs[2])


def images(*shape: int) -> torch.Tensor:
    return permuted(shape, (0, 2, 3, 1))


LAYERS: dict[str, tuple[Callable[..., Any], int]] = {
    "relu": (torch.relu, 1),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), 1),
    "average_pool": (lambda x: F.avg_pool2d(x, 2), 1),
    "adaptive_pool": (lambda x: F.adaptive_avg_pool2d(x, 2), 1),
    "to_one": (lambda x: F.adaptive_avg_pool2d(x, 1), 1),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), 1),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 1),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), 1),
    "cat": (lambda x, y: torch.cat([x, y], 1), 2),
    "softmax": (lambda x: torch.softmax(x, 1), 1),
    "means": (lambda x: x.mean((2, 3)), 1),
    "largest": (lambda x: x.amax(1), 1),
    "group_norm": (lambda x: F.group_norm(x, 2), 1),
    "flat": (lambda x: torch.tanh(x).flatten(1), 1),
    "turned": (lambda x: x.permute(0, 2, 3, 1) * 2, 1),
    "slices": (lambda x: torch.exp(x[:, 1:3]), 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_on_channels_last_images_are_those_of_eager(name: str) -> None:
    layer, count = LAYERS[name]
    assert_as_eager(layer, *[images(2, 4, 6, 8) for _ in range(count)])


def test_where_the_largest_is_comes_as_eager_has_it() -> None:
    x = images(2, 4, 6, 8).round()  # ties
    x[0, 0, 2, 2] = float("nan")

    def layer(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*F.max_pool2d(x, 2, return_indices=True), x.argmax(1))

    for ours, eager in zip(tw.compile(layer, x)(x), layer(x), strict=True):
        assert ours.stride() == eager.stride()
        torch.testing.assert_close(ours, eager, equal_nan=True)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    made = nn.Sequential(*layers, nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.GELU())
    return made.to(memory_format=LAST)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_network_whose_weights_lie_with_channels_last_infers(frozen: bool) -> None:
    net, x = network().eval().requires_grad_(False), images(2, 4, 8, 8)
    compiled = tw.compile(net, x, options=tw.Options(frozen=frozen))
    for _ in range(2):
        assert compiled(x).stride() == net(x).stride()
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_dynamo", [False, True])
def test_a_network_whose_weights_lie_with_channels_last_trains(by_dynamo: bool) -> None:
    eager, x = network(), images(2, 4, 8, 8)
    ours = copy.deepcopy(eager)
    exact, wide = copy.deepcopy(eager).double(), x.double()
    compiled = torch.compile(ours, backend="tilewright") if by_dynamo else tw.compile(ours, x)
    ys = [call(value) for call, value in ((compiled, x), (eager, x), (exact, wide))]
    assert ys[0].stride() == ys[1].stride()
    for y in ys:
        (y * torch.arange(y.numel()).view(y.shape).cos()).sum().backward()
    torch.testing.assert_close(ys[0].double(), ys[2], rtol=1e-4, atol=1e-5)
    parameters = [dict(net.named_parameters()) for net in (ours, eager, exact)]
    for name, parameter in parameters[0].items():
        other, right = parameters[1][name].grad, parameters[2][name].grad
        assert parameter.grad is not None
        assert other is not None
        assert right is not None
        assert parameter.grad.stride() == other.stride()
        torch.testing.assert_close(parameter.grad.double(), right, rtol=1e-3, atol=1e-4)
    for one, two in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(one, two)


def test_a_call_whose_dims_lie_otherwise_gives_the_strides_of_eager() -> None:
    rows = torch.randn(2, 3, 4, 5)
    last = rows.contiguous(memory_format=LAST)
    compiled = tw.compile(lambda x: x.sin() * 2, rows)
    for x in (rows, last, rows, last, rows[:, :, ::2].contiguous().repeat(1, 1, 2, 1)):
        assert compiled(x).stride() == (x.sin() * 2).stride()
        torch.testing.assert_close(compiled(x), x.sin() * 2)


def test_a_slice_gives_the_strides_of_eager_whatever_was_called_before() -> None:
    last, rows = images(2, 3, 6, 5)[:, :, ::2], torch.randn(2, 3, 6, 5)[:, :, ::2]
    compiled, captures = tw.compile(lambda x: x.sin() * 2, last), []
    assert isinstance(compiled, Compiled)
    for x in (last, rows.contiguous(), last, rows, images(2, 3, 3, 5), last, rows):
        assert compiled(x).stride() == (x.sin() * 2).stride()
        torch.testing.assert_close(compiled(x), x.sin() * 2)
        captures.append(id(compiled.captured))
    assert len(set(captures)) == 3  # slices of both orders, and images that are dense


def test_an_input_that_is_updated_lies_as_it_did() -> None:
    state, other = images(2, 3, 4, 5), images(2, 3, 4, 5)
    strides, expected = state.stride(), state * 2 + other

    def step(state: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        state.mul_(2).add_(other)
        return state.sum()

    found = tw.compile(step, state.clone(), other)(state, other)
    assert state.stride() == strides
    torch.testing.assert_close(state, expected)
    torch.testing.assert_close(found, expected.sum())


def test_what_lies_as_it_is_read_is_not_copied() -> None:
    x = images(2, 16, 8, 8)
    program = tw.compile(lambda x: F.max_pool2d(torch.relu(x), 2), x).program
    (launch,) = program.instructions
    assert [buffer.kind for buffer in program.buffers] == ["input", "output"], launch
    assert program.buffers[0].strides == x.stride()


@pytest.mark.parametrize(
    "layer",
    [
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.adaptive_avg_pool2d(x, 4),
        lambda x: torch.rot90(x.contiguous(), 1, (2, 3)),
        lambda x: x.flip(3).mT.relu(),
        lambda x: F.pixel_unshuffle(x, 2),
    ],
)
def test_a_result_is_written_once_in_the_order_of_eager(layer: Callable[..., Any]) -> None:
    x = images(2, 4, 8, 8)
    for each in (x, x.contiguous()):
        compiled, expected = tw.compile(layer, each), layer(each)
        assert [b.kind for b in compiled.program.buffers] == ["input", "output"]
        assert compiled.program.buffers[-1].strides == expected.stride()
        torch.testing.assert_close(compiled(each), expected)
    assert_as_eager(layer, x)


def test_a_saved_program_takes_arrays_that_lie_so_and_others(tmp_path: Path) -> None:
    x = images(2, 3, 4, 5)
    tw.compile(torch.exp, x).program.save(tmp_path / "exp.program")
    program = tw.load(tmp_path / "exp.program")
    for given in (x, x.contiguous()):
        (found,) = program.run([given])
        assert found.stride() == x.stride()
        torch.testing.assert_close(found, torch.exp(x))
        (array,) = program.run_arrays([given.numpy()])
        np.testing.assert_allclose(array, np.exp(x.numpy()), rtol=1e-6)


def test_weights_that_lie_otherwise_do_not_stop_sizes_from_varying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "COMPILED", [])
    torch._dynamo.reset()
    net, batch = nn.Linear(4, 5), torch.randn(6, 4)
    net.weight.data = permuted((5, 4), (1, 0))
    torch._dynamo.mark_dynamic(batch, 0)
    compiled = torch.compile(net, backend="tilewright")
    with torch.no_grad():
        for given in (batch, torch.randn(3, 4)):
            torch.testing.assert_close(compiled(given), net(given))
    assert len(backend.COMPILED) == 1
    assert backend.COMPILED != ["one set of sizes"]
