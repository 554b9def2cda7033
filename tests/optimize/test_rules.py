"""Every rule keeps every bit, at NaN, infinities and signed zeros; what would not is refused."""

import numpy as np
import pytest

from tilewright.base.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, DType
from tilewright.base.expr import Read, Sym, substitute
from tilewright.base.syntax import parse, show
from tilewright.graph import notation
from tilewright.graph.evaluate_naive import evaluate_naive
from tilewright.graph.ir import Formula, Loop, TensorType
from tilewright.optimize.algebraic import simplified
from tilewright.optimize.rules import REFUSED, RULES

SPECIAL = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 7.0, 1e-9, 1e30, -1e30, 3e38, 1e-45, -1e-45, 200.0, 1.001),
    *(float("inf"), float("-inf"), float("nan")),
)
KINDS: dict[str, DType] = {"x": F32, "z": F64, "h": BF16, "e": F16, "n": I64, "m": I32, "c": BOOL}


def formula(text: str, shape: tuple[int, ...], dtype: DType | None = None) -> Formula:
    found = notation.read(f"y[i<{shape[0]}] = {text}", TensorType(shape, F32))
    dtypes = {name: KINDS[name] for name in found.operands}
    return Formula(
        found.operands,
        found.loops,
        found.index,
        "=",
        found.value,
        TensorType(shape, dtype or notation.infer(found.value, dtypes)),
    )


def arrays(count: int) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"):
        floats = np.resize(np.array(SPECIAL), count)
        found = {name: floats.astype(KINDS[name].numpy) for name in "xzhe"}
    whole = np.resize(np.array([0, 1, -1, 2, -7, 2**31 - 1, -(2**31)]), count)
    return {**found, "n": whole, "m": whole.astype(np.int32), "c": whole > 0}


def bits(array: np.ndarray) -> np.ndarray:
    """Return the bits; all NaNs are one, their signs and payloads say nothing."""
    clean = np.where(np.isnan(array.astype(np.float64)), np.nan, 0).astype(array.dtype)
    kept = np.where(array == array, array, clean) if array.dtype.kind in "fV" else array
    return np.frombuffer(kept.tobytes(), np.uint8)


CASES = [
    # value, what becomes of it, by the rules' order
    ("x[i] * 1", "x[i]"),
    ("1.0 * x[i]", "x[i]"),
    ("x[i] / 1", "x[i]"),
    ("x[i] - 0", "x[i]"),
    ("x[i] + -0.0", "x[i]"),
    ("exp(x[i]) + 0", "exp(x[i])"),
    ("x[i] * x[i] + 0", "x[i] * x[i]"),
    ("n[i] + 0", "n[i]"),
    ("-(-x[i])", "x[i]"),
    ("x[i] * -1", "-x[i]"),
    ("abs(-x[i])", "abs(x[i])"),
    ("abs(abs(x[i]))", "abs(x[i])"),
    ("not not c[i]", "c[i]"),
    ("x[i] if i >= 0 else 2", "x[i]"),
    ("x[i] if i < 0 else x[i] * 2", "x[i] * 2"),
    ("x[i] if i <= 3 else x[i]", "x[i]"),
    ("x[i] if not c[i] else z[i]", "z[i] if c[i] else x[i]"),
    (
        "x[i] if x[i] <= 2 and x[i] >= -1 else 2 if x[i] > 2 else -1 if x[i] < -1 else nan",
        "2 if x[i] > 2 else -1 if x[i] < -1 else x[i]",
    ),
    (
        "h[i] if h[i] <= 1 and h[i] >= 7 else 1 if h[i] > 1 else 1 if h[i] < 7 else nan",
        "1 if h[i] > 1 else 1 if h[i] < 7 else h[i]",
    ),
    ("z[i] if z[i] >= 0.5 else 0.5 if z[i] < 0.5 else nan", "0.5 if z[i] < 0.5 else z[i]"),
    ("c[i] and i >= 0", "c[i]"),
    ("c[i] or i < 0", "c[i]"),
    ("c[i] and c[i]", "c[i]"),
    ("pow(x[i], 1)", "x[i]"),
    ("pow(x[i], 2)", "x[i] * x[i]"),
    ("pow(x[i], -1)", "reciprocal(x[i])"),
    ("pow(x[i], 0.5)", "sqrt(x[i])"),
    ("x[i] / 2", "x[i] * 0.5"),
    ("x[i] / -0.25", "x[i] * -4.0"),
    ("f32(x[i])", "x[i]"),
    ("bf16(f32(h[i]))", "h[i]"),
    ("f32(f64(x[i]))", "x[i]"),
    ("i32(i64(m[i]))", "m[i]"),
    ("max(x[i], x[i])", "x[i]"),
    ("max(x[i], -inf)", "x[i]"),
    ("min(x[i], inf)", "x[i]"),
    ("x[i] * (2 + 3)", "x[i] * 5"),
    ("x[i] * f32(2.0)", "x[i] * 2.0"),
    ("x[i] * f32(1.0)", "x[i]"),
    ("x[i] < f32(0.1)", "x[i] < 0.10000000149011612"),
    ("sqrt(4.0) * x[i]", "2.0 * x[i]"),
]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_a_rule_applies_and_keeps_every_bit(text: str, expected: str) -> None:
    count = len(SPECIAL)
    before = formula(text, (count,))
    types = {name: TensorType((count,), KINDS[name]) for name in before.operands}
    after = simplified(before, types)
    assert show(after.value) == show(parse(expected))
    given = arrays(count)
    with np.errstate(all="ignore"):
        a = evaluate_naive(before, [given[name] for name in before.operands])
        b = evaluate_naive(after, [given[name] for name in before.operands])
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(bits(a), bits(b))


