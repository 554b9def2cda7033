"""What makes a graph legal: a table of named rules, each one small.

The idea: a rule looks at a graph and tells the problems it finds; `verify` raises the first of
them as a GraphError that names the rule, what was expected, what was found, and the user's line.
Sub-graphs are judged by the same table.

This module does not know the operator table: whether an operator exists, takes these attributes or
gives this type is for those who have the table (`RULES` can be extended with theirs).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.base import dtypes, scalar
from tilewright.base.dtypes import BOOL, I64, DType
from tilewright.base.errors import UNKNOWN, GraphError, Origin
from tilewright.base.expr import Call, Const, Expr, Read, names, reads, walk
from tilewright.graph.control import problems as control_problems
from tilewright.graph.ir import (
    COND,
    CONSTANT,
    CONTROL,
    CUSTOM,
    FORMULA,
    FUSED,
    LIBRARY,
    SCAN,
    WHILE,
    Attr,
    Dim,
    Formula,
    Graph,
    Node,
    TensorType,
    Value,
)

ROLES = ("argument", "parameter", "buffer", "state", "seed", "tangent", "saved")
OPS = ("=", "+=", "*=", "max=", "min=", "any=", "all=", "argmax=", "argmin=")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a graph."""

    summary: str
    expected: str = ""
    found: str = ""
    where: Origin = UNKNOWN


@dataclass(frozen=True, slots=True)
class Rule:
    """A law that every graph keeps, and the search for what breaks it."""

    name: str
    meaning: str
    check: Callable[[Graph], Iterator[Problem]]


def verify(graph: Graph, rules: "Sequence[Rule] | None" = None) -> None:
    """Raise GraphError with the first problem found, if there is one."""
    for rule, problem in problems(graph, rules):
        raise GraphError(
            f"graph {graph.name!r} breaks the rule {rule.name!r}: {problem.summary}",
            expected=problem.expected or rule.meaning,
            found=problem.found,
            where=problem.where,
        )


def problems(graph: Graph, rules: "Sequence[Rule] | None" = None) -> Iterator[tuple[Rule, Problem]]:
    """Yield all problems of a graph and of its sub-graphs, with the rules they break."""
    table = RULES if rules is None else rules
    for rule in table:
        for problem in rule.check(graph):
            yield rule, problem
    for node in graph.nodes:
        for inner in node.graphs:
            yield from problems(inner, table)


# ------------------------------------------------------------------------------------------ values


def _names_unique(graph: Graph) -> Iterator[Problem]:
    seen: set[str] = set()
    for value, origin in _definitions(graph):
        if value.name in seen or not value.name:
            yield Problem(f"{value.name!r} is defined twice or has no name", where=origin)
        seen.add(value.name)


def _definitions(graph: Graph) -> Iterator[tuple[Value, Origin]]:
    for value in graph.inputs:
        yield value, UNKNOWN
    for node in graph.nodes:
        for value in node.outputs:
            yield value, node.origin


def _defined_before_use(graph: Graph) -> Iterator[Problem]:
    known = {value.name: value.type for value in graph.inputs}
    for node in graph.nodes:
        for value in node.inputs:
            yield from _known(value, known, f"operand of {node.op}", node.origin)
        known.update((value.name, value.type) for value in node.outputs)
    for value in graph.outputs:
        yield from _known(value, known, "output of the graph", UNKNOWN)


def _known(
    value: Value, known: dict[str, TensorType], what: str, origin: Origin
) -> Iterator[Problem]:
    if value.name not in known:
        yield Problem(f"{what} {value.name!r} has no definition before it", where=origin)
    elif known[value.name] != value.type:
        yield Problem(
            f"{what} {value.name!r} is not of the type it was defined with",
            expected=str(known[value.name]),
            found=str(value.type),
            where=origin,
        )


def _types_well_formed(graph: Graph) -> Iterator[Problem]:
    for value, origin in _definitions(graph):
        if value.type.dtype not in dtypes.ALL:
            yield Problem(f"{value.name!r} has an unknown element type", where=origin)
        for dim in value.type.shape:
            if not _is_dim(dim):
                yield Problem(f"{value.name!r} has a bad extent", found=str(dim), where=origin)


