"""Reverse mode of control flow, judged by finite differences; and the cut in two halves."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.graph import scans
from tests.sweep import few

from tilewright.autodiff import reverse, split
from tilewright.base.errors import CaptureError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import SCAN, Graph
from tilewright.graph.text import parse, show
from tilewright.graph.verify import verify

ALL = ("h0", "xs", "w", "s")
CASES: dict[str, tuple[Graph, tuple[str, ...]]] = {
    "recurrent": (scans.recurrent(), ALL),
    "reversed": (scans.recurrent(reverse=True), ALL),
    "weights alone": (scans.recurrent(), ("w",)),
    "one step": (scans.recurrent(steps=1), ALL),
    "no steps": (scans.recurrent(steps=0), ALL),
    "nested": (scans.nested(), ALL),
    "shifting": (scans.shifting(), ("a0", "b0", "xs")),
    "branching": (scans.branching(), ("x", "w")),
    "branching the other way": (scans.branching(), ("x", "w")),
}

OFTEN = ("reversed", "nested", "branching")


def _arrays(name: str) -> list[np.ndarray]:
    arrays = scans.arrays(CASES[name][0])
    if name == "branching the other way":
        arrays[0] = np.array(False)
    return arrays


def _tangents(graph: Graph, count: int) -> list[np.ndarray]:
    return scans.arrays(graph, 1)[count:]


def _difference(
    graph: Graph, arrays: Sequence[np.ndarray], weights: dict[int, np.ndarray], at: int
) -> np.ndarray:
    """The gradient of the weighted sum of the outputs, one element after the other."""

    def total(changed: np.ndarray) -> float:
        found = evaluate(graph, [changed if k == at else a for k, a in enumerate(arrays)])
        return sum(float((found[k] * weight).sum()) for k, weight in weights.items())

    gradient = np.zeros_like(arrays[at])
    for index in np.ndindex(*arrays[at].shape):
        step = np.zeros_like(arrays[at])
        step[index] = 1e-6
        gradient[index] = (total(arrays[at] + step) - total(arrays[at] - step)) / 2e-6
    return gradient


@pytest.mark.parametrize("name", few(CASES, *OFTEN))
def test_gradients_through_control_flow_are_finite_differences(name: str) -> None:
    graph, wrt = CASES[name]
    arrays = _arrays(name)
    joint = reverse(graph, wrt)
    verify(joint.graph)
    assert parse(show(joint.graph)) == joint.graph
    tangents = _tangents(joint.graph, len(arrays))
    found = evaluate(joint.graph, [*arrays, *tangents])
    weights = {position: t for (position, _), t in zip(joint.tangents, tangents, strict=True)}
    names = [value.name for value in graph.inputs]
    for wanted, position in zip(wrt, joint.gradients, strict=True):
        assert position is not None
        expected = _difference(graph, arrays, weights, names.index(wanted))
        np.testing.assert_allclose(found[position], expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", few(CASES, *OFTEN))
def test_the_two_halves_of_control_flow_give_the_whole(name: str) -> None:
    graph, wrt = CASES[name]
    joint = reverse(graph, wrt)
    halves = split(joint)
    verify(halves.forward)
    verify(halves.backward)
    arrays = _arrays(name)
    tangents = _tangents(joint.graph, len(arrays))
    whole = evaluate(joint.graph, [*arrays, *tangents])
    forward = evaluate(halves.forward, arrays)
    known = dict(zip((v.name for v in graph.inputs), arrays, strict=True))
    known |= dict(zip((v.name for v in halves.forward.outputs), forward, strict=True))
    given = {inside: known[name] for inside, name in halves.kept}
    given |= dict(zip((name for _, name in halves.tangents), tangents, strict=True))
    found = evaluate(halves.backward, given)
    for at, position in zip(halves.gradients, joint.gradients, strict=True):
        assert at is not None
        assert position is not None
        np.testing.assert_allclose(found[at], whole[position], rtol=1e-12, atol=1e-14)


def test_the_gradient_of_a_weight_is_one_product_after_the_loop() -> None:
    joint = reverse(scans.recurrent(), ["w", "s"])
    (backward,) = [node for node in joint.graph.nodes if node.op == SCAN][1:]
    carries = dict(backward.attrs)["carries"]
    assert carries == 2, "the state's tangent and the sum for s"
    gradient = joint.gradients[0]
    assert gradient is not None
    (maker,) = [n for n in joint.graph.nodes if joint.graph.outputs[gradient] in n.outputs]
    assert maker.formula is not None
    assert maker.formula.op == "+="
    assert scans.STEPS in [loop.extent for loop in maker.formula.loops]


def test_a_while_has_no_gradient_in_reverse_mode() -> None:
    with pytest.raises(CaptureError, match="while loop has no gradient in reverse mode"):
        reverse(scans.doubling(), ["x"])
