"""Loops and branches of Programs: what runs is what the graph means."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.graph import scans

from tilewright.autodiff import reverse
from tilewright.compiler.options import Options
from tilewright.compiler.pipeline import build
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Graph
from tilewright.program import from_bytes, read, show, to_bytes

ALL = ("h0", "xs", "w", "s")
GRAPHS: dict[str, Graph] = {
    "recurrent": scans.recurrent(),
    "recurrent with gradients": reverse(scans.recurrent(), ALL).graph,
    "reversed with gradients": reverse(scans.recurrent(reverse=True), ALL).graph,
    "one step with gradients": reverse(scans.recurrent(steps=1), ALL).graph,
    "no steps with gradients": reverse(scans.recurrent(steps=0), ALL).graph,
    "nested with gradients": reverse(scans.nested(), ALL).graph,
    "shifting with gradients": reverse(scans.shifting(), ("a0", "b0", "xs")).graph,
    "branching with gradients": reverse(scans.branching(), ("x", "w")).graph,
    "doubling": scans.doubling(),
}


def _tensors(arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(array)) for array in arrays]


@pytest.mark.parametrize("options", [Options(verify=True), Options(verify=True, fuse=False)])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_program_runs_control_flow_as_the_graph_means(name: str, options: Options) -> None:
    graph = GRAPHS[name]
    built = build(graph, options)
    assert read(show(built.program)) == built.program
    assert from_bytes(to_bytes(built.program)) == built.program
    for truth in (True, False) if name.startswith("branching") else (True,):
        arrays = scans.arrays(graph)
        if not truth:
            arrays[0] = np.array(False)
        if name == "doubling":
            arrays = [np.ones(4), np.array(100.0)]
        expected = evaluate(graph, arrays)
        for _ in range(2):  # the second time, what stays is in place
            found = built.run(_tensors(arrays))
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["nested with gradients", "branching with gradients", "doubling"])
def test_control_flow_runs_without_the_library_and_without_torch(name: str) -> None:
    graph = GRAPHS[name]
    built = build(graph, Options(library=False))
    arrays = scans.arrays(graph)
    if name == "doubling":
        arrays = [np.ones(4), np.array(100.0)]
    found = built.executable.run_arrays(arrays)
    for ours, theirs in zip(found, evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_carry_that_is_stacked_is_never_copied() -> None:
    graph = scans.recurrent()
    joint = reverse(graph, ["w", "s"])
    graph = replace(joint.graph, outputs=joint.graph.outputs[len(graph.outputs) :])
    text = show(build(graph).program)
    inside = text.split("loop 5")[1].split("end")[0]
    assert "new_steps{3, 4; 4, 1; 0; 12}" in inside, "step i reads slot i"
    assert "new_steps{3, 4; 4, 1; 12; 12}" in inside, "and writes slot i + 1"


def test_memory_of_a_body_is_shared_with_what_lies_outside_the_loop() -> None:
    built = build(reverse(scans.recurrent(), ALL).graph)
    buffers = {buffer.name: buffer for buffer in built.program.buffers}
    assert built.program.arena_bytes < sum(b.bytes for b in buffers.values() if b.kind == "arena")
