"""The vocabulary as a textbook: every operator, what it means and how it is differentiated.

The idea: a chapter is a page of the table; its opening words are the page's own docstring, and
every formula below a line is derived from that line as the book is written.

This module does not know where the book is kept.
"""

import importlib
import inspect
from collections.abc import Iterator

from tilewright.ops import PAGES, Operator
from tilewright.report.formulas import graph_lines
from tilewright.report.instance import Instance, instance_of, simplified
from tilewright.report.operator_page import gradient_lines

_LONGEST = 200  # characters of one formula; longer ones are for machines
_OPENING = """\
# The operators

Every operator is declared once, as its loops. This page is generated from the table
(`python scripts/operators_page.py`); `tilewright op NAME` prints more about one: cost, partitions,
kernels.

How to read a line: names in brackets are loops. A loop that the target `y[...]` names is parallel,
any other is reduced by `+=`, `max=` and their kin. `...` stands for the dims that are not named. A
read outside its tensor makes the term absent; `x[i] ?? v` reads `v` there. What stands after `;` in
a head is an attribute. A **composite** is a small graph of such lines. Gradients are derived,
unless a reason is given.
"""


def textbook() -> str:
    """Return the book as Markdown."""
    chapters = [chapter for name, rows in PAGES for chapter in _chapter(name, rows)]
    contents = [f"- [{_title(name)}](#{name}): {len(rows)} operators" for name, rows in PAGES]
    return "\n".join([_OPENING, *contents, "", *chapters]).rstrip() + "\n"


def _title(name: str) -> str:
    return name.capitalize()


def _chapter(name: str, rows: tuple[Operator, ...]) -> Iterator[str]:
    yield f"## {_title(name)}\n"
    opening = inspect.getdoc(importlib.import_module(f"tilewright.ops.{name}")) or ""
    for paragraph in opening.split("\n\n")[1:-1]:
        words = paragraph.removeprefix("The idea: ")
        yield f"{words[0].upper()}{words[1:]}\n"
    for operator in rows:
        yield from _entry(operator)


def _entry(operator: Operator) -> Iterator[str]:
    yield f"### {operator.name}\n"
    yield f"{operator.doc}\n"
    yield _code([operator.line])
    instance = instance_of(operator.name)
    if instance is not None:
        yield from _derived(operator, instance)


def _derived(operator: Operator, instance: Instance) -> Iterator[str]:
    forward = simplified(instance.graph)
    if instance.node.formula is None:
        yield "Composite, for example:\n"
        yield _code(graph_lines(forward))
    if operator.kink:
        yield f"At kinks and ties: {operator.kink}.\n"
    if not instance.differentiable:
        return
    reason = f" ({operator.vjp_reason})" if operator.vjp else ""
    yield f"Gradient{reason}:\n"
    yield _code(list(gradient_lines(instance, forward)))


def _code(lines: list[str]) -> str:
    short = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..." for line in lines]
    return "\n".join(["```", *short, "```", ""])
