"""Sizes: arithmetic is that of the numbers for all values, under what was assumed."""

import operator
import random
from collections.abc import Callable

import pytest

from tilewright.base.sizes import (
    Limits,
    Size,
    Sizes,
    common_divisor,
    divide,
    divides,
    greatest_of,
    larger,
    least_of,
    nominal,
    same,
    smaller,
)

OPERATIONS: tuple[Callable[[int, int], int], ...] = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    smaller,
    larger,
    operator.lt,
    operator.eq,
)


def _two() -> tuple[int, int]:
    sizes = Sizes({"n_b": 7, "n_s": 13})
    return sizes.size("n_b"), sizes.size("n_s")


def test_what_can_be_divided_is() -> None:
    b, s = _two()
    assert str(b * 64 // 64) == "n_b"
    assert str(b * s * 64 // (s * 64)) == "n_b"
    assert str((64 * b - 1) // 64) == "(n_b - 1)"
    assert str(-(-b // 8)) == "(floordiv(n_b + 7, 8))"
    assert str(b // 2 // 3) == "(floordiv(n_b, 6))"
    assert (b * s % s, b % b, 1 % b) == (0, 0, 1)
    assert divide(64 * b + 3, 8) == (8 * b, 3)
    assert divides(8, 64 * b)
    assert not divides(8, b)
    assert common_divisor(64 * b, 8 * b) == 8 * b
    assert common_divisor(64 * b, 24 * s) == 8


def test_what_is_proved_assumes_nothing() -> None:
    b, s = _two()
    assert b > 0
    assert b != 1
    assert b * s >= b
    assert b - 1 < b
    assert isinstance(b, Size)
    assert b.sizes.assumptions == {}
    assert same(b + s, s + b)
    assert not same(b, 7)
    assert (least_of(b * s - b), greatest_of(-b), nominal(b)) == (2, -2, 32)
    assert b.sizes.assumptions == {}


def test_what_is_not_proved_is_the_examples_and_assumed() -> None:
    b, _ = _two()
    assert isinstance(b, Size)
    assert b < 10
    assert b.sizes.describe() == "n_b >= 2, n_s >= 2, -n_b + 9 >= 0"
    assert b.sizes.admit({"n_b": 9, "n_s": 2})
    assert not b.sizes.admit({"n_b": 10, "n_s": 2})
    assert float(b) == 7.0
    assert not b.sizes.admit({"n_b": 9, "n_s": 2})


def test_limits_are_known() -> None:
    sizes = Sizes({"n_s": 50}, {"n_s": Limits(2, 64)})
    s = sizes.size("n_s")
    assert s <= 64
    assert greatest_of(s * s) == 64 * 64
    assert sizes.assumptions == {}
    assert not sizes.admit({"n_s": 65})


@pytest.mark.parametrize("seed", range(60))
def test_under_its_assumptions_every_result_is_that_of_the_numbers(seed: int) -> None:
    choose = random.Random(seed)
    sizes = Sizes({"n_b": choose.randint(2, 20), "n_s": choose.randint(2, 20)})
    known: list[int] = [sizes.size("n_b"), sizes.size("n_s"), choose.randint(0, 5)]
    done: list[tuple[Callable[[int, int], int], int, int, int]] = []
    for _ in range(10):
        operation = choose.choice(OPERATIONS)
        a, b = choose.choice(known), choose.choice(known)
        divided = operation in (operator.floordiv, operator.mod)
        if divided and (least_of(b) <= 0 or least_of(a) < 0):
            continue
        made = operation(a, b)
        done.append((operation, a, b, made))
        if not isinstance(made, bool):
            known.append(made)
    for _ in range(20):
        values = {"n_b": choose.randint(2, 20), "n_s": choose.randint(2, 20)}
        if sizes.admit(values):
            evaluate = sizes.evaluator(values)
            for operation, *operands, made in done:
                a, b, found = (
                    evaluate(x.key) if isinstance(x, Size) else x for x in (*operands, made)
                )
                assert found == operation(a, b)
