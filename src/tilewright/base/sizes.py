"""Sizes that vary: integers that remember which named sizes they come from.

The idea: a named size is an `int` (its value in the example at hand) that also carries a
polynomial over names, so that everything that computes with extents works for all values at once.
Arithmetic gives polynomials; a comparison is decided by what is known of the names where that
suffices, else by the example, and is then an assumption under which the result holds.

::

    n_b * 64 // 64   -->   n_b               64 * n_b > 0   -->   true, since n_b >= 2
    n_b > 32         -->   what the example says; assumed from then on

Where Python's core would take the number behind our back (`range`, `gcd`, NumPy), nothing is noted:
whoever compiles does it for two examples and compares.  This module does not know tensors.
"""

import operator
from collections.abc import Callable, Iterable
from functools import reduce
from math import gcd
from typing import Any

from tilewright.base.polynomials import (
    INFINITY,
    OPERATIONS,
    PREFIX,
    Key,
    Limits,
    Polynomials,
    Terms,
)

__all__ = [
    "INFINITY",
    "PREFIX",
    "Key",
    "Limits",
    "Size",
    "Sizes",
    "all_same",
    "common_divisor",
    "divide",
    "divides",
    "greatest_of",
    "larger",
    "least_of",
    "nominal",
    "same",
    "smaller",
]


class Sizes(Polynomials):
    """The named sizes of one compilation, as integers."""

    def size(self, name: str) -> "Size":
        """Return the size of that name."""
        found: Size = _size(self, (((self.numbers[name],), 1),))
        return found

    def named(self) -> "dict[str, Size]":
        """Return all sizes by name."""
        return {name: self.size(name) for name in self.values}

    def atom(self, fn: str, left: Key, right: Key, low: int, high: int) -> Any:
        """Return `fn(left, right)` as one factor."""
        return _size(self, (((self.number(fn, left, right, low, high),), 1),))

    def moved(self, key: Key, to: "Sizes") -> Any:
        """Return the same polynomial over the same names with another example."""
        total: Any = 0
        for numbers, factor in key:
            for number in numbers:
                atom = self.atoms[number]
                if atom.left or atom.right:
                    left, right = (_key(self.moved(k, to)) for k in (atom.left, atom.right))
                    factor = factor * to.atom(atom.fn, left, right, atom.low, atom.high)
                else:
                    factor = factor * to.size(atom.fn)
            total = total + factor
        return total


class Size(int):
    """An integer that varies: its value in the example, and the polynomial that it is in general.

    Equality and order are those of all values where that is proved, else the example's, assumed.
    """

    sizes: Sizes
    key: Key

    def __str__(self) -> str:
        return self.sizes.text(self.key)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return f"{self}@{self.sizes.serial}"

    def __hash__(self) -> int:
        return hash((self.sizes.serial, self.key))

    def example(self) -> int:
        """Return the plain number of the example; what depends on it must hold for every other."""
        return int.__add__(self, 0)

    def specialize(self) -> int:
        """Return the plain number, and assume that the size is that."""
        value = self.example()
        shifted = self - value
        if isinstance(shifted, Size):
            self.sizes.assume(shifted.key, "eq")
        return value

    # Arithmetic: with plain integers and sizes of the same compilation.

    def _with(self, other: object, combine: "Callable[[Size, Any], Any]") -> Any:
        if isinstance(other, Size):
            assert other.sizes is self.sizes, "sizes of two compilations do not mix"
        elif isinstance(other, float):
            return combine(self.specialize(), other)  # type: ignore[arg-type]
        elif not isinstance(other, int):
            return NotImplemented
        return combine(self, other)

    def __add__(self, other: Any) -> Any:
        return self._with(other, _add)

    def __radd__(self, other: Any) -> Any:
        return self._with(other, _add)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: _add(a, -b))

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: _add(-a, b))

    def __mul__(self, other: Any) -> Any:
        return self._with(other, _multiply)

    def __rmul__(self, other: Any) -> Any:
        return self._with(other, _multiply)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, floor_divide)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: floor_divide(b, a))

    def __mod__(self, other: Any) -> Any:
        return self._with(other, remainder)

    def __rmod__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: remainder(b, a))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __neg__(self) -> Any:
        return _size(self.sizes, tuple((atoms, -factor) for atoms, factor in self.key))

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __pow__(self, power: Any, modulus: Any = None) -> Any:
        if modulus is None and type(power) is int and power >= 0:
            return reduce(_multiply, [self] * power, 1)
        return pow(self.specialize(), power, modulus)

    def __truediv__(self, other: Any) -> Any:
        return self.specialize() / (other.specialize() if isinstance(other, Size) else other)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.specialize()

    def __int__(self) -> int:
        return self.specialize()

    def __float__(self) -> float:
        return float(self.specialize())

    def __index__(self) -> int:
        return self.specialize()

    # Comparison: proved, or assumed.

    def __bool__(self) -> bool:
        return not _is_zero(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Size) and other.sizes is not self.sizes:
            return False
        if isinstance(other, int):
            return _is_zero(self - other)
        return self.specialize() == other if isinstance(other, float) else NotImplemented

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    def __ge__(self, other: Any) -> Any:
        return self._ordered(other, operator.ge, lambda distance: _is_positive(distance + 1))

    def __gt__(self, other: Any) -> Any:
        return self._ordered(other, operator.gt, _is_positive)

    def __le__(self, other: Any) -> Any:
        return self._ordered(other, operator.le, lambda distance: not _is_positive(distance))

    def __lt__(self, other: Any) -> Any:
        return self._ordered(other, operator.lt, lambda distance: not _is_positive(distance + 1))

    def _ordered(
        self, other: Any, plain: Callable[[Any, Any], bool], proved: Callable[[int], bool]
    ) -> Any:
        if isinstance(other, int):
            return proved(self - other)
        return plain(self.specialize(), other) if isinstance(other, float) else NotImplemented


