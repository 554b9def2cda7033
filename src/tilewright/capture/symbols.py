"""Named sizes while a graph is traced: torch's symbolic integers, and ours that they become.

The idea: the trace runs on fake tensors whose varying dims are torch's SymInts, in a shape
environment of its own.  What torch has to decide about them it notes as guards; an expression that
our sizes cannot hold is made a number, which is a guard as well.  All guards together say for which
values the graph holds.  This module does not know what is traced.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from tilewright.base import sizes
from tilewright.base.errors import CaptureError
from tilewright.base.sizes import Limits, Sizes
from tilewright.capture.layout import layout_of
from tilewright.capture.record import Literal, Result
from tilewright.program import contiguous

Names = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Varying:
    """Which dims of which arguments vary.

    dims: for each argument of a graph one name or None per dim; for an argument that is itself the
    size of a dim, its name alone; () where nothing varies.  idle: numbers that the graph does not
    use (Dynamo passes the strides of views, and the sizes of what they are views of).  derived: for
    names of dims that follow from others (one longer, twice as long), what they are of these.
    """

    dims: tuple[Names, ...]
    idle: frozenset[int] = frozenset()
    derived: Mapping[str, sympy.Expr] = field(default_factory=dict)

    def values(self, arguments: Sequence[Any]) -> dict[str, int] | None:
        """Return the value of each name in a call; None where it has two, or is less than 2."""
        found: dict[str, int] = {}
        for at, (argument, names) in enumerate(zip(arguments, self.dims, strict=True)):
            extents = tuple(argument.shape) if isinstance(argument, torch.Tensor) else (argument,)
            for name, extent in zip(names, extents, strict=False):
                if name is not None and (found.setdefault(name, extent) != extent or extent < 2):
                    return None
            if isinstance(argument, torch.Tensor) and any(names):
                gaps = layout_of(argument)[1]
                found |= {_gap(at, dim): left + 1 for dim, left in gaps.items()}
        numbers = {sympy.Symbol(name): value for name, value in found.items()}
        for name, expr in self.derived.items():
            if expr.subs(numbers) != found.pop(name):
                return None
        return found

    def fixed(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return what does not vary with the sizes: numbers that are none, and how tensors lie.

        What is compiled is for these alone.
        """
        triples = enumerate(zip(arguments, self.dims, strict=True))
        return tuple(
            _fixed(argument, names) for at, (argument, names) in triples if at not in self.idle
        )


def _fixed(argument: Any, names: Names) -> Any:
    if not isinstance(argument, torch.Tensor):
        return None if any(names) else argument
    if any(names):
        return layout_of(argument)[0]
    return (argument.stride(), argument.storage_offset() == 0)


def _gap(argument: int, dim: int) -> str:
    """Return the name of the gap before a dim: one more than what it leaves out, so at least 2."""
    return f"{sizes.PREFIX}gap{argument}_{dim}"


