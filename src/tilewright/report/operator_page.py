"""The page of one operator: all that follows from its one line, derived as it is printed.

The idea: everything here is asked of the packages that use it for real: the instantiated loops,
reverse mode, the partitions, the kernels.  Nothing on the page is written by hand but the line
itself and the remark about kinks.

This module does not know how anything is derived.
"""

import difflib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from tilewright.autodiff import Joint, reverse
from tilewright.base.errors import CaptureError, OptionError
from tilewright.base.expr import names
from tilewright.compiler.contraction import kernel_of
from tilewright.graph.build import Builder, prune, rename
from tilewright.graph.build import names as value_names
from tilewright.graph.classify import classify_contraction
from tilewright.graph.ir import FORMULA, FUSED, Attr, Formula, Graph, Node, TensorType, Value
from tilewright.graph.passes import run
from tilewright.graph.running import running
from tilewright.graph.text import show_attr
from tilewright.kernels import Emitted, emit
from tilewright.ops import PAGES, TABLE, Operator, across, eager, sent
from tilewright.optimize import DeadCode, Fuse
from tilewright.parallel import show, show_graph
from tilewright.report.formulas import formula_text, graph_lines, node_text
from tilewright.report.instance import Instance, instance_of, simplified

_TITLE, _NAME, _CODE, _QUIET = "bold", "bold cyan", "", "dim"


def operator_page(name: str) -> list[Text]:
    """Return the page as lines of text; raise OptionError where there is no such operator."""
    if name not in TABLE:
        close = difflib.get_close_matches(name, TABLE, n=3)
        raise OptionError(
            f"there is no operator {name!r}",
            expected="a name of the operator table",
            found=name,
            known=f"close to it: {', '.join(close)}" if close else "",
            mend="`tilewright op --all` lists them",
        )
    operator = TABLE[name]
    lines = [*_head(operator)]
    instance = instance_of(name)
    if instance is None:
        lines.append(Text("\n  it takes part in other operators; there is no example of it alone"))
        return lines
    forward = simplified(instance.graph)
    lines += _types(instance)
    lines += _meaning(instance, forward)
    lines += _gradient(instance, forward)
    lines += _partitions(instance, forward)
    if across(instance.node) is None:
        lines += _kernels(forward)
    return lines


def coverage() -> list[Text]:
    """Return the table of operators: name, how it is meant, how it is differentiated."""
    lines = []
    total = 0
    for page, rows in PAGES:
        lines.append(Text(f"\n{page}", style=_TITLE))
        total += len(rows)
        width = max(len(row.name) for row in rows)
        for row in rows:
            lines.append(
                Text.assemble(
                    ("  " + row.name.ljust(width), _NAME),
                    f"  {_how(row):<9}  {row.body or row.doc}",
                )
            )
    lines.append(Text(f"\n{total} operators on {len(PAGES)} pages"))
    return lines


def _how(operator: Operator) -> str:
    return "composite" if operator.expand is not None else "loops"


def core_lines(rows: Sequence[tuple[str, str, str]]) -> list[Text]:
    """Return the coverage of Core ATen; rows: an overload, what becomes of it, by what or why."""
    lines = [Text("\nCore ATen: what becomes of each operator of PyTorch's core set", style=_TITLE)]
    width = max(len(name) for name, _, _ in rows)
    for name, how, what in rows:
        lines.append(Text.assemble(("  " + name.ljust(width), _NAME), f"  {how:<9}  {what}"))
    counts = Counter(how for _, how, _ in rows)
    told = ", ".join(f"{count} {how}" for how, count in counts.most_common())
    lines.append(Text(f"\n{len(rows)} core operators: {told}"))
    return lines


# ------------------------------------------------------------------------------------- the sections


def _section(title: str, note: str = "") -> Text:
    return Text.assemble("\n", (title, _TITLE), (f"   {note}" if note else "", _QUIET))


def _head(operator: Operator) -> Iterator[Text]:
    yield Text(operator.name, style=_NAME)
    yield Text(f"  {operator.doc}")
    yield Text("")
    yield Text(f"  {operator.line}", style=_TITLE)
    if operator.kink:
        yield Text.assemble("\n", ("kinks", _TITLE), f"   {operator.kink}")


