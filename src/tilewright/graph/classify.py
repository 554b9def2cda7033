"""Recognise sums of products that a library has a name for: contractions.

The idea: what a loop does is told by who uses it.  Of a sum of products of two operands::

    y[b, m, n] += a[b, m, k] * b[b, k, n]

a loop in both operands and the result is batch, in the left (right) one and the result m (n), in
both operands alone k.  Loop names, the order of loops and factors, and how many loops play a part
do not matter, so linear, matmul, bmm, einsum and all their gradients are one kind.

This module does not know convolutions (`convolution`), nor which library is called.
"""

import math
from dataclasses import dataclass, replace

from tilewright.base import algebra
from tilewright.base.dtypes import BF16
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, reads
from tilewright.graph.ir import Formula, Loop
from tilewright.graph.total import Types, extents_of, fixed, inside, solve_target
from tilewright.graph.views import size_of

LONG_VECTOR, LARGE_MATRIX = 64, 4096
"""Elements of a vector, and of a matrix, for which their product is worth a kernel of its own."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products, loops by the part they play, each in the result's (k: the left's) order.

    left, right: how the operands are read; together with the operand's strides, `views.place`
    tells where the elements lie.  scale: a constant factor of the whole.  onto: the operand that
    holds what the sums are added to, "" if that is zero.  in_pairs: whether it is a vector of
    bfloat16 by rows of a matrix: processors have instructions that take two terms at once.
    """

    batch: tuple[Loop, ...]
    m: tuple[Loop, ...]
    n: tuple[Loop, ...]
    k: tuple[Loop, ...]
    left: Read
    right: Read
    target: tuple[Expr, ...]
    scale: float = 1.0
    onto: str = ""
    in_pairs: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether elements are used more than once, the work of a matrix multiplication; or a
        vector goes by a matrix in pairs of terms."""
        return bool(self.m and self.n and self.k) or self.in_pairs


def classify_contraction(  # noqa: C901 - a list of what it may not be
    formula: Formula, types: Types
) -> Contraction | None:
    """Return what each loop does in a sum of products of two operands, None for anything else.

    types: of the operands, by name; both must be of the result's element type.
    """
    if formula.op != "+=" or formula.where is not None:
        return None
    onto = formula.fill.tensor if isinstance(formula.fill, Read) else ""
    factors = product_of(formula.value)
    if factors is None or len(factors[1]) != 2 or _partial(formula):
        return None
    scale, (left, right) = factors
    if scale != 1.0 if onto else formula.fill != Const(0):
        return None
    extents = extents_of(formula)
    for read in (left, right):
        indirect = any(reads(entry) for entry in read.index)
        if indirect or inside(read, types, extents):
            return None
        if types[read.tensor].dtype != formula.type.dtype:
            return None
    in_target = _loops_in(formula.index)
    in_left, in_right = _loops_in(left.index), _loops_in(right.index)
    parts: dict[str, list[Loop]] = {"batch": [], "m": [], "n": [], "k": []}
    for loop in formula.loops:
        used = (loop.name in in_left, loop.name in in_right, loop.name in in_target)
        if fixed(loop.extent) == 1:
            continue
        part = _PARTS.get(used)
        if part is None:
            return None
        parts[part].append(loop)
    if not parts["k"]:
        return None
    by_target = _order(formula.index)
    by_left = _order(left.index)
    return Contraction(
        tuple(sorted(parts["batch"], key=lambda loop: by_target[loop.name])),
        tuple(sorted(parts["m"], key=lambda loop: by_target[loop.name])),
        tuple(sorted(parts["n"], key=lambda loop: by_target[loop.name])),
        tuple(sorted(parts["k"], key=lambda loop: by_left[loop.name])),
        replace(left, index=_without_single(left.index, formula)),
        replace(right, index=_without_single(right.index, formula)),
        _without_single(formula.index, formula),
        scale,
        onto,
        formula.type.dtype == BF16 and _is_vector_by_rows(parts, left, right),
    )


def _is_vector_by_rows(parts: dict[str, list[Loop]], left: Read, right: Read) -> bool:
    """Say whether a long vector goes by the rows of a matrix, along both; never where a size
    varies."""
    rows, (*others, along) = (*parts["m"], *parts["n"]), parts["k"]
    if parts["batch"] or others or bool(parts["m"]) == bool(parts["n"]):
        return False
    if any(read.index[-1] != Sym(along.name) for read in (left, right)):
        return False
    length, *extents = (fixed(loop.extent) for loop in (along, *rows))
    if any(type(extent) is not int for extent in (length, *extents)):
        return False
    return length >= LONG_VECTOR and length * math.prod(extents) >= LARGE_MATRIX


def multiplies(formula: Formula) -> bool:
    """Say whether a formula multiplies matrices or windows: elements are used more than once.

    ::

        y[m, n] += a[m, k] * b[k, n]        n is not in a, m not in b
        y[c, h] += x[c, h+i] * w[c, i]      a window of x
        y[j] += x[i, j] * z[i, j]           neither: a weighted sum

    A dim of one element, which is read at 0, plays its part: `y[m<1, n] += a[0, k] * b[k, n]` is a
    product (one element by one is a weighted sum).  So is a sum that some terms are absent from.
    """
    factors = product_of(formula.value)
    if formula.op != "+=" or factors is None or len(factors[1]) != 2:
        return False
    target = _loops_in(formula.index)
    left, right = (_loops_in(read.index) for read in factors[1])
    if not (left & right) - target:
        return False
    if any(names(entry) & target and names(entry) - target
           for read in factors[1] for entry in read.index):  # fmt: skip
        return True
    alone = bool(target - left - right)
    lone = _lone_dims(factors[1][0]) - _lone_dims(factors[1][1]) if alone else 0
    rows = (left - right) & target or lone > 0
    columns = (right - left) & target or lone < 0
    return bool(rows and columns)


def _lone_dims(read: Read) -> int:
    return sum(isinstance(entry, Const) for entry in read.index)


def _without_single(index: tuple[Expr, ...], formula: Formula) -> tuple[Expr, ...]:
    """Put 0 for the loops of one iteration: they play no part."""
    single = {loop.name: 1 for loop in formula.loops if fixed(loop.extent) == 1}
    return tuple(algebra.simplify(entry, single) for entry in index)


@dataclass(frozen=True, slots=True)
class Addition:
    """A result that is `product + addend`, where the addend may be broadcast (a bias)."""

    product: str
    addend: Read


def classify_addition(formula: Formula, types: Types) -> Addition | None:
    """Return the addition that a formula is: one operand at the result's own index, and another.

    The other is read inside, at direct indices: with its strides, `views.place` tells where.  All
    three are of one element type.
    """
    if formula.op != "=" or formula.where is not None:
        return None
    match formula.value:
        case Call("add", (Read(_, _, None) as a, Read(_, _, None) as b)):
            pass
        case _:
            return None
    extents = extents_of(formula)
    for read in (a, b):
        indirect = any(reads(entry) for entry in read.index)
        if indirect or inside(read, types, extents):
            return None
        if types[read.tensor].dtype != formula.type.dtype:
            return None
    for product, addend in ((a, b), (b, a)):
        whole = types[product.tensor].shape == formula.type.shape
        if whole and product.tensor != addend.tensor and _is_own(product.index, formula):
            return Addition(product.tensor, addend)
    return None


def _is_own(index: tuple[Expr, ...], formula: Formula) -> bool:
    """Say whether an index is the target's, which is bare."""
    pairs = zip(index, formula.index, formula.type.shape, strict=True)
    return all(
        own == target or (size == 1 and own == Const(0)) for own, target, size in pairs
    ) and len(_loops_in(formula.index)) == len(formula.loops)


