"""Looking at a model: its graph as text, how it is computed, and whether it agrees with eager.

The idea: two graphs can be looked at, the model's forward pass and its whole training step.  The
first needs a model and its inputs, the second what a training needs.

This module does not know how any of it is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console

from tilewright.base.errors import OptionError
from tilewright.capture import capture, core_coverage
from tilewright.cli.subject import Data, Subject, data_for, find_subject, inputs_for
from tilewright.cli.written_input import read_inputs
from tilewright.compiler import Built, Options, build
from tilewright.compiler.choices import choices_for
from tilewright.compiler.debug import Comparison, check_against_eager, compare_with_eager
from tilewright.compiler.pipeline import passes
from tilewright.compiler.report import loops_text
from tilewright.cost import ModelSpec, model_names
from tilewright.graph.ir import FUSED, LIBRARY, Graph
from tilewright.graph.passes import Step, run
from tilewright.graph.text import show
from tilewright.report import graph_page, model_page
from tilewright.train import TrainStep, train_step, without_updates

BATCH = 8  # where nothing is said
CLOSEST = 5  # how many of the values nearest to their tolerance are shown


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked at.  batch: None where it is not said.  inputs: words, such as `8x64:float32`.

    training: the whole step, not the forward pass.
    """

    model: str
    batch: int | None = None
    inputs: tuple[str, ...] = ()
    training: bool = False

    def __post_init__(self) -> None:
        if not self.inputs or not (self.batch or self.training):
            return
        option = "--train" if self.training else "--batch"
        raise OptionError(
            f"--input and {option} do not go together",
            expected="--input for each input of the forward pass, or " + option,
            found=f"{option}, and --input {self.inputs[0]}",
            mend="the step trains on example_batch: leave out --input"
            if self.training
            else "give the batch as the first extent of each --input",
        )


def graph_text(look: Look, stage: str, *, brief: bool) -> str:
    """Return a model's graph as text: "captured", "optimized", or "passes": what each one does."""
    graph = captured_graph(look)
    if stage == "captured":
        return show(graph, brief=brief)
    lines = [f"{'as captured':<24} {_counts(graph)}"]

    def watch(step: Step) -> None:
        changed = "" if step.after != step.before else "   nothing to do"
        lines.append(f"{step.name:<24} {_counts(step.after)}   {step.seconds:6.2f} s{changed}")

    options = Options()
    after = run(graph, passes(options, choices_for(options)), watch=watch)
    return show(after, brief=brief) if stage == "optimized" else "\n".join(lines)


def cost_text(look: Look) -> str:
    """Return what a model costs: one that is given by its numbers, or a captured one."""
    numbers = look.model in model_names() or "=" in look.model or look.model.endswith(".json")
    if not numbers:
        return "\n".join(graph_page(captured_graph(look)))
    if look.inputs or look.training:
        raise OptionError(
            f"{look.model} is a model by its numbers and takes no "
            + ("--input" if look.inputs else "--train"),
            expected="--batch, for the number of sequences",
            found="--input" if look.inputs else "--train",
            mend="say other lengths as positions=: gpt3-175b:positions=4096",
        )
    return "\n".join(model_page(ModelSpec.parse(look.model), look.batch or 1))


def explanation(look: Look) -> str:
    """Return how every value is computed, and why."""
    return build(captured_graph(look)).explain()


def kernel_loops(look: Look) -> str:
    """Return the loops of every kernel: what threads share, what runs in lanes, what is kept."""
    return loops_text(build(captured_graph(look)))


def measurement(look: Look) -> str:
    """Run it some times; return where the time goes."""
    subject = find_subject(look.model)
    if look.training:
        built, inputs = _training_step(subject, look)
    else:
        built, inputs = _forward_pass(subject, look)
    return built.measure(inputs)


def graph_and_inputs(look: Look) -> tuple[Graph, Sequence[torch.Tensor]]:
    """Return a model's graph, and the tensors that it runs on."""
    subject = find_subject(look.model)
    if look.training:
        data = data_for(subject, look.batch or BATCH, 0)
        step = _step(subject, data)
        return step.graph, step.inputs(*data.batches.at(0))
    inputs = _inputs(subject, look)
    captured = capture(subject.model, *inputs)
    return captured.graph, captured.bind(inputs, {})


def compare(look: Look, console: Console) -> None:
    """Compare a model with eager, node by node; raise DivergenceError at the first that differs.

    The training step where the model has a loss and no inputs are given, else the forward pass.
    """
    subject = find_subject(look.model)
    if subject.has("loss") and not look.inputs:
        what, built, inputs = "training step", *_training_step(subject, look)
    else:
        what, built, inputs = "forward pass", *_forward_pass(subject, look)
    found = compare_with_eager(built.source, inputs)
    agreed = next((k for k, item in enumerate(found) if not item.agrees), len(found))
    console.print(f"  {agreed} of {len(found)} values of {look.model}'s {what} agree with eager")
    for line in _closest(found[:agreed]):
        console.print(line)
    if agreed < len(found):
        check_against_eager(built, inputs)


def _training_step(subject: Subject, look: Look) -> tuple[Built, Sequence[torch.Tensor]]:
    """Up to the gradients: a step of AdamW makes a small one's rounding as large as it is."""
    data = data_for(subject, look.batch or BATCH, 0)
    step = _step(subject, data)
    inputs = step.inputs(*data.batches.at(0))
    gradients = without_updates(step.graph)
    return replace(step.built, given=lambda: gradients), inputs


def _forward_pass(subject: Subject, look: Look) -> tuple[Built, Sequence[torch.Tensor]]:
    inputs = _inputs(subject, look)
    captured = capture(subject.model, *inputs)
    return build(captured.graph), captured.bind(inputs, {})


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


def captured_graph(look: Look) -> Graph:
    """Return the graph of a model's forward pass, or of its training step."""
    subject = find_subject(look.model)
    if look.training:
        return _step(subject, data_for(subject, look.batch or BATCH, 0)).graph
    return capture(subject.model, *_inputs(subject, look)).graph


def _inputs(subject: Subject, look: Look) -> tuple[Any, ...]:
    given = read_inputs(look.inputs) if look.inputs else inputs_for(subject, look.batch or BATCH)
    if any(parameter.is_meta for parameter in subject.model.parameters()):
        # A model without memory: it can be looked at, and so can its inputs.
        return tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in given)
    return given


def _step(subject: Subject, data: Data) -> TrainStep:
    optimizer = torch.optim.AdamW(subject.model.parameters())
    example = data.batches.at(0)
    return train_step(subject.model, subject.loss, optimizer, *example, clip_norm=1.0)


def _counts(graph: Graph) -> str:
    fused = sum(node.op == FUSED for node in graph.nodes)
    library = sum(node.op == LIBRARY for node in graph.nodes)
    return f"{len(graph.nodes):>5} nodes, {fused:>4} fused, {library:>4} library calls"
