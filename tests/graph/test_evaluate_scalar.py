"""The scalar functions in NumPy: against Python's own mathematics, torch's rules and Philox."""

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.formulas import EVERYTHING, draw

from tilewright.base import dtypes, scalar
from tilewright.base.dtypes import BOOL, F32, F64, I32, I64, U8
from tilewright.base.errors import UNKNOWN
from tilewright.base.expr import Call, Const, Expr, Read, Sym, call
from tilewright.graph.evaluate_block import Evaluation
from tilewright.graph.evaluate_naive import Operands, dtype_of, term_at
from tilewright.graph.evaluate_scalar import (
    FUNCTIONS,
    Number,
    apply,
    literal,
    philox,
    round_to,
    store,
    uniform,
)
from tilewright.graph.infer import infer
from tilewright.graph.ir import Formula, Loop, TensorType

REAL = np.array([-2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 7.0])
UNIT = np.array([-1.0, -0.75, 0.0, 0.3, 1.0])
POSITIVE = np.array([1e-3, 0.5, 1.0, 2.0, 9.5])

# name: (arguments, what Python computes for each)
MATH: dict[str, tuple[np.ndarray, Callable[[float], float]]] = {
    "exp": (REAL, math.exp),
    "exp2": (REAL, lambda x: 2.0**x),
    "expm1": (REAL, math.expm1),
    "log": (POSITIVE, math.log),
    "log2": (POSITIVE, math.log2),
    "log10": (POSITIVE, math.log10),
    "log1p": (POSITIVE, math.log1p),
    "sqrt": (POSITIVE, math.sqrt),
    "rsqrt": (POSITIVE, lambda x: 1 / math.sqrt(x)),
    "reciprocal": (POSITIVE, lambda x: 1 / x),
    "sin": (REAL, math.sin),
    "cos": (REAL, math.cos),
    "tan": (REAL, math.tan),
    "asin": (UNIT, math.asin),
    "acos": (UNIT, math.acos),
    "atan": (REAL, math.atan),
    "sinh": (REAL, math.sinh),
    "cosh": (REAL, math.cosh),
    "tanh": (REAL, math.tanh),
    "sigmoid": (REAL, lambda x: 1 / (1 + math.exp(-x))),
    "erf": (REAL, math.erf),
    "erfc": (REAL, math.erfc),
    "normal_cdf": (REAL, statistics.NormalDist().cdf),
    "floor": (REAL, math.floor),
    "ceil": (REAL, math.ceil),
    "trunc": (REAL, math.trunc),
    "round": (REAL, round),
    "abs": (REAL, abs),
    "neg": (REAL, lambda x: -x),
    "sign": (REAL, lambda x: (x > 0) - (x < 0)),
    "isnan": (REAL, math.isnan),
    "isinf": (REAL, math.isinf),
}
PAIRS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "fmod": math.fmod,
    "max": max,
    "min": min,
    "atan2": math.atan2,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
BITS: dict[str, Callable[[int, int], int]] = {
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
}


def number(*values: float | int | bool, dtype: dtypes.DType = F64) -> Number:
    return Number(np.array(values, dtype=dtype.compute.numpy), dtype.compute)


def test_every_function_of_the_table_can_be_evaluated() -> None:
    special = {"and", "or", "not", "select", "uniform", *dtypes.BY_NAME}
    assert {row.name for row in scalar.FUNCTIONS} == special | set(FUNCTIONS)


@pytest.mark.parametrize("name", MATH)
def test_a_function_of_one_argument_is_what_python_computes(name: str) -> None:
    arguments, expected = MATH[name]
    found = apply(name, [number(*arguments)], wide=False).data
    np.testing.assert_allclose(found, [expected(x) for x in arguments.tolist()], rtol=1e-14)


