"""The front of the C emitter: a body of formulas in, the text of one C function out.

The idea: the text depends on nothing but what is computed, so that kernels that compute the same
are the same text and have the same name; how it is cut into parts depends on the shapes alone, and
no part's result on how many threads run the parts.

This module does not know a compiler, nor how kernels are called.  The texts count on what the
toolchain's flags say: sums and products are rounded one by one, NaN and infinities are kept.
"""

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.base.expr import Call, Const, Expr, Read, walk
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.base.sizes import Size, larger, nominal, smaller
from tilewright.graph import notation
from tilewright.graph.ir import Formula, Graph
from tilewright.graph.running import running
from tilewright.kernels.body import (
    Body,
    canonical,
    parallel,
    solved,
    static_extents,
    static_shape,
    volume,
)
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.loops import Item, LoopNest, canonical_nest
from tilewright.kernels.loops_c import print_nest
from tilewright.kernels.loops_check import verify
from tilewright.kernels.loops_text import show
from tilewright.kernels.naive import can_slice, print_naive
from tilewright.kernels.plan import Plan, make_plan
from tilewright.kernels.rows import schedule_region
from tilewright.kernels.running import Pass, describe, print_running, running_pass
from tilewright.kernels.scatter import apart_loops, print_scatter, scattered
from tilewright.kernels.spelled import spelled
from tilewright.kernels.stream import stream
from tilewright.kernels.support import print_support
from tilewright.kernels.text import Block, Scope
from tilewright.kernels.words import as_words

if TYPE_CHECKING:
    from tilewright.kernels.contraction import Product, Tiling

PARTS = 64  # at most: enough for any CPU to share evenly
PART_WORK = 16384  # operations below which a part is not worth a thread's attention: a microsecond
_NAME = "KERNEL"
# What the text of a size that varies may call; its operands are not negative.
SIZE_FUNCTIONS = {
    "floordiv": "static inline long floordiv(long a, long b) { return a / b; }",
    "mod": "static inline long mod(long a, long b) { return a % b; }",
    "max": "static inline long max(long a, long b) { return a > b ? a : b; }",
    "min": "static inline long min(long a, long b) { return a < b ? a : b; }",
}


@dataclass(frozen=True, slots=True)
class Emitted:
    """One kernel: `int name(char **p, long part, long end, long parts)`.

    p: the body's inputs, then its outputs.  It computes the parts from `part` to before `end`;
    parts: how many there are.  flops, bytes:
    what all parts together compute and touch.  recipe: how it was made, and why.
    sizes: whether p holds, between inputs and outputs, the values of all named sizes (`long`).
    nest: what it computes and its loops, as text (`loops_text`); "" where there are none.  streams:
    whether results are written past the caches.  product: the matrix product that it computes,
    perhaps with what follows, and its knobs.
    The function returns 0, or the sum of 1 (an index out of range), 2 (an integer divided by zero)
    and 4 (out of memory).
    """

    name: str
    text: str
    parts: int
    flops: int
    bytes: int
    recipe: str
    sizes: bool = False
    nest: str = ""
    streams: bool = False
    product: "tuple[Product, Tiling] | None" = None

    @property
    def written(self) -> str:
        """How results are written where that is not as usual, in the words of `explain`."""
        return ", past the caches" if self.streams else ""


def emit_naive(graph: Graph, strides: Mapping[str, tuple[int, ...]] | None = None) -> Emitted:
    """Return the kernel of a body made by the plain recipe, whatever the body is."""
    return print_plainly(canonical(graph, strides or {}), "naive: plain loops")


def print_plainly(body: Body, reason: str) -> Emitted:
    """Print a body by the plain recipe."""
    printer = Printer(body, memory_of(body))
    root = Scope(Block(), frozenset())
    single = len(body.formulas) == 1 and can_slice(body.formulas[0][1])
    print_naive(printer, root, sliced=single)
    extent = 1
    if single:
        formula = body.formulas[0][1]
        extent = static_extents(formula)[parallel(formula)[0]]
    return finish(body, printer, root, parts_for(extent, flops_of(body)), reason)


def emit(
    graph: Graph,
    strides: Mapping[str, tuple[int, ...]] | None = None,
    *,
    check: bool = False,
    cache: int = 0,
) -> Emitted:
    """Return the kernel of a body: a graph of formula nodes whose extents are numbers.

    strides: of inputs and outputs that are not contiguous and row-major, in elements; of outputs
    only where `lies_anyhow` says so.  check: verify its loops
    where no size varies; raises LoopError where they have no meaning, or one that depends on who
    runs what when.  cache: bytes of the last cache before memory; a kernel that moves more writes
    results past it; 0 where none may.
    """
    return _emit(canonical(graph, strides or {}), check, cache)