def _size(sizes: Sizes, key: Key) -> Any:
    """Return the polynomial as a Size, or as a plain number if it is one."""
    if not key:
        return 0
    if len(key) == 1 and not key[0][0]:
        return key[0][1]
    made = Size.__new__(Size, sizes.value(key))
    made.sizes, made.key = sizes, key
    return made


def _terms(value: int) -> Terms:
    if isinstance(value, Size):
        return dict(value.key)
    return {(): int(value)} if value else {}


def _made(sizes: Sizes, terms: Terms) -> Any:
    return _size(sizes, tuple(sorted((atoms, f) for atoms, f in terms.items() if f)))


def _add(a: int, b: int) -> Any:
    if not isinstance(a, Size) and not isinstance(b, Size):
        return a + b
    sizes = a.sizes if isinstance(a, Size) else b.sizes  # type: ignore[attr-defined]
    terms = _terms(a)
    for atoms, factor in _terms(b).items():
        terms[atoms] = terms.get(atoms, 0) + factor
    return _made(sizes, terms)


def _multiply(a: int, b: int) -> Any:
    if not isinstance(a, Size) and not isinstance(b, Size):
        return a * b
    sizes = a.sizes if isinstance(a, Size) else b.sizes  # type: ignore[attr-defined]
    terms: Terms = {}
    right = _terms(b).items()
    for own, factor in _terms(a).items():
        for other, by in right:
            atoms = tuple(sorted((*own, *other)))
            terms[atoms] = terms.get(atoms, 0) + factor * by
    return _made(sizes, terms)


def _is_zero(difference: int) -> bool:
    if not isinstance(difference, Size):
        return difference == 0
    sizes, key = difference.sizes, difference.key
    if sizes.least(key) > 0 or sizes.greatest(key) < 0:
        return False
    zero = difference.example() == 0
    sizes.assume(key, "eq" if zero else "ne")
    return zero


def _is_positive(value: int) -> bool:
    if not isinstance(value, Size):
        return value > 0
    sizes = value.sizes
    if sizes.least(value.key) > 0:
        return True
    if sizes.greatest(value.key) <= 0:
        return False
    positive = value.example() > 0
    sizes.assume((value - 1).key if positive else (-value).key, "ge")
    return positive


# --------------------------------------------------------------------------------- division


def divide(a: int, q: int) -> tuple[Any, Any]:
    """Return (quotient, rest) with a == q * quotient + rest, for all values of the names.

    For plain numbers 0 <= rest < q; else the rest is what polynomial division leaves.
    """
    if not isinstance(a, Size) and not isinstance(q, Size):
        return divmod(a, q) if q else (0, a)
    sizes = a.sizes if isinstance(a, Size) else q.sizes  # type: ignore[attr-defined]
    rest, divisor, quotient = _terms(a), _terms(q), Terms()
    lead = max(divisor, key=lambda atoms: (len(atoms), atoms))
    left: Terms = {}
    while rest:
        atoms = max(rest, key=lambda own: (len(own), own))
        factor = rest[atoms]
        own = _without(atoms, lead)
        by = abs(factor) // abs(divisor[lead])
        by = by if (factor < 0) == (divisor[lead] < 0) else -by
        if own is None or by == 0 or (atoms and factor % divisor[lead] and len(divisor) > 1):
            left[atoms] = rest.pop(atoms)
            continue
        quotient[own] = quotient.get(own, 0) + by
        for others, value in divisor.items():
            there = tuple(sorted((*own, *others)))
            rest[there] = rest.get(there, 0) - by * value
            if not rest[there]:
                del rest[there]
        if atoms in rest:  # what the factor leaves stays behind
            left[atoms] = left.get(atoms, 0) + rest.pop(atoms)
    return _made(sizes, quotient), _made(sizes, left)


def _without(atoms: tuple[int, ...], part: tuple[int, ...]) -> tuple[int, ...] | None:
    rest = list(atoms)
    for number in part:
        if number not in rest:
            return None
        rest.remove(number)
    return tuple(rest)


def divides(q: int, a: int) -> bool:
    """Say whether `a` is a multiple of `q` for all values of the names; assumes nothing."""
    rest = divide(a, q)[1]
    return not isinstance(rest, Size) and rest == 0


