"""Index algebra: affine normal form, simplification and bounds of integer expressions.

The idea: an index is a sum of atoms with integer factors.  Everything that derives (gradients,
fusion, kernels) writes indices freely and lets `simplify` bring them to one normal form, so that
equal indices are equal values.  Divisions and remainders vanish where bounds prove it.

All loops run from 0 to extent - 1; `extents` maps their names to extents.  Named sizes without an
extent count as at least 1 and unbounded above.
"""

from collections.abc import Mapping
from functools import lru_cache

from tilewright.base.expr import KEPT, Call, Const, Expr, Sym, children, names, rebuild, walk
from tilewright.base.sizes import (
    Size,
    common_divisor,
    divide,
    divides,
    larger,
    least_of,
    nominal,
    same,
    smaller,
)
from tilewright.base.syntax import show

Extents = Mapping[str, int]
Affine = tuple[int, Mapping[Expr, int]]  # constant, factor of each atom
INFINITY = 1 << 62
_SUMS = frozenset(("add", "sub", "neg", "mul"))


def affine(expr: Expr) -> Affine:
    """Split an integer expression into `constant + sum(factor * atom)`; atoms are not affine."""
    return _split_up(expr) if varies(expr) else _kept_affine(expr)


@lru_cache(KEPT)
def varies(expr: Expr) -> bool:
    """Say whether sizes that vary occur: what is found out of them is noted each time."""
    return any(isinstance(node, Const) and isinstance(node.value, Size) for node in walk(expr))


@lru_cache(KEPT)
def _kept_affine(expr: Expr) -> Affine:
    return _split_up(expr)


def _split_up(expr: Expr) -> Affine:
    match expr:
        case Const(value) if not isinstance(value, float):
            return value + 0, {}
        case Call("add", (a, b)):
            return _combine(affine(a), affine(b), 1)
        case Call("sub", (a, b)):
            return _combine(affine(a), affine(b), -1)
        case Call("neg", (a,)):
            return _combine((0, {}), affine(a), -1)
        case Call("mul", (a, b)):
            left, right = affine(a), affine(b)
            if not left[1]:
                return _scale(right, left[0])
            if not right[1]:
                return _scale(left, right[0])
    return 0, {expr: 1}


def from_affine(constant: int, terms: Mapping[Expr, int]) -> Expr:
    """Write `constant + sum(factor * atom)` in the canonical order (larger factors first)."""
    ordered = list(terms.items())
    if len(ordered) > 1:
        ordered.sort(key=lambda item: (-abs(nominal(item[1])), show(item[0])))
    ordered = [item for item in ordered if item[1] > 0] + [item for item in ordered if item[1] < 0]
    result: Expr | None = None
    for atom, factor in ordered:
        size = abs(factor)
        term = atom if same(size, 1) else Call("mul", (atom, Const(size)))
        if result is None:
            result = term if factor > 0 else Call("neg", (term,))
        else:
            result = Call("add" if factor > 0 else "sub", (result, term))
    if result is None:
        return Const(constant)
    if constant == 0:
        return result
    return Call("add" if constant > 0 else "sub", (result, Const(abs(constant))))


def simplify(expr: Expr, extents: Extents) -> Expr:
    """Return the normal form of an integer expression whose loops have the given extents."""
    if isinstance(expr, Sym):
        extent = extents.get(expr.name)
        return expr if extent is None or not same(extent, 1) else Const(0)
    if isinstance(expr, Const):
        return expr
    known = tuple([(name, extents[name]) for name in names(expr) if name in extents])
    for _, extent in known:
        if type(extent) is not int:  # what is found out of sizes that vary is noted each time
            return _simplified(expr, extents)
    return _kept(expr, known)


@lru_cache(KEPT)
def _kept(expr: Expr, extents: tuple[tuple[str, int], ...]) -> Expr:
    return _simplified(expr, dict(extents))


def _simplified(expr: Expr, extents: Extents) -> Expr:
    parts = children(expr)
    if parts:
        expr = rebuild(expr, tuple([simplify(part, extents) for part in parts]))
    if isinstance(expr, Call) and expr.fn in _SUMS:
        constant, terms = affine(expr)
        return from_affine(constant, _recombine(terms, extents))
    match expr:
        case Call("floordiv", (a, Const(int(q)))) if q > 0:
            return _floordiv(a, q, extents)
        case Call("mod", (a, Const(int(q)))) if q > 0:
            return _mod(a, q, extents)
        case Call("exactdiv", (a, Const(int(q)))) if q > 0:
            return _exactdiv(a, q)
        case Call("max" | "min" as fn, (Const(int(a)), Const(int(b)))):
            return Const(larger(a, b) if fn == "max" else smaller(a, b))
        case _:
            return expr


