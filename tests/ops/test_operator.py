"""A row of the table: its line is read, operands and attributes bound, expansions placed."""

import pytest

from tilewright.base.dtypes import BF16, F32, I64, DType
from tilewright.base.errors import Origin
from tilewright.base.expr import Call, Const
from tilewright.graph.build import Builder
from tilewright.graph.ir import FORMULA, TensorType, Value
from tilewright.graph.verify import verify
from tilewright.ops import TABLE, Operator, eager, emit, expand, expand_where, is_composite
from tilewright.ops.operator import REQUIRED, apply, write


def value(shape: tuple[int, ...], dtype: DType = F32) -> tuple[Builder, Value]:
    builder = Builder()
    return builder, builder.input("x", TensorType(shape, dtype))


def one(made: Value | tuple[Value, ...]) -> Value:
    assert isinstance(made, Value), "one result"
    return made


def test_a_head_gives_operands_options_and_defaults() -> None:
    signature = TABLE["layer_norm"].signature
    assert signature.operands == ("x", "weight", "bias")
    assert (signature.optional, signature.variadic) == (2, False)
    assert signature.attributes == (("dims", 1), ("eps", 1e-5))


def test_an_attribute_without_default_is_required() -> None:
    assert TABLE["softmax"].signature.attributes == (("dim", REQUIRED),)
    builder, x = value((2, 3))
    with pytest.raises(AssertionError, match="attribute 'dim' is missing"):
        emit(builder, "softmax", x)


def test_defaults_with_commas_and_calls_without_operands_are_read() -> None:
    made = Operator("f(; shape=(1, 2), how='a')  y[i<2] = i", "A test.", dtype="i64")
    assert made.signature.operands == ()
    assert made.signature.attributes == (("shape", (1, 2)), ("how", "a"))
    assert made.body == "y[i<2] = i"


def test_a_row_without_meaning_or_reason_is_refused() -> None:
    with pytest.raises(AssertionError, match="without meaning"):
        Operator("f(x)", "Nothing.")
    with pytest.raises(AssertionError, match="an override has a reason"):
        Operator("f(x)  y[...] = x[...]", "A test.", vjp=lambda *_: (None,))


def test_unknown_attributes_and_wrong_counts_are_refused() -> None:
    builder, x = value((2, 3))
    with pytest.raises(AssertionError, match="unknown attributes"):
        emit(builder, "relu", x, slope=1.0)
    with pytest.raises(AssertionError, match="got 2 operands"):
        emit(builder, "relu", x, x)


def test_a_python_number_is_an_attribute_under_its_operands_name() -> None:
    builder, x = value((2, 3))
    y = one(emit(builder, "sub", 1.0, x))
    node = builder.nodes[-1]
    assert node.inputs == (x,)
    assert node.attrs == (("a", 1.0), ("alpha", 1))
    assert node.formula is not None
    assert node.formula.value.__class__ is Call
    assert Const(1.0) in getattr(node.formula.value, "args", ())
    assert eager(node, ("t",)) == "torch.sub(1.0, t, alpha=1)"
    assert y.type == x.type


def test_a_composite_takes_tensors_only() -> None:
    builder, _ = value((2, 3))
    with pytest.raises(AssertionError, match="operand 0 must be a tensor"):
        emit(builder, "softmax", 1.0, dim=0)


def test_several_results_come_as_a_tuple() -> None:
    builder, x = value((2, 3))
    made = emit(builder, "max_dim", x, dim=1, names=("best", "where"))
    assert isinstance(made, tuple)
    assert [v.name for v in made] == ["best", "where"]
    assert [v.type.dtype for v in made] == [F32, I64]


def test_an_operator_may_be_declared_for_some_operands_and_composite_for_others() -> None:
    builder = Builder()
    x = builder.input("x", TensorType((2, 3), F32))
    w = builder.input("w", TensorType((4, 3), F32))
    b = builder.input("b", TensorType((4,), F32))
    emit(builder, "linear", x, w)
    emit(builder, "linear", x, w, b)
    plain, biased = builder.nodes
    assert plain.formula is not None
    assert not is_composite(plain)
    assert biased.formula is None
    assert is_composite(biased)


def test_expanding_keeps_the_results_name_and_gives_the_composites_origin() -> None:
    origin = Origin("model.py", 3)
    builder, x = value((2, 3))
    y = one(emit(builder, "softmax", x, dim=1, origin=origin, names=("probabilities",)))
    graph = builder.finish((y,))
    made = expand_where(graph, {"probabilities"})
    verify(made)
    assert made.outputs[0].name == "probabilities"
    assert {node.op for node in made.nodes} == {FORMULA}
    assert {node.origin for node in made.nodes} == {origin}


def test_expand_adds_to_a_builder_what_a_composite_stands_for() -> None:
    builder, x = value((2, 3), BF16)
    emit(builder, "softmax", x, dim=1)
    node = builder.nodes.pop()
    (y,) = expand(node, builder)
    assert y.type == x.type
    # Sums of half types are kept in float32.
    assert {n.outputs[0].type.dtype for n in builder.nodes[:-1]} == {F32}


def test_write_adds_inline_loops_with_tensors_and_numbers() -> None:
    builder, x = value((2, 3))
    y = write(builder, "y[i] += x[i, j] * c", x=x, c=0.5, name="half")
    assert y == Value("half", TensorType((2,), F32))
    assert builder.nodes[-1].op == FORMULA


def test_the_operands_of_a_variadic_operator_are_numbered() -> None:
    builder, x = value((2, 3))
    apply(builder, TABLE["cat"], x, x, x, dim=1)
    node = builder.nodes[-1]
    assert node.formula is not None
    assert node.formula.operands == ("xs0", "xs1", "xs2")
    assert node.outputs[0].type.shape == (2, 9)
    assert eager(node, ("a", "b", "c")) == "torch.cat([a, b, c], 1)"


def test_a_name_is_a_loop_or_a_number_never_both() -> None:
    builder, x = value((2, 3))
    with pytest.raises(AssertionError, match="both a loop and a number"):
        write(builder, "y[n] += x[n, j] / n", x=x, n=3)
