"""Control flow written with torch's operators equals the same function in plain Python."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from tests.compiler import torch_control
from tests.compiler.torch_control import DIFFERENTIABLE, drawn
from tests.sweep import few
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.functional import cross_entropy

import tilewright as tw
from tilewright.base.errors import CaptureError
from tilewright.capture import capture, replay
from tilewright.program import Branch, Loop, While

Tensor = torch.Tensor
ROADS: dict[str, Callable[..., Any]] = {
    "tw.compile": lambda fn, *args: tw.compile(fn, *args),
    "torch.compile": lambda fn, *_: torch.compile(fn, backend="tilewright", fullgraph=True),
}


def _arguments(sign: int) -> tuple[Tensor, Tensor]:
    return (drawn(3, 4).abs() * sign).requires_grad_(), drawn(4, 4, seed=1).requires_grad_()


def _same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def _gradients(result: Any, arguments: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if leaf.requires_grad]
    weights = [drawn(*leaf.shape, seed=at) for at, leaf in enumerate(leaves)]
    found = torch.autograd.grad(leaves, arguments, weights, allow_unused=True)
    return [torch.zeros_like(a) if g is None else g for a, g in zip(arguments, found, strict=True)]


def test_results_ask_for_gradients_as_in_eager() -> None:
    """Torch lets every result of floating point ask for one where an operand does."""
    z = torch.randn(4, 3)

    def two(x: Tensor) -> Any:
        found = torch.cond(
            z.sum() > 0, lambda x: (x.sin(), z.cos()), lambda x: (x * 1, z * 2), (x,)
        )
        last, rows = scan(lambda c, row: (c + 1, row * 2), torch.ones(3), x)
        return *found, last, rows

    for asks in (True, False):
        x = torch.randn(4, 3, requires_grad=asks)
        flags = [value.requires_grad for value in two(x)]
        assert [value.requires_grad for value in tw.compile(two, x)(x)] == flags


BOTH = ("nested cond", "scan")  # the two roads differ in how they call, not in what they compile


@pytest.mark.parametrize(
    ("name", "road"),
    few(
        [(n, r) for r in ROADS for n in (DIFFERENTIABLE if r == "tw.compile" else BOTH)],
        "cond",
        "map",
        "associative scan",
        "scan along columns, backwards",
    ),
)
def test_control_flow_has_eager_s_values_and_gradients(
    name: str, road: str, fallbacks: list[str]
) -> None:
    twins = DIFFERENTIABLE[name]
    compiled = ROADS[road](twins.fn, *_arguments(1))
    for sign in twins.signs:
        arguments = _arguments(sign)
        expected, found = twins.twin(*arguments), compiled(*arguments)
        _same(found, expected)
        _same(_gradients(found, arguments), _gradients(expected, arguments))
    assert not fallbacks


@pytest.mark.parametrize("name", few(DIFFERENTIABLE, "scan"))
def test_captured_control_flow_replays_as_torch_calls(name: str) -> None:
    twins = DIFFERENTIABLE[name]
    captured = capture(twins.fn, *_arguments(1))
    for sign in twins.signs:
        arguments = _arguments(sign)
        inputs = captured.bind(arguments, {})
        found = captured.answer(arguments, inputs, replay(captured.graph, inputs))
        _same(found, twins.twin(*arguments))


def test_a_while_runs_as_often_as_its_test_says(fallbacks: list[str]) -> None:
    x, limit = drawn(5), torch.tensor(0.25, dtype=torch.float64)
    for road in ROADS.values():
        compiled = road(torch_control.halved, x, limit)
        for scale in (1, 100, 0):
            _same(compiled(x * scale, limit), torch_control.halved_twin(x * scale, limit))
    assert not fallbacks


def test_control_flow_is_compiled_to_loops_and_branches() -> None:
    x, limit = drawn(5), torch.tensor(0.25, dtype=torch.float64)
    made = tw.compile(torch_control.halved, x, limit)
    assert any(isinstance(step, While) for step in made.program.instructions)
    made = tw.compile(torch_control.recurrent, *(t.detach() for t in _arguments(1)))
    assert any(isinstance(step, Loop) for step in made.program.instructions)
    made = tw.compile(torch_control.branches, *(t.detach() for t in _arguments(1)))
    assert any(isinstance(step, Branch) for step in made.program.instructions)


def test_a_training_step_with_control_flow_is_eager_s() -> None:
    torch.manual_seed(0)
    ours, twin = torch_control.Net().double(), torch_control.Twin().double()
    twin.load_state_dict(ours.state_dict())
    x, target = drawn(7, 2, 3), drawn(2, 2, seed=1)
    mse = torch.nn.functional.mse_loss
    step = tw.train_step(ours, mse, torch.optim.SGD(ours.parameters(), lr=0.3), x, target)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.3)
    for sign in (1, -1, 1):
        optimizer.zero_grad()
        expected = mse(twin(x * sign), target)
        expected.backward()
        optimizer.step()
        _same(step(x * sign, target).detach(), expected.detach())
    for (name, mine), other in zip(ours.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12, msg=name)


def test_sizes_that_vary_are_compiled_one_by_one(fallbacks: list[str]) -> None:
    compiled = torch.compile(torch_control.recurrent, backend="tilewright", dynamic=True)
    w = drawn(4, 4, seed=1)
    for length in (3, 5):
        x = drawn(length, 4)
        _same(compiled(x, w), torch_control.recurrent_twin(x, w))
    assert not fallbacks


def test_a_while_that_is_differentiated_says_that_it_has_no_gradient() -> None:
    x, limit = drawn(5).requires_grad_(), torch.tensor(0.25, dtype=torch.float64)
    with pytest.raises(CaptureError, match="while loop has no gradient in reverse mode"):
        tw.compile(torch_control.halved, x, limit)(x, limit)


def energy(x: Tensor, w: Tensor) -> Tensor:
    first, *_ = torch_control.branches(x, w)
    return (first * torch_control.recurrent(x, w)[2]).sum()


def energy_twin(x: Tensor, w: Tensor) -> Tensor:
    """Without a branch in Python, for torch's own transforms."""
    then, otherwise = torch.tanh(x @ w), (x * x + torch_control.TABLE[:3]) * 2
    rows = torch_control.recurrent_twin(x, w)[2]
    return (torch.where(x.sum() > 0, then, otherwise) * rows).sum()


