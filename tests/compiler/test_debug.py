"""Debug mode: also where random numbers are drawn, which go on afterwards as if nothing was."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import tilewright as tw
from tilewright.base.expr import Call, Const
from tilewright.capture import capture
from tilewright.compiler.debug import compare_with_eager


def test_dropout_and_rand_agree_with_eager_in_debug_mode() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * torch.rand(4, 6)

    x = torch.randn(4, 6)
    compiled = tw.compile(draw, x, options=tw.Options(check="eager"))
    torch.manual_seed(3)
    found = compiled(x)
    torch.manual_seed(3)
    torch.testing.assert_close(found, draw(x))


def test_debug_mode_runs_behind_torch_compile() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    x = torch.randn(3, 4)
    compiled = torch.compile(net, backend="tilewright", options={"check": "eager"})
    torch.testing.assert_close(compiled(x), net(x))


@pytest.mark.parametrize(
    ("fn", "allowed"),
    [
        (lambda x: x.double().sum(0), [1e-10, 1e-10]),
        (lambda x: x.exp().double().sum(0), [1e-4, 1e-4, 1e-4]),
        (lambda x: x.half().exp().float(), [1e-2, 1e-2, 1e-2]),
        (lambda x: x.exp().argmax(0), [1e-4, 0.0]),
    ],
)
def test_what_is_computed_from_rounded_values_may_be_as_far_off_as_they_are(
    fn: Callable[[torch.Tensor], torch.Tensor], allowed: list[float]
) -> None:
    x = torch.randn(5, 4)
    captured = capture(fn, x)
    found = compare_with_eager(captured.graph, captured.bind((x,), {}))
    assert [item.tolerance for item in found] == allowed
    assert all(item.agrees for item in found)


def test_sums_in_float64_of_rounded_images_agree_with_eager_in_debug_mode() -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
    net = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(8))
    step = tw.train_step(
        net,
        lambda y, t: ((y - t) ** 2).mean(),
        torch.optim.SGD(net.parameters(), lr=0.1),
        *(batch := (torch.randn(4, 3, 8, 8), torch.randn(4, 8, 8, 8))),
        options=tw.Options(check="eager"),
    )
    before = step(*batch)
    assert step(*batch) < before


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_gradients_that_are_zero_but_for_rounding_agree_in_debug_mode(
    optimizer: type[torch.optim.Optimizer],
) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    step = tw.train_step(
        net,
        lambda y, t: ((y - t) ** 2).mean(),
        optimizer(net.parameters(), lr=0.1),  # type: ignore[call-arg]
        *(batch := (torch.randn(4, 3, 8, 8), torch.randn(4, 8, 6, 6))),
        options=tw.Options(check="eager"),
    )
    before = step(*batch)
    assert step(*batch) < before


@pytest.mark.parametrize(("wrong_by", "agrees"), [(0.0, True), (1e-3, False)])
def test_a_sum_whose_terms_cancel_is_judged_by_their_magnitude(
    wrong_by: float, agrees: bool
) -> None:
    half = torch.randn(500, 3)
    x = torch.cat([half, -half])[torch.randperm(1000)]
    captured = capture(lambda x: x.sum(0).exp(), x)
    total, exp = captured.graph.nodes
    assert total.formula is not None
    read = total.formula.value
    off = Call("add", (read, Call("mul", (Call("abs", (read,)), Const(wrong_by)))))
    wrong = replace(total, formula=replace(total.formula, value=off))
    graph = replace(captured.graph, nodes=(wrong, exp))
    found = compare_with_eager(graph, captured.bind((x,), {}))
    assert [item.agrees for item in found] == [agrees, True]
