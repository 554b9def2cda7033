"""Sizes that vary, in a compilation: examples to compile with, and the proof that none leaked.

The idea: a compilation computes with sizes that carry polynomials, but Python may take the number
behind one unasked.  So a graph is compiled to a Program twice, for two examples that have nothing
in common, and the texts of the two must be the same to the letter.

This module does not know torch or how a Program is made.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.autodiff import Split, own_results, reverse, split
from tilewright.base.errors import SizesError
from tilewright.base.sizes import Size, Sizes
from tilewright.graph.ir import Graph
from tilewright.graph.text import show as show_graph
from tilewright.program import Program, show

PRIMES = (37, 41, 43, 47, 53, 59, 61, 31, 29, 23)
OTHERS = (67, 71, 73, 79, 83, 89, 97, 19, 17, 13, 11, 7, 5, 3, 2)
TRIES = 200


def examples(values: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield what to compile with for a call with these values: numbers unlike any other, then
    the call's own."""
    if len(values) <= len(PRIMES):
        yield dict(zip(values, PRIMES, strict=False))
    yield dict(values)


def check_other_example(
    graph: Graph, program: Program, compile_: Callable[[Graph], Program]
) -> None:
    """Raise SizesError unless compiling with another example gives the very same Program."""
    assert program.sizes is not None, "only sizes that vary have examples"
    other = other_example(program.sizes)
    if other is None:
        raise _too_few(program.name, program.sizes)
    again = compile_(moved(graph, other))
    _compare(program.name, show(program), show(again), program.sizes, other)


def _too_few(name: str, sizes: Sizes) -> SizesError:
    return SizesError(
        f"{name!r} holds for too few sizes to be checked",
        expected="two examples that both hold",
        found=sizes.describe(),
    )


def _compare(name: str, one: str, other: str, sizes: Sizes, others: Sizes) -> None:
    ours, theirs = (
        [line for line in text.splitlines() if not line.startswith(("size ", "assume "))]
        for text in (one, other)
    )
    if ours != theirs:
        pair = next((a, b) for a, b in zip([*ours, ""], [*theirs, ""], strict=False) if a != b)
        raise SizesError(
            f"{name!r} depends on the example that it was compiled with",
            expected=pair[0][:200],
            found=pair[1][:200],
            known=f"examples {sizes.values} and {others.values}",
        )


def check_split(graph: Graph, wanted: Sequence[str], parts: Split) -> None:
    """Raise SizesError unless another example gives the same forward and backward graphs."""
    sizes = sizes_of(graph)
    if sizes is None:
        return
    other = other_example(sizes)
    if other is None:
        raise _too_few(graph.name, sizes)
    joint = reverse(moved(graph, other), wanted)
    again = split(joint, given=own_results(joint))
    for ours, theirs in ((parts.forward, again.forward), (parts.backward, again.backward)):
        _compare(graph.name, show_graph(ours), show_graph(theirs), sizes, other)


def sizes_of(graph: Graph) -> Sizes | None:
    """Return the sizes that vary in a graph; None if none does."""
    nodes = (value for node in graph.nodes for value in node.outputs)
    for value in (*graph.inputs, *nodes):
        for dim in value.type.shape:
            if isinstance(dim, Size):
                return dim.sizes
    return None


def other_example(sizes: Sizes) -> Sizes | None:
    """Return the same sizes with other values, for which the same assumptions hold."""
    choose = random.Random(0)
    numbers = [*OTHERS, *PRIMES]
    for at in range(TRIES):
        found: dict[str, int] = {}
        pool = numbers[at:] if at < len(OTHERS) else choose.sample(numbers, len(numbers))
        for name, value in sizes.values.items():
            bound = sizes.limits[name]
            inside = (n for n in pool if bound.low <= n <= bound.high and n != value)
            found[name] = next((n for n in inside if n not in found.values()), value)
        fresh = all(found[name] != value for name, value in sizes.values.items())
        if fresh and sizes.admit(found):
            return Sizes(found, sizes.limits)
    return None


def moved(graph: Graph, to: Sizes) -> Graph:
    """Return the same graph with another example."""

    def visit(part: Any) -> Any:
        if isinstance(part, Size):
            return part.sizes.moved(part.key, to)
        if isinstance(part, tuple):
            return tuple(visit(item) for item in part)
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.init}
            fresh = {name: visit(value) for name, value in fields.items()}
            changed = {name: v for name, v in fresh.items() if v is not fields[name]}
            return replace(part, **changed) if changed else part
        return part

    made = visit(graph)
    assert isinstance(made, Graph), "a graph stays one"
    return made
