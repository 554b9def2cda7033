"""Legality: every rule of the table refuses what breaks it, and nothing that is legal."""

from dataclasses import replace

import pytest
from tests.graph.graphs import random_graph

from tilewright.base.dtypes import BOOL, F32, I64
from tilewright.base.errors import GraphError, Origin
from tilewright.base.expr import Const, Read, Sym, call
from tilewright.graph import notation
from tilewright.graph.build import Builder
from tilewright.graph.control import scan_attrs
from tilewright.graph.ir import (
    CONSTANT,
    FUSED,
    LIBRARY,
    SCAN,
    Formula,
    Graph,
    Loop,
    Node,
    Role,
    TensorType,
    Value,
)
from tilewright.graph.verify import RULES, problems, verify

VECTOR, FLAGS = TensorType((3,), F32), TensorType((3,), BOOL)
HERE = Origin("model.py", 3, "y = f(x)", "a")
SCALAR = TensorType((), F32)
X, Y, Z = Value("x", VECTOR), Value("y", VECTOR), Value("z", VECTOR)
P, Q = Value("p", SCALAR), Value("q", SCALAR)
DOUBLE = notation.read("y[i<3] = 2 * a[i]", VECTOR)
BODY = Graph("body", (X,), (Node("formula", (X,), (Y,), formula=DOUBLE),), (Y,))


def graph(
    *nodes: Node, outputs: tuple[Value, ...] = (Y,), inputs: tuple[Value, ...] = (X,)
) -> Graph:
    return Graph("main", inputs, nodes, outputs)


def formula(made: Formula, *inputs: Value) -> Graph:
    result = Value("y", made.type)
    node = Node("formula", inputs or (X,), (result,), formula=made, origin=HERE)
    return graph(node, outputs=(result,), inputs=tuple(dict.fromkeys(inputs or (X,))))


def fused(body: Graph) -> Graph:
    return graph(Node(FUSED, (X,), (Y,), graphs=(body,), origin=HERE))


LEGAL = formula(DOUBLE)
TWICE = Node("formula", (X,), (X,), formula=DOUBLE, origin=HERE)
ARGMAX = notation.read("y[] argmax= a[i<3] at i", TensorType((), I64))
SIZED = TensorType((Sym("n"),), F32)
STEP = Node("formula", (P,), (Q,), formula=notation.read("y[] = 2 * a[]", SCALAR))
SCAN_NODE = Node(
    SCAN,
    (X,),
    (Y,),
    attrs=scan_attrs(3, 0, 1, reverse=False),
    graphs=(Graph("step", (P,), (STEP,), (Q,)),),
    origin=HERE,
)

