"""Batching every operator equals a Python loop over the samples, and so does its gradient."""

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.autodiff import batch, reverse
from tilewright.base.dtypes import F64
from tilewright.graph.build import Builder
from tilewright.graph.ir import Graph, TensorType
from tilewright.graph.verify import verify
from tilewright.ops import Operator, Sample

from .cases import Array, Case, make, parameters, put, run

SIZE = 3
TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}


def several(array: Array) -> Array:
    """Return three samples like one: itself, turned around, and another of the same signs."""
    other = array * 1.25 if array.dtype.kind == "f" else array
    return np.stack([array, np.flip(array), other])


def looped(graph: Graph, inputs: Sequence[Array], flags: Sequence[bool]) -> list[Array]:
    """Run the graph on one sample after the other."""
    made = []
    for at in range(SIZE):
        given = [a[at] if has else a for a, has in zip(inputs, flags, strict=True)]
        made.append(run(graph, given))
    return [np.stack(results) for results in zip(*made, strict=True)]


def batched(graph: Graph, inputs: Sequence[Array], flags: Sequence[bool]) -> list[Array]:
    found = batch(graph, flags, SIZE, randomness="same")
    verify(found.graph)
    results = run(found.graph, inputs)
    return [
        result if has else np.stack([result] * SIZE)
        for result, has in zip(results, found.outputs, strict=True)
    ]


def choices(case: Case) -> list[tuple[bool, ...]]:
    """Which operands have the batch: all of them, each alone, and none but the others."""
    count = len(case.inputs)
    alone = [tuple(at == one for at in range(count)) for one in range(count)]
    without = [tuple(at != one for at in range(count)) for one in range(count)]
    every = [(True,) * count, *alone, *without]
    return list(dict.fromkeys(flags for flags in every if any(flags)))


@pytest.mark.parametrize(("operator", "sample"), parameters())
def test_a_batch_is_a_loop_over_its_samples(operator: Operator, sample: Sample) -> None:
    case = make(operator, sample)
    for flags in choices(case):
        inputs = [several(a) if has else a for a, has in zip(case.inputs, flags, strict=True)]
        with np.errstate(all="ignore"):
            pairs = zip(
                batched(case.graph, inputs, flags), looped(case.graph, inputs, flags), strict=True
            )
        for ours, theirs in pairs:
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, **TOLERANCE, err_msg=str(flags))


def gradient(case: Case) -> tuple[Graph, list[Array]] | None:
    """Return the graph of the gradient, with arrays for its tangents."""
    names = [v.name for v, want in zip(case.graph.inputs, case.wanted, strict=True) if want]
    outputs = case.graph.outputs
    of = [k for k, v in enumerate(outputs) if v.type.dtype.kind == "float"][:1]
    if not names or not of:
        return None
    joint = reverse(case.graph, names, of=of)
    places = [at for at in joint.gradients if at is not None]
    graph = Graph(
        "gradient",
        joint.graph.inputs,
        joint.graph.nodes,
        tuple(joint.graph.outputs[at] for at in places),
    )
    generator = np.random.default_rng(6)
    count = len(case.graph.inputs)
    shapes = [tuple(int(str(d)) for d in v.type.shape) for v in graph.inputs[count:]]
    dtypes = [v.type.dtype.numpy for v in graph.inputs[count:]]
    return graph, [
        generator.standard_normal(shape).astype(dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


@pytest.mark.parametrize(("operator", "sample"), parameters())
def test_the_gradient_of_a_batch_is_a_batch_of_gradients(
    operator: Operator, sample: Sample
) -> None:
    case = make(operator, sample)
    found = gradient(case)
    if found is None:
        return
    one, tangents = found
    flags = (True,) * len(case.inputs)
    inputs = [several(array) for array in case.inputs]
    seeds = [several(tangent) for tangent in tangents]
    with np.errstate(all="ignore"):
        expected = looped(one, [*inputs, *seeds], (*flags, *(True for _ in seeds)))
        first = batched(one, [*inputs, *seeds], (*flags, *(True for _ in seeds)))
    for ours, theirs in zip(first, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)
    whole = batch(case.graph, flags, SIZE, randomness="same")
    names = [v.name for v, want in zip(case.graph.inputs, case.wanted, strict=True) if want]
    of = [k for k, v in enumerate(whole.graph.outputs) if v.type.dtype.kind == "float"][:1]
    joint = reverse(whole.graph, names, of=of)
    verify(joint.graph)
    with np.errstate(all="ignore"):
        results = run(joint.graph, [*inputs, *seeds[: len(joint.tangents)]])
    places = [at for at in joint.gradients if at is not None]
    for at, theirs in zip(places, expected, strict=True):
        np.testing.assert_allclose(results[at], theirs, **TOLERANCE)


def test_an_unbatched_operand_of_an_override_gets_the_sum_of_gradients() -> None:
    builder = Builder()
    x = builder.input("x", TensorType((4, 6), F64))
    w = builder.input("w", TensorType((6,), F64))
    b = builder.input("b", TensorType((6,), F64))
    graph = builder.finish(put(builder, "layer_norm", [x, w, b], {"dims": 1}))
    generator = np.random.default_rng(0)
    xs = generator.standard_normal((SIZE, 4, 6))
    weights = [generator.standard_normal(6) for _ in range(2)]
    for flags in ((True, False, False), (True, True, False), (True, False, True)):
        inputs = [
            np.stack([a * (1 + k) for k in range(SIZE)]) if has and a.ndim == 1 else a
            for a, has in zip([xs, *weights], flags, strict=True)
        ]
        found = batch(graph, flags, SIZE)
        joint = reverse(found.graph, ["x", "w", "b"])
        seeds = generator.standard_normal((SIZE, 4, 6))
        results = run(joint.graph, [*inputs, seeds])
        one = reverse(graph, ["x", "w", "b"])
        parts = []
        for k in range(SIZE):
            given = [a[k] if has else a for a, has in zip(inputs, flags, strict=True)]
            parts.append(run(one.graph, [*given, seeds[k]]))
        for at, has in zip(joint.gradients, flags, strict=True):
            stacked = np.stack([part[at] for part in parts])
            expected = stacked if has else stacked.sum(0)
            np.testing.assert_allclose(results[at], expected, **TOLERANCE)
