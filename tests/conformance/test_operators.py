"""Every operator means what torch means: types, values, text; its row holds together."""

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.base.errors import DTypeError, Origin, ShapeError
from tilewright.graph import notation, parse, text
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate
from tilewright.graph.evaluate_naive import evaluate_naive
from tilewright.graph.ir import TensorType
from tilewright.graph.verify import verify
from tilewright.ops import PAGES, TABLE, Operator, Sample, emit

from .cases import expanded, formula_nodes, in_torch, make, parameters, put, run, to_numpy, to_torch

# What only a function of ours can say: another test compares it with an oracle of its own.
WITHOUT_EAGER = {
    "attention_grad",
    "attention_mask_grad",
    "sgd",
    "adam",
    "adagrad",
    "rmsprop",
    "adadelta",
    "custom_gradient",
    "prod_grad",
    *(row.name for row in TABLE.values() if row.across is not None),
}
# Converting to a narrower type on the way is the meaning; float64 is kept elsewhere.
TOLERANCE = 1e-12


def test_every_operator_has_samples_and_an_eager_form() -> None:
    bare = {name for name, operator in TABLE.items() if not operator.eager}
    assert bare == WITHOUT_EAGER
    unsampled = {name for name, operator in TABLE.items() if not operator.samples}
    assert unsampled == {"attention_grad", "attention_mask_grad", "custom_gradient", "prod_grad"}


def test_the_table_is_its_pages_in_order() -> None:
    assert list(TABLE) == [operator.name for _, page in PAGES for operator in page]
    assert len(TABLE) >= 60


@pytest.mark.parametrize(("operator", "sample"), parameters(eager_only=True))
def test_forward_equals_torch(operator: Operator, sample: Sample) -> None:
    case = make(operator, sample)
    wanted = in_torch(case, [to_torch(array) for array in case.inputs])
    found = run(case.graph, case.inputs)
    for value, ours, theirs in zip(case.graph.outputs, found, wanted, strict=False):
        assert value.type.shape == tuple(theirs.shape)
        assert value.type.dtype.torch_name == str(theirs.dtype).removeprefix("torch.")
        assert ours.dtype == value.type.dtype.numpy
        np.testing.assert_allclose(
            ours.astype(np.float64),
            to_numpy(theirs).astype(np.float64),
            rtol=TOLERANCE,
            atol=TOLERANCE,
        )


@pytest.mark.parametrize(("operator", "sample"), parameters())
def test_the_graph_is_well_formed(operator: Operator, sample: Sample) -> None:
    graph = make(operator, sample).graph
    verify(graph)
    verify(expanded(graph))


@pytest.mark.parametrize(("operator", "sample"), parameters())
def test_the_fast_evaluator_equals_the_naive_one(operator: Operator, sample: Sample) -> None:
    case = make(operator, sample)
    graph = expanded(case.graph)
    naive = evaluate(graph, case.inputs, formula=evaluate_naive)
    for fast, slow in zip(evaluate(graph, case.inputs), naive, strict=True):
        np.testing.assert_allclose(
            fast.astype(np.float64), slow.astype(np.float64), rtol=1e-13, atol=1e-13
        )


@pytest.mark.parametrize(("operator", "sample"), parameters())
def test_text_round_trips(operator: Operator, sample: Sample) -> None:
    graph = make(operator, sample).graph
    for made in (graph, expanded(graph)):
        assert parse.parse(text.show(made)) == made
    for node in formula_nodes(graph):
        formula = node.formula
        assert formula is not None, "formula_nodes gives nodes with formulas"
        assert notation.read(notation.show(formula), formula.type) == formula


@pytest.mark.parametrize(("operator", "sample"), parameters())
def test_an_expansion_comes_from_the_users_line(operator: Operator, sample: Sample) -> None:
    origin = Origin("model.py", 7, "y = f(x)", "layers.0")
    builder = Builder()
    case = make(operator, sample)
    operands = [builder.input(value.name, value.type) for value in case.graph.inputs]
    tensors = iter(operands)
    given = [next(tensors) if isinstance(item, str) else item for item in sample.inputs]
    made = put(builder, operator.name, given, dict(sample.attrs), origin)
    graph = builder.finish(made)
    assert {node.origin for node in expanded(graph).nodes} <= {origin}


def test_a_mismatch_names_the_loop_and_the_users_line() -> None:
    builder = Builder()
    a = builder.input("a", TensorType((2, 3), dtypes.F32))
    b = builder.input("b", TensorType((4, 5), dtypes.F32))
    with pytest.raises(ShapeError) as caught:
        emit(builder, "matmul", a, b, origin=Origin("model.py", 91, "h @ w"))
    assert "loop 'k' is 3 in one operand and 4 in another" in str(caught.value)
    assert "model.py:91   h @ w" in str(caught.value)


def test_an_unknown_element_type_is_named() -> None:
    builder = Builder()
    x = builder.input("x", TensorType((2,), dtypes.F32))
    with pytest.raises(DTypeError, match="there is no element type 'f8'"):
        emit(builder, "cast", x, dtype="f8")


def test_equal_numbers_of_different_kinds_are_different_attributes() -> None:
    builder = Builder()
    x = builder.input("x", TensorType((2,), dtypes.I64))
    found = [emit(builder, "mul", x, number) for number in (1, 1.0, True)]
    assert [value.type.dtype for value in found if not isinstance(value, tuple)] == [
        dtypes.I64,
        dtypes.F32,
        dtypes.I64,
    ]
