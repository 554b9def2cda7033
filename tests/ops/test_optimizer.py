"""One step of ours is one step of torch.optim, bit for bit in float64 up to rounding order."""

from typing import Any

import numpy as np
import pytest
import torch

from tilewright.base.dtypes import F64
from tilewright.base.errors import UNKNOWN
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Attr, Graph, TensorType, Value
from tilewright.ops import composites, expand_where
from tilewright.ops.operator import apply
from tilewright.ops.table import TABLE

Array = np.ndarray
STEPS = 4


def graph_of(name: str, inputs: list[Array], attrs: dict[str, Attr]) -> Graph:
    builder = Builder()
    operands: list[Value] = [builder.input("x", TensorType(x.shape, F64)) for x in inputs]
    made = apply(builder, TABLE[name], *operands, names=(), origin=UNKNOWN, **attrs)
    graph = builder.finish(made)
    while chosen := composites(graph):
        graph = expand_where(graph, chosen)
    return graph


def gradients() -> list[Array]:
    generator = np.random.default_rng(3)
    return [generator.standard_normal((3, 4)) for _ in range(STEPS)]


def in_torch(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Array:
    for gradient in gradients():
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("maximize", [False, True])
def test_sgd_equals_torch(nesterov: bool, momentum: float, decay: float, maximize: bool) -> None:
    if nesterov and momentum == 0:
        return
    start = np.random.default_rng(1).standard_normal((3, 4))
    damping = 0.0 if nesterov else 0.25
    parameter = torch.tensor(start.copy(), requires_grad=True)
    wanted = in_torch(
        torch.optim.SGD([parameter], 0.1, momentum, damping, decay, nesterov, maximize=maximize),
        parameter,
    )
    attrs: dict[str, Attr] = {"momentum": momentum, "dampening": damping, "weight_decay": decay,
                              "nesterov": nesterov, "maximize": maximize}  # fmt: skip
    p, buffer, rate = start, np.zeros((3, 4)), np.array(0.1)
    for at, gradient in enumerate(gradients()):
        inputs = [p, gradient, rate] + ([buffer] if momentum else [])
        found = evaluate(graph_of("sgd", inputs, {**attrs, "first": at == 0}), inputs)
        p, buffer = found[0], found[-1]
    np.testing.assert_allclose(p, wanted, rtol=1e-14, atol=1e-15)


# Optimizer, its operator, settings of both, state tensors, and whether the operator counts steps.
COUNTED: list[tuple[type[torch.optim.Optimizer], str, dict[str, Any], int, bool]] = [
    (torch.optim.AdamW, "adam", {"amsgrad": False}, 2, True),
    (torch.optim.AdamW, "adam", {"amsgrad": True}, 3, True),
    (torch.optim.Adam, "adam", {"amsgrad": False}, 2, True),
    (torch.optim.Adam, "adam", {"amsgrad": True}, 3, True),
    (torch.optim.Adam, "adam", {"decoupled_weight_decay": True}, 2, True),
    (torch.optim.Adagrad, "adagrad", {"lr_decay": 0.0}, 1, True),
    (torch.optim.Adagrad, "adagrad", {"lr_decay": 0.3, "eps": 1e-3}, 1, True),
    (torch.optim.RMSprop, "rmsprop", {"alpha": 0.8}, 1, False),
    (torch.optim.RMSprop, "rmsprop", {"momentum": 0.9}, 2, False),
    (torch.optim.RMSprop, "rmsprop", {"centered": True, "eps": 1e-3}, 2, False),
    (torch.optim.RMSprop, "rmsprop", {"centered": True, "momentum": 0.9}, 3, False),
    (torch.optim.Adadelta, "adadelta", {"rho": 0.8, "eps": 1e-3}, 2, False),
]


@pytest.mark.parametrize(("cls", "name", "settings", "slots", "clocked"), COUNTED)
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_others_equal_torch(
    cls: Any, name: str, settings: dict[str, Any], slots: int, clocked: bool,
    decay: float, maximize: bool,
) -> None:  # fmt: skip
    start = np.random.default_rng(1).standard_normal((3, 4))
    parameter = torch.tensor(start.copy(), requires_grad=True)
    attrs: dict[str, Any] = {**settings, "weight_decay": decay, "maximize": maximize}
    betas = {"betas": (0.8, 0.95)} if name == "adam" else {}
    wanted = in_torch(cls([parameter], 0.1, **betas, **attrs), parameter)
    if name == "adam":
        decoupled = cls is torch.optim.AdamW or settings.get("decoupled_weight_decay", False)
        attrs |= {"beta1": 0.8, "beta2": 0.95, "decoupled_weight_decay": decoupled}
    state = [np.zeros((3, 4)) for _ in range(slots)]
    p, rate = start, np.array(0.1)
    for at, gradient in enumerate(gradients()):
        clock = [np.array(float(at + 1))] if clocked else []
        inputs = [p, gradient, rate, *clock, *state]
        p, *state = evaluate(graph_of(name, inputs, attrs), inputs)
    np.testing.assert_allclose(p, wanted, rtol=1e-13, atol=1e-15)
