"""A formula by its meaning, one iteration at a time: slow, short, and the judge of all else.

The idea: a term is evaluated to a number or to *absent*.  Absence spreads through everything but
`??` and the branch of a select that is not taken.

- A direct index outside its tensor is absent, and so is an exact division with a remainder; of a
  read with a default, the default is the value then.
- An indirect index (one that holds a read) outside its tensor is an IndexError if its term is
  present in the end, whatever the order of evaluation; it is never absent.
- A term whose `where` is absent or false is absent, and so is one whose target index is outside.
- Terms are met in the order of the loops, the last one fastest: the last write of `=` stays, the
  first of equals wins `argmax=`.  NaN wins `max=`, `min=`, `argmax=` and `argmin=`.
- Sums and products are formed in the compute type of the result.

This module does not know graphs, nor any faster way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import BOOL, DType
from tilewright.base.errors import UNKNOWN, IndexRangeError, Origin
from tilewright.base.expr import Call, Const, Expr, Read, Sym, reads
from tilewright.graph.evaluate_scalar import (
    Array,
    Number,
    apply,
    cast,
    held,
    integers,
    literal,
    promote,
    store,
    truth,
)
from tilewright.graph.ir import Formula

_BY_NUMPY = {dtype.numpy: dtype for dtype in dtypes.ALL}


@dataclass(frozen=True, slots=True)
class Fault:
    """An indirect index outside its tensor."""

    value: int
    tensor: str
    axis: int
    extent: int


@dataclass(frozen=True, slots=True)
class Term:
    """What an expression is in one iteration: no number where it is absent."""

    number: Number | None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Operands:
    """The tensors of a formula, by the names that it reads them by, in their compute types."""

    by_name: Mapping[str, Number]
    wide: bool = False


ABSENT = Term(None)


def dtype_of(array: Array) -> DType:
    """Return the element type that a NumPy array holds."""
    assert array.dtype in _BY_NUMPY, f"no element type is held in {array.dtype}"
    return _BY_NUMPY[array.dtype]


def bind(formula: Formula, arrays: Sequence[Array], *, wide: bool) -> Operands:
    """Pair a formula's operand names with arrays."""
    assert len(arrays) == len(formula.operands), (
        f"{len(formula.operands)} operands, {len(arrays)} arrays"
    )
    numbers = {}
    for name, array in zip(formula.operands, arrays, strict=True):
        dtype = dtype_of(array)
        data = array.astype(held(dtype, wide=wide), copy=False)
        numbers[name] = Number(data, dtype.compute)
    return Operands(numbers, wide)


def evaluate_naive(
    formula: Formula, arrays: Sequence[Array], *, wide: bool = False, origin: Origin = UNKNOWN
) -> Array:
    """Return the formula's result, by looping over its whole grid in Python."""
    operands = bind(formula, arrays, wide=wide)
    shape = static_shape(formula)
    with np.errstate(all="ignore"):
        cells: dict[tuple[int, ...], tuple[Number, Number | None]] = {}
        for point in _grid(formula):
            found = term_at(formula, operands, point, origin)
            if found is None:
                continue
            at, value, mark = found
            before = cells.get(at) or _start(formula, operands, at)
            cells[at] = _combine(formula, before, value, mark, wide=wide)
        result = _filled(formula, operands, shape)
        for at, (value, mark) in cells.items():
            kept = value if mark is None else mark
            result[at] = store(kept, formula.type.dtype, wide=wide)
    return result


def term_at(
    formula: Formula, operands: Operands, point: Mapping[str, int], origin: Origin
) -> tuple[tuple[int, ...], Number, Number | None] | None:
    """Return the term of one iteration: where it lands, its value, what `at` is; or None."""
    evaluate = _Evaluation(operands, point)
    if formula.where is not None:
        guard = evaluate.term(formula.where)
        if guard.number is None:
            return None
        _raise_fault(guard.fault, origin)
        if not truth(guard.number):
            return None
    value = evaluate.term(formula.value)
    mark = evaluate.term(formula.at) if formula.at is not None else None
    index = [evaluate.term(entry) for entry in formula.index]
    terms = [value, *index, *([mark] if mark is not None else [])]
    if any(term.number is None for term in terms):
        return None
    shape = static_shape(formula)
    place, outside = _place("the target", formula.index, index, shape)
    if place is None:
        return None
    for fault in (*(term.fault for term in terms), outside):
        _raise_fault(fault, origin)
    assert value.number is not None, "a term that is absent has been left out"
    return place, value.number, None if mark is None else mark.number


