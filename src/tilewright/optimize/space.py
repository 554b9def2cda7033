"""The space that formulas of one kernel run over together, and when two spaces are one.

The idea: loops are digits.  Two formulas that touch one tensor at the same element touch the same
address; an address written in mixed radix has digits, and digits of equal weight are one loop.  So
loops of different names, orders and ranks are matched (a loop of 12 against loops of 3 and 4 is
split), and a space is a set of digits, of which the reductions' results say which are *rows*::

    m[i] max= x[i, j]      e[n] = exp(x[n//8, n%8] - m[n//8])       n = (i j): rows i, columns j

Every formula of a space is *full* (runs over rows and columns) or *by row* (rows alone); every read
of another's result is at the reader's own place.

This module does not know graphs, or what is worth sharing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, reads, substitute
from tilewright.base.sizes import divides, least_of, nominal, same
from tilewright.graph.ir import Formula
from tilewright.graph.total import Types, extents_of, fixed, parts
from tilewright.graph.views import contiguous, is_reduction, parallel

Index = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """One formula in a space.

    index: where it writes.  reads: what it reads at direct indices, for each tensor.  both are over
    the space's digits.  gathers: tensors it reads at indices that are read.  digits: those it runs
    over.
    """

    name: str
    index: Index
    reads: tuple[tuple[str, Index], ...]
    gathers: frozenset[str]
    digits: frozenset[str]
    is_reduction: bool


@dataclass(frozen=True, slots=True)
class Space:
    """extents: of the digits.  rows: the digits that are rows, None while no reduction says so."""

    extents: tuple[tuple[str, int], ...]
    rows: frozenset[str] | None
    members: tuple[Member, ...]

    @property
    def digits(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.extents)

    def size(self, digits: Iterable[str]) -> int:
        """Return how many points some digits make; where sizes vary, nominally."""
        extents = dict(self.extents)
        result = 1
        for name in digits:
            result *= extents[name]
        return nominal(result)


def space_of(name: str, formula: Formula) -> Space:
    """Return the space of a formula alone, whose operands are named by values."""
    many = [loop for loop, size in extents_of(formula).items() if not same(size, 1)]
    own = {loop: f"{name}.{loop}" for loop in many}
    bind: dict[str, Expr] = {
        loop: Sym(own[loop]) if loop in own else Const(0) for loop in extents_of(formula)
    }
    extents = {own[loop]: size for loop, size in extents_of(formula).items() if not same(size, 1)}
    found: dict[tuple[str, Index], None] = {}
    gathers: set[str] = set()
    for read in _reads(formula):
        if any(reads(entry) for entry in read.index):
            gathers.add(read.tensor)
        else:
            found[(read.tensor, _bound(read.index, bind, extents))] = None
    member = Member(
        name,
        _bound(formula.index, bind, extents),
        tuple(found),
        frozenset(gathers),
        frozenset(extents),
        is_reduction(formula),
    )
    rows = None
    if member.is_reduction:
        rows = frozenset(own[loop.name] for loop in parallel(formula) if loop.name in own)
    return Space(tuple(extents.items()), rows, (member,))


def _reads(formula: Formula) -> Iterator[Read]:
    for part in parts(formula):
        yield from reads(part)
    if isinstance(formula.fill, Read):
        yield Read(formula.fill.tensor, formula.index)


def _bound(index: Index, bind: Mapping[str, Expr], extents: Mapping[str, int]) -> Index:
    return tuple(algebra.simplify(substitute(entry, bind), extents) for entry in index)


# -------------------------------------------------------------------------------------- joining two


def join(a: Space, b: Space, types: Types, shared: Mapping[str, bool]) -> Space | str:
    """Return the space of both, or why there is none.

    shared: the tensors that both touch, largest first; true for those that a member makes.
    """
    joining = _Joining(a, b, types)
    for tensor, made in shared.items():
        if not made and not joining.is_open():
            break
        problem = joining.match(tensor, whole=not made)
        if problem and made:
            return problem
    joining.match_rest()
    return joining.result({tensor for tensor, made in shared.items() if made})


class _Joining:
    """Two spaces while their digits are matched; owned by `join`."""

    def __init__(self, a: Space, b: Space, types: Types) -> None:
        self.a, self.b = a, b
        self.types = types
        self.extents = {**dict(a.extents), **dict(b.extents)}
        self.moves: dict[str, Expr] = {}  # every digit replaced so far, over those that are left

    def is_open(self) -> bool:
        """Say whether digits of both sides are still unmatched."""
        mine, other = self._digits(self.a.digits), self._digits(self.b.digits)
        return bool(mine - other) or bool(other - mine)

    def match(self, tensor: str, *, whole: bool) -> str:
        """Match the places where the two sides touch a tensor; returns why they do not.

        whole: only try where both run over all their digits there; on failure nothing is changed.
        """
        kept = dict(self.extents), dict(self.moves)
        for mine in _places(self.a, tensor):
            for other in _places(self.b, tensor):
                problem = self._match_place(tensor, mine, other, whole=whole)
                if problem:
                    self.extents, self.moves = kept
                    return problem
                if whole:
                    return ""
        return ""

    def _match_place(self, tensor: str, mine: Index, other: Index, *, whole: bool) -> str:
        away = f"{tensor} is read at another place than it is made"
        strides = contiguous([fixed(dim) for dim in self.types[tensor].shape])
        while True:
            left = self._address(mine, strides)
            right = self._address(other, strides)
            if left is None or right is None or not same(left[0], right[0]):
                return away
            if whole and not (self._is_whole(left, self.a) and self._is_whole(right, self.b)):
                return away
            found = self._first_difference(left[1], right[1])
            if found is None:
                return ""
            if not self._equate(*found):
                return away

    def _is_whole(self, address: tuple[int, list[tuple[int, str]]], side: Space) -> bool:
        return {name for _, name in address[1]} == self._digits(side.digits)

    def _address(
        self, index: Index, strides: tuple[int, ...]
    ) -> tuple[int, list[tuple[int, str]]] | None:
        """Return the constant and the (weight, digit)s of an address, the smallest weight first."""
        constant = 0
        weights: dict[Expr, int] = {}
        for entry, stride in zip(index, strides, strict=True):
            moved = algebra.simplify(substitute(entry, self.moves), self.extents)
            own, terms = algebra.affine(moved)
            constant += own * stride
            for atom, factor in terms.items():
                weights[atom] = weights.get(atom, 0) + factor * stride
        if not all(isinstance(atom, Sym) and weight > 0 for atom, weight in weights.items()):
            whole = algebra.simplify(algebra.from_affine(constant, weights), self.extents)
            constant, terms = algebra.affine(whole)
            weights = dict(terms)
        if not all(isinstance(atom, Sym) and weight > 0 for atom, weight in weights.items()):
            return None
        found = [(weight, atom.name) for atom, weight in weights.items() if isinstance(atom, Sym)]
        return constant, sorted(found, key=lambda item: (nominal(item[0]), item[1]))

    def _first_difference(
        self, left: list[tuple[int, str]], right: list[tuple[int, str]]
    ) -> tuple[str, str] | None:
        for (weight, mine), (other_weight, other) in zip(left, right, strict=False):
            if not same(weight, other_weight):
                return "", ""
            if mine != other:
                return mine, other
        return None if len(left) == len(right) else ("", "")

    def _equate(self, mine: str, other: str) -> bool:
        """Make two digits one, splitting the longer; false where that cannot be."""
        if not mine or not other:
            return False
        a, b = self.extents[mine], self.extents[other]
        if same(a, b):
            apart = other not in self._digits(self.a.digits) and mine not in self._digits(
                self.b.digits
            )
            if apart:
                self._move(other, Sym(mine))
            return apart
        longer, low = (mine, b) if nominal(a) > nominal(b) else (other, a)
        return self._split(longer, low)

    def _split(self, digit: str, low: int) -> bool:
        extent = self.extents[digit]
        if least_of(low) < 2 or not divides(low, extent):
            return False
        high_name, low_name = _named(f"{digit}h", extent // low), _named(f"{digit}l", low)
        self.extents[high_name], self.extents[low_name] = extent // low, low
        scaled = Call("mul", (Sym(high_name), Const(low)))
        self._move(digit, Call("add", (scaled, Sym(low_name))))
        return True

    def _move(self, digit: str, to: Expr) -> None:
        del self.extents[digit]
        step = {digit: to}
        self.moves = {name: substitute(expr, step) for name, expr in self.moves.items()}
        self.moves[digit] = to

    def _digits(self, digits: Iterable[str]) -> frozenset[str]:
        """Return what some of the original digits have become."""
        return frozenset(
            name
            for digit in digits
            for name in (names(self.moves[digit]) if digit in self.moves else (digit,))
        )

    def match_rest(self) -> None:
        """Match the columns of a reduction with what is left of the other side, by their sizes."""
        mine, other = self._digits(self.a.digits), self._digits(self.b.digits)
        if not (mine & other) or not (mine - other) or not (other - mine):
            return
        kept = dict(self.extents), dict(self.moves)
        while True:
            left = self._in_order(self.a, self._digits(self.b.digits))
            right = self._in_order(self.b, self._digits(self.a.digits))
            if not left or not right:
                break
            if not self._equate(left[-1], right[-1]):
                self.extents, self.moves = kept
                return

    def _in_order(self, side: Space, without: frozenset[str]) -> list[str]:
        """Return the digits of one side that are not the other's, outermost first."""
        found: list[str] = []
        for digit, _ in side.extents:
            if digit not in self.moves:
                found.append(digit)
                continue
            _, terms = algebra.affine(self.moves[digit])
            ordered = sorted(terms.items(), key=lambda item: -nominal(item[1]))
            found += [atom.name for atom, _ in ordered if isinstance(atom, Sym)]
        return [name for name in dict.fromkeys(found) if name not in without]

    # The joined space, checked.

    def result(self, made: set[str]) -> Space | str:
        mine, other = self._digits(self.a.digits), self._digits(self.b.digits)
        rows = self._rows(mine, other)
        if isinstance(rows, str):
            return rows
        every = mine | other
        order = [*self._in_order(self.a, frozenset()), *self._in_order(self.b, mine)]
        members = tuple(self._moved(member) for member in (*self.a.members, *self.b.members))
        for member in members:
            if member.digits not in (every, rows):
                return f"{member.name} runs over a part of the loops"
            if member.is_reduction and (
                member.digits != every or _digits_of(member.index, every) != rows
            ):
                return f"{member.name} is reduced over other loops"
        targets = {member.name: member.index for member in members}
        for member in members:
            for tensor in member.gathers & set(targets):
                return f"{member.name} gathers from {tensor}"
            for tensor, index in member.reads:
                if tensor in targets and index != targets[tensor]:
                    return f"{member.name} reads {tensor} at another place"
        extents = tuple((name, self.extents[name]) for name in order)
        assert made <= set(targets), "what is made in a space has a member"
        return Space(extents, rows, members)

    def _rows(self, mine: frozenset[str], other: frozenset[str]) -> frozenset[str] | str | None:
        found = [self._digits(side.rows) for side in (self.a, self.b) if side.rows is not None]
        if len(found) == 2 and found[0] != found[1]:
            return "reduced over different loops"
        if found:
            return found[0]
        if mine == other:
            return None
        if mine < other or other < mine:
            return min(mine, other, key=len)
        return "they run over different loops"

    def _moved(self, member: Member) -> Member:
        if not any(digit in self.moves for digit in member.digits):
            return member
        return replace(
            member,
            index=_bound(member.index, self.moves, self.extents),
            reads=tuple(
                (tensor, _bound(index, self.moves, self.extents)) for tensor, index in member.reads
            ),
            digits=self._digits(member.digits),
        )


def _places(space: Space, tensor: str) -> list[Index]:
    """Return the different places where members touch a tensor; where it is made comes first."""
    found: dict[Index, None] = {}
    for member in space.members:
        if member.name == tensor:
            return [member.index]
        for name, index in member.reads:
            if name == tensor:
                found[index] = None
    return list(found)


def _digits_of(index: Index, every: frozenset[str]) -> frozenset[str]:
    return frozenset(name for entry in index for name in names(entry) if name in every)


def _named(digit: str, extent: int) -> str:
    return digit + re.sub(r"\W+", "_", str(extent))
