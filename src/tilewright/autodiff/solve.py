"""Solve a read's index for its loops: from `x[f(loops)]` to the loops as functions of the element.

The idea: the adjoint of `y[o(l)] += body(x[f(l)])` is `dx[f(l)] += dy[o(l)] * d body`.  Written so,
it scatters; solved for `t = f(l)` it gathers, runs in parallel over t, and is again a formula of
the ordinary kind (the adjoint of a matmul is a matmul).  Dim by dim::

    t = i + c                i = t - c                  (guarded where t - c may leave i's range)
    t = (i + c) % n, i < n   i = (t + n - c) % n        (rolled)
    t = D*h + d, 0 <= d < D  h = t // D, d = t % D      (mixed radix)
    t0 = j // D, t1 = j % D  j = D*t0 + t1              (the digits of one loop)
    t = j % D                j = D*turn + t             (some of them: turn becomes a reduction)
    t = h*s + i*d - p        h = (t - i*d + p) / s      (window: i becomes a reduction; exact)
    t = i*s + c, alone       written through            (injective: dx[i*s + c] = dy[i] else 0)
    t = ids[...]             written through            (scatter)

This module does not know what is differentiated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Sym, names, reads, substitute, walk
from tilewright.base.sizes import least_of, nominal, same


@dataclass(frozen=True, slots=True)
class Solution:
    """index: the target's index.  extents: loops that are new.  bindings: solved loops.

    guards: conditions under which the solved loops are iterations at all.  ranges: for each solved
    loop, whether its range still has to be checked (by a guard or by a read that is absent
    outside).  injective: no two iterations write one element.
    """

    index: tuple[Expr, ...]
    extents: Mapping[str, int]
    bindings: Mapping[str, Expr]
    ranges: tuple[str, ...]
    guards: tuple[Expr, ...]
    injective: bool


@dataclass(slots=True)
class _State:
    """The solution in the making; owned by `solve`."""

    loops: Mapping[str, int]
    parallel: frozenset[str]
    taken: set[str]
    extents: dict[str, int] = field(default_factory=dict)
    bindings: dict[str, Expr] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)
    guards: list[Expr] = field(default_factory=list)

    def unsolved(self, expr: Expr) -> set[str]:
        return {name for name in names(expr) if name in self.loops and name not in self.bindings}

    def target(self, wish: str, extent: int) -> Sym:
        name = wish
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        self.extents[name] = extent
        return Sym(name)

    def bind(self, loop: str, value: Expr) -> None:
        known = {**self.loops, **self.extents}
        value = algebra.simplify(substitute(value, self.bindings), known)
        for name, before in list(self.bindings.items()):
            self.bindings[name] = algebra.simplify(substitute(before, {loop: value}), known)
        self.bindings[loop] = value
        limits = algebra.bounds(value, known)
        divided = any(isinstance(n, Call) and n.fn == "exactdiv" for n in walk(value))
        if divided or limits is None or not _inside(limits, self.loops[loop]):
            self.ranges.append(loop)


def solve(
    index: Sequence[Expr], shape: Sequence[int], loops: Mapping[str, int], parallel: frozenset[str]
) -> Solution:
    """Solve `t = index` over a tensor of `shape` for as many loops as can be.

    loops: extents.  parallel: the loops that index the formula's own result (a window is solved for
    one of those).
    """
    state = _State(loops, parallel, set(loops))
    target: list[Expr | None] = [None] * len(index)
    _solve_bare(state, index, shape, target)
    _solve_rolled(state, index, shape, target)
    _solve_digits(state, index, shape, target)
    _solve_radix(state, index, shape, target)
    _solve_windows(state, index, shape, target)
    through = _write_through(state, index, shape, target)
    final = tuple(
        algebra.simplify(substitute(entry, state.bindings), {**loops, **state.extents})
        for entry in target
        if entry is not None
    )
    return Solution(
        final, state.extents, state.bindings, tuple(state.ranges), tuple(state.guards), through
    )


def _solve_bare(
    state: _State, index: Sequence[Expr], shape: Sequence[int], target: list[Expr | None]
) -> None:
    """t = i + c or t = c - i, for a loop seen for the first time."""
    for dim, entry in enumerate(index):
        if reads(entry):
            continue
        constant, terms = algebra.affine(entry)
        if len(terms) != 1:
            continue
        ((atom, factor),) = terms.items()
        if not isinstance(atom, Sym) or abs(factor) != 1 or not state.unsolved(atom):
            continue
        if constant == 0 and factor == 1 and same(shape[dim], state.loops[atom.name]):
            # The loop itself is the target's: nothing to rename.
            target[dim] = atom
            state.bindings[atom.name] = atom
            continue
        t = state.target(atom.name, shape[dim])
        target[dim] = t
        moved = (
            Call("sub", (t, Const(constant))) if factor == 1 else Call("sub", (Const(constant), t))
        )
        state.bind(atom.name, moved)


def _solve_rolled(
    state: _State, index: Sequence[Expr], shape: Sequence[int], target: list[Expr | None]
) -> None:
    """t = (i + c) % n, for a loop of n turns: each of them once."""
    for dim, entry in enumerate(index):
        match entry:
            case Call("mod", (moved, Const(int(n)))) if target[dim] is None and not reads(moved):
                constant, terms = algebra.affine(moved)
            case _:
                continue
        atom = next(iter(terms), None)
        if not isinstance(atom, Sym) or terms != {atom: 1} or not state.unsolved(atom):
            continue
        if not (same(state.loops[atom.name], n) and same(shape[dim], n)):
            continue
        t = state.target(atom.name, shape[dim])
        target[dim] = t
        back = Call("add", (t, Const(-constant % n)))
        state.bind(atom.name, Call("mod", (back, Const(n))))


def _solve_digits(
    state: _State, index: Sequence[Expr], shape: Sequence[int], target: list[Expr | None]
) -> None:
    """t0 = (e // D) , t1 = e % D, ...: all digits of one expression e give e back."""
    groups: dict[Expr, list[tuple[int, int, int]]] = {}
    for dim, entry in enumerate(index):
        if target[dim] is None and (digit := _digit(entry)) is not None:
            expr, low, high = digit
            if state.unsolved(expr) and not reads(expr):
                groups.setdefault(expr, []).append((low, high, dim))
    for expr, digits in groups.items():
        limits = algebra.bounds(expr, state.loops)
        if limits is None or limits[0] < 0:
            continue
        digits.sort()
        top = digits[-1]
        chain = digits[0][0] == 1 and all(same(a[1], b[0]) for a, b in pairwise(digits))
        beyond = bool(top[1]) and limits[1] >= top[1]
        counted = isinstance(expr, Sym) and type(limits[1]) is int and type(top[1]) is int
        if not chain or (beyond and not counted):
            continue
        if any(high and high // low != shape[dim] for low, high, dim in digits):
            continue
        whole: Expr = Const(0)
        if beyond:  # the digit above those that are named is summed over
            turn = state.target("turn", -(-(limits[1] + 1) // top[1]))
            whole = Call("mul", (turn, Const(top[1])))
        for low, _, dim in digits:
            t = state.target(f"t{dim}", shape[dim])
            target[dim] = t
            whole = Call("add", (whole, Call("mul", (t, Const(low)))))
        _solve_equation(state, expr, whole)


def _digit(entry: Expr) -> tuple[Expr, int, int] | None:
    """Read an entry as (e // low) % (high / low); high is 0 where there is no remainder."""
    match entry:
        case Call("mod", (Call("floordiv", (e, Const(int(q)))), Const(int(m)))):
            return e, q, q * m
        case Call("mod", (e, Const(int(m)))):
            return e, 1, m
        case Call("floordiv", (e, Const(int(q)))):
            return e, q, 0
    return None


def _solve_radix(
    state: _State, index: Sequence[Expr], shape: Sequence[int], target: list[Expr | None]
) -> None:
    """t = D*h + d: a sum in which every loop's factor is the product of the smaller extents."""
    for dim, entry in enumerate(index):
        if target[dim] is not None or reads(entry) or not state.unsolved(entry):
            continue
        if _radix(state, entry) is None:
            continue
        t = state.target(f"t{dim}", shape[dim])
        target[dim] = t
        _solve_equation(state, entry, t)


def _radix(state: _State, entry: Expr) -> list[tuple[int, str]] | None:
    constant, terms = algebra.affine(entry)
    loops = [(factor, atom.name) for atom, factor in terms.items() if isinstance(atom, Sym)]
    if constant or len(loops) != len(terms) or len(loops) < 2:
        return None
    if any(factor < 1 or name not in state.unsolved(Sym(name)) for factor, name in loops):
        return None
    loops.sort()
    span = 1
    for factor, name in loops:
        if factor != span:
            return None
        span *= state.loops[name]
    return loops


def _solve_equation(state: _State, entry: Expr, t: Expr) -> None:
    """Solve entry = t for the loops of a mixed-radix entry."""
    if isinstance(entry, Sym):
        state.bind(entry.name, t)
        return
    loops = _radix(state, entry)
    if loops is None:
        state.guards.append(Call("eq", (entry, t)))
        return
    for position, (factor, name) in enumerate(loops):
        digit: Expr = Call("floordiv", (t, Const(factor))) if factor > 1 else t
        if position + 1 < len(loops):
            digit = Call("mod", (digit, Const(state.loops[name])))
        state.bind(name, digit)


def _solve_windows(
    state: _State, index: Sequence[Expr], shape: Sequence[int], target: list[Expr | None]
) -> None:
    """t = h*s + i*d - p: overlapping reads, solved for one loop; the rest become reductions."""
    for dim, entry in enumerate(index):
        if target[dim] is not None or reads(entry):
            continue
        known = {**state.loops, **state.extents}
        entry = algebra.simplify(substitute(entry, state.bindings), known)
        constant, terms = algebra.affine(entry)
        free = [
            (atom.name, factor)
            for atom, factor in terms.items()
            if isinstance(atom, Sym) and state.unsolved(atom)
        ]
        if len(terms) < 2 or not free:
            continue
        # Prefer a loop of the result; among those the longest, so that the short one is reduced.
        name, factor = max(
            free,
            key=lambda item: (item[0] in state.parallel, nominal(state.loops[item[0]]), item[0]),
        )
        t = state.target(f"t{dim}", shape[dim])
        target[dim] = t
        rest = {atom: -own for atom, own in terms.items() if atom != Sym(name)}
        known = {**state.loops, **state.extents}
        numerator = algebra.simplify(Call("add", (t, algebra.from_affine(-constant, rest))), known)
        if factor < 0:
            numerator = algebra.simplify(Call("neg", (numerator,)), known)
        state.bind(name, Call("exactdiv", (numerator, Const(abs(factor)))))


def _write_through(
    state: _State, index: Sequence[Expr], shape: Sequence[int], target: list[Expr | None]
) -> bool:
    """Leave the remaining dims as they are; say whether all of it is injective."""
    injective = True
    seen: set[str] = set()
    for dim, entry in enumerate(index):
        if target[dim] is not None:
            continue
        target[dim] = entry
        if isinstance(entry, Const):
            continue
        _, terms = algebra.affine(entry)
        alone = len(terms) == 1 and isinstance(next(iter(terms)), Sym) and not reads(entry)
        loop = next(iter(names(entry)), "") if alone else ""
        if not alone or loop in seen or not state.unsolved(Sym(loop)):
            if not reads(entry) and not state.unsolved(entry):
                # Every loop in it is solved by other dims: the element must be the one they give.
                t = state.target(f"t{dim}", shape[dim])
                target[dim] = t
                state.guards.append(Call("eq", (substitute(entry, state.bindings), t)))
                continue
            injective = False
        seen.add(loop)
    return injective


def _inside(limits: tuple[int, int], extent: int) -> bool:
    return least_of(limits[0]) >= 0 and least_of(extent - limits[1]) > 0
