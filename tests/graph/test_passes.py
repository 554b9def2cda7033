"""The pass runner."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tilewright.base.dtypes import F32
from tilewright.base.errors import GraphError
from tilewright.graph import notation
from tilewright.graph.build import Builder, prune
from tilewright.graph.ir import Graph, TensorType, Value
from tilewright.graph.passes import Step, run

VECTOR = TensorType((3,), F32)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A pass made of a function."""

    does: Callable[[Graph], Graph]
    name: str = "rewrite"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        return self.does(graph)


def small() -> Graph:
    builder = Builder("small")
    x = builder.input("x", VECTOR)
    builder.formula(notation.read("y[i<3] = 2 * a[i]", VECTOR), x, name="unused")
    y = builder.formula(notation.read("y[i<3] = -a[i]", VECTOR), x, name="y")
    return builder.finish([y])


def same(graph: Graph) -> Graph:
    return graph


def retyped(graph: Graph) -> Graph:
    other = TensorType((4,), F32)
    return replace(graph, inputs=(Value("x", other),), nodes=(), outputs=(Value("x", other),))


def broken(graph: Graph) -> Graph:
    return replace(graph, outputs=(Value("nowhere", VECTOR),))


def test_passes_run_in_order_and_are_watched() -> None:
    steps: list[Step] = []
    graph = small()
    found = run(graph, [Rewrite(same, "keep"), Rewrite(prune, "prune")], watch=steps.append)
    assert [node.output.name for node in found.nodes] == ["y"]
    assert [(step.name, len(step.before.nodes), len(step.after.nodes)) for step in steps] == [
        ("keep", 2, 2),
        ("prune", 2, 1),
    ]
    assert all(step.seconds >= 0 for step in steps)


def test_a_value_that_keeps_its_name_keeps_its_type() -> None:
    with pytest.raises(GraphError) as error:
        run(small(), [Rewrite(retyped, "widen")])
    assert str(error.value) == (
        "value 'x' kept its name and not its type\n  expected  f32[3]\n  found     f32[4]"
    )
    assert error.value.__notes__ == ["in pass 'widen' on graph 'small'"]


def test_verify_names_the_pass_that_broke_the_graph() -> None:
    run(small(), [Rewrite(broken, "break")])
    with pytest.raises(GraphError, match="'nowhere' has no definition") as error:
        run(small(), [Rewrite(same), Rewrite(broken, "break")], verify=True)
    assert error.value.__notes__ == ["in pass 'break' on graph 'small'"]


def test_any_error_of_a_pass_names_it() -> None:
    def fails(graph: Graph) -> Graph:
        raise KeyError(graph.name)

    with pytest.raises(KeyError) as error:
        run(small(), [Rewrite(fails, "fail")])
    assert error.value.__notes__ == ["in pass 'fail' on graph 'small'"]


def test_a_pass_runs_only_where_what_it_needs_holds() -> None:
    expand = Rewrite(same, "expand", ensures=("expanded",))
    fuse = Rewrite(same, "fuse", needs=("expanded",))
    run(small(), [expand, fuse])
    run(small(), [fuse], holds=("expanded",))
    with pytest.raises(AssertionError, match=r"'fuse' needs \['expanded'\]"):
        run(small(), [fuse, expand])