def bounds(expr: Expr, extents: Extents) -> tuple[int, int] | None:  # noqa: C901 - a flat match
    """Return the least and the greatest value (inclusive), or None where nothing is known."""
    if isinstance(expr, Sym):  # the most usual ones first
        return (0, extents[expr.name] - 1) if expr.name in extents else (1, INFINITY)
    if isinstance(expr, Call) and expr.fn in _SUMS:
        return _affine_bounds(expr, extents)
    match expr:
        case Const(value) if not isinstance(value, float):
            return value + 0, value + 0
        case Call("floordiv", (a, Const(int(q)))) if q > 0:
            inner = bounds(a, extents)
            return None if inner is None else (inner[0] // q, inner[1] // q)
        case Call("exactdiv", (a, Const(int(q)))) if q > 0:
            inner = bounds(a, extents)
            return None if inner is None else (-(-inner[0] // q), inner[1] // q)
        case Call("mod", (a, Const(int(q)))) if q > 0:
            inner = bounds(a, extents)
            if inner is not None and same(inner[0] // q, inner[1] // q):
                return inner[0] % q, inner[1] % q
            return 0, q - 1
        case Call("min", (a, b)) | Call("max", (a, b)):
            left, right = bounds(a, extents), bounds(b, extents)
            if left is None or right is None:
                return None
            choose = smaller if expr.fn == "min" else larger
            return choose(left[0], right[0]), choose(left[1], right[1])
        case Call("select", (_, a, b)):
            left, right = bounds(a, extents), bounds(b, extents)
            if left is None or right is None:
                return None
            return smaller(left[0], right[0]), larger(left[1], right[1])
        case _:
            return None


def coarse(condition: Call, extents: Extents) -> Call:
    """Return an equal comparison of fewer atoms: 64 a + r >= 128 is a >= 2 where 0 <= r < 64.

    condition: `lt`, `le`, `gt` or `ge` of integer expressions; as it is where nothing is known.
    """
    a, b = condition.args
    constant, terms = affine(simplify(Call("sub", (a, b)), extents))
    if any(type(number) is not int for number in (constant, *terms.values())):
        return condition
    strict = condition.fn in ("gt", "le")  # d > 0 is d - 1 >= 0
    fn = "lt" if condition.fn in ("lt", "le") else "ge"
    for factor in sorted({abs(factor) for factor in terms.values()}, reverse=True):
        if (parted := _parted((constant - strict, terms), factor, extents)) is not None:
            quotient, high = parted[0]
            return Call(fn, (from_affine(0, high), Const(-quotient)))
    return condition


def within(expr: Expr, extent: int, extents: Extents) -> bool:
    """Say whether an index is proved to lie in [0, extent)."""
    limits = bounds(expr, extents)
    return limits is not None and least_of(limits[0]) >= 0 and least_of(extent - limits[1]) > 0


def _affine_bounds(expr: Expr, extents: Extents) -> tuple[int, int] | None:
    constant, terms = affine(expr)
    if terms == {expr: 1}:  # a product of two atoms: its own atom
        return None
    low = high = constant
    for atom, factor in terms.items():
        inner = bounds(atom, extents)
        if inner is None:
            return None
        ends = (inner[0] * factor, inner[1] * factor)
        low, high = low + smaller(*ends), high + larger(*ends)
    return low, high


def _combine(a: Affine, b: Affine, sign: int) -> Affine:
    terms = dict(a[1])
    for atom, factor in b[1].items():
        terms[atom] = terms.get(atom, 0) + sign * factor
    return a[0] + sign * b[0], {atom: factor for atom, factor in terms.items() if factor}


def _scale(a: Affine, factor: int) -> Affine:
    if factor == 0:
        return 0, {}
    return a[0] * factor, {atom: own * factor for atom, own in a[1].items()}


def _split(expr: Expr, q: int) -> tuple[Affine, Affine]:
    """Split e into q * a + r, where a takes what is divisible by q."""
    constant, terms = affine(expr)
    whole = {atom: factor // q for atom, factor in terms.items() if divides(q, factor)}
    rest = {atom: factor for atom, factor in terms.items() if atom not in whole}
    quotient, left = divide(constant, q)
    return (quotient, whole), (left, rest)


def _floordiv(expr: Expr, q: int, extents: Extents) -> Expr:
    if same(q, 1):
        return expr
    whole, rest = _split(expr, q)
    inner = from_affine(*rest)
    limits = bounds(inner, extents)
    if limits is not None and same(limits[0] // q, limits[1] // q):
        constant, terms = whole
        return from_affine(constant + limits[0] // q, _recombine(terms, extents))
    match inner:
        case Call("floordiv", (a, Const(int(p)))):  # (a // p) // q = a // (p q)
            quotient = _floordiv(a, p * q, extents)
        case Call("mod", (a, Const(int(p)))) if p % q == 0:  # (a % p) // q = (a // q) % (p / q)
            quotient = _mod(_floordiv(a, q, extents), p // q, extents)
        case _:
            # (q' (a // p) + r) // q with q = q' p ... is left as it is.
            common = _common_divisor(rest, q)
            if common > 1:
                reduced = (divide(rest[0], common)[0], {a: f // common for a, f in rest[1].items()})
                quotient = _floordiv(from_affine(*reduced), q // common, extents)
            elif (parted := _digits(rest, q, extents)) is not None:
                quotient = _floordiv(from_affine(*parted[1]), q // parted[0], extents)
            else:
                quotient = Call("floordiv", (inner, Const(q)))
    constant, terms = _combine(whole, affine(quotient), 1)
    return from_affine(constant, _recombine(terms, extents))


def _digits(rest: Affine, q: int, extents: Extents) -> tuple[int, Affine, Affine] | None:
    """Part e in c * a + r with 0 <= r < c, where c divides q: then e // q = a // (q / c).

    Returns c, a and r for the greatest such c.
    """
    _, terms = rest
    divisors = {common_divisor(factor, q) for factor in terms.values()}
    for c in sorted(divisors, key=nominal, reverse=True):
        if not 1 < c < q:
            continue
        if (parted := _parted(rest, c, extents)) is not None:
            return c, *parted
    return None


def _parted(whole: Affine, c: int, extents: Extents) -> tuple[Affine, Affine] | None:
    """Part a sum in c * a + r with 0 <= r < c; return a and r."""
    constant, terms = whole
    high = {atom: factor // c for atom, factor in terms.items() if divides(c, factor)}
    low = {atom: factor for atom, factor in terms.items() if atom not in high}
    quotient, left = divide(constant, c)
    limits = bounds(from_affine(left, low), extents)
    if limits is None or least_of(limits[0]) < 0 or least_of(c - limits[1]) <= 0:
        return None
    return (quotient, high), (left, low)


def _common_divisor(rest: Affine, q: int) -> int:
    """Return the greatest divisor of q that divides every factor (the constant may be floored)."""
    common = q
    for factor in rest[1].values():
        common = common_divisor(common, factor)
    return common


def _mod(expr: Expr, q: int, extents: Extents) -> Expr:
    if same(q, 1):
        return Const(0)
    _, rest = _split(expr, q)
    inner = from_affine(rest[0], _recombine(rest[1], extents))
    limits = bounds(inner, extents)
    if limits is not None and same(limits[0] // q, limits[1] // q):
        constant, terms = affine(inner)
        return from_affine(constant - q * (limits[0] // q), terms)
    if isinstance(inner, Call) and inner.fn == "mod":
        a, modulus = inner.args
        if (
            isinstance(modulus, Const)
            and isinstance(modulus.value, int)
            and divides(q, modulus.value)
        ):
            return _mod(a, q, extents)  # (a % (q m)) % q = a % q
    parted = _digits(affine(inner), q, extents)
    if parted is not None:  # (c a + r) % (c m) = c (a % m) + r
        c, high, low = parted
        digit = affine(_mod(from_affine(*high), q // c, extents))
        constant, terms = _combine(_scale(digit, c), low, 1)
        return from_affine(constant, _recombine(terms, extents))
    return Call("mod", (inner, Const(q)))


def _exactdiv(expr: Expr, q: int) -> Expr:
    if same(q, 1):
        return expr
    constant, terms = affine(expr)
    if divides(q, constant) and all(divides(q, factor) for factor in terms.values()):
        return from_affine(constant // q, {atom: factor // q for atom, factor in terms.items()})
    return Call("exactdiv", (from_affine(constant, terms), Const(q)))


def _recombine(terms: Mapping[Expr, int], extents: Extents) -> dict[Expr, int]:
    """Put divided indices together again.

    ::

        (e // c) * c k + (e % c) * k  -->  e * k
        ((e // c) % m) * c k + (e % c) * k  -->  (e % (c m)) * k
    """
    found = dict(terms)
    for low, k in terms.items():
        if low not in found or not same(found[low], k):
            continue
        match low:
            case Call("mod", (e, Const(int(c)))):
                pass
            case _:
                continue
        for high, factor in terms.items():
            if high not in found or not same(factor, c * k):
                continue
            whole = _undivided(high, e, c, extents)
            if whole is None:
                continue
            del found[high], found[low]
            _, merged = _combine((0, found), _scale(affine(whole), k), 1)
            constant = affine(whole)[0] * k
            assert constant == 0 or e == whole, "only a bare index may carry a constant"
            if constant:  # keep the constant inside an atom: undo this merge
                found[high], found[low] = factor, k
                continue
            return _recombine(merged, extents)
    return found


def _undivided(high: Expr, e: Expr, c: int, extents: Extents) -> Expr | None:
    if high == _floordiv(e, c, extents):
        return e
    match high:
        case Call("mod", (quotient, Const(int(m)))) if quotient == _floordiv(e, c, extents):
            return _mod(e, c * m, extents)
    return None
