"""The formulas of a collective as a table to read, with what their names mean.

The idea: what is printed is what is computed, the text of the table of variants.
This module does not know what a formula comes to.
"""

import re

from tilewright.cost.collectives.variants import VARIANTS, Formula

LEGEND = (
    "seconds = rounds a + moved n b + combined n c, for n bytes among p ranks, where",
    "a is a latency, 1/b a bandwidth, 1/c the rate of combining;",
)
_NAMES = (
    ("Ll", "L, l = ceil(lg p), floor(lg p);"),
    ("fxew", "f = 2^l, x = p - f, e = min(x, 1);"),
    ("w", "w = sum of min(2^k, x) over k < l;"),
    ("S", "S = segments;"),
    ("dk", "d, k = depth of the binary tree in rounds, min(2, p - 1);"),
    ("b", "b = bits set in 0 ... p - 1;"),
    ("gqGQ", "g, q = ranks in a node, nodes; G, Q = ceil(lg g), ceil(lg q);"),
)


def formula_lines(collective: str) -> list[str]:
    """Return a line for each variant's formula, and the names that they use."""
    rows = [("formula", "rounds", "moved", "combined")]
    for row in VARIANTS:
        if row.collective == collective and row.between is None:
            rows.append((row.name, *_texts(row.formula)))
        elif row.collective == collective and row.between is not None:
            rows.append((f"{row.name}, in a node", *_texts(row.formula)))
            rows.append(("  and between nodes", *_texts(row.between)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    used = set(re.findall(r"[A-Za-z]+", " ".join(text for row in rows[1:] for text in row[1:])))
    names = [line for letters, line in _NAMES if used & set(letters)]
    table = ["   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [*table, *(f"  {line}" for line in (*LEGEND, *names))]


def _texts(formula: Formula) -> tuple[str, str, str]:
    return formula.rounds, formula.moved, formula.reduced
