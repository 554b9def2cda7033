"""What torch 2.11, the oldest that we support, gets wrong while it traces, mended.

The idea: a mend stands in front of one function of torch's, in the whole process, and makes it say
what newer versions say; with these there is nothing in front.
This module does not know what is traced.
"""

from collections.abc import Callable
from typing import Any

import torch

RIGHT = "2.13"
"""The first version that is right by itself."""


def mend_torch() -> None:
    """Put the mends in place where they are needed."""
    if torch.__version__ >= RIGHT:
        return
    # Names of torch's own that a newer one need not have.
    from torch._decomp import decompositions
    from torch._dynamo.variables.higher_order_ops import AutogradFunctionApplyVariable

    _put_in_front(decompositions, "one_layer_lstm", _keep_rank_of_states)
    _put_in_front(AutogradFunctionApplyVariable, "rewire_bwd_graph_outputs", _refuse_one_for_two)


def _put_in_front(owner: Any, name: str, mend: Callable[..., Any]) -> None:
    """Let `mend` take the calls of `owner.name`: it is told what that was, then the arguments."""
    before = getattr(owner, name)

    def mended(*args: Any, **kwargs: Any) -> Any:
        return mend(before, *args, **kwargs)

    setattr(owner, name, mended)


def _keep_rank_of_states(
    one_layer: Callable[..., Any], x: torch.Tensor, states: Any, *args: Any, **kwargs: Any
) -> Any:
    """Torch 2.11 gives the last states of a layer a dim too many, unless the batch is one."""
    out, last = one_layer(x, states, *args, **kwargs)
    return out, tuple(end.reshape(s.shape) for end, s in zip(last, states, strict=True))


def _refuse_one_for_two(rewire: Callable[..., Any], *args: Any) -> Any:
    """Torch 2.11 keeps the last gradient alone of a tensor that a custom function is given twice.

    args: those of the method; the function's arguments are the last.
    """
    from torch._dynamo.exc import unimplemented

    given = [argument.as_proxy().node for argument in args[-1] if argument.is_tensor()]
    if len(set(given)) < len(given):
        unimplemented(
            gb_type="autograd.Function.apply: duplicate tensor input",
            context="",
            explanation="Dynamo does not support tracing autograd.Function.apply when the same"
            " tensor is passed to multiple forward inputs.",
            hints=["Pass a copy of it: x.clone()."],
        )
    return rewire(*args)
