"""What a torch optimizer says: its groups, its settings, its state; and which rule that is.

The idea: the optimizer stays the owner of its settings and its state.  Settings that schedules move
(learning rate, momentum, beta1) are read at every step; the others are compiled in and watched.

    torch.optim.SGD    -->   sgd(p, g, lr, momentum_buffer; momentum, dampening, ...)
    torch.optim.AdamW  -->   adam(p, g, lr, step, exp_avg, exp_avg_sq; beta1, beta2, ...)

This module does not know graphs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from tilewright.base.errors import OptimizerError
from tilewright.graph.ir import Attr

Group = dict[str, Any]
Settings = tuple[tuple[Any, ...], ...]

# Settings that one entry of a group holds together.
_INSIDE = {"beta1": ("betas", 0), "beta2": ("betas", 1)}


@dataclass(frozen=True, slots=True)
class Rule:
    """A torch optimizer that is understood.

    operator: of the optimizers' page.  settings: what is compiled in, by the operator's names.
    slots: the state tensors of a parameter in the operator's order, each with the setting that must
    be other than zero for it ("" if there always is one).  moves: settings besides the learning
    rate that schedules move.  counts: its state has a step count.  clocked: its operator reads it.
    """

    cls: type[torch.optim.Optimizer]
    operator: str
    settings: tuple[str, ...]
    slots: tuple[tuple[str, str], ...]
    moves: tuple[str, ...] = ()
    counts: bool = True
    clocked: bool = True


_ADAM = (
    "adam",
    ("beta2", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay"),
    (("exp_avg", ""), ("exp_avg_sq", ""), ("max_exp_avg_sq", "amsgrad")),
    ("beta1",),
)
RULES: tuple[Rule, ...] = (
    Rule(
        torch.optim.SGD,
        "sgd",
        ("dampening", "weight_decay", "nesterov", "maximize"),
        (("momentum_buffer", "momentum"),),
        ("momentum",),
        counts=False,
        clocked=False,
    ),
    Rule(torch.optim.Adam, *_ADAM),
    Rule(torch.optim.AdamW, *_ADAM),
    Rule(
        torch.optim.Adagrad,
        "adagrad",
        ("lr_decay", "eps", "weight_decay", "maximize"),
        (("sum", ""),),
    ),
    Rule(
        torch.optim.RMSprop,
        "rmsprop",
        ("alpha", "eps", "weight_decay", "centered", "maximize"),
        (("square_avg", ""), ("momentum_buffer", "momentum"), ("grad_avg", "centered")),
        ("momentum",),
        clocked=False,
    ),
    Rule(
        torch.optim.Adadelta,
        "adadelta",
        ("rho", "eps", "weight_decay", "maximize"),
        (("square_avg", ""), ("acc_delta", "")),
        clocked=False,
    ),
)


def rule_of(optimizer: torch.optim.Optimizer) -> Rule:
    """Return the rule of an optimizer, or raise OptimizerError."""
    for rule in RULES:
        if type(optimizer) is rule.cls:
            refuse_hooks(optimizer)
            return rule
    *others, last = (rule.cls.__name__ for rule in RULES)
    raise OptimizerError(
        f"train_step does not know the optimizer {type(optimizer).__name__}",
        expected=f"torch.optim's {', '.join(others)} or {last}",
        found=f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        mend="choose one of these, or compile the model with torch.compile("
        'backend="tilewright") and let the optimizer step by itself',
    )


HOOKS_OF_ALL = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
"""Hooks of every optimizer's step (`torch.optim.optimizer.register_optimizer_step_pre_hook`)."""


def refuse_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Raise OptimizerError for an optimizer with hooks of its step, its own or of all."""
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    hooks = (*own, *HOOKS_OF_ALL)
    if any(hooks):
        raise OptimizerError(
            "the optimizer has step hooks, which a compiled step does not call",
            expected="an optimizer without hooks",
            found=f"{sum(len(table) for table in hooks)} registered",
            mend="remove them, and do their work around the call of the step",
        )


def settings_of(rule: Rule, optimizer: torch.optim.Optimizer) -> Settings:
    """Return what is compiled in, group by group, to compare with later: of parameters which they
    are, as each is updated by what its group says."""
    return tuple(
        (
            *(_setting(group, name) for name in rule.settings),
            group["differentiable"],
            moving_of(rule, group),
            tuple(map(id, group["params"])),
        )
        for group in optimizer.param_groups
    )


def _setting(group: Group, name: str) -> Any:
    entry, place = _INSIDE.get(name, (name, None))
    value = group[entry] if place is None else group[entry][place]
    return value.item() if isinstance(value, torch.Tensor) else value  # which may change in place


def moving_of(rule: Rule, group: Group) -> tuple[str, ...]:
    """Return the names of a group's settings that are read at every step, the rate first."""
    return ("lr", *(name for name in rule.moves if name in _INSIDE or group[name] != 0))


def rates_of(rule: Rule, optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], float]:
    """Return the settings that are read at every step; raise OptimizerError for impossible ones."""
    found = {}
    for number, group in enumerate(optimizer.param_groups):
        found[number, "lr"] = _rate(group, number)
        for name in rule.moves:
            found[number, name] = _finite(group, name, number)
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
    attrs: dict[str, Attr] = {}
    for name in rule.settings:
        flag = isinstance(_setting(group, name), bool)
        attrs[name] = _setting(group, name) if flag else _finite(group, name, number)
    if "nesterov" in attrs:
        attrs["nesterov"] = attrs["nesterov"] and group["momentum"] != 0
    return tuple(attrs.items())


def _finite(group: Group, name: str, number: int) -> float:
    setting = _setting(group, name)
    value = float(setting)
    if math.isfinite(value):
        return value
    shown = "{}[{}]".format(*_INSIDE[name]) if name in _INSIDE else name
    raise OptimizerError(
        f"{shown} of parameter group {number} is {value}",
        expected="a finite number",
        found=f"param_groups[{number}]: {shown} = {setting!r}",
        mend="set it to a finite number",
    )


# ------------------------------------------------------------------------------------------- state


def slots_of(rule: Rule, group: Group) -> tuple[str, ...]:
    """Return the names of the state tensors of one parameter, in the operator's order."""
    return tuple(slot for slot, needs in rule.slots if not needs or group[needs] != 0)


def begins(rule: Rule, group: Group, state: Mapping[str, Any]) -> bool:
    """Say whether the momentum begins with this step, and not by rule from a buffer of zeros.

    torch begins it with the gradient as it is, which dampening would scale.
    """
    if rule.operator != "sgd" or group["momentum"] == 0 or group["dampening"] == 0:
        return False
    return state.get("momentum_buffer") is None


def complete_state(rule: Rule, group: Group, parameter: torch.Tensor, state: Group) -> None:
    """Make the state tensors that a parameter does not have yet, as torch does at a first step."""
    if rule.counts and "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32)
    start = group.get("initial_accumulator_value", 0)
    for slot in slots_of(rule, group):
        if state.get(slot) is None:
            made = torch.full_like(parameter, start, memory_format=torch.preserve_format)
            state[slot] = made.detach()
