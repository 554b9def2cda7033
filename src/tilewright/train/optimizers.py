"""What a torch optimizer says: its groups, its settings, its state; and which rule that is.

The idea: the optimizer stays the owner of its settings and its state.  Settings that schedules move
(learning rate, momentum, beta1) are read at every step; the others are compiled in and watched.

    torch.optim.SGD    -->   sgd(p, g, lr, momentum_buffer; momentum, dampening, ...)
    torch.optim.AdamW  -->   adamw(p, g, lr, step, exp_avg, exp_avg_sq; beta1, beta2, ...)

This module does not know graphs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.base.errors import OptimizerError
from tilewright.graph.ir import Attr

Group = dict[str, Any]
Settings = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A torch optimizer that is understood.  settings: the entries of a group compiled in."""

    cls: type[torch.optim.Optimizer]
    operator: str
    settings: tuple[str, ...]
    counts: bool


RULES: tuple[Rule, ...] = (
    Rule(
        torch.optim.SGD,
        "sgd",
        ("dampening", "weight_decay", "nesterov", "maximize", "differentiable"),
        counts=False,
    ),
    Rule(
        torch.optim.AdamW,
        "adamw",
        (
            *("eps", "weight_decay", "amsgrad", "maximize", "differentiable"),
            "decoupled_weight_decay",
        ),
        counts=True,
    ),
)


def rule_of(optimizer: torch.optim.Optimizer) -> Rule:
    """Return the rule of an optimizer, or raise OptimizerError."""
    for rule in RULES:
        if type(optimizer) is rule.cls:
            _refuse_hooks(optimizer)
            return rule
    known = " or ".join(f"torch.optim.{rule.cls.__name__}" for rule in RULES)
    raise OptimizerError(
        f"train_step does not know the optimizer {type(optimizer).__name__}",
        expected=known,
        found=f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        mend="choose one of these, or compile the model with torch.compile("
        'backend="tilewright") and let the optimizer step by itself',
    )


def _refuse_hooks(optimizer: torch.optim.Optimizer) -> None:
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    if any(hooks):
        raise OptimizerError(
            "the optimizer has step hooks, which a compiled step does not call",
            expected="an optimizer without hooks",
            found=f"{sum(len(table) for table in hooks)} registered",
            mend="remove them, and do their work around the call of the step",
        )


def settings_of(rule: Rule, optimizer: torch.optim.Optimizer) -> Settings:
    """Return what is compiled in, group by group, to compare with later."""
    if rule.counts:
        return tuple(
            (*[group[name] for name in rule.settings], group["betas"][1], len(group["params"]))
            for group in optimizer.param_groups
        )
    return tuple(
        (*[group[name] for name in rule.settings], group["momentum"] != 0, len(group["params"]))
        for group in optimizer.param_groups
    )


def moving_of(rule: Rule, group: Group) -> tuple[str, ...]:
    """Return the names of a group's settings that are read at every step, the rate first."""
    if rule.counts:
        return ("lr", "beta1")
    return ("lr", "momentum") if group["momentum"] != 0 else ("lr",)


def rates_of(rule: Rule, optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], float]:
    """Return the settings that are read at every step; raise OptimizerError for impossible ones."""
    found = {}
    for number, group in enumerate(optimizer.param_groups):
        found[number, "lr"] = _rate(group, number)
        if rule.counts:
            found[number, "beta1"] = _finite(group["betas"][0], "betas[0]", number)
        else:
            found[number, "momentum"] = _finite(group["momentum"], "momentum", number)
    return found


def _rate(group: Group, number: int) -> float:
    rate = float(group["lr"])
    if math.isfinite(rate) and rate >= 0:
        return rate
    raise OptimizerError(
        f"the learning rate of parameter group {number} is {rate}",
        expected="a finite number, 0 or more",
        found=f"param_groups[{number}]['lr'] = {group['lr']!r}",
        mend="set it before the next step; a schedule that divides by zero is a usual cause",
    )


def attrs_of(rule: Rule, group: Group, number: int) -> tuple[tuple[str, Attr], ...]:
    """Return a group's settings as the operator's attributes; raise OptimizerError for bad ones."""
    if group["differentiable"]:
        raise OptimizerError(
            "a compiled step cannot be differentiated through",
            expected="differentiable=False",
            found="differentiable=True",
            mend="leave the optimizer's option differentiable at its default",
        )
    attrs: dict[str, Attr] = {"maximize": bool(group["maximize"])}
    attrs["weight_decay"] = _finite(group["weight_decay"], "weight_decay", number)
    if not rule.counts:
        attrs["dampening"] = _finite(group["dampening"], "dampening", number)
        attrs["nesterov"] = bool(group["nesterov"]) and group["momentum"] != 0
        return tuple(attrs.items())
    if not group["decoupled_weight_decay"]:
        raise OptimizerError(
            "AdamW without decoupled weight decay is another optimizer",
            expected="decoupled_weight_decay=True",
            found=f"param_groups[{number}]['decoupled_weight_decay'] = False",
            mend="leave it at True",
        )
    attrs["beta2"] = _finite(group["betas"][1], "betas[1]", number)
    attrs["eps"] = _finite(group["eps"], "eps", number)
    attrs["amsgrad"] = bool(group["amsgrad"])
    return tuple(attrs.items())


def _finite(setting: Any, name: str, number: int) -> float:
    value = float(setting)
    if math.isfinite(value):
        return value
    raise OptimizerError(
        f"{name} of parameter group {number} is {value}",
        expected="a finite number",
        found=f"param_groups[{number}]: {name} = {setting!r}",
        mend="set it to a finite number",
    )


# ------------------------------------------------------------------------------------------- state


def slots_of(rule: Rule, group: Group) -> tuple[str, ...]:
    """Return the names of the state tensors of one parameter, in the operator's order."""
    if rule.operator == "sgd":
        return ("momentum_buffer",) if group["momentum"] != 0 else ()
    largest = ("max_exp_avg_sq",) if group["amsgrad"] else ()
    return ("exp_avg", "exp_avg_sq", *largest)


def begins(rule: Rule, group: Group, state: Mapping[str, Any]) -> bool:
    """Say whether the momentum begins with this step, and not by rule from a buffer of zeros.

    torch begins it with the gradient as it is, which dampening would scale.
    """
    if rule.operator != "sgd" or group["momentum"] == 0 or group["dampening"] == 0:
        return False
    return state.get("momentum_buffer") is None


def complete_state(
    rule: Rule, slots: tuple[str, ...], parameter: torch.Tensor, state: dict[str, Any]
) -> None:
    """Make the state tensors that a parameter does not have yet, as torch does at a first step."""
    if rule.counts and "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32)
    for slot in slots:
        if state.get(slot) is None:
            zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state[slot] = zeros.detach()
