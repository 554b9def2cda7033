"""Looking at a model: its graph as text, how it is computed, and whether it agrees with eager.

The idea: two graphs can be looked at, the model's forward pass and its whole training step.

This module does not know how any of it is made.
"""

from dataclasses import replace

import torch
from rich.console import Console

from tilewright.capture import capture, core_coverage
from tilewright.cli.subject import Data, Subject, data_for, find_subject
from tilewright.compiler import Options, build
from tilewright.compiler.debug import Comparison, check_against_eager, compare_with_eager
from tilewright.compiler.pipeline import passes
from tilewright.graph.ir import FUSED, LIBRARY, Graph
from tilewright.graph.passes import Step, run
from tilewright.graph.text import show
from tilewright.train import TrainStep, train_step, without_updates

CLOSEST = 5  # how many of the values nearest to their tolerance are shown


def graph_text(model: str, batch: int, stage: str, *, training: bool, brief: bool) -> str:
    """Return a model's graph as text: "captured", "optimized", or "passes": what each one does."""
    graph = _graph(model, batch, training=training)
    if stage == "captured":
        return show(graph, brief=brief)
    lines = [f"{'as captured':<24} {_counts(graph)}"]

    def watch(step: Step) -> None:
        changed = "" if step.after != step.before else "   nothing to do"
        lines.append(f"{step.name:<24} {_counts(step.after)}   {step.seconds:6.2f} s{changed}")

    after = run(graph, passes(Options()), watch=watch)
    return show(after, brief=brief) if stage == "optimized" else "\n".join(lines)


def explanation(model: str, batch: int, *, training: bool) -> str:
    """Return how every value is computed, and why."""
    return build(_graph(model, batch, training=training)).explain()


def compare(model: str, batch: int, console: Console) -> None:
    """Compare a training step with eager, node by node; raise DivergenceError at the first.

    Up to the gradients: a step of AdamW makes a small one's rounding as large as the gradient.
    """
    subject, data = _subject(model, batch)
    step = _step(subject, data)
    inputs = step.inputs(*data.batches.at(0))
    graph = without_updates(step.graph)
    found = compare_with_eager(graph, inputs)
    agreed = next((k for k, item in enumerate(found) if not item.agrees), len(found))
    console.print(f"  {agreed} of {len(found)} values of {model}'s training step agree with eager")
    for line in _closest(found[:agreed]):
        console.print(line)
    if agreed < len(found):
        check_against_eager(replace(step.built, source=graph), inputs)


def _closest(found: tuple[Comparison, ...]) -> list[str]:
    order = sorted(found, key=lambda item: item.difference / (item.tolerance or 1.0), reverse=True)
    return [
        f"    {item.difference:9.2e} of {item.tolerance:g}   {item.value}   {item.node.origin}"
        for item in order[:CLOSEST]
    ]


def core_rows() -> list[tuple[str, str, str]]:
    """Return every core operator of ATen, what becomes of it, and by what operators or why."""
    return [
        (
            entry.overload,
            entry.how,
            "; ".join(filter(None, (", ".join(entry.operators), entry.reason))),
        )
        for entry in core_coverage()
    ]


def _graph(model: str, batch: int, *, training: bool) -> Graph:
    subject, data = _subject(model, batch)
    if training:
        return _step(subject, data).graph
    return capture(subject.model, data.batches.at(0)[0]).graph


def _subject(model: str, batch: int) -> tuple[Subject, Data]:
    subject = find_subject(model)
    return subject, data_for(subject, batch, 0)


def _step(subject: Subject, data: Data) -> TrainStep:
    optimizer = torch.optim.AdamW(subject.model.parameters())
    example = data.batches.at(0)
    return train_step(subject.model, subject.loss, optimizer, *example, clip_norm=1.0)


def _counts(graph: Graph) -> str:
    fused = sum(node.op == FUSED for node in graph.nodes)
    library = sum(node.op == LIBRARY for node in graph.nodes)
    return f"{len(graph.nodes):>5} nodes, {fused:>4} fused, {library:>4} library calls"
