"""Loop nests as text: a printer and a parser that agree.

::

    a0: f32[64, 48]
    v0: f32[48, 64]  y[i0<48, i1<64] = a0[i1, i0] * 2
    -> v0
    parallel u in 0..6:
      let m = u * 8
      for n in 0..64 by 8:
        for r0 in m..m + 8:
          lanes r1 in n..n + 8:
            v0(r0, r1)                      # v0[r0, r1] = a0[r1, r0] * 2

The head says what is computed: the inputs (with strides where they are not contiguous), the
formulas, the results.  What follows `#` is for the reader: the statement with its loops bound.
`parse(show(nest)) == nest` for every nest whose sizes do not vary.

This module does not know whether a nest is right.
"""

import re
from collections.abc import Iterator
from typing import get_args

from tilewright.base.dtypes import BY_NAME
from tilewright.base.errors import LoopError
from tilewright.base.expr import Const, Expr, Read
from tilewright.base.sizes import all_same
from tilewright.base.syntax import parse as parse_expr
from tilewright.base.syntax import show as show_expr
from tilewright.graph import notation
from tilewright.graph.ir import TensorType
from tilewright.kernels.body import Body, Input, contiguous, static_shape
from tilewright.kernels.loops import (
    Buffer,
    Do,
    Fetch,
    Fold,
    Item,
    Keep,
    Kind,
    Let,
    Loop,
    LoopNest,
    Merge,
    Sums,
)

_WORDS = {"serial": "for", "parallel": "parallel", "lanes": "lanes"}
_KINDS: dict[str, Kind] = {_WORDS[kind]: kind for kind in get_args(Kind)}
_COMMENT = 44  # the column of what is for the reader, at least
_TYPE = r"(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]"
_INPUT = re.compile(rf"(?P<name>a\d+): {_TYPE}( strides \((?P<strides>[-\d, ]*)\))?")
_FORMULA = re.compile(rf"(?P<name>v\d+): {_TYPE}  (?P<text>.*)")
_RESULT = re.compile(r"(?P<name>v\d+)(?: strides \((?P<strides>[-\d, ]*)\))?")
_RESULTS = re.compile(r"-> (?P<names>.*)")
_LOOP = re.compile(
    rf"(?P<word>{'|'.join(_KINDS)}) (?P<name>\w+) in (?P<low>.*?)\.\.(?P<high>.*?)"
    r"( by (?P<step>\d+))?:"
)
_LET = re.compile(r"let (?P<name>\w+) = (?P<value>.*)")
_DO = re.compile(r"(?P<streamed>stream )?(?P<name>v\d+)\((?P<loops>.*?)\)(?P<into> into .*)?")
_SUMS = re.compile(r"sums (?P<name>\w+)\[(?P<length>\d+)\]: (?P<dtype>\w+) of (?P<formula>v\d+)")
_MERGE = re.compile(r"merge (?P<sums>\w+) into (?P<into>\w+)")
_FOLD = re.compile(r"(?P<result>v\d+\[.*\]) from (?P<sums>\w+)(?P<slot>\[.*\])?")
_BUFFER = re.compile(r"buffer (?P<name>\w+)\[(?P<length>\d+)\] of (?P<formula>[av]\d+)")
_KEEP = re.compile(r"keep (?P<read>[av]\d+\[.*?\])(?: in (?P<place>.*))?")
_FETCH = re.compile(r"fetch (?P<element>[av]\d+\[.*\])(?: into cache (?P<cache>2))?")


def show(nest: LoopNest) -> str:
    """Return the text of a nest, its head included."""
    return "\n".join((*_head(nest.body), *_items(nest, nest.items, ""))) + "\n"


def _head(body: Body) -> Iterator[str]:
    for tensor in body.inputs:
        is_dense = all_same(tensor.strides, contiguous(static_shape(tensor.type)))
        yield f"{tensor.name}: {tensor.type}" + ("" if is_dense else _apart(tensor.strides))
    for name, formula in body.formulas:
        yield f"{name}: {formula.type}  {notation.show(formula)}"
    apart = {name: _apart(strides) for name, strides in body.spread}
    yield f"-> {', '.join(name + apart.get(name, '') for name in body.outputs)}"


def _apart(strides: tuple[int, ...]) -> str:
    return f" strides ({', '.join(map(str, strides))})"


def _items(nest: LoopNest, items: tuple[Item, ...], pad: str) -> Iterator[str]:
    for item in items:
        match item:
            case Loop(name, low, high, inner, kind, step):
                by = "" if step == 1 else f" by {step}"
                yield f"{pad}{_WORDS[kind]} {name} in {show_expr(low)}..{show_expr(high)}{by}:"
                yield from _items(nest, inner, pad + "  ")
            case Do():
                yield f"{pad + _term(item):<{_COMMENT - 1}} # {_bound(nest, item)}"
            case _:
                yield pad + _line(item)


def _term(do: Do) -> str:
    line = f"{'stream ' * do.streamed}{do.formula}({_listed(do.loops)})"
    return line + (f" into {do.into}[{show_expr(do.slot, index=True)}]" if do.into else "")


def _line(item: Let | Sums | Merge | Fold | Buffer | Keep | Fetch) -> str:
    match item:
        case Let(name, value):
            return f"let {name} = {show_expr(value)}"
        case Sums(name, formula, length, dtype):
            return f"sums {name}[{length}]: {dtype} of {formula}"
        case Merge(sums, into):
            return f"merge {sums} into {into}"
        case Fold(formula, index, sums, slot):
            which = "" if slot is None else f"[{show_expr(slot, index=True)}]"
            return f"{show_expr(Read(formula, index))} from {sums}{which}"
        case Buffer(name, formula, length):
            return f"buffer {name}[{length}] of {formula}"
        case Keep(read, buffer, place):
            where = f" in {buffer}[{show_expr(place, index=True)}]" if buffer else ""
            return f"keep {show_expr(read)}{where}"
        case Fetch(element, cache):
            return f"fetch {show_expr(element)}" + (f" into cache {cache}" if cache > 1 else "")