def test_a_cube_is_what_torch_computes_to_the_last_bit_but_one() -> None:
    count = len(SPECIAL)
    before = formula("pow(x[i], 3)", (count,))
    after = simplified(before, {"x": TensorType((count,), F32)})
    assert show(after.value) == "x[i] * x[i] * x[i]"
    x = arrays(count)["x"]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            evaluate_naive(after, [x]), evaluate_naive(before, [x]), rtol=3e-7
        )


UNCHANGED = [
    "x[i] if x[i] <= 2 and x[i] >= -1 else 2 if x[i] > 2 else nan",
    "x[i] if x[i] <= 2 else 2 if x[i] > 1 else nan",
    "x[i] if x[i] <= 2 else 2 if x[i] > 2 else 0.0",
    "x[i] if z[i] <= 2 else 2 if z[i] > 2 else nan",
    "x[i] if x[i] <= z[i] else z[i] if x[i] > z[i] else nan",  # z may be NaN where x is not
    "x[i] if x[i] <= nan else 2.0 if x[i] > nan else nan",
    "x[i] + 0",  # -0.0 + 0 is 0.0
    "0 - x[i]",
    "x[i] * 0",
    "x[i] - x[i]",
    "x[i] / x[i]",
    "x[i] / 3",
    "x[i] / 0",
    "exp(log(x[i]))",
    "x[i] if x[i] == x[i] else 0",
    "f32(bf16(x[i]))",
    "f32(z[i])",
    "f64(x[i])",
    "n[i] * 1.0",  # gives a float
    "c[i] + 0",  # gives an integer
    "m[i] * 1 + n[i] * f32(2.5)",
    "x[i] * f64(0.1)",  # is computed in float64
    "x[i] < f64(0.1)",
    "h[i] * f32(0.1)",  # a number beside a half type would be rounded to it
    "x[i-1] if x[i-1] > 0 else x[i-1]",  # absent for i = 0
    "not (x[i] < 1)",
    "1 / (1 / x[i])",
]


@pytest.mark.parametrize("text", UNCHANGED)
def test_what_would_change_a_bit_or_a_type_is_left_alone(text: str) -> None:
    before = formula(text, (4,))
    types = {name: TensorType((4,), KINDS[name]) for name in before.operands}
    unloosened = simplified(before, types)
    given = arrays(4)
    a = evaluate_naive(before, [given[name] for name in before.operands])
    b = evaluate_naive(unloosened, [given[name] for name in before.operands])
    np.testing.assert_array_equal(bits(a), bits(b))
    if "m[i]" not in text:
        assert unloosened == before


@pytest.mark.parametrize(("before", "after", "at"), REFUSED, ids=[row[0] for row in REFUSED])
def test_each_refused_rule_has_a_counter_example(before: str, after: str, at: float) -> None:
    def value(text: str) -> np.ndarray:
        operand = substitute(parse(text), {"x": Read("x", (Sym("i"),))})
        reads = ("x",) if "x[" in show(operand) else ()
        made = Formula(reads, (Loop("i", 1),), (Sym("i"),), "=", operand, TensorType((1,), F32))
        return evaluate_naive(made, [np.array([at], np.float32)] * len(reads))

    with np.errstate(all="ignore"):
        assert not np.array_equal(bits(value(before)), bits(value(after)))


def test_every_rule_is_tried_by_some_case() -> None:
    assert len(RULES) <= len(CASES)
    documented = [rule.__doc__ or "" for rule in RULES]
    assert all("-->" in text for text in documented)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y[i<4] = x[i] where i >= 0", "y[i<4] = x[i]"),
        ("y[i<4] += x[i] * 2", "y[i<4] = x[i] * 2"),
        ("y[i<4] max= x[i + k] for k<1", "y[i<4] = x[i]"),
        ("y[i<4] += x[i-1]", "y[i<4] += x[i-1]"),  # absent for i = 0
        ("y[i<4] += x[k<4]", "y[i<4] += x[k<4]"),
    ],
)
def test_conditions_and_reductions_that_do_nothing_go(text: str, expected: str) -> None:
    type_ = TensorType((4,), F32)
    made = simplified(notation.read(text, type_), {"x": type_})
    assert notation.show(notation.normal(made)) == expected