@pytest.mark.parametrize("name", PAIRS)
def test_a_function_of_two_arguments_is_what_python_computes(name: str) -> None:
    a, b = np.meshgrid(REAL, np.array([-3.0, -0.5, 0.5, 1.0, 2.0]))
    found = apply(name, [number(*a.ravel()), number(*b.ravel())], wide=False).data
    pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    np.testing.assert_allclose(found, [PAIRS[name](x, y) for x, y in pairs], rtol=1e-14)


@pytest.mark.parametrize("name", BITS)
def test_integers_divide_and_combine_as_in_python(name: str) -> None:
    a, b = np.meshgrid([-7, -1, 0, 5, 9], [-3, -1, 1, 2, 4])
    arguments = [number(*part.ravel().tolist(), dtype=I64) for part in (a, b)]
    found = apply(name, arguments, wide=False)
    pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    assert found.data.tolist() == [BITS[name](x, y) for x, y in pairs]
    assert found.dtype == I64


def test_an_integer_to_a_negative_power_is_zero_unless_its_size_is_one() -> None:
    base = number(2, -1, -1, 1, 3, dtype=I32)
    power = number(-1, -1, -2, -5, 4, dtype=I32)
    assert apply("pow", [base, power], wide=False).data.tolist() == [0, -1, 1, 1, 81]


def test_nan_wins_maximum_and_minimum_and_has_no_sign() -> None:
    a, b = number(math.nan, 1.0), number(0.0, math.nan)
    assert np.isnan(apply("max", [a, b], wide=False).data).all()
    assert np.isnan(apply("min", [a, b], wide=False).data).all()
    assert apply("sign", [number(math.nan)], wide=False).data.tolist() == [0]


def test_integers_divide_to_float32() -> None:
    found = apply("div", [number(1, 2, dtype=I64), number(3, 4, dtype=I64)], wide=False)
    assert found.dtype == F32
    assert found.data.dtype == np.float32
    np.testing.assert_array_equal(found.data, np.array([1, 2], "f4") / np.array([3, 4], "f4"))


def test_a_python_number_takes_the_type_of_the_other_side() -> None:
    cases = (
        (U8, 2, U8),
        (U8, 0.5, F32),
        (BOOL, 1, I64),
        (F64, 0.1, F64),
        (F32, 3, F32),
        (I32, True, I32),
    )
    for dtype, value, expected in cases:
        found = apply("mul", [number(1, dtype=dtype), literal(value)], wide=False)
        assert found.dtype == expected, (dtype, value)


def test_a_float_constant_is_exact_until_it_meets_a_type() -> None:
    tenth = apply("mul", [literal(0.1), literal(1.0)], wide=False)
    assert apply("add", [number(0.0), tenth], wide=False).data[0] == 0.1


def test_wide_rounds_nothing() -> None:
    third = Number(np.array([1 / 3]), F32)
    assert apply("bf16", [third], wide=True).data[0] == 1 / 3
    assert store(third, dtypes.BF16, wide=True)[0] == 1 / 3
    assert apply("bf16", [number(1 / 3, dtype=F32)], wide=False).data[0] == np.float32(0.333984375)


def test_conversion_to_a_half_type_rounds_and_goes_on_in_float32() -> None:
    found = round_to(number(1.0009765, dtype=F32), dtypes.BF16, wide=False)
    assert found.dtype == F32
    assert found.data.tolist() == [1.0]


PHILOX = (
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
)


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX)
def test_philox_gives_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], words: str
) -> None:
    assert " ".join(f"{int(word):08x}" for word in philox(counter, key)) == words


def test_uniform_is_the_first_word_of_philox_scaled() -> None:
    assert uniform(np.asarray(0), np.asarray(0)) == np.float32((0x6627E8D5 >> 8) * 2.0**-24)
    seed, index = 0x299F31D0A4093822, (5 << 32) + 7
    word = philox((7, 5, 0, 0), (0xA4093822, 0x299F31D0))[0]
    assert uniform(np.asarray(seed), np.asarray(index)) == np.float32((int(word) >> 8) * 2.0**-24)
    many = uniform(np.asarray(-3), np.arange(10_000))
    assert many.dtype == np.float32
    assert many.min() >= 0
    assert many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01


