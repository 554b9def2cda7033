"""A kernel may write a result over what it reads, if it does not read that again; and no buffer is
taken for another of its name."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

import tilewright as tw
from tilewright.base.dtypes import F32
from tilewright.base.errors import UNKNOWN
from tilewright.compiler import Options, build
from tilewright.compiler.inplace import pointwise_at
from tilewright.graph.build import Builder
from tilewright.graph.ir import FUSED, Node, TensorType
from tilewright.ops import TABLE
from tilewright.ops.operator import apply, write


@pytest.mark.parametrize("late", [False, True])
def test_what_is_read_after_it_was_overwritten_is_not_overwritten(late: bool) -> None:
    builder = Builder("body")
    w, x = (builder.input(name, TensorType((8,), F32)) for name in "wx")
    texts = ["y[...] = w[...] + x[...]", "y[...] = 3 * w[...]"]
    order = texts if late else texts[::-1]
    made = {}
    for text in order:
        operands = {"w": w, "x": x} if "x[" in text else {"w": w}
        made[text] = write(builder, text, operands, name="moved" if "x[" in text else "kept")
    body = builder.finish([made[text] for text in texts])
    node = Node(FUSED, (w, x), body.outputs, (), None, (body,), UNKNOWN)
    assert pointwise_at(node, "w", body.outputs[0].name) is not late


def _state(s: Tensor, r: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    t = s + r
    s.copy_(t * 0.5)
    return t, t[None, :] * x[:, None]


def _neighbour(s: Tensor, r: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    t = s + r
    s.copy_(t * 0.5)
    return t, torch.roll(t, 1) * x


def _apart(s: Tensor, r: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    t = s + r
    s.copy_(t * x)
    return t.exp(), (t * 2).view(2, -1)[1] - 1


@pytest.mark.parametrize(
    ("function", "length"),
    [(f, n) for f in (_state, _neighbour, _apart) for n in (4, 6, 600)]
    + [(_neighbour, 40_000), (_apart, 40_000)],
)
def test_a_result_that_other_loops_compute_again_keeps_its_source(
    function: Callable[..., tuple[Tensor, Tensor]], length: int
) -> None:
    ours, r, x = (torch.randn(length) for _ in range(3))
    eager = ours.clone()
    compiled = tw.compile(function, ours.clone(), r, x)
    for _ in range(3):
        for mine, theirs in zip(compiled(ours, r, x), function(eager, r, x), strict=True):
            torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_carry_that_its_results_are_made_of_is_not_lost(length: int) -> None:
    def loop(x: Tensor, w: Tensor) -> Tensor:
        h, states = torch.zeros(3, dtype=x.dtype), []
        for row in x:
            h = h * 0.5 + row @ w
            states.append(h)
        return torch.stack(states)

    def scanned(x: Tensor, w: Tensor) -> Tensor:
        def step(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            new = h * 0.5 + row @ w
            return new, new.clone()

        states: Tensor = scan(step, torch.zeros(3, dtype=x.dtype), x)[1]
        return states

    x = torch.randn(length, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    wanted = torch.autograd.grad(loop(x, w).square().sum(), (x, w))
    for function in (loop, scanned):
        made = tw.compile(function, x, w)(x, w)
        found = torch.autograd.grad(made.square().sum(), (x, w))
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_copy_made_dense_is_not_taken_for_a_later_value_of_its_name() -> None:
    builder = Builder("g")
    x = builder.input("x", TensorType((4, 6), F32))
    w = builder.input("w", TensorType((3, 3), F32))
    thin = write(builder, "y[i, j] = x[i, 2*j] for j<3", x=x, name="thin")
    (product,) = apply(builder, TABLE["matmul"], thin, w)
    later = write(builder, "y[...] = exp(x[...])", x=x, name="x_dense")
    turned = write(builder, "y[j, i] = x[i, j]", x=later, name="turned")
    (last,) = apply(builder, TABLE["matmul"], later, turned)
    graph = builder.finish((product, last))
    a, b = torch.randn(4, 6), torch.randn(3, 3)
    ours = build(graph, Options(verify=True)).run([a, b])
    torch.testing.assert_close(ours[0], a[:, ::2] @ b)
    torch.testing.assert_close(ours[1], a.exp() @ a.exp().T)


def _trained(
    make: Callable[[], torch.nn.Module], loss: Callable[..., Tensor], *copied: str
) -> None:
    """Hold five steps to eager's in float64; all updates but `copied` are written in place."""
    torch.manual_seed(3)
    ours, theirs = make().double(), make().double()
    theirs.load_state_dict(ours.state_dict())
    batch = torch.randn(6, 8, dtype=torch.float64)
    mine, its = (torch.optim.AdamW(m.parameters(), lr=0.1) for m in (ours, theirs))
    step = tw.train_step(ours, loss, mine, batch, batch.clone(), options=Options(verify=True))
    for k in range(5):
        found = step(batch + k, batch)
        its.zero_grad()
        wanted = loss(theirs(batch + k), batch)
        wanted.backward()
        its.step()
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-11, atol=1e-11)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9)
    found = re.findall(r"(\S+) is written at the end", str(step.explain()))
    assert sorted(found) == sorted(copied)


class _Read(torch.nn.Module):
    """Its loss reads parameters otherwise than their updates do, and after these can be known."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(rows, 8))
        self.shift = torch.nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ self.weight.T).exp().sum() * 1e-3 + self.weight.T.flip(0).sum()
        return x * self.shift[:, 0, 0] + scores + (self.weight * 2).sum()


@pytest.mark.parametrize("rows", [3, 200])
def test_a_parameter_is_updated_in_place_whatever_else_reads_it(rows: int) -> None:
    """But a small one that shares a kernel with a sum which others are made of."""
    small = ("shift", "exp_avg_shift", "exp_avg_sq_shift")
    _trained(lambda: _Read(rows), torch.nn.functional.mse_loss, *small)


def test_beside_a_sum_only_what_no_other_result_needs_is_updated_in_place() -> None:
    def make() -> torch.nn.Module:
        layers = (torch.nn.Linear(8, 40), torch.nn.LayerNorm(40), torch.nn.Linear(40, 8))
        return torch.nn.Sequential(*layers)

    small = ("module_0_bias", "module_1_weight", "module_1_bias", "module_2_bias")
    copied = [f"{kind}_{name}" for kind in ("exp_avg", "exp_avg_sq") for name in small]
    _trained(make, torch.nn.functional.mse_loss, *copied)


def test_a_loss_that_is_linear_in_a_parameter_is_read_before_the_update() -> None:
    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 8).repeat(500))

        def forward(self, x: Tensor) -> Tensor:
            return (self.weight * x.repeat_interleave(500, 1)[0].reshape(-1)).sum()

    _trained(Weighted, lambda y, _: y)


@pytest.mark.parametrize("rows", [40, 3000])
def test_a_gradient_that_is_a_product_is_taken_from_the_old_value(rows: int) -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Linear(24, 40, bias=False).double() for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    x, y = torch.randn(rows, 24).double(), torch.randn(rows, 40).double()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    step = tw.train_step(ours, torch.nn.functional.mse_loss, optimizer, x, y)
    for _ in range(3):
        step(x, y)
        loss = torch.nn.functional.mse_loss(theirs(x), y)
        (gradient,) = torch.autograd.grad(loss, theirs.parameters())
        with torch.no_grad():
            theirs.weight -= 0.1 * gradient
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-12, atol=1e-13)
