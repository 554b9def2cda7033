"""Library calls: which ATen operators a Program may call, how its arguments are filled in, and the
gradient of one operator by torch's own autograd.

The idea: a target is looked up once, by name, among the operators of the aten namespace that write
nothing but their `out=` arguments; what is then run for each call is a closure over tensors that
are already in place.  This module does not know where tensors live.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tilewright.base.dtypes import BY_NAME
from tilewright.base.errors import LibraryCallError
from tilewright.program import LibraryCall, Template, Transforms, wrap
from tilewright.program.layers import BATCH

Tensor = torch.Tensor

# ATen operators that reach outside the tensors they are given.
FORBIDDEN = ("from_file", "_pin_memory", "pin_memory", "record_stream")

# The same operators by torch's own bindings, which take half the time of `torch.ops`.
DIRECT: dict[str, Callable[..., Any]] = {
    "aten.mm.out": torch.mm,
    "aten.bmm.out": torch.bmm,
    "aten.addmm.out": torch.addmm,
    "aten.baddbmm.out": torch.baddbmm,
    "aten.mv.out": torch.mv,
    "aten.dot.out": torch.dot,
    "aten.mm.default": torch.mm,
    "aten.bmm.default": torch.bmm,
    "aten.addmm.default": torch.addmm,
    # Where a buffer's strides are not those that eager would have given, a view is a copy.
    "aten.view.default": torch.reshape,
    "aten._unsafe_view.default": torch.reshape,
}


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator found: what to call, its `out=` arguments, and whether results may be views."""

    target: str
    function: Callable[..., Any]
    outs: tuple[str, ...]
    may_alias: bool
    random: bool


def resolve(call: LibraryCall) -> Operator:
    """Find the operator that the call names, or raise `LibraryCallError`."""
    overload = _overload(call)
    schema = overload._schema
    outs = tuple(arg.name for arg in schema.arguments if arg.is_out)
    written = [arg.name for arg in schema.arguments if _writes(arg) and not arg.is_out]
    if written or schema.name.split("::")[-1] in FORBIDDEN:
        raise LibraryCallError(
            f"{call.target} may not be called by a program",
            expected="an operator that writes nothing but its out= arguments",
            found=f"one that writes {', '.join(written) or 'elsewhere'}",
            where=call.origin,
        )
    derived = call.vjp is not None or bool(call.through)
    if (outs and not derived and len(outs) != len(call.outputs)) or (outs and derived):
        raise LibraryCallError(
            f"{call.target} does not fit its outputs",
            expected=f"{len(outs)} outputs and no gradient",
            found=f"{len(call.outputs)} outputs{' and a gradient' if derived else ''}",
            where=call.origin,
        )
    operator = Operator(
        target=call.target,
        function=DIRECT.get(call.target, overload),
        outs=outs,
        may_alias=not outs and _may_alias(overload),
        random=_draws(overload, call),
    )
    if operator.random and (call.vjp or any(layer.kind != BATCH for layer in call.through)):
        raise LibraryCallError(
            f"the gradient of {call.target} would draw other random numbers than its forward",
            where=call.origin,
        )
    return operator


def _draws(overload: Any, call: LibraryCall) -> bool:
    """Whether this very call draws random numbers: a recurrent net or an attention without dropout
    bears the tag and draws none."""
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        return False
    given = dict(call.kwargs)
    for at, argument in enumerate(overload._schema.arguments):
        if argument.name in ("dropout", "dropout_p"):
            value = call.args[at] if at < len(call.args) else given.get(argument.name)
            return (argument.default_value if value is None else value) != 0
    return True