@pytest.mark.parametrize("seed", range(60))
def test_values_have_the_type_that_infer_says(seed: int) -> None:
    formula, arrays = draw(seed, EVERYTHING)
    types = dict(zip(formula.operands, map(dtype_of, arrays), strict=True))
    numbers = {
        name: Number(array.astype(types[name].compute.numpy), types[name].compute)
        for name, array in zip(formula.operands, arrays, strict=True)
    }
    with np.errstate(all="ignore"):
        corner = Evaluation(Operands(numbers), {loop.name: (0, 1) for loop in formula.loops})
        found = corner.term(formula.value).number
    assert found.dtype == infer(formula.value, types)


def _drawn(rng: np.random.Generator, depth: int) -> Expr:
    """Return any expression over the loop i: reads of every type, numbers, every function."""
    if depth == 0 or rng.random() < 0.2:
        kind = rng.random()
        if kind < 0.25:
            return Sym("i")
        if kind < 0.55:
            return Const((True, False, 0, 1, 3, 0.5, 1.0, -2.5)[rng.integers(8)])
        default = _drawn(rng, max(depth - 1, 0)) if rng.random() < 0.35 else None
        outside = int(rng.integers(2)) * 5 if default is not None else 0
        name = dtypes.ALL[rng.integers(len(dtypes.ALL))].name
        return Read(name, (call("add", Sym("i"), outside),), default)
    # An exact division stands in an index only, and an absent value has no type.
    names = [function.name for function in scalar.FUNCTIONS if function.name != "exactdiv"]
    name = names[rng.integers(len(names))]
    args = [_drawn(rng, depth - 1) for _ in range(scalar.BY_NAME[name].arity)]
    if name.startswith("bit"):
        args = [Call(("u8", "bool", "i64")[rng.integers(3)], (arg,)) for arg in args]
    return Call(name, tuple(args))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_infer_types_any_expression_as_both_evaluators_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = {dtype.name: Number(np.ones(3, dtype.compute.numpy), dtype.compute)
               for dtype in dtypes.ALL}  # fmt: skip
    for _ in range(50):
        expr = _drawn(rng, int(rng.integers(5)))
        wanted = infer(expr, dtypes.BY_NAME)
        with np.errstate(all="ignore"):
            block = Evaluation(Operands(numbers), {"i": (0, 3)}).term(expr).number
            point = term_at(_formula_of(expr), Operands(numbers), {"i": 2}, UNKNOWN)
        assert point is not None, f"{expr} is absent"
        assert (block.dtype, point[1].dtype) == (wanted, wanted), expr
        assert block.weak == point[1].weak, expr
        if not block.weak:
            assert block.data.dtype == point[1].data.dtype == wanted.numpy, expr


def _formula_of(value: Expr) -> Formula:
    operands = tuple(dtype.name for dtype in dtypes.ALL)
    return Formula(operands, (Loop("i", 3),), (Sym("i"),), "=", value, TensorType((3,), F64))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (call("add", Sym("i"), 1), I64),
        (call("div", Sym("i"), 2), F32),
        (call("mul", Read("u", ()), Sym("i")), U8),
        (call("select", True, Const(0), Read("h", ())), F32),
    ],
)
def test_loops_are_weak_and_half_types_are_computed_in_float32(
    expr: Expr, expected: dtypes.DType
) -> None:
    zero = np.zeros((), np.uint8)
    numbers = {"u": Number(zero, U8), "h": Number(zero.astype("f4"), F32)}
    found = Evaluation(Operands(numbers), {"i": (0, 1)}).term(expr).number
    assert found.dtype == expected
    assert found.dtype == infer(expr, {"u": U8, "h": dtypes.BF16})