W, V = drawn(4, 4), drawn(4, 4, seed=9)
SAMPLES = torch.stack([drawn(3, 4, seed=k).abs() * (-1) ** k for k in range(3)])
COMPOSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda t, f: t.grad(f, argnums=(0, 1))(SAMPLES[0], W),
    "jvp": lambda t, f: t.jvp(f, (SAMPLES[1], W), (SAMPLES[2], V)),
    "vmap": lambda t, f: t.vmap(f, (0, None))(SAMPLES, W),
    "vmap of grad": lambda t, f: t.vmap(t.grad(f), (0, None))(SAMPLES, W),
    "jvp of grad": lambda t, f: t.jvp(t.grad(f), (SAMPLES[0], W), (SAMPLES[1], V)),
    "vjp of vmap": lambda t, f: t.vjp(t.vmap(f, (0, None)), SAMPLES, W)[1](drawn(3)),
}


@pytest.mark.parametrize("name", few(COMPOSITIONS, "vmap of grad"))
def test_transforms_of_control_flow_are_torch_s_of_plain_python(name: str) -> None:
    composition = COMPOSITIONS[name]
    _same(composition(tw, energy), composition(torch.func, energy_twin))


@pytest.mark.sweep
def test_a_batch_inside_of_captured_code_takes_each_sample_s_own_branch() -> None:
    def both(x: Tensor, w: Tensor) -> Any:
        return torch.vmap(lambda one: torch_control.nested(one, w))(x)

    w = drawn(4, 4, seed=1)
    found = tw.compile(both, SAMPLES, w)(SAMPLES, w)
    _same(found, torch.stack([torch_control.nested_twin(one, w) for one in SAMPLES]))