def _overload(call: LibraryCall) -> Any:
    namespace, name, overload = call.target.split(".")
    if namespace == "aten":
        try:
            return getattr(getattr(torch.ops.aten, name), overload)
        except AttributeError:
            pass
    raise LibraryCallError(
        f"torch {torch.__version__} has no operator {call.target}",
        expected="an operator of the aten namespace, with its overload",
        where=call.origin,
    )


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _may_alias(overload: Any) -> bool:
    """Whether a result may share memory with an operand: said by the schema, or composite."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    said = any(result.alias_info is not None for result in overload._schema.returns)
    return said or overload.has_kernel_for_dispatch_key(key)


# ---- arguments ----------------------------------------------------------------------------------

Filling = Callable[[Sequence[Tensor]], Any]


def bind(operator: Operator, call: LibraryCall, operands: list[Tensor | None]) -> Callable[[], Any]:
    """Return a function that calls the operator on the operands as they then are.

    operands: the tensors of the call's inputs; for targets with `out=`, its outputs' after them.
    They are None where the tensor changes from run to run.
    """
    kwargs = dict(call.kwargs)
    for i, name in enumerate(operator.outs):
        kwargs[name] = ("%", len(call.inputs) + i)
    if all(operand is not None for operand in operands):
        fixed = [operand for operand in operands if operand is not None]
        values = [_filling(arg)(fixed) for arg in call.args]
        named = {key: _filling(value)(fixed) for key, value in kwargs.items()}
        return partial(operator.function, *values, **named)
    return _filled_each_time(operator.function, call.args, kwargs, operands)


def _filled_each_time(
    function: Callable[..., Any],
    args: tuple[Template, ...],
    kwargs: dict[str, Template],
    operands: list[Any],
) -> Callable[[], Any]:
    fillings = [_filling(arg) for arg in args]
    named = [(key, _filling(value)) for key, value in kwargs.items()]

    def run() -> Any:
        values = [filling(operands) for filling in fillings]
        return function(*values, **{key: filling(operands) for key, filling in named})

    return run


def _filling(template: Template) -> Filling:
    """Return what puts the operands into an argument."""
    match template:
        case ("%", int(i)):
            return lambda operands: operands[i]
        case ("dtype", str(name)):
            dtype = getattr(torch, BY_NAME[name].torch_name)
            return lambda _: dtype
        case ("device", str(name)):
            device = torch.device(name)
            return lambda _: device
        case ("layout" | "memory_format", str(name)):
            constant = getattr(torch, name, None)
            assert isinstance(constant, torch.layout | torch.memory_format), f"torch.{name} is none"
            return lambda _: constant
        case ("list", *items):
            parts = [_filling(item) for item in items]
            return lambda operands: [part(operands) for part in parts]
        case tuple(items):
            parts = [_filling(item) for item in items]
            return lambda operands: tuple(part(operands) for part in parts)
        case plain:
            return lambda _: plain


def leaves(results: Any) -> list[Any]:
    """Return the results one by one, those inside lists and tuples too; None and numbers count."""
    if isinstance(results, list | tuple):
        return [leaf for result in results for leaf in leaves(result)]
    return [results]


def bind_gradient(
    operator: Operator, call: LibraryCall, operands: list[Any]
) -> Callable[[], list[Tensor]]:
    """Return a function that differentiates the operator at the operands as they then are."""
    vjp = call.vjp
    assert vjp is not None, "the call is not a gradient"
    count = len(call.inputs) - len(vjp.results)
    args = [_filling(arg) for arg in call.args]
    kwargs = [(key, _filling(value)) for key, value in call.kwargs]

    def run() -> list[Tensor]:
        with torch.enable_grad():
            primals = [_primal(operand) for operand in operands[:count]]
            wanted = [primals[i].requires_grad_() for i in vjp.inputs]
            named = {key: filling(primals) for key, filling in kwargs}
            results = leaves(operator.function(*[filling(primals) for filling in args], **named))
            reached = [
                (results[place], tangent)
                for place, tangent in zip(vjp.results, operands[count:], strict=True)
                if results[place].requires_grad
            ]
            if not reached:
                return [torch.zeros_like(leaf) for leaf in wanted]
            found = torch.autograd.grad(
                [result for result, _ in reached],
                wanted,
                [tangent for _, tangent in reached],
                allow_unused=True,
            )
        return [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(wanted, found, strict=True)
        ]

    return run


TRANSFORMS = Transforms(torch.func.vjp, torch.func.jvp, torch.func.vmap, torch.empty)


def bind_layers(
    operator: Operator, call: LibraryCall, operands: list[Any]
) -> Callable[[], list[Tensor]]:
    """Return a function that runs the operator through its layers."""
    args = [_filling(arg) for arg in call.args]
    kwargs = [(key, _filling(value)) for key, value in call.kwargs]

    def plain(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        named = {key: filling(given) for key, filling in kwargs}
        results = leaves(operator.function(*[filling(given) for filling in args], **named))
        return tuple(results[at] for at in call.results)

    layered = wrap(plain, call.through, TRANSFORMS)
    return lambda: list(layered([_primal(operand) for operand in operands]))


def _primal(operand: Tensor) -> Tensor:
    """Return the operand as a value of its own; one made in inference mode has to be copied."""
    return operand.clone() if operand.is_inference() else operand.detach()
