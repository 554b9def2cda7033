"""Results that do not lie densely: any body of loops writes them with the strides it is given."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kernels.harness import assert_close, body, compile_all, random_arrays, run
from tests.kernels.test_emit import BODIES, ULPS

from tilewright.graph.ir import Graph
from tilewright.kernels import emit, lies_anyhow
from tilewright.kernels.body import canonical, static_shape
from tilewright.kernels.loops_text import parse

GRAPHS = {name: body(*args) for name, args in BODIES.items()}
LOOPS = {
    name: graph
    for name, graph in GRAPHS.items()
    if lies_anyhow(graph)
    and len({*graph.inputs, *graph.outputs}) == len(graph.inputs + graph.outputs)
}


def padded(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return strides of all results: rows are slices of longer ones."""
    return {
        value.name: _strides(static_shape(value.type)[::-1], 1)[::-1] for value in graph.outputs
    }


def turned(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return strides of all results: the first dim innermost, with room beside each element."""
    return {value.name: _strides(static_shape(value.type), 2) for value in graph.outputs}


def _strides(shape: tuple[int, ...], step: int) -> tuple[int, ...]:
    strides = []
    for extent in shape:
        strides.append(step)
        step *= extent + 3
    return tuple(strides)


@pytest.mark.parametrize("lying", [padded, turned])
def test_results_lie_as_asked_and_nothing_beside_them_is_written(
    lying: Callable[[Graph], dict[str, tuple[int, ...]]], tmp_path: Path
) -> None:
    made = {name: emit(graph, lying(graph), check=True) for name, graph in LOOPS.items()}
    library = compile_all(list(made.values()), tmp_path)
    assert len(made) > 50, "most bodies are loops"
    for name, kernel in made.items():
        graph = LOOPS[name]
        arrays = random_arrays(graph, 3)
        code, found = run(library, kernel, graph, arrays, lying(graph))
        assert code == 0, name
        assert_close(graph, arrays, found, ulps=ULPS.get(name, 16))


def test_the_text_of_a_nest_says_how_results_lie() -> None:
    for graph in LOOPS.values():
        strides = padded(graph)
        nest = emit(graph, strides).nest
        if nest:
            assert dict(parse(nest).body.spread) == dict(canonical(graph, strides).spread)


def test_what_lands_where_an_index_says_lies_densely() -> None:
    scattered = body(
        {"x": "f32[6, 4]", "ids": "i64[6]"},
        {"y": "f32[9, 4]: y[ids[i<6], j<4] += x[i, j]"},
    )
    assert not lies_anyhow(scattered)
    with pytest.raises(AssertionError, match="only nests write results with any strides"):
        emit(scattered, {"y": (8, 1)})
