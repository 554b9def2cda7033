"""What torch gets wrong while it traces, mended.

The idea: a mend stands in front of one function of torch's, in the whole process, and makes it say
what newer versions say, or Python itself; with versions that are right by themselves there is
nothing in front.
This module does not know what is traced.
"""

import dis
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from tilewright.capture.alignments import trace_alignments
from tilewright.capture.questions import note_questions

RIGHT = "2.13"
"""The first version that is right by itself, but for what no version is."""


def mend_torch() -> None:
    """Put the mends in place where they are needed."""
    _unpack_ranges()
    _see_what_is_as_before()
    _let_recurrent_modules_see_their_weights()
    _end_labels_where_their_rows_end()
    trace_alignments()
    note_questions()
    if torch.__version__ >= RIGHT:
        return
    # Names of torch's own that a newer one need not have.
    from torch._decomp import decompositions
    from torch._dynamo.variables.higher_order_ops import AutogradFunctionApplyVariable

    _put_in_front(decompositions, "one_layer_lstm", _keep_rank_of_states)
    _put_in_front(AutogradFunctionApplyVariable, "rewire_bwd_graph_outputs", _refuse_one_for_two)


def _unpack_ranges() -> None:
    """Let `f(*range(n))` pass the numbers of the range.

    Up to torch 2.13 at least, Dynamo passes its start, stop and step: `f(0, n, 1)`.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.lists import RangeVariable, TupleVariable

    def unpack(before: Callable[..., Any], tracer: Any, instruction: Any) -> Any:
        keywords = sys.version_info >= (3, 14) or instruction.argval & 1
        place = -2 if keywords else -1  # keywords lie above
        if isinstance(given := tracer.stack[place], RangeVariable):
            tracer.stack[place] = TupleVariable(given.unpack_var_sequence(tracer))
        return before(tracer, instruction)

    classes: list[Any] = [InstructionTranslatorBase]
    for tracing in classes:
        classes += tracing.__subclasses__()
        table, opcode = tracing.dispatch_table, dis.opmap["CALL_FUNCTION_EX"]
        table[opcode] = functools.partial(unpack, table[opcode])


def _see_what_is_as_before() -> None:
    """Let no change be seen where a function has put back what was there, if changes are refused.

    Up to torch 2.13 at least, Dynamo counts whatever is set.
    """
    from torch._dynamo.side_effects import SideEffects

    from tilewright.capture.unchanged import forget_what_is_as_before

    def prune(before: Callable[..., None], effects: SideEffects, tracer: Any) -> None:
        before(effects, tracer)
        if torch._dynamo.config.side_effect_replay_policy == "error":
            forget_what_is_as_before(effects)

    _put_in_front(SideEffects, "prune_dead_object_new", prune)


def _let_recurrent_modules_see_their_weights() -> None:
    """Let a recurrent module whose parameter was replaced note that before it is traced.

    Eager's next call does; Dynamo would take it for a change that the function makes.
    """
    from torch._dynamo.variables.builder import VariableBuilder

    def wrap(before: Callable[..., Any], builder: Any, module: torch.nn.Module) -> Any:
        if (
            torch._dynamo.config.side_effect_replay_policy == "error"
            and isinstance(module, torch.nn.RNNBase)
            and module._weights_have_changed()
        ):
            module._init_flat_weights()
        return before(builder, module)

    _put_in_front(VariableBuilder, "wrap_module", wrap)


def _end_labels_where_their_rows_end() -> None:
    """Let multilabel_margin_loss read the labels before a row's first -1, as ATen's kernel does.

    Up to torch 2.13 at least, its decomposition takes those after it for class 0, and gives one
    row's loss a dim that eager's has not.
    """
    operator = torch.ops.aten.multilabel_margin_loss_forward.default
    operator.py_kernels[torch._C.DispatchKey.Autograd] = _multilabel_margin_loss
    operator._dispatch_cache.clear()


def _multilabel_margin_loss(
    input: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, and which classes are among the labels (in the input's dtype)."""
    x, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    number = x.shape[-1]
    torch._check(number != 0 and input.dim() <= 2, lambda: f"Expected classes: {input.shape}")
    torch._check(
        input.shape == target.shape,
        lambda: f"inconsistent target size: {target.shape} for input of size: {input.shape}",
    )
    classes = torch.arange(number, device=x.device)
    listed = classes < torch.where(labels == -1, classes, number).amin(-1, keepdim=True)
    labels = torch.where(listed, labels, 0)
    among = (listed.unsqueeze(-1) & (labels.unsqueeze(-1) == classes)).any(-2, keepdim=True)
    margin = 1 - x.gather(-1, labels).unsqueeze(-1) + x.unsqueeze(-2)
    counted = listed.unsqueeze(-1) & among.logical_not() & (margin > 0)
    loss = torch.where(counted, margin, 0).sum((-2, -1)) / number
    reduced = (lambda: loss.reshape(input.shape[:-1]), loss.mean, loss.sum)[reduction]()
    return reduced, among.reshape(input.shape).to(input.dtype)


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
