"""Forward mode and batches of control flow: reverse mode transposed, and loops over samples."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.graph import scans
from tests.sweep import few

from tilewright.autodiff import batch, forward, reverse
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import CONTROL, Graph
from tilewright.graph.text import parse, show
from tilewright.graph.verify import verify

ALL = ("h0", "xs", "w", "s")
SIZE = 3
CASES: dict[str, tuple[Graph, tuple[str, ...]]] = {
    "recurrent": (scans.recurrent(), ALL),
    "reversed": (scans.recurrent(reverse=True), ALL),
    "weights alone": (scans.recurrent(), ("w",)),
    "no steps": (scans.recurrent(steps=0), ALL),
    "nested": (scans.nested(), ALL),
    "shifting": (scans.shifting(), ("a0", "b0", "xs")),
    "one of the carries": (scans.shifting(), ("xs",)),
    "branching": (scans.branching(), ("x", "w")),
    "branching the other way": (scans.branching(), ("w",)),
}
REVERSED = reverse(scans.recurrent(), ALL).graph


def _arrays(name: str, graph: Graph, seed: int = 0) -> list[np.ndarray]:
    arrays = scans.arrays(graph, seed)
    if name == "branching the other way":
        arrays[0] = np.array(False)
    return arrays


def _paired(weights: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> float:
    return sum(float((w * v).sum()) for w, v in zip(weights, values, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    graph, wrt = CASES[name]
    arrays = _arrays(name, graph)
    pushed, joint = forward(graph, wrt), reverse(graph, wrt)
    verify(pushed.graph)
    assert parse(show(pushed.graph)) == pushed.graph
    many = sum(node.op in CONTROL for node in pushed.graph.nodes)
    assert many == sum(node.op in CONTROL for node in graph.nodes), "no body runs twice"
    along = scans.arrays(pushed.graph, 1)[len(arrays) :]
    found = evaluate(pushed.graph, [*arrays, *along])
    for ours, theirs in zip(found, evaluate(graph, arrays), strict=False):
        np.testing.assert_array_equal(ours, theirs)
    weights = scans.arrays(joint.graph, 2)[len(arrays) :]
    gradients = evaluate(joint.graph, [*arrays, *weights])
    changes = [pushed.changes[position] for position, _ in joint.tangents]
    left = _paired(
        weights,
        [np.zeros(1) if at is None else found[at] for at in changes],
    )
    right = _paired(along, [np.zeros(1) if at is None else gradients[at] for at in joint.gradients])
    np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-14)


def test_forward_mode_of_a_while_is_its_finite_difference() -> None:
    graph = scans.doubling()
    pushed = forward(graph, ["x"])
    verify(pushed.graph)
    arrays, along = [np.array([0.3, 1.0, 0.1, 0.2]), np.array(50.0)], np.array([1.0, -2.0, 0.5, 3])
    step = 1e-6
    high, low = (evaluate(graph, [arrays[0] + s * along, arrays[1]])[0] for s in (step, -step))
    (at,) = pushed.changes
    assert at is not None
    found = evaluate(pushed.graph, [*arrays, along])[at]
    np.testing.assert_allclose(found, (high - low) / (2 * step), rtol=1e-8)


def _flags(count: int) -> list[tuple[bool, ...]]:
    alone = [tuple(at == one for at in range(count)) for one in range(count)]
    without = [tuple(at != one for at in range(count)) for one in range(count)]
    return list(dict.fromkeys([(True,) * count, *alone, *without]))


GRAPHS: dict[str, Graph] = {
    **{name: graph for name, (graph, _) in CASES.items() if name != "weights alone"},
    "recurrent with gradients": REVERSED,
    "recurrent with changes": forward(scans.recurrent(), ALL).graph,
    "branching with gradients": reverse(scans.branching(), ("x", "w")).graph,
    "doubling": scans.doubling(),
}


def _samples(name: str, graph: Graph, flags: Sequence[bool]) -> list[np.ndarray]:
    """Return inputs, several samples of those that `flags` choose; predicates differ."""
    found = []
    several = [_arrays(name, graph, seed) for seed in range(SIZE)]
    if name == "doubling":
        several = [[np.full(4, 0.1 * (k + 1)), np.array(10.0**k)] for k in range(SIZE)]
    for at, has in enumerate(flags):
        each = [arrays[at] for arrays in several]
        if has and each[0].dtype == np.bool_:
            each = [np.array(k % 2 == 0) for k in range(SIZE)]
        found.append(np.stack(each) if has else each[0])
    return found


@pytest.mark.parametrize(
    "name", few(GRAPHS, "recurrent", "shifting", "one of the carries", "doubling")
)
def test_a_batch_of_control_flow_is_a_loop_over_its_samples(name: str) -> None:
    graph = GRAPHS[name]
    for flags in _flags(len(graph.inputs)):
        made = batch(graph, flags, SIZE)
        verify(made.graph)
        assert parse(show(made.graph)) == made.graph
        inputs = _samples(name, graph, flags)
        found = evaluate(made.graph, inputs)
        for k in range(SIZE):
            one = [array[k] if has else array for array, has in zip(inputs, flags, strict=True)]
            expected = evaluate(graph, one)
            for ours, theirs, has in zip(found, expected, made.outputs, strict=True):
                np.testing.assert_allclose(
                    ours[k] if has else ours, theirs, rtol=1e-12, atol=1e-12, err_msg=str(flags)
                )


def test_a_carry_that_no_sample_changes_is_computed_once() -> None:
    graph = scans.shifting()  # a, b, an integer count, a sequence
    made = batch(graph, (True, False, False, False), SIZE)
    assert made.outputs[2] is False, "the count is the same for all samples"
