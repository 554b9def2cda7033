"""Polynomials over named sizes: their values, bounds and text, under assumptions.

The idea: a polynomial is a tuple of terms over numbered atoms; an atom is a name, or a division, a
maximum or a minimum of two polynomials.  Bounds follow from the names' limits.

This module does not know integers that carry polynomials (`sizes`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

Key = tuple[tuple[tuple[int, ...], int], ...]  # (numbers of atoms, factor) of each term, ordered
Terms = dict[tuple[int, ...], int]
INFINITY = 1 << 62
NOMINAL = 32  # what a size counts as where the choice matters for speed alone
PREFIX = "n_"
_COUNT = count()


@dataclass(frozen=True, slots=True)
class Limits:
    """The least and the greatest value of a name, both included."""

    low: int = 2
    high: int = INFINITY


@dataclass(frozen=True, slots=True)
class Atom:
    """A factor of a term: a name, or `fn(left, right)` of floordiv, mod, max, min."""

    fn: str
    left: Key
    right: Key
    text: str
    low: int
    high: int


class Polynomials:
    """What is known of some names.  Mutable: it learns atoms and assumptions.

    values: of each name, in the example at hand.  limits: within which every name varies.
    assumptions: (what, relation) pairs; what is compared with 0 ("ge", "eq" or "ne").
    """

    def __init__(
        self, values: Mapping[str, int], limits: Mapping[str, Limits] | None = None
    ) -> None:
        known = limits or {}
        self.serial = next(_COUNT)
        self.values = dict(values)
        self.limits = {name: known.get(name, Limits()) for name in values}
        self.assumptions: dict[tuple[Key, str], str] = {}
        self.atoms: list[Atom] = []
        self.numbers: dict[tuple[str, Key, Key] | str, int] = {}
        self._example: list[int] = []
        self._least: dict[Key, int] = {}
        for name, value in values.items():
            bound = self.limits[name]
            assert name.startswith(PREFIX), f"a size is named {PREFIX}..., not {name!r}"
            assert bound.low <= value <= bound.high, f"{name} = {value} is not within {bound}"
            self.numbers[name] = len(self.atoms)
            self.atoms.append(Atom(name, (), (), name, bound.low, bound.high))
            self._example.append(value)

    def admit(self, values: Mapping[str, int]) -> bool:
        """Say whether what was made under the assumptions holds for these values."""
        if any(not self.limits[n].low <= v <= self.limits[n].high for n, v in values.items()):
            return False
        evaluate = self.evaluator(values)
        for key, relation in self.assumptions:
            value = evaluate(key)
            if not (value >= 0 if relation == "ge" else (value == 0) == (relation == "eq")):
                return False
        return True

    def describe(self) -> str:
        """Return what varies, within which limits, under which assumptions."""
        parts = [
            f"{name} >= {bound.low}"
            if bound.high >= INFINITY
            else f"{bound.low} <= {name} <= {bound.high}"
            for name, bound in self.limits.items()
        ]
        return ", ".join([*parts, *self.assumptions.values()])

    def evaluator(self, values: Mapping[str, int]) -> Callable[[Key], int]:
        """Return what computes a polynomial for these values of the names."""
        known: dict[int, int] = {}

        def atom(number: int) -> int:
            if number not in known:
                found = self.atoms[number]
                if not found.left and not found.right:
                    known[number] = values[found.fn]
                else:
                    known[number] = OPERATIONS[found.fn](value(found.left), value(found.right))
            return known[number]

        def value(key: Key) -> int:
            total = 0
            for atoms, factor in key:
                for number in atoms:
                    factor *= atom(number)
                total += factor
            return total

        return value

    def number(self, fn: str, left: Key, right: Key, low: int, high: int) -> int:
        """Return the number of the atom `fn(left, right)`, which lies within low and high."""
        name = (fn, left, right)
        if name not in self.numbers:
            self.numbers[name] = len(self.atoms)
            text = f"{fn}({bare(self.text(left))}, {bare(self.text(right))})"
            self.atoms.append(Atom(fn, left, right, text, low, high))
            self._example.append(OPERATIONS[fn](self.value(left), self.value(right)))
        return self.numbers[name]

    def value(self, key: Key) -> int:
        """Return a polynomial's value in the example."""
        total = 0
        for atoms, factor in key:
            for number in atoms:
                factor *= self._example[number]
            total += factor
        return total

    def text(self, key: Key) -> str:
        """Write a polynomial so that the notation and C both read it, in brackets unless a name."""
        if not key:
            return "0"
        terms = sorted((sorted(self.atoms[n].text for n in atoms), f) for atoms, f in key)
        terms.sort(key=lambda term: -len(term[0]))
        parts = []
        for atoms, factor in terms:
            size = [str(abs(factor))] if abs(factor) != 1 or not atoms else []
            parts.append(("-" if factor < 0 else "+", "*".join([*atoms, *size])))
        text = "".join(f" {sign} {part}" for sign, part in parts)
        text = text.removeprefix(" + ")
        text = "-" + text.removeprefix(" - ") if text.startswith(" - ") else text
        return text if text.replace("_", "").isalnum() else f"({text})"

    def least(self, key: Key) -> int:
        """Return a number that the polynomial is never below; -INFINITY if none is known.

        Every name is its least value and a rest that is not negative: if then no factor of a rest
        is negative, what remains without the rests is the least.
        """
        found = self._least.get(key)
        if found is None:
            found = self._least[key] = max(self._shifted(key), self._spanned(key))
        return found

    def greatest(self, key: Key) -> int:
        """Return a number that the polynomial is never above; INFINITY if none is known."""
        low = self.least(tuple((atoms, -factor) for atoms, factor in key))
        return INFINITY if low <= -INFINITY else -low

    def _shifted(self, key: Key) -> int:
        total: Terms = {}
        for atoms, factor in key:
            parts: Terms = {(): factor}
            for number in atoms:
                low = self.atoms[number].low
                if low < 0:
                    return -INFINITY
                grown: Terms = {}
                for rest, own in parts.items():
                    grown[rest] = grown.get(rest, 0) + own * low
                    more = tuple(sorted((*rest, number)))
                    grown[more] = grown.get(more, 0) + own
                parts = grown
            for rest, own in parts.items():
                total[rest] = total.get(rest, 0) + own
        if any(own < 0 for rest, own in total.items() if rest):
            return -INFINITY
        return total.get((), 0)

    def _spanned(self, key: Key) -> int:
        total = 0
        for atoms, factor in key:
            low = high = 1
            for number in atoms:
                atom = self.atoms[number]
                if atom.low < 0:
                    return -INFINITY
                low, high = low * atom.low, min(high * atom.high, INFINITY)
            if factor < 0 and high >= INFINITY:
                return -INFINITY
            total += factor * (low if factor > 0 else high)
        return total

    def nominal(self, key: Key) -> int:
        """Return the value where every name counts as NOMINAL, or as what is nearest to it."""
        values = {n: min(max(NOMINAL, bound.low), bound.high) for n, bound in self.limits.items()}
        return self.evaluator(values)(key)

    def assume(self, key: Key, relation: str) -> None:
        """Note that what is being made holds only where `key` relates to 0 in this way."""
        sign = {"ge": ">=", "eq": "==", "ne": "!="}[relation]
        self.assumptions.setdefault((key, relation), f"{bare(self.text(key))} {sign} 0")


def _floordiv(a: int, b: int) -> int:
    return a // b if b else 0


def _mod(a: int, b: int) -> int:
    return a % b if b else 0


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": _floordiv,
    "mod": _mod,
    "max": max,
    "min": min,
}


def bare(text: str) -> str:
    return text[1:-1] if text.startswith("(") else text