def varying_of(module: fx.GraphModule) -> Varying | None:
    """Return what varies among a Dynamo graph's arguments; None if nothing does, or not dim by dim.

    Call it while Dynamo compiles: it may settle afterwards what it holds to vary now.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    examples = [node.meta.get("example_value") for node in placeholders]
    names: dict[sympy.Expr, str] = {}
    others: dict[sympy.Expr, str] = {}

    def name(value: Any) -> str | None:
        expr = getattr(getattr(value, "node", None), "expr", None)
        if expr is None or expr.is_number:
            return None
        if expr.is_Symbol:
            return names.setdefault(expr, f"{sizes.PREFIX}{len(names)}")
        return others.setdefault(expr, f"{sizes.PREFIX}other{len(others)}")

    dims = tuple(
        tuple(name(size) for size in value.shape) if isinstance(value, torch.Tensor) else ()
        for value in examples
    )
    derived = _derived(others, names)
    carried = {*names.values(), *others.values()}
    if not carried or derived is None:
        return None
    alone = [(name(value),) if isinstance(value, torch.SymInt) else () for value in examples]
    sized = (own if carried.issuperset(own) else () for own in alone)
    numbers = {at for at, value in enumerate(examples) if not isinstance(value, torch.Tensor)}
    idle = frozenset(at for at in numbers if not placeholders[at].users)
    return Varying(tuple(a or b for a, b in zip(dims, sized, strict=True)), idle, derived)


def _derived(
    others: Mapping[sympy.Expr, str], names: Mapping[sympy.Expr, str]
) -> dict[str, sympy.Expr] | None:
    """Return what the others are of the names; None where one is not."""
    if any(not expr.free_symbols <= set(names) for expr in others):
        return None
    symbols = {symbol: sympy.Symbol(name) for symbol, name in names.items()}
    return {name: expr.subs(symbols) for expr, name in others.items()}


class Symbols:
    """One trace's symbolic integers.  Mutable: torch notes guards in `environment`."""

    def __init__(self, varying: Varying, values: Mapping[str, int]) -> None:
        self.varying = varying
        self.values = dict(values)
        self.environment = ShapeEnv()
        self.integers: dict[str, Any] = {}
        self.names: dict[sympy.Symbol, str] = {}
        for name, value in values.items():
            source = ConstantSource(name)
            symbol = self.environment.create_symbol(
                value, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
            )
            assert isinstance(symbol, sympy.Symbol), f"{name} = {value} varies"
            self.names[symbol] = name
            self.integers[name] = self.environment.create_symintnode(
                symbol, hint=value, source=source
            )
        known = {sympy.Symbol(name): symbol for symbol, name in self.names.items()}
        for name, expr in varying.derived.items():
            of = expr.subs(known)
            hint = int(of.subs({symbol: values[own] for symbol, own in self.names.items()}))
            self.integers[name] = self.environment.create_symintnode(of, hint=hint)

    @cached_property
    def sizes(self) -> Sizes:
        """Our sizes, within what torch knows of them by the time they are first asked for."""
        values, limits = {}, {}
        for symbol, name in self.names.items():
            known = self.environment.var_to_range[symbol]
            high = int(known.upper) if known.upper < sizes.INFINITY else sizes.INFINITY
            values[name] = self.values[name]
            limits[name] = Limits(max(2, int(known.lower)), high)
        return Sizes(values, limits)

    def mode(self) -> FakeTensorMode:
        """Return a fresh mode for fake tensors over these integers."""
        return FakeTensorMode(shape_env=self.environment, allow_non_fake_inputs=True)

    def fake(self, mode: FakeTensorMode, tensor: torch.Tensor, position: int) -> torch.Tensor:
        """Return a fake tensor like the argument at `position`, with the integers named in place
        of extents."""
        names = self.varying.dims[position]
        if not any(names):
            return mode.from_tensor(tensor, static_shapes=True)
        shape = tuple(
            extent if name is None else self.integers[name]
            for extent, name in zip(tensor.shape, names, strict=True)
        )
        layout, _ = layout_of(tensor)
        gaps = {dim: self.integers[_gap(position, dim)] - 1 for dim in layout.gaps}
        strides = layout.strides(shape, gaps)
        with mode, torch.no_grad():
            made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
            if not layout.begins:  # anywhere in memory: what asks for more than that is refused
                longer = made.new_empty((made.untyped_storage().nbytes() + 1,))
                made = longer.as_strided(shape, strides, 1).detach()
        return made.requires_grad_(tensor.requires_grad)

    def dim(self, value: int | torch.SymInt) -> int:
        """Return an extent as ours: a plain number, or a Size."""
        if not isinstance(value, torch.SymInt):
            return int(value)
        expr = self.environment.replace(sympy.sympify(value.node.expr))
        made = self._size(expr)
        return int(value) if made is None else made

    def dims(self, values: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
        return tuple(self.dim(value) for value in values)

    def _size(self, expr: sympy.Expr) -> Any:
        """Return a polynomial of names, with floor divisions; None where it is something else."""
        if expr.is_Integer:
            return int(expr)
        if isinstance(expr, sympy.Symbol):
            return self.sizes.size(self.names[expr]) if expr in self.names else None
        parts = [self._size(part) for part in expr.args]
        if any(part is None for part in parts):
            return None
        match expr:
            case sympy.Add() | sympy.Mul():
                total = parts[0]
                for part in parts[1:]:
                    total = total + part if isinstance(expr, sympy.Add) else total * part
                return total
            case sympy.Pow() if type(parts[1]) is int and parts[1] >= 0:
                return parts[0] ** parts[1]
            case FloorDiv() if sizes.least_of(parts[0]) >= 0 and sizes.least_of(parts[1]) > 0:
                return parts[0] // parts[1]
            case Mod() | PythonMod() if (
                sizes.least_of(parts[0]) >= 0 and sizes.least_of(parts[1]) > 0
            ):
                return parts[0] % parts[1]
            case Max() | Min() if len(parts) == 2:
                return (sizes.larger if isinstance(expr, Max) else sizes.smaller)(*parts)
        return None

    def result(self, result: Result) -> Result:
        """Return what a result is with all its sizes ours."""
        if isinstance(result, Literal):
            return Literal(self._number(result.value))
        known = ("shape", "strides", "base_strides", "offset")
        fields = [each.name for each in dataclasses.fields(result) if each.name in known]
        made: dict[str, Any] = {}
        for name in fields:
            value = getattr(result, name)
            made[name] = self.dims(value) if isinstance(value, tuple) else self.dim(value)
        return dataclasses.replace(result, **made)

    def _number(self, value: Any) -> Any:
        """Return a number that is handed out as ours; torch notes for which sizes it is one."""
        if isinstance(value, torch.SymInt):
            return self.dim(value)
        plain = {torch.SymFloat: float, torch.SymBool: bool}
        return plain[type(value)](value) if type(value) in plain else value

    def bound(self, results: Sequence[Result], values: Mapping[str, int]) -> tuple[Result, ...]:
        """Return what the results are for these values of the sizes."""
        evaluate = self.sizes.evaluator(values)

        def number(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(number(item) for item in value)
            return evaluate(value.key) if isinstance(value, sizes.Size) else value

        made: list[Result] = []
        for result in results:
            if isinstance(result, Literal) and not isinstance(result.value, sizes.Size):
                made.append(result)  # as it is: another tuple would not do
                continue
            names = [each.name for each in dataclasses.fields(result)]
            made.append(type(result)(**{name: number(getattr(result, name)) for name in names}))
        return tuple(made)

    def guards(self) -> tuple[sympy.Basic, ...]:
        """Return what torch has assumed."""
        return tuple(guard.expr for guard in self.environment.guards)

    def admit(self, values: Mapping[str, int]) -> bool:
        """Say whether the trace and all that was made of its graph hold for these values."""
        numbers = {symbol: sympy.Integer(values[name]) for symbol, name in self.names.items()}
        holds = all(guard.xreplace(numbers) == sympy.true for guard in self.guards())
        return holds and self.sizes.admit(values)


def refuse_overlaps(tensors: Sequence[torch.Tensor], varying: Sequence[Names]) -> None:
    """Raise CaptureError where elements of a tensor that varies share memory."""
    for tensor, names in zip(tensors, varying, strict=True):
        if any(names) and layout_of(tensor)[0].overlaps:
            raise CaptureError(
                "elements of an argument whose size varies share memory",
                expected="memory for each element, or elements that repeat along a dim",
                found=f"shape {tuple(tensor.shape)}, strides {tuple(tensor.stride())}",
                mend="pass x.contiguous(), or compile for one size",
            )


def refuse_shared_updates(
    tensors: Sequence[torch.Tensor], varying: Sequence[Names], updated: Sequence[int]
) -> None:
    """Raise CaptureError where a tensor that varies is changed in place and does not have a plain
    piece of memory to itself: the fakes of the trace do not tell."""
    if not any(any(names) for names in varying):
        return
    places = [tensor.untyped_storage()._cdata for tensor in tensors]
    for at in updated:
        tensor, names = tensors[at], varying[at]
        sharing = [k for k, place in enumerate(places) if place == places[at] and k != at]
        shared = any(any(varying[k]) for k in (*sharing, at)) and bool(sharing)
        odd = any(names) and not (tensor.is_contiguous() and tensor.storage_offset() == 0)
        if shared or odd:
            raise CaptureError(
                "an argument is changed in place that varies, or shares its memory with one"
                " that does",
                expected=f"strides {contiguous(tuple(tensor.shape))} in memory of its own",
                found=f"strides {tuple(tensor.stride())}",
                mend="pass x.contiguous(), or compile for one size",
            )