def _is_dim(dim: Dim) -> bool:
    if isinstance(dim, int):
        return not isinstance(dim, bool) and dim >= 0
    if isinstance(dim, Const) or reads(dim):
        return False
    return all(
        isinstance(part.value, int) for part in walk(dim) if isinstance(part, Const)
    ) and not any(_bad_calls(dim))


def _updates_fit(graph: Graph) -> Iterator[Problem]:
    inputs = {value.name: value.type for value in graph.inputs}
    seen: set[str] = set()
    for name, position in graph.updates:
        if name not in inputs or name in seen:
            yield Problem(f"{name!r} is updated, and is no input or is updated twice", found=name)
        elif not 0 <= position < len(graph.outputs):
            yield Problem(
                f"{name!r} is updated by an output that does not exist",
                expected=f"a position below {len(graph.outputs)}",
                found=str(position),
            )
        elif graph.outputs[position].type != inputs[name]:
            yield Problem(
                f"{name!r} is updated by a value of another type",
                expected=str(inputs[name]),
                found=str(graph.outputs[position].type),
            )
        seen.add(name)


def _roles_name_inputs(graph: Graph) -> Iterator[Problem]:
    inputs = {value.name for value in graph.inputs}
    seen: set[str] = set()
    for name, role in graph.roles:
        if name not in inputs or name in seen:
            yield Problem(f"a role is given to {name!r}, no input or one that has a role")
        if role.kind not in ROLES:
            yield Problem(
                f"{name!r} has an unknown role", expected=", ".join(ROLES), found=role.kind
            )
        seen.add(name)


# ------------------------------------------------------------------------------------------- nodes