# (in left, in right, in the result) -> the part a loop plays.
_PARTS = {
    (True, True, True): "batch",
    (True, False, True): "m",
    (False, True, True): "n",
    (True, True, False): "k",
}


def product_of(value: Expr) -> tuple[float, tuple[Read, ...]] | None:
    """Return the constant and the reads that a value is the product of, None if it is more."""
    match value:
        case Const(number) if type(number) in (int, float):
            return float(number), ()
        case Read(_, _, None):
            return 1.0, (value,)
        case Call("neg", (inner,)):
            found = product_of(inner)
            return None if found is None else (-found[0], found[1])
        case Call("mul", (a, b)):
            left, right = product_of(a), product_of(b)
            if left is None or right is None:
                return None
            return left[0] * right[0], (*left[1], *right[1])
    return None


def _partial(formula: Formula) -> bool:
    """Say whether some element of the result gets no term, or cannot be told from another."""
    used = _loops_in(formula.index)
    count = 1
    for loop in formula.loops:
        count *= fixed(loop.extent) if loop.name in used else 1
    return solve_target(formula) is None or count != size_of(formula.type)


def _loops_in(index: tuple[Expr, ...]) -> frozenset[str]:
    return frozenset(name for entry in index for name in names(entry))


def _order(index: tuple[Expr, ...]) -> dict[str, int]:
    """Return when each loop appears first, outer dims first."""
    found: dict[str, int] = {}
    for entry in index:
        for name in sorted(names(entry)):
            found.setdefault(name, len(found))
    return found
