"""Comparisons of indices with fewer atoms hold where those they stand for do."""

import itertools

import numpy as np
import pytest

from tilewright.base.algebra import affine, coarse, from_affine
from tilewright.base.expr import Call, Const, Expr, Sym, names

EXTENTS = {"i": 5, "j": 4, "k": 3}


def holds(condition: Expr, point: dict[str, int]) -> bool:
    assert isinstance(condition, Call)
    constant, terms = affine(Call("sub", condition.args))
    found = constant + sum(
        point[atom.name] * n for atom, n in terms.items() if atom == Sym(atom.name)
    )
    return {"lt": found < 0, "le": found <= 0, "gt": found > 0, "ge": found >= 0}[condition.fn]


def test_random_comparisons_hold_where_they_did() -> None:
    source = np.random.default_rng(0)
    fewer = 0
    for _ in range(600):
        factors = source.choice([-12, -4, -3, -1, 0, 1, 3, 4, 12, 24], len(EXTENTS)).tolist()
        left = from_affine(
            int(source.integers(-40, 40)),
            {Sym(name): n for name, n in zip(EXTENTS, factors, strict=True) if n},
        )
        fn = str(source.choice(["lt", "le", "gt", "ge"]))
        condition = Call(fn, (left, Const(int(source.integers(-40, 40)))))
        found = coarse(condition, EXTENTS)
        fewer += names(found) < names(condition)
        for point in itertools.product(*map(range, EXTENTS.values())):
            where = dict(zip(EXTENTS, point, strict=True))
            assert holds(found, where) == holds(condition, where), (condition, found, where)
    assert fewer > 100


@pytest.mark.parametrize(
    ("fn", "right", "expected"),
    [
        ("ge", 128, ("ge", 2)),
        ("lt", 128, ("lt", 2)),
        ("ge", 129, ("ge", 2)),
        ("gt", 127, ("ge", 2)),
    ],
)
def test_a_digit_below_a_block_is_left_out_where_it_decides_nothing(
    fn: str, right: int, expected: tuple[str, int]
) -> None:
    a = Call("add", (Call("mul", (Sym("a"), Const(64))), Sym("r")))
    found = coarse(Call(fn, (a, Const(right))), {"a": 12, "r": 64})
    if right == 129:  # here the digit decides
        assert names(found) == {"a", "r"}
    else:
        assert found == Call(expected[0], (Sym("a"), Const(expected[1])))