def _nodes_complete(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes:
        shape = _SHAPES.get(node.op, _NAMED)
        for what, fits in shape:
            if not fits(node):
                yield Problem(f"{node.op} lacks or must not have {what}", where=node.origin)


Shape = tuple[tuple[str, Callable[[Node], bool]], ...]

_RESULT: Shape = (("exactly one result", lambda node: len(node.outputs) == 1),)
_NO_GRAPHS: Shape = (("a sub-graph", lambda node: not node.graphs),)
_NO_LOOPS: Shape = (("loops of its own", lambda node: node.formula is None),)
_NAMED: Shape = (
    ("a name", lambda node: bool(node.op)),
    ("a result", lambda node: bool(node.outputs)),
    ("one result beside its loops", lambda n: n.formula is None or len(n.outputs) == 1),
)
_SHAPES: dict[str, Shape] = {
    FORMULA: (
        *_RESULT,
        *_NO_GRAPHS,
        ("loops of its own", lambda node: node.formula is not None),
    ),
    FUSED: (*_NO_LOOPS, ("exactly one body", lambda node: len(node.graphs) == 1)),
    CONSTANT: (
        *_RESULT,
        *_NO_GRAPHS,
        *_NO_LOOPS,
        ("operands", lambda node: not node.inputs),
        ("the attribute 'value'", lambda node: "value" in dict(node.attrs)),
    ),
    SCAN: (*_NO_LOOPS, ("exactly one body", lambda node: len(node.graphs) == 1)),
    COND: (*_NO_LOOPS, ("exactly two branches", lambda node: len(node.graphs) == 2)),
    WHILE: (*_NO_LOOPS, ("exactly a test and a body", lambda node: len(node.graphs) == 2)),
    LIBRARY: (
        *_NO_GRAPHS,
        *_NO_LOOPS,
        ("a target", lambda node: isinstance(dict(node.attrs).get("target"), str)),
    ),
    CUSTOM: (
        *_NO_LOOPS,
        ("a body and its gradient", lambda node: len(node.graphs) == 2),
        ("the attributes 'of' and 'wrt'", lambda node: {"of", "wrt"} <= set(dict(node.attrs))),
    ),
}


def _attrs_well_formed(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes:
        keys = [key for key, _ in node.attrs]
        if len(set(keys)) < len(keys):
            yield Problem(f"{node.op} has an attribute twice", found=str(keys), where=node.origin)
        for key, value in node.attrs:
            if not _is_attr(value):
                yield Problem(
                    f"attribute {key!r} of {node.op} cannot be written down",
                    expected="None, a bool, an int, a float, a str or a tuple of these",
                    found=type(value).__name__,
                    where=node.origin,
                )


def _is_attr(value: Attr) -> bool:
    if isinstance(value, tuple):
        return all(_is_attr(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


def _constants_fit(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes:
        value = dict(node.attrs).get("value")
        if node.op != CONSTANT or len(node.outputs) != 1:
            continue
        if not _nests(value, node.output.type.shape, node.output.type.dtype):
            yield Problem(
                f"the constant {node.output.name!r} does not hold what its type says",
                expected=str(node.output.type),
                found=repr(value)[:80],
                where=node.origin,
            )


def _nests(value: Attr, shape: tuple[Dim, ...], dtype: DType) -> bool:
    if shape:
        if not isinstance(value, tuple) or len(value) != shape[0]:
            return False
        return all(_nests(part, shape[1:], dtype) for part in value)
    return type(value) is {"bool": bool, "int": int, "float": float}[dtype.kind]


def _bodies_fit(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes:
        if (node.op, len(node.graphs)) not in ((FUSED, 1), (CUSTOM, 2)):
            continue
        body = node.graphs[0]
        for what, outside, inside in (
            ("operands", node.inputs, body.inputs),
            ("results", node.outputs, body.outputs),
        ):
            expected = [str(value.type) for value in outside]
            found = [str(value.type) for value in inside]
            if expected != found:
                yield Problem(
                    f"the {what} of a {node.op} node are not those of its body",
                    expected=", ".join(expected),
                    found=", ".join(found),
                    where=node.origin,
                )
        if body.updates:
            yield Problem(f"the body of a {node.op} node updates an input", where=node.origin)
        for inner in body.nodes:
            if node.op == FUSED and inner.op != FORMULA:
                yield Problem(
                    "the body of a fused node holds more than formulas",
                    found=inner.op,
                    where=inner.origin,
                )


def _control_fits(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes:
        if node.op in CONTROL and all(fits(node) for _, fits in _SHAPES[node.op]):
            for summary, expected, found in control_problems(node):
                yield Problem(summary, expected, found, node.origin)


# ---------------------------------------------------------------------------------------- formulas


def _with_formula(graph: Graph) -> Iterator[tuple[Node, Formula]]:
    for node in graph.nodes:
        if node.formula is not None:
            yield node, node.formula


def _formulas_typed(graph: Graph) -> Iterator[Problem]:
    for node, formula in _with_formula(graph):
        if len(node.outputs) == 1 and node.output.type != formula.type:
            yield Problem(
                f"{node.op} gives {node.output.name!r} a type that its loops do not",
                expected=str(formula.type),
                found=str(node.output.type),
                where=node.origin,
            )
        if len(formula.operands) != len(node.inputs):
            yield Problem(
                f"{node.op} has not as many operands as its loops read",
                expected=", ".join(formula.operands),
                found=", ".join(value.name for value in node.inputs),
                where=node.origin,
            )
        if len(set(formula.operands)) < len(formula.operands):
            yield Problem("two operands of a formula have one name", where=node.origin)


def _formulas_reduce(graph: Graph) -> Iterator[Problem]:
    for node, formula in _with_formula(graph):
        best = formula.op in ("argmax=", "argmin=")
        dtype = I64 if best else BOOL if formula.op in ("any=", "all=") else None
        checks = (
            (formula.op in OPS, f"no reduction is written {formula.op!r}"),
            ((formula.at is not None) == best, "`at` belongs to argmax= and argmin="),
            (dtype in (None, formula.type.dtype), f"{formula.op} gives {dtype}"),
            (len(formula.index) == formula.type.rank, "the target's index is not of its rank"),
        )
        for holds, summary in checks:
            if not holds:
                yield Problem(summary, found=f"{formula.op} into {formula.type}", where=node.origin)


def _loops_have_extents(graph: Graph) -> Iterator[Problem]:
    sizes = _sizes(graph)
    for node, formula in _with_formula(graph):
        loops = [loop.name for loop in formula.loops]
        if len(set(loops)) < len(loops) or sizes.intersection(loops):
            yield Problem("a loop has the name of another loop or size", where=node.origin)
        for loop in formula.loops:
            if not _is_dim(loop.extent):
                yield Problem(
                    f"loop {loop.name!r} has a bad extent",
                    found=str(loop.extent),
                    where=node.origin,
                )
        used = frozenset[str]().union(*(names(part) for part in _parts(formula)))
        for name in sorted(used - sizes - set(loops)):
            yield Problem(f"{name!r} has no extent: it is neither loop nor size", where=node.origin)


def _sizes(graph: Graph) -> frozenset[str]:
    dims = [dim for value, _ in _definitions(graph) for dim in value.type.shape]
    return frozenset[str]().union(*(names(dim) for dim in dims if not isinstance(dim, int)))


def _parts(formula: Formula) -> tuple[Expr, ...]:
    rest = (formula.value, formula.at, formula.where, formula.fill)
    return (*formula.index, *(part for part in rest if part is not None))


def _reads_fit(graph: Graph) -> Iterator[Problem]:
    for node, formula in _with_formula(graph):
        types = dict(zip(formula.operands, (value.type for value in node.inputs), strict=False))
        fill = formula.fill
        if isinstance(fill, Read):
            if fill.tensor not in types or types[fill.tensor].shape != formula.type.shape:
                yield Problem(
                    f"what stands after `from` is no operand of the result's shape: {fill.tensor}",
                    expected=str(formula.type),
                    found=str(types.get(fill.tensor, "no such operand")),
                    where=node.origin,
                )
        elif reads(fill) or names(fill):
            yield Problem("what stands after `else` is not a constant", where=node.origin)
        for part in (*formula.index, formula.value, formula.at, formula.where):
            for read in () if part is None else reads(part):
                if read.tensor not in types or types[read.tensor].rank != len(read.index):
                    yield Problem(
                        f"a read of {read.tensor!r} does not fit its operand",
                        expected=str(types.get(read.tensor, "an operand")),
                        found=f"{len(read.index)} indices",
                        where=node.origin,
                    )


def _calls_known(graph: Graph) -> Iterator[Problem]:
    for node, formula in _with_formula(graph):
        for part in _parts(formula):
            for fn in _bad_calls(part):
                yield Problem(
                    f"no scalar function {fn} takes these arguments",
                    expected="a function of base/scalar.py, and as many arguments as it takes",
                    found=fn,
                    where=node.origin,
                )


def _bad_calls(expr: Expr) -> Iterator[str]:
    for part in walk(expr):
        if isinstance(part, Call):
            row = scalar.BY_NAME.get(part.fn)
            if row is None or row.arity != len(part.args):
                yield f"{part.fn} of {len(part.args)}"


RULES = (
    Rule("unique names", "every value has a name of its own", _names_unique),
    Rule("defined before use", "a value is made before it is read", _defined_before_use),
    Rule("types", "extents are counts or expressions over sizes", _types_well_formed),
    Rule("updates", "an update pairs an input, once, with an output of its type", _updates_fit),
    Rule("roles", "a role belongs to one input", _roles_name_inputs),
    Rule("nodes", "a node has what its operator needs and nothing else", _nodes_complete),
    Rule("attributes", "an attribute is plain data under a name of its own", _attrs_well_formed),
    Rule("constants", "a constant holds what its type says", _constants_fit),
    Rule("bodies", "the body of a fused node has its signature, and formulas only", _bodies_fit),
    Rule("control flow", "what goes into a sub-graph and comes out is of one type", _control_fits),
    Rule("formula types", "a node has its formula's type and operands", _formulas_typed),
    Rule("reductions", "a formula's reduction exists and fits its type", _formulas_reduce),
    Rule(
        "extents",
        "every name in a formula is a loop with an extent, or a size",
        _loops_have_extents,
    ),
    Rule("reads", "a read has an index for each dim of an operand", _reads_fit),
    Rule("functions", "a call is of a scalar function", _calls_known),
)
