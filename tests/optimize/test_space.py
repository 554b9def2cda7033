"""Spaces: loops of any names, orders and ranks are matched by where they are in memory."""

import pytest

from tilewright.base.dtypes import F32
from tilewright.graph import notation
from tilewright.graph.ir import TensorType
from tilewright.optimize.space import Space, join, space_of

TYPES = {
    "x": TensorType((4, 6, 8), F32),
    "p": TensorType((4, 6, 8), F32),
    "q": TensorType((24, 8), F32),
    "m": TensorType((4, 6), F32),
    "c": TensorType((8,), F32),
    "k": TensorType((6,), F32),
}
PRODUCERS = {
    "p": "y[i<4, j<6, k<8] = x[i, j, k] * 2",
    "m": "y[i<4, j<6] += x[i, j, k<8]",
    "c": "y[k<8] += x[i<4, j<6, k]",
    "k": "y[j<6] += x[i<4, j, k<8]",
    "q": "y[n<24, k<8] = x[n//6, n%6, k]",
}


def joined(producer: str, consumer: str, shape: tuple[int, ...]) -> Space | str:
    one = notation.read(PRODUCERS[producer], TYPES[producer])
    other = notation.read(consumer, TensorType(shape, F32))
    shared = {producer: True}
    if "x[" in consumer:
        shared["x"] = False
    return join(space_of(producer, one), space_of("o", other), TYPES, shared)


@pytest.mark.parametrize(
    ("producer", "consumer", "shape", "rows", "columns"),
    [
        ("p", "y[i<4, j<6, k<8] = p[i, j, k] + 1", (4, 6, 8), None, 192),
        ("p", "y[k<8, i<4, j<6] = p[i, j, k] + 1", (8, 4, 6), None, 192),
        ("p", "y[n<192] = p[n//48, n//8%6, n%8]", (192,), None, 192),
        ("p", "y[a<2, b<96] = p[a*2+b//48, b//8%6, b%8]", (2, 96), None, 192),
        ("p", "y[n<24] += p[n//6, n%6, k<8]", (24,), 24, 8),
        ("p", "y[k<8] += p[i<4, j<6, k]", (8,), 8, 24),
        ("m", "y[i<4, j<6, k<8] = x[i, j, k] - m[i, j]", (4, 6, 8), 24, 8),
        ("m", "y[n<24, k<8] = m[n//6, n%6] * c[k]", (24, 8), 24, 8),
        ("m", "y[n<24] = m[n//6, n%6] * 2", (24,), 24, 8),
        ("m", "y[n<24, a<2, b<4] = m[n//6, n%6] * 2", (24, 2, 4), 24, 8),
        ("k", "y[i<4, j<6, k<8] = x[i, j, k] - k[j]", (4, 6, 8), 6, 32),
        ("q", "y[i<4, j<6, k<8] = q[i*6+j, k]", (4, 6, 8), None, 192),
    ],
)
def test_a_reader_at_its_own_place_shares_the_space(
    producer: str, consumer: str, shape: tuple[int, ...], rows: int | None, columns: int
) -> None:
    space = joined(producer, consumer, shape)
    assert isinstance(space, Space), space
    found = None if space.rows is None else space.size(space.rows)
    assert (found, space.size(space.digits) // (found or 1)) == (rows, columns)


@pytest.mark.parametrize(
    ("producer", "consumer", "shape", "why"),
    [
        ("p", "y[i<4, j<6, k<8] = p[3-i, j, k]", (4, 6, 8), "p is read at another place"),
        ("p", "y[i<4, j<6, k<7] = p[i, j, k+1]", (4, 6, 7), "p is read at another place"),
        ("p", "y[i<2, j<6, k<8] = p[i, j, k]", (2, 6, 8), "p is read at another place"),
        ("p", "y[i<4, j<6, k<8] = p[i, j, k] + p[i, j, 7-k]", (4, 6, 8), "another place"),
        ("p", "y[i<4, j<6, k<8] = p[i, j, x[i, j, k]]", (4, 6, 8), "o gathers from p"),
        ("m", "y[i<4] = m[i, 0]", (4,), "m is read at another place"),
        ("m", "y[k<8] += x[i<4, j<6, k] * m[i, j]", (8,), "reduced over different loops"),
        ("m", "y[i<4, j<6, k<9] = m[i, j]", (4, 6, 9), "m runs over a part of the loops"),
        ("c", "y[i<4, j<6] += x[i, j, k<8] * c[k]", (4, 6), "reduced over different loops"),
    ],
)
def test_a_reader_at_another_place_does_not(
    producer: str, consumer: str, shape: tuple[int, ...], why: str
) -> None:
    space = joined(producer, consumer, shape)
    assert isinstance(space, str)
    assert why in space
