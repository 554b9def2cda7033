"""Products whose operands lie in memory in one way or another."""

import random
from dataclasses import replace

from tilewright.base.dtypes import F32, F64, DType
from tilewright.kernels import Product, Role


def product(
    batch: tuple[int, ...],
    rows: int,
    columns: int,
    terms: int,
    order: str = "NN",
    dtype: DType = F32,
) -> Product:
    a = (terms, 1) if order[0] == "N" else (1, rows)
    b = (columns, 1) if order[1] == "N" else (1, terms)
    outer = []
    sizes = [rows * terms, terms * columns, rows * columns]
    for extent in reversed(batch):
        outer.insert(0, (extent, *sizes))
        sizes = [size * extent for size in sizes]
    three = ((rows, a[0], columns),), ((columns, b[1], 1),), ((terms, a[1], b[0]),)
    return Product(dtype, tuple(outer), *three)


def sliced(one: Product, wide: int, pair: int = 1) -> Product:
    """Let b lie in slices of some columns, so many terms of each side by side."""
    ((extent, *_),), ((terms, step, _),) = one.columns, one.terms
    columns = (extent // wide, wide * terms, wide), (wide, pair, 1)
    along = (terms // pair, step * pair, wide * pair), (pair, step, 1 if pair > 1 else 0)
    return replace(one, columns=columns, terms=along)


def windows(wide: int, taps: int, *, turned: bool = False, dtype: DType = F32) -> Product:
    """Let columns be squares of an image that are two apart; turned: the last rows first."""
    width, height, square = 2 * wide - 2 + taps, 8 + taps, taps * taps
    down = (5, -2 * width if turned else 2 * width, wide)
    terms = (3, square, width * height), (taps, taps, width), (taps, 1, 1)
    return Product(dtype, (), ((13, 3 * square, 5 * wide),), (down, (wide, 2, 1)), terms)


def places(wide: int, apart: int) -> Product:
    """Let terms be places of images that lie so far apart, columns taps of windows."""
    width, height = (wide - 1) * apart + 3, 2 * apart + 3
    image = width * height
    terms = (2, 3 * wide, 5 * image), (3, wide, apart * width), (wide, 1, apart)
    return Product(F32, (), ((13, 6 * wide, 45),), ((5, image, 9), (3, width, 3), (3, 1, 1)), terms)


def looped(source: random.Random) -> Product:
    """Rows, columns and terms of several loops each, windows that overlap among them: c is dense in
    some order, a and b have strides of any size and sign."""

    def split(most: int) -> list[int]:
        return [source.choice([1, 2, 3, 4, 5, 8, 16, 20]) for _ in range(source.randint(1, most))]

    rows, columns, terms = split(2), split(3), split(3)
    dtype = source.choice([F32, F64])
    places = list(range(len(rows) + len(columns)))
    if source.random() < 0.5:
        source.shuffle(places)
    steps, step = [0] * len(places), 1
    for at in reversed(places):
        steps[at] = step
        step *= (rows + columns)[at] + source.choice([0, 0, 1])

    def stride(innermost: bool) -> int:
        if innermost and source.random() < 0.7:
            return 1
        return source.choice([1, 2, 3, 7, 17, 40, 200, -1, -5])

    def role(extents: list[int], ends: list[int]) -> Role:
        last = len(extents) - 1
        pairs = zip(extents, ends, strict=True)
        return tuple((n, stride(at == last), end) for at, (n, end) in enumerate(pairs))

    ends = [stride(at == len(terms) - 1) for at in range(len(terms))]
    down, across = role(rows, steps[: len(rows)]), role(columns, steps[len(rows) :])
    return Product(dtype, (), down, across, role(terms, ends), source.choice([1.0, -2.5]))
