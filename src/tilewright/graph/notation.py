"""The loop notation: how an operator is written down as its loops, and read back.

A *declaration* is a line of the operator table, still free in rank and attributes::

    declaration = name "(" operands [";" attributes] ")" "  " body
    body        = target op value ["at" index] ["where" cond] ["else" value | "from" operand]
                  ["for" loop "<" extent, ...]
    op          = "=" | "+=" | "*=" | "max=" | "min=" | "any=" | "all=" | "argmax=" | "argmin="

    matmul(a, b)       y[..., m, n] += a[..., m, k] * b[..., k, n]
    embedding(w, ids)  y[..., d] = w[ids[...], d]

`instantiate` binds it to operand types and attributes and gives a `Formula` with every loop's
extent; `show` writes a formula as a body whose loops carry their extents, and `read` reads that.

Names in brackets that are not attributes are loops.  A loop's extent is the dim it indexes bare, or
what `<` says.  `...` stands for the dims not named; a size-1 dim broadcast against n reads index 0.

This module does not know any operator, nor how a formula is differentiated, fused or run.
"""

from dataclasses import replace

from tilewright.base.errors import NotationError
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names
from tilewright.base.syntax import show as show_expr
from tilewright.graph.declare import OPS, TARGET, Body, Declaration, declare, parse_body
from tilewright.graph.formulas import (
    as_dim,
    normal,
    operand_order,
    show_dim,
    simplify_indices,
    static,
    static_extents,
)
from tilewright.graph.infer import infer
from tilewright.graph.instantiate import instantiate
from tilewright.graph.ir import Dim, Formula, Loop, TensorType

__all__ = [
    "OPS",
    "TARGET",
    "Body",
    "Declaration",
    "as_dim",
    "declare",
    "infer",
    "instantiate",
    "normal",
    "operand_order",
    "parse_body",
    "read",
    "show",
    "show_dim",
    "simplify_indices",
    "static_extents",
]


def show(formula: Formula) -> str:
    """Return the text of a formula: its body, each loop's extent where it first stands bare.

    Operands are named before the body only where their order is not that of first appearance.
    """
    pending = {loop.name: loop.extent for loop in formula.loops}

    def write(part: Expr) -> str:
        return show_expr(_marked(part, pending))

    text = f"{write(Read(TARGET, formula.index))} {formula.op} {write(formula.value)}"
    if formula.at is not None:
        text += f" at {write(formula.at)}"
    if formula.where is not None:
        text += f" where {write(formula.where)}"
    if isinstance(formula.fill, Read):
        text += f" from {formula.fill.tensor}"
    elif formula.fill != Const(0):
        text += f" else {show_expr(formula.fill)}"
    if pending:
        text += " for " + ", ".join(f"{name}<{show_dim(dim)}" for name, dim in pending.items())
    if formula.operands != operand_order(formula):
        text = f"{', '.join(formula.operands)}: {text}"
    return text


def _marked(part: Expr, pending: dict[str, Dim]) -> Expr:
    """Write `loop<extent` where a loop first stands bare in an index, and strike it off."""

    def entry(item: Expr) -> Expr:
        if isinstance(item, Sym) and item.name in pending:
            return Call("lt", (item, as_dim(pending.pop(item.name))))
        return _marked(item, pending)

    if not pending:
        return part
    match part:
        case Read(tensor, index, default):
            marked = tuple([entry(item) for item in index])
            return Read(tensor, marked, None if default is None else _marked(default, pending))
        case Call(fn, args):
            return Call(fn, tuple([_marked(arg, pending) for arg in args]))
    return part


def read(text: str, type_: TensorType) -> Formula:
    """Read what `show` wrote; the result's type stands beside it in a graph's text."""
    head, colon, rest = text.partition(":")
    operands = (
        tuple(word.strip() for word in head.split(",")) if colon and "[" not in head else None
    )
    body = parse_body(rest if operands is not None else text)
    loops = tuple(Loop(name, static(extent)) for name, extent in body.limits)
    blank = Formula(
        (), loops, body.index, body.op, body.value, type_, body.where, body.at, body.fill
    )
    unknown = _unknown_names(blank)
    if unknown:
        raise NotationError(
            f"loop {unknown[0]!r} has no extent",
            expected=f"{unknown[0]}<extent where it first stands, or after `for`",
            found=text,
        )
    return normal(replace(blank, operands=operands or operand_order(blank)))


def _unknown_names(formula: Formula) -> list[str]:
    known = {loop.name for loop in formula.loops}
    parts = (*formula.index, formula.value, formula.at, formula.where)
    return sorted({n for part in parts if part is not None for n in names(part)} - known)