def _types(instance: Instance) -> Iterator[Text]:
    node = instance.node
    operands = ", ".join(f"{value.name}: {value.type}" for value in node.inputs)
    attributes = ", ".join(f"{name}={show_attr(value)}" for name, value in _chosen(instance))
    given = f"{operands}; {attributes}" if attributes else operands
    results = ", ".join(str(value.type) for value in node.outputs)
    yield _section("type")
    yield Text(f"  {instance.operator.name}({given}) -> {results}")
    if instance.operator.eager:
        yield _section("torch", "the expression it is tested against")
        yield Text(f"  {eager(node, tuple(value.name for value in node.inputs))}")


def _chosen(instance: Instance) -> Iterator[tuple[str, Attr]]:
    """Yield the attributes that are not at their defaults; a number for an operand is one."""
    defaults = dict(instance.operator.signature.attributes)
    for name, value in instance.node.attrs:
        if name not in defaults or defaults[name] != value:
            yield name, value


def _meaning(instance: Instance, forward: Graph) -> Iterator[Text]:
    together = across(instance.node)
    if together is not None:
        yield from _meaning_across(instance.node, together)
        return
    formula = instance.node.formula
    yield _section("meaning", "" if formula else "composite: a small graph of loops")
    for line in [node_text(instance.node)] if formula else graph_lines(forward):
        yield Text(f"  {line}")
    kernels = [emit(body) for body in _bodies(forward, fused=False)]
    flops = sum(kernel.flops for kernel in kernels)
    footprint = _footprint(instance.graph)
    yield _section("cost")
    if formula is not None:
        yield Text(f"  loops       {_loops(formula)}")
    symbolic = f"   = {_symbolic(formula, flops)}" if formula is not None and flops else ""
    yield Text(f"  flops       {flops:,}{symbolic}")
    yield Text(f"  bytes       {footprint:,}   operands read once, results written once")
    yield Text(f"  intensity   {flops / footprint:,.2f} flops for each byte")


def _meaning_across(node: Node, loops: Formula) -> Iterator[Text]:
    """The meaning and the price of a collective."""
    group = node.attr("group")
    assert isinstance(group, tuple), "a collective has a group"
    text, count = sent(node)
    yield _section("meaning", f"over the values of {len(group)} ranks: s sends, r receives")
    yield Text(f"  {formula_text(loops, 'y', {})}")
    yield _section("cost")
    yield Text(f"  loops       {_loops(loops)}")
    yield Text(f"  sent        {count:,} bytes = {text}   by the busiest rank")


def _loops(formula: Formula) -> str:
    parallel = {name for entry in formula.index for name in names(entry)}
    return ", ".join(
        f"{loop.name}<{loop.extent} {'parallel' if loop.name in parallel else 'reduction'}"
        for loop in formula.loops
    )


