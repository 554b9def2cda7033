"""Indices of mixed radix come apart: quotients and remainders by digits, against brute force."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.algebra import bounds, simplify
from tilewright.base.expr import Call, Const, Expr, Sym
from tilewright.base.syntax import parse, show

EXTENTS = {"i": 6, "j": 4, "k": 3}


def value(expr: Expr, point: dict[str, int]) -> int:
    match expr:
        case Const(number):
            return int(number)
        case Sym(name):
            return point[name]
        case Call(fn, args):
            a = [value(arg, point) for arg in args]
            return {
                "add": lambda: a[0] + a[1],
                "sub": lambda: a[0] - a[1],
                "mul": lambda: a[0] * a[1],
                "neg": lambda: -a[0],
                "floordiv": lambda: a[0] // a[1],
                "mod": lambda: a[0] % a[1],
            }[fn]()
    raise AssertionError(f"no index holds {expr}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(i*4+j) // 8", "i//2"),
        ("(i*4+j) % 8", "i%2*4+j"),
        ("(i*12+j*3+k) // 12", "i"),
        ("(i*12+j*3+k) % 12 // 3", "j"),
        ("(i*12+j*3+k) // 24", "i//2"),
        ("(i*4+j) // 8 * 8 + (i*4+j) % 8", "i*4+j"),
        ("(i*4) % 8", "i%2*4"),
        ("(i*4+j+1) // 8", "(i*4+j+1)//8"),
    ],
)
def test_digits_come_apart(text: str, expected: str) -> None:
    assert show(simplify(parse(text), EXTENTS), index=True) == expected


@st.composite
def indices(draw: st.DrawFn, depth: int = 3) -> Expr:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        leaves: list[Expr] = [Sym("i"), Sym("j"), Sym("k"), Const(1), Const(5)]
        return draw(st.sampled_from(leaves))
    fn = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "mod"]))
    left: Expr = draw(indices(depth - 1))
    if fn in ("add", "sub"):
        return Call(fn, (left, draw(indices(depth - 1))))
    return Call(fn, (left, Const(draw(st.sampled_from([2, 3, 4, 6, 8, 12, 24])))))


@settings(max_examples=300)
@given(indices())
def test_the_normal_form_has_the_same_value_everywhere(expr: Expr) -> None:
    made = simplify(expr, EXTENTS)
    limits = bounds(made, EXTENTS)
    for point in itertools.product(*(range(extent) for extent in EXTENTS.values())):
        at = dict(zip(EXTENTS, point, strict=True))
        assert value(made, at) == value(expr, at)
        assert limits is None or limits[0] <= value(made, at) <= limits[1]
    assert simplify(made, EXTENTS) == made