def static_shape(formula: Formula) -> tuple[int, ...]:
    """Return the result's extents, which are plain numbers by now."""
    shape = tuple(dim for dim in formula.type.shape if isinstance(dim, int))
    assert len(shape) == formula.type.rank, f"{formula.type} has sizes without a value"
    return shape


def static_extents(formula: Formula) -> dict[str, int]:
    """Return every loop's extent, which are plain numbers by now."""
    extents = {loop.name: loop.extent for loop in formula.loops if isinstance(loop.extent, int)}
    assert len(extents) == len(formula.loops), "a loop's extent has no value"
    return extents


class _Evaluation:
    """Evaluates expressions in one iteration; final, lives as long as the iteration."""

    def __init__(self, operands: Operands, point: Mapping[str, int]) -> None:
        self.operands = operands
        self.point = point
        self.wide = operands.wide

    def term(self, expr: Expr) -> Term:
        match expr:
            case Const(value):
                return Term(literal(value))
            case Sym(name):
                return Term(integers(np.asarray(self.point[name], dtype=np.int64)))
            case Read():
                return self._read(expr)
            case Call("select", (cond, yes, no)):
                return self._select(self.term(cond), yes, no)
            case Call(fn, args):
                return self._call(fn, [self.term(arg) for arg in args])

    def _call(self, fn: str, terms: list[Term]) -> Term:
        numbers = [term.number for term in terms if term.number is not None]
        if len(numbers) < len(terms):
            return ABSENT
        if fn == "exactdiv":
            divisor = int(numbers[1].data)
            if divisor == 0 or int(numbers[0].data) % divisor:
                return ABSENT
        fault = next((term.fault for term in terms if term.fault), None)
        return Term(apply(fn, numbers, wide=self.wide), fault)

    def _select(self, cond: Term, yes: Expr, no: Expr) -> Term:
        if cond.number is None:
            return ABSENT
        taken, other = (yes, no) if truth(cond.number) else (no, yes)
        term = self.term(taken)
        if term.number is None:
            return ABSENT
        common, weak = promote((term.number, self._typed(other)))
        number = cast(term.number, common, wide=self.wide, weak=weak)
        return Term(number, cond.fault or term.fault)

    def _typed(self, expr: Expr) -> Number:
        """Return a number of the type of an expression, whatever it is: absent, outside, faulty."""
        match expr:
            case Const() | Sym():
                number = self.term(expr).number
                assert number is not None, "a constant is present"
                return number
            case Read(tensor, _, default):
                zero = _zero(self.operands.by_name[tensor])
                return zero if default is None else self._joined(zero, self._typed(default))
            case Call("select", (_, yes, no)):
                return self._joined(self._typed(yes), self._typed(no))
            case Call(fn, args):
                return apply(fn, [self._typed(arg) for arg in args], wide=self.wide)

    def _joined(self, a: Number, b: Number) -> Number:
        common, weak = promote((a, b))
        return cast(a, common, wide=self.wide, weak=weak)

    def _read(self, read: Read) -> Term:
        tensor = self.operands.by_name[read.tensor]
        terms = [self.term(entry) for entry in read.index]
        default = None if read.default is None else self._typed(read.default)
        place: tuple[int, ...] | None = None
        fault: Fault | None = None
        if all(term.number is not None for term in terms):
            place, fault = _place(read.tensor, read.index, terms, tensor.data.shape)
        if place is None:
            return self._default(read, tensor)
        fault = next((term.fault for term in terms if term.fault), fault)
        number = _zero(tensor) if fault else Number(np.asarray(tensor.data[place]), tensor.dtype)
        return Term(number if default is None else self._joined(number, default), fault)

    def _default(self, read: Read, tensor: Number) -> Term:
        if read.default is None:
            return ABSENT
        term = self.term(read.default)
        if term.number is None:
            return ABSENT
        return Term(self._joined(term.number, _zero(tensor)), term.fault)


