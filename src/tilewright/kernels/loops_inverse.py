"""Which iteration of a loop an element belongs to, read back from its index.

The idea: an index is a mixed-radix number of loops; where its digits are proved not to run into
each other, it tells each of them, and through definitions and bounds what these are made of.

This module does not know what is done with an element.
"""

import math
from collections.abc import Mapping, Sequence, Set

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Sym, names, substitute
from tilewright.base.sizes import least_of, nominal, same
from tilewright.kernels.loops import Let, Loop, parts

Index = tuple[Expr, ...]
Path = Sequence[Loop | Let]  # the loops and definitions around an item


def tells(index: Index, loop: Loop, path: Path, known: Mapping[str, int]) -> bool:
    """Say whether an element's index is proved to say in which iteration of `loop` it is.

    path: the loops and definitions around the statement, `loop` among them.  What is outside of
    `loop` is given; an entry gives what it is a mixed-radix number of; a definition is an entry for
    what it is made of; and a loop that runs over one of pieces that follow each other gives which.
    """
    at = next(k for k, item in enumerate(path) if item is loop)
    given = {item.name for item in path[:at]}
    given |= {name for name, count in known.items() if same(count, 1)}
    grains = grains_of(path, given)
    entries = set(index)
    before = None
    while before != (len(given), len(entries)):
        before = len(given), len(entries)
        found = {atom for entry in entries for atom in _digits(entry, given, grains, known)}
        entries |= {whole for entry in entries if (whole := _rejoined(entry, entries)) is not None}
        for item in path[at:]:
            if item.name in given and isinstance(item, Let):
                entries.add(item.value)
            elif item.name in given and isinstance(item, Loop):
                found |= _piece(item, given, grains)
        entries |= found
        given |= {atom.name for atom in found if isinstance(atom, Sym)}
    return loop.name in given


def grains_of(path: Path, given: Set[str] = frozenset()) -> dict[str, int]:
    """Return what the distance of any two values of each name is a multiple of, while those given
    stay as they are: a loop may begin anew at what another one counts."""
    made: dict[str, int] = {}

    def apart(atom: Expr, factor: int) -> int:
        if type(factor) is not int:
            return 1
        return abs(factor) * (made.get(atom.name, 1) if isinstance(atom, Sym) else 1)

    for item in path:
        begin, step = (item.low, item.step) if isinstance(item, Loop) else (item.value, 0)
        terms = algebra.affine(begin)[1].items()
        moving = (apart(*term) for term in terms if not names(term[0]) <= given)
        made[item.name] = math.gcd(step, *moving) or 1
    return made


def _digits(
    entry: Expr, given: set[str], grains: Mapping[str, int], known: Mapping[str, int]
) -> set[Expr]:
    """Return what an entry is a mixed-radix number of, once what is given is taken off: no two
    choices of these make the same number."""
    digits = []
    for atom, factor in algebra.affine(entry)[1].items():
        if names(atom) <= given:
            continue
        limits = algebra.bounds(atom, known)
        if limits is None:
            return set()
        grain = grains.get(atom.name, 1) if isinstance(atom, Sym) else 1
        most = limits[1] - limits[0]
        if type(factor) is type(most) is int:
            digits.append((abs(factor) * grain, most // grain, atom))
        elif least_of(factor) > 0:
            digits.append((factor, most, atom))
        else:
            return set()
    digits.sort(key=lambda digit: nominal(digit[0]))
    reach: int = 0  # the largest number of the digits so far
    for weight, most, _ in digits:
        if least_of(weight - reach) <= 0:
            return set()
        reach = weight * most + reach
    return {atom for _, _, atom in digits}


def _piece(loop: Loop, given: set[str], grains: Mapping[str, int]) -> set[Expr]:
    """Return the name that says which piece of another loop this one runs over, if pieces follow
    each other: each ends where, or before, the next begins."""
    others = (names(loop.low) | names(loop.high)) - given
    if len(others) != 1:
        return set()
    (outer,) = others
    after = {outer: Call("add", (Sym(outer), Const(grains[outer])))}
    begins = {algebra.simplify(substitute(p, after), {}) for p in parts(loop.low, "max")}
    ends = {algebra.simplify(p, {}) for p in parts(loop.high, "min")}
    return {Sym(outer)} if begins & ends else set()


def _rejoined(entry: Expr, entries: Set[Expr]) -> Expr | None:
    """Return what an entry is the remainder of, where the quotient is there too."""
    match entry:
        case Call("mod", (whole, divisor)):
            quotient = algebra.simplify(Call("floordiv", (whole, divisor)), {})
            return whole if quotient in entries else None
    return None