BROKEN = {
    "unique names": (
        graph(TWICE, outputs=(X,)),
        graph(Node("formula", (X,), (Value("", VECTOR),), formula=DOUBLE), outputs=(X,)),
    ),
    "defined before use": (
        graph(Node("formula", (Z,), (Y,), formula=DOUBLE)),
        graph(Node("formula", (Value("x", FLAGS),), (Y,), formula=DOUBLE)),
        graph(outputs=(Y,)),
    ),
    "types": (
        graph(inputs=(Value("x", TensorType((-1,), F32)),), outputs=()),
        graph(inputs=(Value("x", TensorType((Const(3),), F32)),), outputs=()),
        graph(inputs=(Value("x", TensorType((True,), F32)),), outputs=()),
        graph(inputs=(Value("x", TensorType((Read("t", ()),), F32)),), outputs=()),
        graph(inputs=(Value("x", TensorType((call("add", Sym("n"), 0.5),), F32)),), outputs=()),
    ),
    "updates": (
        replace(LEGAL, updates=(("y", 0),)),
        replace(LEGAL, updates=(("x", 0), ("x", 0))),
        replace(LEGAL, updates=(("x", 1),)),
        replace(LEGAL, updates=(("x", -1),)),
        replace(LEGAL, inputs=(X, Value("f", FLAGS)), updates=(("f", 0),)),
    ),
    "roles": (
        replace(LEGAL, roles=(("y", Role("parameter")),)),
        replace(LEGAL, roles=(("x", Role()), ("x", Role()))),
        replace(LEGAL, roles=(("x", Role("weight")),)),
    ),
    "nodes": (
        graph(Node("formula", (X,), (Y,))),
        graph(Node("formula", (X,), (Y,), formula=DOUBLE, graphs=(BODY,))),
        graph(Node(FUSED, (X,), (Y,))),
        graph(Node(CONSTANT, (), (Y,))),
        graph(Node(LIBRARY, (X,), (Y,))),
        graph(Node("silu", (X,), ()), outputs=(X,)),
        graph(Node("", (X,), (Y,))),
    ),
    "attributes": (
        graph(Node("silu", (X,), (Y,), attrs=(("a", 1), ("a", 2)))),
        graph(Node("silu", (X,), (Y,), attrs=(("a", [1]),))),  # type: ignore[arg-type]
    ),
    "constants": tuple(
        graph(Node(CONSTANT, (), (Y,), attrs=(("value", value),)))
        for value in (1.0, (1.0, 2.0), (1.0, 2.0, 3), (1.0, 2.0, (3.0,)), (1.0, 2.0, True))
    ),
    "bodies": (
        fused(replace(BODY, outputs=(Y, Y))),
        fused(replace(BODY, inputs=(X, Z))),
        fused(replace(BODY, nodes=(Node("silu", (X,), (Y,)),))),
        fused(replace(BODY, updates=(("x", 0),))),
    ),
    "control flow": (
        graph(replace(SCAN_NODE, inputs=(X, Z)), inputs=(X, Z)),
        graph(replace(SCAN_NODE, attrs=scan_attrs(2, 0, 1, reverse=False))),
        graph(replace(SCAN_NODE, outputs=(Value("y", FLAGS),))),
    ),
    "formula types": (
        graph(Node("formula", (X,), (Value("y", FLAGS),), formula=DOUBLE), outputs=()),
        formula(DOUBLE, X, X),
        formula(replace(DOUBLE, operands=("a", "a")), X, X),
    ),
    "reductions": (
        formula(replace(DOUBLE, op="-=")),
        formula(replace(DOUBLE, at=Sym("i"))),
        formula(replace(ARGMAX, at=None)),
        formula(replace(ARGMAX, type=TensorType((), F32))),
        formula(replace(DOUBLE, op="any=")),
        formula(replace(DOUBLE, index=())),
    ),
    "extents": (
        formula(replace(DOUBLE, loops=())),
        formula(replace(DOUBLE, loops=(Loop("i", 3), Loop("i", 3)))),
        formula(replace(DOUBLE, loops=(Loop("i", -3),))),
        formula(replace(DOUBLE, where=Sym("k"))),
        formula(replace(DOUBLE, loops=(Loop("i", 3), Loop("n", 3))), Value("x", SIZED)),
    ),
    "reads": (
        formula(replace(DOUBLE, value=Read("b", (Sym("i"),)))),
        formula(replace(DOUBLE, value=Read("a", ()))),
        formula(replace(DOUBLE, fill=Read("b", ()))),
        formula(replace(DOUBLE, fill=Sym("i"))),
        formula(replace(DOUBLE, type=TensorType((4,), F32), fill=Read("a", ()))),
    ),
    "functions": (
        formula(replace(DOUBLE, value=call("frobnicate", 1))),
        formula(replace(DOUBLE, value=call("exp", 1, 2))),
    ),
}


def test_every_rule_is_tried() -> None:
    assert list(BROKEN) == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    ("name", "number"), [(name, at) for name, broken in BROKEN.items() for at in range(len(broken))]
)
def test_what_breaks_a_rule_is_refused_by_it(name: str, number: int) -> None:
    broken = BROKEN[name][number]
    assert name in {rule.name for rule, _ in problems(broken)}
    with pytest.raises(GraphError):
        verify(broken)


@pytest.mark.parametrize("seed", range(40))
def test_a_legal_graph_has_no_problems(seed: int) -> None:
    assert list(problems(random_graph(seed))) == []


def test_named_sizes_are_legal_and_may_be_loops_extents() -> None:
    n = Sym("n")
    made = replace(DOUBLE, loops=(Loop("i", n),), type=SIZED)
    verify(formula(made, Value("x", SIZED)))


def test_a_body_is_judged_by_the_same_table() -> None:
    inner = replace(BODY, nodes=(replace(BODY.nodes[0], formula=replace(DOUBLE, op="-=")),))
    assert [rule.name for rule, _ in problems(fused(inner))] == ["reductions"]


def test_the_message_names_rule_expected_found_and_line() -> None:
    builder = Builder("main")
    x = builder.input("x", VECTOR)
    y = builder.node("formula", [x], FLAGS, formula=DOUBLE, origin=HERE, name="y")
    with pytest.raises(GraphError) as error:
        verify(builder.finish([y]))
    assert str(error.value) == (
        "graph 'main' breaks the rule 'formula types': "
        "formula gives 'y' a type that its loops do not\n"
        "  expected  f32[3]\n"
        "  found     bool[3]\n"
        "  where     model.py:3   y = f(x)   (in a)"
    )
