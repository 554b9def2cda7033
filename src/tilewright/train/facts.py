"""What a step looks at of its optimizer before it is made, as facts: while they hold, it need not.

The idea: `Active.follows` and `Active.holds` are the definition; here is written down which objects
they found, so that C can ask for these again.  Of what may change unseen (hooks that are there, a
tensor or a container of a class of its own) nothing is known, and then of all.  What follows from
these facts is of one time: who takes over another state, or other settings, forgets them.
This module does not know who asks, nor the module that is trained.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch

from tilewright.base.facts import Facts
from tilewright.train.optimizers import HOOKS_OF_ALL

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_OF_GRADIENTS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OWN = ("param_groups", "state", "_opt_called")
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DICTS = (dict, defaultdict, OrderedDict)
_SMALL = 256  # up to here a number is always the same object

Items = Iterable[tuple[Any, Any]]


def facts_of(
    optimizer: torch.optim.Optimizer,
    groups: Sequence[tuple[Items, Sequence[torch.Tensor]]],
    state: Items,
    tensors: Iterable[tuple[dict[str, Any], str, torch.Tensor]],
    counts: torch.Tensor | None,
) -> Facts | None:
    """Return what an optimizer is, as facts; None where that is not known.

    groups: the items of each, and its parameters.  state: its items.  tensors: whose state each is
    in, by which name.  counts: the steps made, whose version says that no one else wrote them.
    """
    own = vars(optimizer)
    if not all(name in own and getattr(optimizer, name) is own[name] for name in (*_HOOKS, *_OWN)):
        return None
    hooks = [*(own[name] for name in _HOOKS), *HOOKS_OF_ALL]
    if own["_opt_called"] is not True:
        return None
    trained = [parameter for _, parameters in groups for parameter in parameters]
    if any(type(parameter) not in _PLAIN for parameter in trained):
        return None
    attributes: list[tuple[Any, str, Any]]
    attributes = [(each, name, getattr(each, name)) for each in trained for name in _OF_GRADIENTS]
    hooks += [table for *_, table in attributes if table is not None]
    if any(hooks):
        return None
    if counts is not None:
        if counts._version > _SMALL:
            return None
        attributes.append((counts, "_version", counts._version))
    attributes.append((optimizer, "__dict__", own))
    held = own["param_groups"]
    if type(held) is not list or any(type(group) not in _DICTS for group in held):
        return None
    dicts = [
        (own, False, _flat((name, own[name]) for name in (*_HOOKS, *_OWN))),
        *((table, True, ()) for table in hooks),
        (own["state"], True, _flat(state)),
        *((group, True, _flat(items)) for group, (items, _) in zip(held, groups, strict=True)),
        *((entry, False, (name, tensor)) for entry, name, tensor in tensors),
    ]
    lists = [(held, tuple(held))]
    lists += [
        (group["params"], tuple(parameters))
        for group, (_, parameters) in zip(held, groups, strict=True)
    ]
    if any(type(found) not in _DICTS for found, *_ in dicts) or any(
        type(found) is not list for found, _ in lists
    ):
        return None
    return Facts(tuple(dicts), (), tuple(attributes), (), tuple(lists))


def _flat(items: Items) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(items))