def common_divisor(a: int, b: int) -> Any:
    """Return a divisor of both, the greatest that is found without assuming anything."""
    if not isinstance(a, Size) and not isinstance(b, Size):
        return gcd(a, b)
    if divides(a, b):
        return abs(a)
    if divides(b, a):
        return abs(b)
    return gcd(*_terms(a).values(), *_terms(b).values())


def floor_divide(a: int, q: int) -> Any:
    """Return a // q for a positive q; what cannot be divided becomes a factor of its own."""
    quotient, rest = _reduced(a, q)
    if not isinstance(rest, Size) and not isinstance(q, Size):
        return quotient + rest // q
    if rest == 0 and not isinstance(rest, Size):
        return quotient
    if least_of(rest) >= 0 and least_of(q - rest) > 0:
        return quotient
    if not least_of(rest) >= 0 and greatest_of(rest) <= 0:
        return quotient - floor_divide(q - 1 - rest, q)
    inner = _divided(rest)
    if inner is not None:  # (a // p) // q = a // (p q)
        return quotient + floor_divide(inner[0], inner[1] * q)
    return quotient + _atom("floordiv", rest, q)


def _divided(value: int) -> tuple[Any, Any] | None:
    """Return (a, p) of a value that is `a // p` and nothing else."""
    if not isinstance(value, Size) or len(value.key) != 1:
        return None
    ((numbers, factor),) = value.key
    if factor != 1 or len(numbers) != 1:
        return None
    atom = value.sizes.atoms[numbers[0]]
    if atom.fn != "floordiv":
        return None
    return _size(value.sizes, atom.left), _size(value.sizes, atom.right)


def remainder(a: int, q: int) -> Any:
    """Return a % q for a positive q."""
    _, rest = _reduced(a, q)
    if not isinstance(rest, Size) and not isinstance(q, Size):
        return rest % q
    if least_of(rest) >= 0:
        return rest if least_of(q - rest) > 0 else _atom("mod", rest, q)
    return rest - q * floor_divide(rest, q)


def _reduced(a: int, q: int) -> tuple[Any, Any]:
    assert q > 0, f"a divisor is positive, not {q}"
    return divide(a, q)


def _atom(fn: str, a: int, q: int) -> Any:
    # C divides towards zero, so that what is divided must not be negative.
    assert a >= 0, f"{a} // {q}: what is divided is not negative"
    sizes = a.sizes if isinstance(a, Size) else q.sizes  # type: ignore[attr-defined]
    least, most = least_of(a), greatest_of(a)
    if fn == "mod":
        return sizes.atom(fn, _key(a), _key(q), 0, min(most, greatest_of(q) - 1))
    low = 0 if greatest_of(q) >= INFINITY else least // greatest_of(q)
    high = INFINITY if most >= INFINITY else most // max(1, least_of(q))
    return sizes.atom(fn, _key(a), _key(q), low, high)


def _key(value: int) -> Key:
    return value.key if isinstance(value, Size) else ((((), int(value)),) if value else ())


# --------------------------------------------------------------- questions that assume nothing


def same(a: int, b: int) -> bool:
    """Say whether two values are known to be equal."""
    if not isinstance(a, Size) and not isinstance(b, Size):
        return a == b
    if isinstance(a, Size) and isinstance(b, Size) and a.sizes is not b.sizes:
        return False
    difference = a - b
    return not isinstance(difference, Size) and difference == 0


def least_of(value: int) -> int:
    """Return a plain number that the value is never below."""
    return value.sizes.least(value.key) if isinstance(value, Size) else value


def greatest_of(value: int) -> int:
    """Return a plain number that the value is never above; INFINITY if none is known."""
    return value.sizes.greatest(value.key) if isinstance(value, Size) else value


def nominal(value: int) -> int:
    """Return what a value counts as where any choice is right and only speed depends on it."""
    return value.sizes.nominal(value.key) if isinstance(value, Size) else value


def smaller(a: int, b: int) -> Any:
    """Return the lesser of two, which may differ from example to example."""
    return _choose("min", a, b)


def all_same(a: Iterable[int], b: Iterable[int]) -> bool:
    """Say whether two shapes, say, are known to be equal."""
    left, right = tuple(a), tuple(b)
    return len(left) == len(right) and all(map(same, left, right))


def larger(a: int, b: int) -> Any:
    """Return the greater of two, which may differ from example to example."""
    return _choose("max", a, b)


def _choose(fn: str, a: int, b: int) -> Any:
    if not isinstance(a, Size) and not isinstance(b, Size):
        return OPERATIONS[fn](a, b)
    if least_of(a - b) >= 0:
        return a if fn == "max" else b
    if least_of(b - a) >= 0:
        return b if fn == "max" else a
    sizes = a.sizes if isinstance(a, Size) else b.sizes  # type: ignore[attr-defined]
    pick = OPERATIONS[fn]
    bounds = pick(least_of(a), least_of(b)), pick(greatest_of(a), greatest_of(b))
    left, right = sorted((_key(a), _key(b)), key=sizes.text)
    return sizes.atom(fn, left, right, *bounds)
