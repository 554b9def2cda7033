"""What a function asks while it is traced, and what was answered: of gradients, and of identity.

The idea: are gradients on, does this tensor ask for them, are these two tensors one?  A trace
answers as the example does, and what branches on that is right only where the answers are these
again.  Most functions never ask, and one graph serves calls of all kinds; so it is noted where
Dynamo answers.
This module does not know what follows from a question.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dis import opmap
from typing import Any

import torch

GRADIENTS, LEAVES, CLASSES = "gradients", "leaves", "classes"
IDENTITY, DOUBLE = "identity", "double"
"""The questions: are gradients on, or does a tensor ask for them; was it made of one that does, or
has it one; of which class is it; and are two one, as the function asks, or as Dynamo found and
guards by nothing: an argument that is a global too."""

_OF = {"requires_grad": GRADIENTS, "grad_fn": LEAVES, "is_leaf": LEAVES, "grad": LEAVES}
ARGUMENTS = ("L['args']", "L['kwargs']")
"""How places of arguments begin."""


@dataclass(frozen=True, slots=True)
class Questions:
    """What a trace was asked, and of which tensors: the places that Dynamo reads those from, as
    Python expressions; others are made of them."""

    asked: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()

    def of_tensors(self, doubled: bool) -> "Questions":
        """Return the questions that are asked in each call; doubled: whether an argument is a
        tensor that the function reaches too."""
        also = {IDENTITY} if doubled and DOUBLE in self.asked else set()
        return Questions(self.asked - {DOUBLE} | also, self.places)


def answers(
    asked: Collection[str], leaves: Sequence[Any], reached: Sequence[torch.Tensor], grad: bool
) -> tuple[object, ...]:
    """Return the answers to these questions in a call with such leaves; none to none.

    reached: the tensors that the function reads, or asks of, and that are no arguments.  grad:
    whether gradients are on.
    """
    tensors = [leaf for leaf in (*leaves, *reached) if isinstance(leaf, torch.Tensor)]
    found: list[object] = []
    if GRADIENTS in asked or LEAVES in asked:
        found += [grad, *(tensor.requires_grad for tensor in tensors)]
    if LEAVES in asked:
        found += [(t.is_leaf, t.is_leaf and t.grad is not None) for t in tensors]
    if CLASSES in asked:
        found += map(type, tensors)
    if IDENTITY in asked:
        first: dict[int, int] = {}
        found += [first.setdefault(id(tensor), at) for at, tensor in enumerate(tensors)]
    return tuple(found)


def place_at(source: Any) -> str:
    """Return where Dynamo reads a tensor from, as a Python expression; "" where it says nothing."""
    if source is None:
        return ""
    return str(source.name() if callable(source.name) else source.name)


Noted = list[tuple[str, str]]
"""Questions, each with the place of a tensor, or ""."""

_listening: list[Noted] = []


@contextmanager
def questions() -> Iterator[Noted]:
    """Note what is asked of Dynamo inside (by another thread's trace too, which does no harm)."""
    noted: Noted = []
    _listening.append(noted)
    try:
        yield noted
    finally:
        _listening[:] = [other for other in _listening if other is not noted]


def asked_in(noted: Noted) -> Questions:
    """Return what was noted."""
    return Questions(
        frozenset(question for question, _ in noted),
        frozenset(place for _, place in noted if place),
    )


def note_questions() -> None:
    """Let Dynamo tell what it is asked, in the whole process."""
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables import builder
    from torch._dynamo.variables.tensor import TensorVariable
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    variables: Any = TensorVariable
    read = variables.var_getattr

    def attribute(tensor: Any, tracer: Any, name: str) -> Any:
        if name in _OF:
            _note(_OF[name], tensor.source)
        return read(tensor, tracer, name)

    variables.var_getattr = attribute
    functions: Any = TorchInGraphFunctionVariable
    called = functions.call_function

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.value is torch.is_grad_enabled:
            _note(GRADIENTS)
        return called(function, *args, **kwargs)

    functions.call_function = call
    _note_classes()
    guarded = vars(builder)["make_dupe_guard"]

    def guard(source: Any, other: Any) -> Any:
        found = guarded(source, other)
        if found is None and other and other != source:
            _note(DOUBLE, source, other)
        return found

    vars(builder)["make_dupe_guard"] = guard
    classes: list[Any] = [InstructionTranslatorBase]
    for tracing in classes:
        classes += tracing.__subclasses__()
        table, opcode = tracing.dispatch_table, opmap["IS_OP"]
        table[opcode] = functools.partial(_of_identity, table[opcode])


def _note_classes() -> None:
    from torch._dynamo.variables import BuiltinVariable

    builtins: Any = BuiltinVariable
    one_of, class_of = builtins.call_isinstance, builtins.call_type

    def isinstance_(function: Any, tracer: Any, operand: Any, classes: Any) -> Any:
        if _is_given(operand) and _tells_parameters(classes):
            _note(CLASSES, operand.source)
        return one_of(function, tracer, operand, classes)

    def type_(function: Any, tracer: Any, operand: Any, *others: Any) -> Any:
        if _is_given(operand):
            _note(CLASSES, operand.source)
        return class_of(function, tracer, operand, *others)

    builtins.call_isinstance, builtins.call_type = isinstance_, type_


def _note(question: str, *sources: Any) -> None:
    places = [place_at(source) for source in sources] or [""]
    for noted in tuple(_listening):
        noted += [(question, place) for place in places]


def _of_identity(answer: Callable[..., Any], tracer: Any, instruction: Any) -> Any:
    left, right = tracer.stack[-2:]
    # What is one variable a guard keeps one.
    if left.realize() is not right.realize() and _is_given(left) and _is_given(right):
        left, right = left.realize(), right.realize()
        _note(IDENTITY, left.source, right.source)
    return answer(tracer, instruction)


def _is_given(operand: Any) -> bool:
    """Say whether an operand is a tensor that no trace makes."""
    # Asked first: a constant that is none, and not looked at yet, would be guarded by its value.
    return bool(operand.is_tensor() and operand.realize().source)


def _tells_parameters(classes: Any) -> bool:
    """Say whether to be of one of these classes is more than to be a tensor."""
    asked = classes.as_python_constant() if classes.is_python_constant() else ()
    return issubclass(torch.nn.Parameter, asked) and not issubclass(torch.Tensor, asked)