def _symbolic(formula: Formula, flops: int) -> str:
    run = running(formula)
    loops = [loop for loop in formula.loops if run is None or loop.name != run.term]
    extents = [loop.extent for loop in loops if isinstance(loop.extent, int)]
    volume = math.prod(extents)
    if not volume or flops % volume:
        return f"{flops / max(volume, 1):.2f} for each of {volume:,} terms"
    each = [str(flops // volume)] if flops != volume else []
    return " * ".join([*each, *(loop.name for loop in loops)]) or "1"


def _footprint(graph: Graph) -> int:
    values = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    return sum(_bytes(value) for value in values.values())


def _bytes(value: Value) -> int:
    shape = [size for size in value.type.shape if isinstance(size, int)]
    return math.prod(shape) * value.type.dtype.bytes


def _gradient(instance: Instance, forward: Graph) -> Iterator[Text]:
    operator = instance.operator
    note = f"overridden: {operator.vjp_reason}" if operator.vjp else "reverse mode, derived"
    yield _section("gradient", note)
    for line in gradient_lines(instance, forward):
        yield Text(f"  {line}")
    together = across(instance.node)
    if together is not None:
        above = _seen_from_above(instance, together)
        yield from (
            Text(f"  over the ranks: {line}") for line in gradient_lines(above, above.graph)
        )


def _seen_from_above(instance: Instance, loops: Formula) -> Instance:
    """A collective as the loops that it is over the values of all ranks."""
    builder = Builder(instance.operator.name)
    operands = []
    for value in instance.node.inputs:
        type_ = TensorType((loops.type.shape[0], *value.type.shape), value.type.dtype)
        operands.append(builder.input(value.name, type_))
    made = builder.formula(loops, *operands, name="y")
    return Instance(instance.operator, builder.finish([made]))


def gradient_lines(instance: Instance, forward: Graph) -> Iterator[str]:
    """Yield the formulas of reverse mode, but for those of `forward`, or why there are none."""
    wanted = [value.name for value in instance.differentiable]
    results = [k for k, v in enumerate(instance.graph.outputs) if v.type.dtype.kind == "float"]
    if not wanted or not results:
        yield "none: no floating operand and result"
        return
    try:
        joint = reverse(instance.graph, wanted, of=results[:1])
    except CaptureError as error:
        yield f"none: {error.summary}"
        return
    count = len(instance.graph.outputs)
    if not joint.graph.outputs[count:]:
        yield "none: the result does not depend on a floating operand smoothly"
        return
    graph = replace(joint.graph, outputs=joint.graph.outputs[count:])
    graph, equal = _named_gradients(simplified(prune(graph)), joint)
    said = {node_text(node): node for node in forward.nodes}
    again = [node for node in graph.nodes if node_text(node) in said]
    if again:
        kept = ", ".join(node.outputs[0].name for node in again)
        yield f"from above: {kept}"
    for node in graph.nodes:
        if node not in again:
            yield f"{node_text(node)}{_recognised(node)}"
    yield from equal


def _named_gradients(graph: Graph, joint: Joint) -> tuple[Graph, list[str]]:
    """Name the gradients d_<operand>; say which equal another value, or nothing.

    A gradient may be the tangent of the result itself, or that of another operand.
    """
    pairs = list(zip(joint.wrt, joint.gradients, strict=True))
    asked = [name for name, at in pairs if at is not None]
    taken = value_names(graph)
    given = {value.name for value in graph.inputs}
    fixed = given | {value.name for value in graph.outputs}
    named: dict[str, str] = {}
    equal: list[str] = []
    for value, name in zip(graph.outputs, asked, strict=True):
        wish, old = f"d_{name}", value.name
        if old in given or old in named or (wish in taken and wish in fixed - {old}):
            equal.append(f"{wish} = {named.get(old, old)}")
            continue
        named[old] = wish
        if wish in taken:  # a term of it: they change names
            named.setdefault(wish, old)
    equal += [f"d_{name} = 0" for name, at in pairs if at is None]
    return rename(graph, named), equal


def _recognised(node: Node) -> str:
    """Name what a derived formula is, where its canonical form says it."""
    return "   a matrix product" if _is_matrix_product(node) else ""


def _is_matrix_product(node: Node) -> bool:
    if node.formula is None:
        return False
    types = dict(zip(node.formula.operands, (v.type for v in node.inputs), strict=True))
    found = classify_contraction(node.formula, types)
    return found is not None and found.is_matrix


def _partitions(instance: Instance, forward: Graph) -> Iterator[Text]:
    if across(instance.node) is not None:
        return
    formula = instance.node.formula
    yield _section("partitions", "one cut each, over R = 4 ranks; |y| is all of y, in bytes")
    if formula is not None:
        lines = show(formula, [value.type for value in instance.node.inputs])
    else:
        lines = show_graph(forward)
    yield from (Text(f"  {line}") for line in lines)


def _kernels(forward: Graph) -> Iterator[Text]:
    fused = run(forward, (Fuse(), DeadCode()))
    made: dict[str, tuple[Emitted, Graph]] = {}
    for body in _bodies(fused, fused=True):
        kernel = (kernel_of(body.nodes[0]) if len(body.nodes) == 1 else None) or emit(body)
        made[kernel.name] = kernel, body
    if not made:
        yield _section("kernel", "none: the result is an operand, or a constant")
    for kernel, body in made.values():
        threads = "one thread" if kernel.parts == 1 else f"up to {kernel.parts} threads"
        yield _section("kernel", f"C, {kernel.recipe}, {threads}")
        if len(body.nodes) == 1 and _is_matrix_product(body.nodes[0]):
            yield Text("  (large ones are torch's own; tiles: kernels/contraction.c)", style=_QUIET)
        for line in kernel.nest.splitlines():
            yield Text(f"  {line}")
        for line in kernel.text.rstrip().splitlines():
            yield Text(f"  {line}", style=_QUIET if line.lstrip().startswith("/*") else _CODE)


def _bodies(graph: Graph, *, fused: bool) -> Iterator[Graph]:
    """Yield what each kernel computes."""
    for node in graph.nodes:
        if node.op == FUSED:
            assert fused, "a graph that was not fused has no fused nodes"
            yield node.graphs[0]
        elif node.formula is not None:
            inputs = tuple({value.name: value for value in node.inputs}.values())
            yield Graph("body", inputs, (replace(node, op=FORMULA, attrs=()),), node.outputs)
