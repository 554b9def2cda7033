"""Composing formulas: the composed formula means what the two meant one after the other."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.dtypes import BF16, BOOL, F32, I32, I64, DType
from tilewright.base.errors import IndexRangeError
from tilewright.graph import notation
from tilewright.graph.compose import compose, over_values, rename_operands
from tilewright.graph.evaluate_naive import evaluate_naive
from tilewright.graph.ir import Formula, Node, TensorType, Value
from tilewright.graph.total import total

GENERATOR = np.random.default_rng(0)


def random_array(type_: TensorType, top: int = 3) -> np.ndarray:
    shape = tuple(int(dim) for dim in type_.shape if isinstance(dim, int))
    if type_.dtype.kind == "float":
        return GENERATOR.standard_normal(shape).astype(type_.dtype.numpy)
    return GENERATOR.integers(0, top, shape).astype(type_.dtype.numpy)


def composed_and_stepwise(
    consumer: Formula, producer: Formula, arrays: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Evaluate the composition, and the two formulas one after the other (operand `p`)."""
    dtypes = {dtype.numpy: dtype for dtype in (F32, I64, I32, BOOL, BF16)}
    types = {name: TensorType(a.shape, dtypes[a.dtype]) for name, a in arrays.items()}
    types["p"] = producer.type
    made = compose(consumer, "p", producer, types)
    assert made is not None
    assert "p" not in made.operands
    arrays = {**arrays, "p": evaluate_naive(producer, [arrays[n] for n in producer.operands])}
    expected = evaluate_naive(consumer, [arrays[n] for n in consumer.operands])
    return evaluate_naive(made, [arrays[n] for n in made.operands]), expected


def formula(text: str, shape: tuple[int, ...], dtype: DType = F32) -> Formula:
    return notation.read(text, TensorType(shape, dtype))


PRODUCERS = (
    ("y[i<4,j<6] = x[i,j] * 2 + v[j]", "pointwise"),
    ("y[i<4,j<6] = x[i,j] where i + j < 5 else 7", "where with a fill"),
    ("y[i<4,j<6] = x[i-1,j+1]", "reads outside are absent"),
    ("y[i<4,j<6] = (x[i-1,j+1] ?? 3) + v[j]", "reads outside with a default"),
    ("y[i<4,j<6] = x[i,j/2] else 5", "exact division"),
    ("y[i<4,j<6] = x[3-i,5-j]", "flipped"),
    ("y[i<4,j<6] = x[i//2,j%3]", "digits"),
    ("y[i<4,j*2+1] = x[i,j] else 4 for j<3", "written through with a step"),
    ("y[3-i,5-j] = x[i,j] for i<4, j<6", "written through backward"),
    ("y[a*2+b,j<6] = x[b,j] + v[a] for a<2, b<2", "mixed radix"),
    ("y[i<4,j<6] = x[i,ids[j]]", "gathered"),
    ("y[i<4,j<6] = v[j] if i < 2 else x[i+5,j]", "the branch not taken is absent"),
    ("y[i<4,j<6] = x[i,j] from z", "from an operand, all overwritten"),
    ("y[i<4,j<3] = x[i,j] from z", "from an operand, half of it"),
    ("y[i<4,j<6] = x[i,j] where x[i,j+1] > 0 else 2", "a where that is absent"),
    ("y[i<4,j<6] = i * 6 + j", "loops as values"),
    ("y[i<4,j<6] = 2.5", "uniform"),
)
CONSUMERS = (
    ("y[i<4,j<6] = p[i,j] * p[i,j]", (4, 6)),
    ("y[j<6] += p[i<4,j] * v[j]", (6,)),
    ("y[i<4] max= p[i,j<6]", (4,)),
    ("y[n<24] = p[n//6,n%6]", (24,)),
    ("y[i<5,j<6] = p[i-1,j] else 9", (5, 6)),
    ("y[i<5,j<6] = (p[i-1,j+1] ?? 8) * v[j]", (5, 6)),
    ("y[i<3,j<6] += p[i+k-1,j] for k<3", (3, 6)),
    ("y[i<8,j<6] = p[i/2,j] + 1", (8, 6)),
    ("y[i<8,j<6] = p[i/2,j] ?? 1", (8, 6)),
    ("y[i<4,j<6] = p[i+1,j] if v[j] > 0 else 6", (4, 6)),
    ("y[i<4,j<6] = p[i,j] where j >= i else 2", (4, 6)),
    ("y[i<6,j<6] = (p[i-1,j] if v[j-1] > 0 else v[j]) else 5", (6, 6)),
    ("y[i<4,ids[j<6]] += p[i,j]", (4, 6)),
    ("y[i<4] argmax= p[i,j<6] at j", (4,)),
)


@pytest.mark.parametrize("producer", [text for text, _ in PRODUCERS], ids=[n for _, n in PRODUCERS])
@pytest.mark.parametrize(("consumer", "shape"), CONSUMERS, ids=[text for text, _ in CONSUMERS])
def test_a_composition_means_the_two_formulas_in_turn(
    producer: str, consumer: str, shape: tuple[int, ...]
) -> None:
    arrays = {
        "x": random_array(TensorType((4, 6), F32)),
        "z": random_array(TensorType((4, 6), F32)),
        "v": random_array(TensorType((6,), F32)),
        "ids": random_array(TensorType((6,), I64), 6),
    }
    kind = I64 if "argmax" in consumer else F32
    found, expected = composed_and_stepwise(
        formula(consumer, shape, kind), formula(producer, (4, 6)), arrays
    )
    np.testing.assert_array_equal(found, expected)