@functools.lru_cache(maxsize=1024)
def _emit(plain: Body, check: bool, cache: int) -> Emitted:
    """Print a body under canonical names: what layers that are alike have in common."""
    body = as_words(solved_body(plain))
    choice = choose(body)
    assert choice.plan is not None or not body.spread, "only nests write results with any strides"
    memory = memory_of(body)
    inputs = {name: memory for name, memory in memory.items() if name.startswith("a")}
    outputs = {name: memory for name, memory in memory.items() if name.startswith("v")}
    printer = Printer(body, inputs)
    root = Scope(Block(), frozenset())
    loops: list[Item] = []
    is_far = 0 < cache < nominal(bytes_of(body))
    if choice.plan is not None:
        units = 1
        for region in choice.plan.regions:
            if all(volume(static_shape(s.formula.type)) for s in region.statements):
                nest = schedule_region(canonical_nest(body, region), region)
                nest = stream(nest) if is_far else nest
                if check and not any(isinstance(extent, Size) for _, extent in region.extents):
                    verify(nest)
                units = larger(units, print_nest(printer, nest, outputs, root))
                loops += nest.items
    elif choice.running is not None:
        units = print_running(printer, choice.running, outputs[body.outputs[0]], root)
    elif choice.scatter is not None:
        units = print_scatter(printer, choice.scatter, outputs[body.outputs[0]], root)
    else:
        return print_plainly(plain, choice.reason)
    parts = parts_for(units, flops_of(body) + bytes_of(body) // 4)
    text = show(LoopNest(body, tuple(loops))) if loops else ""
    return finish(body, printer, root, parts, choice.reason, text)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which recipe prints a body, and why: a plan's (pointwise, rows, columns), running, scatter,
    plain."""

    reason: str
    plan: Plan | None = None
    scatter: Formula | None = None
    running: Pass | None = None


@functools.lru_cache(maxsize=1024)
def choose(body: Body) -> Choice:
    """Choose the recipe for a body of solved formulas."""
    made = running_pass(body)
    if not isinstance(made, str):
        return Choice(describe(made), running=made)
    plan = make_plan(body)
    if not isinstance(plan, str):
        return Choice(plan.reason, plan=plan)
    scatter = scattered(body)
    if not isinstance(scatter, str):
        loops, extents = apart_loops(scatter), static_extents(scatter)
        how = "x".join(str(extents[name]) for name in loops)
        how = f"{how} apart" if loops else "one after another"
        return Choice(f"scatter: {plan}, {how}", scatter=scatter)
    return Choice(f"naive: {plan}; {scatter}")


def choose_recipe(graph: Graph) -> str:
    """Return the recipe that `emit` takes for a body, and why, without printing it."""
    return choose(solved_body(canonical(graph, {}))).reason


def read_together(graph: Graph, source: str, position: int) -> bool:
    """Say whether the loops that compute an output are the only ones that read an input, be it to
    compute again what another part of the kernel has made of it.

    Parts of a kernel that run apart may be run by threads at the same time.
    """
    body = solved_body(canonical(graph, {}))
    plan = choose(body).plan
    if plan is None:
        return False
    touched = {f"a{[value.name for value in graph.inputs].index(source)}"}
    for name, formula in body.formulas:
        if not touched.isdisjoint(formula.operands):
            touched.add(name)
    places = {
        statement.name: (at, frozenset(statement.loops()))
        for at, region in enumerate(plan.regions)
        for statement in region.statements
    }
    home = places[body.outputs[position]]
    return all(place == home for name, place in places.items() if name in touched)


def lies_anyhow(graph: Graph) -> bool:
    """Say whether the kernel of a body writes its results with any strides."""
    return choose(solved_body(canonical(graph, {}))).plan is not None


def solved_body(body: Body) -> Body:
    """Turn all targets around that can be, and spell absence out where that is asked for."""
    made = tuple((name, solved(formula)) for name, formula in body.formulas)
    return spelled(replace(body, formulas=made))


def memory_of(body: Body) -> dict[str, Memory]:
    """Return the memory of inputs and outputs."""
    found = {
        t.name: Memory(t.name, t.type.dtype, static_shape(t.type), t.strides) for t in body.inputs
    }
    for name in body.outputs:
        type_ = body.type(name)
        found[name] = Memory(name, type_.dtype, static_shape(type_), body.strides(name))
    return found


def parts_for(units: int, work: int) -> int:
    """Return how many parts so many equal units, `work` operations in all, are cut into."""
    parts: int = larger(1, smaller(smaller(PARTS, units), work // PART_WORK))
    return even(parts, units)


def even(parts: int, units: int) -> int:
    """Return that many parts, or one more: of three or seven, one of two threads has the most, and
    nobody can take some of them from it.

    Where sizes vary, or there are no more units than parts, they stay as many.
    """
    fixed = type(parts) is int and type(units) is int
    return parts + 1 if fixed and parts % 2 and 1 < parts < units else parts


def finish(
    body: Body, printer: Printer, root: Scope, parts: int, recipe: str, nest: str = ""
) -> Emitted:
    """Put the text together and name it."""
    lines = [_comment(name, formula) for name, formula in body.formulas]
    lines.append(f"int {_NAME}(char **p, long part, long end, long parts)")
    lines.append("{")
    code = list(root.block.render(1))
    read = set(re.findall(r"\w+", " ".join(code)))
    sizes = {name: at for at, name in enumerate(_sizes_of(body)) if name in read}
    names = [tensor.name for tensor in body.inputs]
    if sizes:
        lines += [f"    const long {n} = ((long *)p[{len(names)}])[{k}];" for n, k in sizes.items()]
        names.append("")
    names += body.outputs
    for at, name in enumerate(names):
        if (
            not name or name not in read
        ):  # a tensor without elements, or only its shape was of interest
            continue
        c = body.type(name).dtype.c
        const = "const " if name.startswith("a") else ""
        lines.append(f"    {const}{c} *{name} = ({const}{c} *)p[{at}];")
    if printer.can_fail:
        lines.append("    int bad = 0;")
    lines += code
    if "stream" in printer.used:
        lines.append("    streamed();")
    lines.append(f"    return {'bad' if printer.can_fail else '0'};")
    lines.append("}")
    helpers = [text for name, text in SIZE_FUNCTIONS.items() if sizes and name in read]
    above = (*filter(None, (print_support(printer.used),)), *helpers)
    work = flops_of(body), bytes_of(body)
    made = named((*above, *lines), parts, *work, recipe, sizes=bool(sizes))
    return replace(made, nest=nest, streams="stream" in printer.used)


def named(
    lines: Sequence[str], parts: int, flops: int, bytes: int, recipe: str, *, sizes: bool = False
) -> Emitted:
    """Return a kernel whose lines call it KERNEL, under the name that its text gives it."""
    text = "\n".join(lines) + "\n"
    name = "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return Emitted(name, text.replace(_NAME, name), parts, flops, bytes, recipe, sizes)


def _sizes_of(body: Body) -> tuple[str, ...]:
    """Return the names of the sizes that vary, in the order of their values in memory."""
    found: list[object] = []
    for tensor in body.inputs:
        found += [*tensor.type.shape, *tensor.strides]
    for _, formula in body.formulas:
        found += [*formula.type.shape, *(loop.extent for loop in formula.loops)]
        parts = (formula.value, formula.where, formula.at, formula.fill, *formula.index)
        found += [n.value for p in parts if p is not None for n in walk(p) if isinstance(n, Const)]
    known = next((value for value in found if isinstance(value, Size)), None)
    return () if known is None else tuple(known.sizes.values)


def _comment(name: str, formula: Formula) -> str:
    text = notation.show(formula).replace("*/", "* /")
    return f"/* {name}: {text}   {formula.type} */"


def flops_of(body: Body) -> int:
    """Return how many scalar operations the formulas take, by the table of scalar functions."""
    total = 0
    for _, formula in body.formulas:
        per_term = sum(_cost(part) for part in (formula.value, formula.where) if part is not None)
        per_term += formula.op != "="
        extents = static_extents(formula)
        run = running(formula)
        if run is not None:  # each result takes one term
            extents = {name: extent for name, extent in extents.items() if name != run.term}
        total += volume(list(extents.values())) * per_term
    return total


def _cost(expr: Expr) -> int:
    return sum(FUNCTIONS[node.fn].flops for node in _priced(expr))


def _priced(expr: Expr) -> list[Call]:
    """Return the calls of a value that are not arithmetic of indices."""
    if isinstance(expr, Read):
        return [] if expr.default is None else _priced(expr.default)
    if not isinstance(expr, Call):
        return []
    return [expr, *(call for arg in expr.args for call in _priced(arg))]


def bytes_of(body: Body) -> int:
    """Return the bytes read and written: of each tensor at most all of it, and once."""
    total = 0
    for name in body.outputs:
        total += volume(static_shape(body.type(name))) * body.type(name).dtype.bytes
    reads = [({read.tensor for read in _reads(formula)}, formula) for _, formula in body.formulas]
    for tensor in body.inputs:
        touched = 0
        for tensors, formula in reads:
            if tensor.name in tensors:
                touched = larger(touched, volume(list(static_extents(formula).values())))
        touched = smaller(touched, volume(static_shape(tensor.type)))
        total += touched * tensor.type.dtype.bytes
    return total


def _reads(formula: Formula) -> list[Read]:
    parts = (formula.value, formula.where, formula.at, formula.fill, *formula.index)
    return [n for part in parts if part is not None for n in walk(part) if isinstance(n, Read)]