def _listed(exprs: tuple[Expr, ...]) -> str:
    return ", ".join(show_expr(expr) for expr in exprs)


def _bound(nest: LoopNest, do: Do) -> str:
    """Return a statement for the reader."""
    statement = nest.statement(do)
    formula = statement.formula

    def text(expr: Expr) -> str:
        return show_expr(statement.bound(expr))

    target = Read(do.formula, formula.index)
    line = f"{text(target)} {formula.op} {text(formula.value)}"
    line += f" at {text(formula.at)}" if formula.at is not None else ""
    return line + (f" where {text(formula.where)}" if formula.where is not None else "")


# ----------------------------------------------------------------------------------------- parsing


def parse(text: str) -> LoopNest:
    """Read what `show` wrote; raise LoopError with the line that is none."""
    lines = [line.split("#")[0].rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    inputs: list[Input] = []
    formulas = []
    while lines and (found := _INPUT.fullmatch(lines[0]) or _FORMULA.fullmatch(lines[0])):
        type_ = _type(found)
        if found["name"].startswith("a"):
            strides = found["strides"]
            steps = contiguous(static_shape(type_)) if strides is None else _numbers(strides)
            inputs.append(Input(found["name"], type_, steps))
        else:
            formulas.append((found["name"], notation.read(found["text"], type_)))
        lines.pop(0)
    results = _RESULTS.fullmatch(lines[0]) if lines else None
    if results is None:
        raise _misread(lines[0] if lines else "", "an input, a formula, or `-> v0`")
    apart = [(made["name"], made["strides"]) for made in _RESULT.finditer(results["names"])]
    spread = tuple((name, _numbers(strides)) for name, strides in apart if strides is not None)
    body = Body(tuple(inputs), tuple(formulas), tuple(name for name, _ in apart), spread)
    items, rest = _read_items(body, lines[1:], 0)
    if rest:
        raise _misread(rest[0], "a line of a loop, or one at the left")
    return LoopNest(body, items)


def _type(found: re.Match[str]) -> TensorType:
    if found["dtype"] not in BY_NAME:
        raise _misread(found[0], "an element type, such as f32")
    return TensorType(_numbers(found["shape"]), BY_NAME[found["dtype"]])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word.strip())


def _read_items(body: Body, lines: list[str], indent: int) -> tuple[tuple[Item, ...], list[str]]:
    """Read the lines that stand `indent` in; return the items, and the lines after them."""
    made: list[Item] = []
    while lines and lines[0].startswith(" " * indent) and lines[0][indent] != " ":
        line, lines = lines[0].strip(), lines[1:]
        if found := _LOOP.fullmatch(line):
            inner, lines = _read_items(body, lines, indent + 2)
            bounds = parse_expr(found["low"]), parse_expr(found["high"])
            kind, step = _KINDS[found["word"]], int(found["step"] or 1)
            made.append(Loop(found["name"], *bounds, inner, kind, step))
        elif found := _LET.fullmatch(line):
            made.append(Let(found["name"], parse_expr(found["value"])))
        else:
            made.append(_read_line(body, line))
    return tuple(made), lines


def _read_line(body: Body, line: str) -> Item:
    if found := _DO.fullmatch(line):
        return _read_do(body, line, found)
    if (found := _SUMS.fullmatch(line)) and found["dtype"] in BY_NAME:
        dtype = BY_NAME[found["dtype"]]
        return Sums(found["name"], found["formula"], int(found["length"]), dtype)
    if found := _MERGE.fullmatch(line):
        return Merge(found["sums"], found["into"])
    if found := _FOLD.fullmatch(line):
        result = _read_read(line, found["result"])
        slot = found["slot"] and _read_read(line, f"s{found['slot']}").index[0]
        return Fold(result.tensor, result.index, found["sums"], slot or None)
    if found := _BUFFER.fullmatch(line):
        return Buffer(found["name"], found["formula"], int(found["length"]))
    if found := _KEEP.fullmatch(line):
        value = _read_read(line, found["read"])
        place = _read_read(line, found["place"]) if found["place"] else Read("", (Const(0),))
        return Keep(value, place.tensor, place.index[0])
    if found := _FETCH.fullmatch(line):
        return Fetch(_read_read(line, found["element"]), int(found["cache"] or 1))
    raise _misread(line, "`for NAME in LOW..HIGH:`, `let NAME = INDEX`, or what is computed")


def _read_read(line: str, text: str) -> Read:
    found = parse_expr(text)
    if not isinstance(found, Read):
        raise _misread(line, "one element, such as s0[0]")
    return found


def _read_do(body: Body, line: str, found: re.Match[str]) -> Do:
    formula = body.formula(found["name"])
    if formula is None:
        raise _misread(line, f"one of {', '.join(name for name, _ in body.formulas)}")
    index = parse_expr(f"y[{found['loops']}]")
    loops = index.index if isinstance(index, Read) else ()
    if len(loops) != len(formula.loops):
        raise _misread(line, f"{len(formula.loops)} loops of {found['name']}")
    if not found["into"]:
        return Do(found["name"], loops, streamed=bool(found["streamed"]))
    into = _read_read(line, found["into"].removeprefix(" into "))
    return Do(found["name"], loops, into.tensor, into.index[0], bool(found["streamed"]))


def _misread(line: str, expected: str) -> LoopError:
    return LoopError(
        "a line is none of a loop nest", expected=expected, found=line.strip() or "nothing"
    )