def test_rounding_on_storing_stays() -> None:
    producer = formula("y[i<64] = x[i] * 1.001", (64,), BF16)
    consumer = formula("y[i<64] = p[i] - x[i]", (64,))
    found, expected = composed_and_stepwise(
        consumer, producer, {"x": random_array(TensorType((64,), F32))}
    )
    np.testing.assert_array_equal(found, expected)
    assert np.any(found != 0)


def test_a_number_keeps_the_type_it_was_stored_in() -> None:
    producer = formula("y[i<4] = 3", (4,), I64)
    consumer = formula("y[i<4] = p[i] * x[i]", (4,), I64)
    arrays = {"x": np.full(4, 2**30, np.int32)}
    found, expected = composed_and_stepwise(consumer, producer, arrays)
    np.testing.assert_array_equal(found, expected)
    assert found.tolist() == [3 * 2**30] * 4


def test_a_shift_is_not_put_behind_an_indirect_index() -> None:
    # p[ids[i]] checks ids against p; x[ids[i] + 2] would let -1 pass.
    types = {
        "x": TensorType((6,), F32),
        "p": TensorType((4,), F32),
        "ids": TensorType((4,), I64),
    }
    producer = formula("y[i<4] = x[i+2]", (4,))
    consumer = formula("y[i<4] = p[ids[i]]", (4,))
    assert compose(consumer, "p", producer, types) is None


def test_an_indirect_index_is_still_checked() -> None:
    types = {
        "x": TensorType((4,), F32),
        "p": TensorType((4,), F32),
        "ids": TensorType((4,), I64),
    }
    made = compose(
        formula("y[i<4] = p[ids[i]]", (4,)), "p", formula("y[i<4] = x[i] + 1", (4,)), types
    )
    assert made is not None
    arrays = {"x": np.zeros(4, np.float32), "ids": np.array([0, 1, 2, 4])}
    with pytest.raises(IndexRangeError):
        evaluate_naive(made, [arrays[name] for name in made.operands])


@pytest.mark.parametrize(
    "text",
    [
        "y[i<4] += x[i,j<3]",
        "y[ids[i<4]] = x[i,0]",
        "y[i+j] = x[i<2,j<3]",
        "y[i<4] max= x[i,j<3]",
    ],
)
def test_what_is_no_function_of_the_element_is_not_total(text: str) -> None:
    types = {"x": TensorType((4, 3), F32), "ids": TensorType((4,), I64)}
    assert total(formula(text, (4,)), types) is None


def test_operands_are_named_by_values_and_equal_ones_become_one() -> None:
    value = Value("h", TensorType((4,), F32))
    made = formula("y[i<4] = a[i] * b[i]", (4,))
    node = Node("mul", (value, value), (Value("s", made.type),), formula=made)
    assert over_values(node) == formula("y[i<4] = h[i] * h[i]", (4,))
    assert rename_operands(made, {"a": "b", "b": "a"}).operands == ("b", "a")


def indices(draw: st.DrawFn, loops: dict[str, int]) -> str:
    name = draw(st.sampled_from(sorted(loops)))
    other = draw(st.sampled_from(sorted(loops)))
    shift = draw(st.integers(-2, 2))
    factor = draw(st.integers(-2, 2))
    shape = draw(
        st.sampled_from(
            ("{n}*{f}+{s}", "{n}+{o}*{f}+{s}", "({n}+{s})//2", "({n}+{s})%3", "({n}+{s})/2", "{n}")
        )
    )
    return shape.format(n=name, o=other, f=factor, s=shift).replace("+-", "-")


@st.composite
def pairs(draw: st.DrawFn) -> Iterator[tuple[str, str]]:
    inner = {"i": 3, "j": 4}
    default = draw(st.sampled_from(("", " ?? 2", " ?? x[i,j]")))
    fill = draw(st.sampled_from(("", " else 7", " from z")))
    where = draw(st.sampled_from(("", " where i < j", " where x[i+1,j] > 0")))
    x = f"(x[{indices(draw, inner)},{indices(draw, inner)}]{default})"
    value = draw(st.sampled_from((x, f"{x} + x[i,j]", f"({x} if x[i,j] > 0 else {x} * 2)")))
    producer = f"y[i,j] = {value}{where}{fill} for i<3, j<4"
    default = draw(st.sampled_from(("", " ?? 3", " ?? x[a,b]")))
    outer = {"a": 3, "b": 4}
    p = f"(p[{indices(draw, outer)},{indices(draw, outer)}]{default})"
    guarded = (f"({p} if x[a,b] > 0 else 5)", f"({p} if x[a-1,b] > 0 else {p})")
    value = draw(st.sampled_from((p, *guarded)))
    op = draw(st.sampled_from(("=", "+=", "max=")))
    target = "y[a,b]" if op == "=" else "y[a]"
    fill = draw(st.sampled_from(("", " else 6")))
    return producer, f"{target} {op} {value}{fill} for a<3, b<4"  # type: ignore[return-value]


@given(pairs())
def test_random_pairs_compose(pair: tuple[str, str]) -> None:
    producer, consumer = pair
    arrays = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 4) - 5,
        "z": np.arange(12, dtype=np.float32).reshape(3, 4) * 10,
    }
    shape = (3, 4) if "y[a,b]" in consumer else (3,)
    found, expected = composed_and_stepwise(
        formula(consumer, shape), formula(producer, (3, 4)), arrays
    )
    np.testing.assert_array_equal(found, expected)