class Tripled(torch.autograd.Function):
    """A square whose gradient is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        made: Tensor = 3 * dy * x
        return made


def test_bodies_hold_custom_functions_and_keep_to_autocast() -> None:
    x, w = torch.rand(3, 4, requires_grad=True), torch.randn(4, 4)

    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        squared = torch.cond(x.sum() > 0, lambda x: Tripled.apply(x) + 1, lambda x: x * 2, (x,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            halved = torch.cond(x.sum() > 0, lambda x: (x @ w).float(), lambda x: x * 2, (x,))
        return squared, halved

    squared, halved = tw.compile(both, x, w)(x, w)
    (gradient,) = torch.autograd.grad(squared.sum(), x)
    torch.testing.assert_close(gradient, 3 * x.detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(halved, (x @ w).float(), rtol=0, atol=0)


class Normed(torch.nn.Module):
    """Branches whose operators take no gradient for a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("weight", torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        def scored(x: Tensor) -> Tensor:
            return cross_entropy(self.norm(x), torch.tensor([0, 3, 1]), weight=self.weight)

        made: Tensor = torch.cond(x.sum() > 0, scored, lambda x: self.norm(x).sum(), (x,))
        return made


def test_buffers_in_a_branch_are_asked_for_no_gradient() -> None:
    net = Normed().double().eval()
    x = drawn(3, 4).abs().requires_grad_()
    found = tw.compile(net, x)(x)
    expected = cross_entropy(net.norm(x), torch.tensor([0, 3, 1]), weight=net.weight)
    _same(found, expected)
    wanted = (x, *net.parameters())
    _same(torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted))


@pytest.mark.sweep
def test_a_carry_that_begins_without_gradient_is_cut_where_eager_cuts_it() -> None:
    def step(carry: tuple[Tensor, Tensor], row: Tensor) -> Any:
        a, b = carry  # the gradient comes to `b` in the second step, to its square in the third
        with torch.no_grad():
            cut = b * b
        return (row.sin(), a * 2), cut * row

    def rows(x: Tensor) -> Tensor:
        zeros = torch.zeros(4, dtype=x.dtype)
        made: Tensor = scan(step, (zeros, zeros.clone()), x)[1]
        return made

    x = drawn(4, 4).requires_grad_()
    carry, expected = (torch.zeros(4, dtype=x.dtype), torch.zeros(4, dtype=x.dtype)), []
    for row in x:
        carry, made = step(carry, row)
        expected.append(made)
    found = tw.compile(rows, x)(x)
    _same(found, torch.stack(expected))
    _same(_gradients(found, (x,)), _gradients(torch.stack(expected), (x,)))


@pytest.mark.parametrize("reverse", few([False, True], True))
def test_a_scan_may_carry_nothing(reverse: bool) -> None:
    def summed(x: Tensor, w: Tensor) -> Any:
        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            return carry + row @ w, carry.sum(-1)

        return scan(step, torch.zeros(0, 2), x, reverse=reverse)

    x, w = torch.zeros(3, 0, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    last, sums = tw.compile(summed, x, w)(x, w)
    assert (last.shape, sums.shape) == ((0, 2), (3, 0))
    _same(torch.autograd.grad(last.sum() + sums.sum(), w)[0], torch.zeros(2, 2))


def test_a_batch_of_whiles_lets_each_sample_end_by_itself() -> None:
    def doubled(y: Tensor) -> Tensor:
        made: tuple[Tensor, ...] = while_loop(lambda y: y.sum() < 100, lambda y: (y * 2,), (y,))
        return made[0]

    samples = torch.tensor([[1.0, 2.0], [30.0, 40.0], [99.0, 9.0]])
    expected = torch.tensor([[64.0, 128.0], [60.0, 80.0], [99.0, 9.0]])
    _same(tw.vmap(doubled)(samples), expected)
    value, change = tw.jvp(doubled, (samples[0],), (torch.tensor([1.0, 0.0]),))
    _same((value, change), (expected[0], torch.tensor([64.0, 0.0])))