def _zero(tensor: Number) -> Number:
    return Number(np.zeros((), tensor.data.dtype), tensor.dtype)


def _place(
    tensor: str, index: Sequence[Expr], terms: Sequence[Term], shape: tuple[int, ...]
) -> tuple[tuple[int, ...] | None, Fault | None]:
    """Return where an index points: None if a direct entry is outside, 0 where an indirect is."""
    place: list[int] = []
    fault: Fault | None = None
    for axis, (entry, term, extent) in enumerate(zip(index, terms, shape, strict=True)):
        assert term.number is not None, "an absent index points nowhere"
        value = int(term.number.data)
        if 0 <= value < extent:
            place.append(value)
        elif reads(entry):
            fault = fault or Fault(value, tensor, axis, extent)
            place.append(0)
        else:
            return None, None
    return tuple(place), fault


def _raise_fault(fault: Fault | None, origin: Origin) -> None:
    if fault is None:
        return
    raise IndexRangeError(
        f"index {fault.value} is outside dim {fault.axis} of {fault.tensor!r}",
        expected=f"an index of at least 0 and less than {fault.extent}",
        found=str(fault.value),
        where=origin,
    )


def _grid(formula: Formula) -> Iterator[dict[str, int]]:
    extents = static_extents(formula)
    for point in product(*(range(extent) for extent in extents.values())):
        yield dict(zip(extents, point, strict=True))


def _accumulator(formula: Formula, value: Number) -> DType:
    if formula.op in ("any=", "all="):
        return BOOL
    if formula.op in ("argmax=", "argmin="):
        return value.dtype
    return formula.type.dtype.compute


def _start(
    formula: Formula, operands: Operands, at: tuple[int, ...]
) -> tuple[Number, Number | None] | None:
    """Return what the terms are combined with: the operand after `from`, else nothing."""
    if not isinstance(formula.fill, Read) or formula.at is not None:
        return None
    tensor = operands.by_name[formula.fill.tensor]
    return Number(np.asarray(tensor.data[at]), tensor.dtype), None


def _combine(
    formula: Formula,
    before: tuple[Number, Number | None] | None,
    value: Number,
    mark: Number | None,
    *,
    wide: bool,
) -> tuple[Number, Number | None]:
    kind = _accumulator(formula, value)
    new = cast(value, kind, wide=wide)
    if before is None or formula.op == "=":
        return new, mark
    old = cast(before[0], kind, wide=wide)
    match formula.op:
        case "+=":
            return replace(new, data=np.asarray(old.data + new.data)), None
        case "*=":
            return replace(new, data=np.asarray(old.data * new.data)), None
        case "max=" | "min=":
            return apply(formula.op[:3], (old, new), wide=wide), None
        case "any=" | "all=":
            fn = "or" if formula.op == "any=" else "and"
            return apply(fn, (old, new), wide=wide), None
        case "argmax=" | "argmin=":
            return (new, mark) if _beats(formula.op, new, old) else before
    raise AssertionError(f"no reduction is written {formula.op}")


def _beats(op: str, new: Number, old: Number) -> bool:
    if old.data != old.data:
        return False
    if new.data != new.data:
        return True
    return bool(new.data > old.data if op == "argmax=" else new.data < old.data)


def _filled(formula: Formula, operands: Operands, shape: tuple[int, ...]) -> Array:
    """Return the result where no term lands."""
    dtype, wide = formula.type.dtype, operands.wide
    if isinstance(formula.fill, Read):
        tensor = operands.by_name[formula.fill.tensor]
        assert tensor.data.shape == shape, f"from {formula.fill.tensor}: its shape is not {shape}"
        return np.array(store(tensor, dtype, wide=wide))
    fill = _Evaluation(operands, {}).term(formula.fill)
    assert fill.number is not None, "what stands after `else` is always present"
    return np.full(shape, store(fill.number, dtype, wide=wide))
