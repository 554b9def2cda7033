"""Formulas that only look at another tensor: strided views, and what kind of loops a formula has.

The idea: where every element of a result lies in memory is a sum over the read's index; if that sum
is affine in the result's loops, the result is a view (an offset and a stride per dim) and no copy::

    y[b, h, t, d] = x[b, t, h*64+d]      x strides (S, R, 1)  -->  strides (S, 64, R, 1)
    y[i, j] = x[i//4, i%4, j]            a view where stride 0 is 4 times stride 1, else a copy

This module does not decide whether a view is worth a copy.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, reads
from tilewright.base.sizes import all_same, nominal, same
from tilewright.graph.ir import Formula, Loop, TensorType
from tilewright.graph.total import Extents, Types, extents_of, fixed, total


@dataclass(frozen=True, slots=True)
class Strided:
    """Where elements lie: `offset + sum(stride * index)`, in elements."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A result that is another tensor looked at: element `loops` is `operand[index]`."""

    operand: str
    loops: tuple[Loop, ...]
    index: tuple[Expr, ...]

    def strided(self, strides: Sequence[int], offset: int = 0) -> Strided | None:
        """Return the result's place in the operand's memory, None where it needs a copy.

        strides, offset: the operand's own.
        """
        extents = {loop.name: fixed(loop.extent) for loop in self.loops}
        return place(self.index, strides, [loop.name for loop in self.loops], extents, offset)

    def is_identity(self, shape: Sequence[int]) -> bool:
        """Say whether the result is the operand, of this shape, itself."""
        whole = tuple(fixed(loop.extent) for loop in self.loops)
        if not all_same(whole, shape):
            return False
        return all(
            entry == (Const(0) if same(extent, 1) else Sym(loop.name))
            for entry, loop, extent in zip(self.index, self.loops, whole, strict=True)
        )


def place(
    index: Sequence[Expr],
    strides: Sequence[int],
    loops: Sequence[str],
    extents: Extents,
    offset: int = 0,
) -> Strided | None:
    """Return the offset and the stride of each loop for a read, None where it is not affine."""
    address = address_of(index, strides, extents)
    constant, terms = algebra.affine(address)
    if any(not isinstance(atom, Sym) or atom.name not in loops for atom in terms):
        return None
    return Strided(offset + constant, tuple(terms.get(Sym(name), 0) for name in loops))


def address_of(index: Sequence[Expr], strides: Sequence[int], extents: Extents) -> Expr:
    """Return where an element lies, in normal form."""
    address: Expr = Const(0)
    for entry, stride in zip(index, strides, strict=True):
        address = Call("add", (address, Call("mul", (entry, Const(stride)))))
    return algebra.simplify(address, extents)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense row-major tensor."""
    strides: list[int] = []
    size = 1
    for extent in reversed(shape):
        strides.append(size)
        size *= max(extent, 1)
    return tuple(reversed(strides))


def view_of(formula: Formula, types: Types) -> View | None:
    """Return the view that a formula is: one operand, read inside, at direct indices; else None.

    types: of the operands, by name.  Whether it needs a copy is known once strides are
    (`View.strided`).
    """
    if formula.op != "=" or not isinstance(formula.value, Read) or formula.where is not None:
        return None
    made = total(formula, types)
    if made is None:
        return None
    match made.value:
        case Read(tensor, index, None) if types[tensor].dtype == made.type.dtype:
            if any(reads(entry) for entry in index):
                return None
            return View(tensor, made.loops, index)
    return None


def is_pointwise(formula: Formula) -> bool:
    """Say whether each iteration makes one element, in the order of its bare target."""
    return formula.op == "=" and _has_bare_target(formula) and not reduced(formula)


def is_reduction(formula: Formula) -> bool:
    """Say whether loops that the bare target does not name are combined into each element."""
    return formula.op != "=" and _has_bare_target(formula)


def reads_own(formula: Formula, operands: Collection[str]) -> bool:
    """Say whether these operands, of the target's shape, are read at its own index alone."""
    if formula.op != "=" or not _has_bare_target(formula):
        return not set(operands).intersection(formula.operands)
    if isinstance(formula.fill, Read) and formula.fill.tensor in operands:
        return False
    parts = [formula.value, *([] if formula.where is None else [formula.where])]
    found = [read for part in parts for read in reads(part) if read.tensor in operands]
    return all(
        entry == own or (entry == Const(0) and dim == 1)
        for read in found
        for entry, own, dim in zip(read.index, formula.index, formula.type.shape, strict=True)
    )


def reduced(formula: Formula) -> tuple[Loop, ...]:
    """Return the loops that the target does not index."""
    used = frozenset(name for entry in formula.index for name in names(entry))
    return tuple(loop for loop in formula.loops if loop.name not in used)


def parallel(formula: Formula) -> tuple[Loop, ...]:
    """Return the loops that the target indexes."""
    used = frozenset(name for entry in formula.index for name in names(entry))
    return tuple(loop for loop in formula.loops if loop.name in used)


def _has_bare_target(formula: Formula) -> bool:
    extents = extents_of(formula)
    seen: set[str] = set()
    for entry, dim in zip(formula.index, formula.type.shape, strict=True):
        match entry:
            case Const(0) if dim == 1:
                continue
            case Sym(name) if name not in seen and extents.get(name) == dim:
                seen.add(name)
            case _:
                return False
    return True


def size_of(type_: TensorType) -> int:
    """Return the number of elements."""
    size = 1
    for dim in type_.shape:
        size *= fixed(dim)
    return size


def bytes_of(type_: TensorType) -> int:
    """Return the bytes of a dense tensor; where sizes vary, their nominal ones."""
    return nominal(size_of(type_)) * type_.dtype.bytes
