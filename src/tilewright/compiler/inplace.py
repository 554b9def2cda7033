"""Which updates may be written straight into the input they update.

The idea: `w_new = w - lr * g` can overwrite w if nothing reads w afterwards and the kernel reads
w only at the element it is writing.  Everything else computes into memory of its own and is copied.

This module does not know buffers.
"""

from tilewright.base.expr import Read, Sym, reads
from tilewright.graph.classify import classify_contraction
from tilewright.graph.ir import FUSED, Formula, Graph, Node
from tilewright.graph.views import view_of
from tilewright.kernels import read_together


def updates_in_place(graph: Graph) -> dict[str, str]:
    """Return, for values that may live in the input they update, that input's name."""
    seen_as = _seen_inputs(graph)
    last_read: dict[str, int] = {}
    made_at: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.inputs:
            last_read[value.name] = position
            # A view has no memory of its own; the node that makes the update must not read one.
            if value.name in seen_as:
                last_read[seen_as[value.name]] = position + 1
        made_at.update((value.name, position) for value in node.outputs)
    counts = [value.name for value in graph.outputs]
    handed_out = {seen_as.get(name, name) for name in counts}
    found: dict[str, str] = {}
    types = {value.name: value.type for value in graph.inputs}
    for name, position in graph.updates:
        value = graph.outputs[position]
        at = made_at.get(value.name)
        if at is None or counts.count(value.name) > 1 or name in handed_out:
            continue
        if value.type != types[name] or last_read.get(name, -1) > at:
            continue
        if pointwise_at(graph.nodes[at], name, value.name):
            found[value.name] = name
    return found


def _seen_inputs(graph: Graph) -> dict[str, str]:
    """Return for every value that may be a view of an input, or of such a view, that input."""
    inputs = {value.name for value in graph.inputs}
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.formula is None or len(node.inputs) != 1:
            continue
        operand = node.inputs[0]
        if view_of(node.formula, {node.formula.operands[0]: operand.type}) is not None:
            source = found.get(operand.name, operand.name)
            if source in inputs:
                found[node.outputs[0].name] = source
    return found


def pointwise_at(node: Node, source: str, result: str) -> bool:
    """Say whether a node reads `source` only at the element of `result` that it is writing."""
    if node.op != FUSED:
        if node.formula is None:
            return False
        operands = _operand(node, source)
        return _own_element(node.formula, operands) or _is_added_to(node, operands)
    body = node.graphs[0]
    inner = {
        own.name
        for own, value in zip(body.inputs, node.inputs, strict=True)
        if value.name == source
    }
    position = [value.name for value in node.outputs].index(result)
    own_name = body.outputs[position].name
    if any(item.formula is None or item.formula.op != "=" for item in body.nodes):
        return False
    shape = next(item.output.type.shape for item in body.nodes if item.output.name == own_name)
    # What is made of the source may be computed again where it is read, results too.
    touched = set(inner)
    for item in body.nodes:
        formula = item.formula
        assert formula is not None, "the body was looked at"
        names = {
            name
            for name, value in zip(formula.operands, item.inputs, strict=True)
            if value.name in touched
        }
        if not names:
            continue
        if item.output.type.shape != shape or not _own_element(formula, names):
            return False
        touched.add(item.output.name)
    if _read_after(body, own_name, inner):
        return False
    return all(read_together(body, name, position) for name in inner)


def _read_after(body: Graph, result: str, source: set[str]) -> bool:
    """Say whether a kernel reads the source again once it has written the result over it.

    What is no result is computed where it is used, and reads then what it is made of.
    """
    outputs = {value.name for value in body.outputs}
    reading = set(source)  # the source, and values that have to read it where they are used
    written = False
    for item in body.nodes:
        name = item.output.name
        if any(value.name in reading for value in item.inputs):
            if written:
                return True
            if name not in outputs:
                reading.add(name)
        written = written or name == result
    return False


def _operand(node: Node, source: str) -> set[str]:
    assert node.formula is not None, "pointwise_at has looked"
    return {
        name
        for name, value in zip(node.formula.operands, node.inputs, strict=True)
        if value.name == source
    }


def _is_added_to(node: Node, operands: set[str]) -> bool:
    """Say whether a matrix product is added to these operands, and reads them nowhere else."""
    assert node.formula is not None, "pointwise_at has looked"
    words = zip(node.formula.operands, node.inputs, strict=True)
    found = classify_contraction(node.formula, {word: value.type for word, value in words})
    if found is None or not found.is_matrix:
        return False
    return found.onto in operands and not operands & {found.left.tensor, found.right.tensor}


def _own_element(formula: Formula, operands: set[str]) -> bool:
    """Say whether these operands are read at the target's own index alone."""
    if formula.op != "=" or not all(isinstance(entry, Sym) for entry in formula.index):
        return not operands
    if isinstance(formula.fill, Read) and formula.fill.tensor in operands:
        return False
    parts = [formula.value, *([] if formula.where is None else [formula.where])]
    return all(
        read.index == formula.index
        for part in parts
        for read in reads(part)
        if read.tensor in operands
    )
