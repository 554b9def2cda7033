"""One operator of the table: what it is called with, its loops, its type rule, its overrides.

The idea: an operator is a line of the loop notation (`silu(x)  y[...] = x[...] * sigmoid(x[...])`)
and everything else is derived from it.  Where rank or attributes shape the loops, a function of the
operand types gives the body; where no single nest says it, `expand` gives a small graph of others.

`apply` puts an operator into a graph, `write` a formula without a name.  An operand of a declared
operator may be a Python number: it is kept as an attribute under the operand's name and is weak in
type promotion.

This module does not know which operators there are (`table`), nor how they are differentiated.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tilewright.base import dtypes
from tilewright.base.dtypes import BOOL, F32, I64, DType
from tilewright.base.errors import UNKNOWN, DTypeError, Origin, TilewrightError
from tilewright.base.expr import Expr, Read, Sym, transform
from tilewright.base.expr import names as expr_names
from tilewright.graph import notation
from tilewright.graph.build import Builder
from tilewright.graph.declare import check
from tilewright.graph.ir import Attr, Dim, Formula, Graph, Node, TensorType, Value
from tilewright.graph.notation import Body, Declaration

Types = tuple[TensorType, ...]
Attrs = Mapping[str, Attr]
Operand = Value | bool | int | float
Declare = Callable[[Types, Attrs], str | None]
Rule = str | Callable[[Types, Attrs], DType]
Expand = Callable[[Builder, tuple[Value, ...], Attrs], tuple[Value, ...]]
Tangents = tuple[Value | None, ...]
Vjp = Callable[[Builder, Node, Tangents], Tangents]
Lead = Callable[[Types, Attrs, tuple[bool, ...]], Attrs | None]


class _Required:
    """Marks an attribute that has no default."""


REQUIRED = _Required()


@dataclass(frozen=True, slots=True)
class Sample:
    """Operands and attributes to try an operator with; `samples.arrays` fills the operands.

    inputs: texts such as `f[2, 3]`, `f[4] > 0`, `i[2, 3] < 5`, `b[3]`, `f[3] = 0, 1, inf`, or
    plain numbers; `c` is an `f` that nobody asks for the gradient of.
    """

    inputs: tuple[str | bool | int | float, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()


def sample(*inputs: str | bool | int | float, **attrs: Attr) -> Sample:
    """Write a sample as a call is written."""
    return Sample(inputs, tuple(attrs.items()))


@dataclass(frozen=True, slots=True)
class Signature:
    """A head, parsed: `name(a, b?, *rest; attribute, attribute=default)`."""

    name: str
    operands: tuple[str, ...]
    optional: int = 0
    variadic: bool = False
    attributes: tuple[tuple[str, Attr | _Required], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """A row of the operator table.

    line: head and body, `name(operands; attributes)  body`; a composite has no body.  `b?` may be
    left out, `*xs` stands for any number of operands, attributes may have defaults.
    doc: one line about it.
    declare: gives the body where rank or attributes shape it (`line` then shows its general form);
    None from it means that these operands take `expand`.
    dtype: the result's element type: "promote" (torch's), "float" (the same, but integers give
    float32), "first", a dtype's name, or a function.
    expand: for a composite, adds its graph to a builder and returns its results.
    vjp: instead of the derived gradient; takes the tangents of the outputs (None: zero) and returns
    one value per operand (None: zero).  vjp_reason: why the derived one would not do.
    forward_derived: forward mode is derived all the same, as torch's two modes differ here; else it
    is the override turned around.
    across: for a collective, gives the loops over the values of all ranks of its `group`: every
    tensor has one more dim, in front, the rank; `r` receives and `s` sends.  A graph is one rank's,
    so `expand` is what a group of one means.
    lead: for a composite of operands of these types, its attributes when those that are flagged
    have one more dim, in front, and so its results; None where that would be another operator.
    kink: what holds at kinks and ties.
    eager: the torch expression that means the same, or the leading ones of its results; names in
    braces are operands and attributes.  It may use `torch` and `uniform(seed, shape, stream)`.
    """

    line: str
    doc: str
    declare: Declare | None = None
    dtype: Rule = "promote"
    expand: Expand | None = None
    vjp: Vjp | None = None
    vjp_reason: str = ""
    forward_derived: bool = False
    across: Declare | None = None
    lead: Lead | None = None
    kink: str = ""
    eager: str = ""
    samples: tuple[Sample, ...] = ()
    signature: Signature = field(init=False)
    body: str = field(init=False)

    def __post_init__(self) -> None:
        head, body = _split_line(self.line)
        object.__setattr__(self, "signature", _read_head(head))
        object.__setattr__(self, "body", body)
        assert self.body or self.declare or self.expand, f"{self.line}: an operator without meaning"
        assert bool(self.vjp) == bool(self.vjp_reason), f"{self.line}: an override has a reason"

    @property
    def name(self) -> str:
        return self.signature.name


# ---------------------------------------------------------------------------------- reading a line


def _split_line(line: str) -> tuple[str, str]:
    depth = 0
    for at, character in enumerate(line):
        depth += (character == "(") - (character == ")")
        if character == ")" and depth == 0:
            return line[: at + 1], line[at + 1 :].strip()
    raise AssertionError(f"{line}: a line begins with name(operands; attributes)")


def _read_head(head: str) -> Signature:
    name, _, rest = head[:-1].partition("(")
    operands, _, attributes = rest.partition(";")
    words = tuple(word.strip() for word in operands.split(",") if word.strip())
    optional = sum(word.endswith("?") for word in words)
    variadic = bool(words) and words[-1].startswith("*")
    return Signature(
        name,
        tuple(word.strip("*?") for word in words),
        optional,
        variadic,
        _read_attributes(attributes),
    )


def _read_attributes(text: str) -> tuple[tuple[str, Attr | _Required], ...]:
    if not text.strip():
        return ()
    made = ast.parse(f"lambda {text.strip()}: 0", mode="eval").body
    assert isinstance(made, ast.Lambda), "a lambda reads as one"
    arguments = made.args
    names = [argument.arg for argument in arguments.args]
    found: list[tuple[str, Attr | _Required]] = []
    first = len(names) - len(arguments.defaults)
    for at, name in enumerate(names):
        default = REQUIRED if at < first else ast.literal_eval(arguments.defaults[at - first])
        found.append((name, default))
    return tuple(found)


# --------------------------------------------------------------------------------- applying a line


def apply(
    builder: Builder,
    operator: Operator,
    /,
    *operands: Operand,
    origin: Origin = UNKNOWN,
    names: tuple[str, ...] = (),
    **attrs: Attr,
) -> tuple[Value, ...]:
    """Add a node of the operator; returns its results, always as a tuple.

    Raises ShapeError or DTypeError, naming `origin`, where the operands do not fit.
    """
    inputs, full = bind(operator, operands, attrs)
    types = tuple(value.type for value in inputs)
    try:
        formula = formula_for(operator, types, full)
        results = result_types(operator, types, full)
    except TilewrightError as error:
        raise located(error, origin) from None
    return builder.multi(
        operator.name,
        inputs,
        results,
        attrs=full,
        formula=formula,
        origin=origin,
        names=names or (operator.name,) * len(results),
    )


def bind(
    operator: Operator, operands: tuple[Operand, ...], attrs: Attrs
) -> tuple[tuple[Value, ...], tuple[tuple[str, Attr], ...]]:
    """Part tensors from Python numbers, and complete the attributes by their defaults."""
    signature = operator.signature
    least = len(signature.operands) - signature.optional - signature.variadic
    most = len(operands) if signature.variadic else len(signature.operands)
    assert least <= len(operands) <= most, f"{operator.line}: got {len(operands)} operands"
    values = tuple(operand for operand in operands if isinstance(operand, Value))
    numbers: list[tuple[str, Attr]] = []
    for at, operand in enumerate(operands):
        if not isinstance(operand, Value):
            assert operator.body, f"{operator.name}: operand {at} must be a tensor"
            numbers.append((signature.operands[at], operand))
    full = list(numbers)
    for name, default in signature.attributes:
        value = attrs.get(name, default)
        assert not isinstance(value, _Required), f"{operator.line}: attribute {name!r} is missing"
        full.append((name, value))
    unknown = set(attrs) - {name for name, _ in signature.attributes}
    assert not unknown, f"{operator.line}: unknown attributes {sorted(unknown)}"
    return values, tuple(full)


def formula_for(
    operator: Operator, types: Types, attrs: tuple[tuple[str, Attr], ...]
) -> Formula | None:
    """Return the operator's loops for these operands; None where it is a composite for them."""
    # Equal keys must mean equal types: 1, 1.0 and True are equal and give different dtypes.
    return _formula(operator, types, attrs, repr(attrs))


def result_types(operator: Operator, types: Types, attrs: tuple[tuple[str, Attr], ...]) -> Types:
    """Return the types of the results."""
    if operator.across is not None:
        type_ = loops_across(operator, types, attrs).type
        return (TensorType(type_.shape[1:], type_.dtype),)
    formula = formula_for(operator, types, attrs)
    if formula is not None:
        return (formula.type,)
    return tuple(value.type for value in expansion(operator, types, attrs).outputs)


def loops_across(operator: Operator, types: Types, attrs: tuple[tuple[str, Attr], ...]) -> Formula:
    """Return a collective's loops over the values of all ranks of its group."""
    return _loops_across(operator, types, attrs, repr(attrs))


def expansion(operator: Operator, types: Types, attrs: tuple[tuple[str, Attr], ...]) -> Graph:
    """Return the graph that a composite stands for."""
    return _expansion(operator, types, attrs, repr(attrs))


@lru_cache(maxsize=4096)
def _formula(
    operator: Operator, types: Types, attrs: tuple[tuple[str, Attr], ...], _: str
) -> Formula | None:
    if operator.across is not None:  # a rank alone has no loops
        return None
    named = dict(attrs)
    body = operator.body if operator.declare is None else operator.declare(types, named)
    if not body:
        return None
    operands = operand_names(operator, len(types) + _count_numbers(operator, named))
    numbers = tuple(name for name in operands if name in named)
    tensors = tuple(name for name in operands if name not in numbers)
    dtype = _result_dtype(operator, types, named, tuple(named[name] for name in numbers))
    declaration = _declaration(operator, body, tensors, numbers)
    bound: dict[str, bool | int | float] = {}
    for name in declaration.attributes:
        value = named[name]
        assert isinstance(value, bool | int | float), f"{operator.name}: {name} is not a number"
        bound[name] = value
    return notation.instantiate(declaration, types, bound, dtype=dtype)


def _count_numbers(operator: Operator, attrs: Attrs) -> int:
    return sum(name in attrs for name in operator.signature.operands)


def operand_names(operator: Operator, count: int) -> tuple[str, ...]:
    """Return the names of `count` operands (`xs0, xs1, ...` for a variadic `*xs`)."""
    operands = operator.signature.operands
    if not operator.signature.variadic:
        return operands[:count]
    fixed = operands[:-1]
    return (*fixed, *(f"{operands[-1]}{at}" for at in range(count - len(fixed))))


@lru_cache(maxsize=4096)
def _declaration(
    operator: Operator, body: str, tensors: tuple[str, ...], numbers: tuple[str, ...]
) -> Declaration:
    parsed = notation.parse_body(body)
    parts = (parsed.value, parsed.at, parsed.where, parsed.fill, *parsed.index)
    used: set[str] = set(numbers)
    for part in (*parts, *(limit for _, limit in parsed.limits)):
        used |= expr_names(part) if part is not None else frozenset()
    head = (*numbers, *(name for name, _ in operator.signature.attributes))
    attributes = tuple(name for name in head if name in used)
    text = f"{operator.name}({', '.join((*tensors, *numbers))})  {body}"
    made = Declaration(operator.name, tensors, attributes, _with_numbers(parsed, numbers), text)
    check(made)
    return made


def _with_numbers(body: Body, numbers: tuple[str, ...]) -> Body:
    """Let reads of operands that are Python numbers be names: `b[...]` becomes `b`."""

    def visit(node: Expr) -> Expr:
        return Sym(node.tensor) if isinstance(node, Read) and node.tensor in numbers else node

    def moved(part: Expr | None) -> Expr | None:
        return None if part is None else transform(part, visit)

    value = moved(body.value)
    assert value is not None, "a body has a value"
    return replace(body, value=value, at=moved(body.at), where=moved(body.where))


@lru_cache(maxsize=1024)
def _expansion(
    operator: Operator, types: Types, attrs: tuple[tuple[str, Attr], ...], _: str
) -> Graph:
    assert operator.expand is not None, f"{operator.name} is declared, it has no expansion"
    builder = Builder(operator.name)
    names = operand_names(operator, len(types))
    inputs = tuple(builder.input(name, type_) for name, type_ in zip(names, types, strict=True))
    return builder.finish(operator.expand(builder, inputs, dict(attrs)))


@lru_cache(maxsize=1024)
def _loops_across(
    operator: Operator, types: Types, attrs: tuple[tuple[str, Attr], ...], _: str
) -> Formula:
    named = dict(attrs)
    body = None if operator.across is None else operator.across(types, named)
    group = named["group"]
    assert body and isinstance(group, tuple), f"{operator.name} is no collective"
    stacked = [TensorType((len(group), *type_.shape), type_.dtype) for type_ in types]
    declaration = _declaration(operator, body, operand_names(operator, len(types)), ())
    dtype = _result_dtype(operator, types, named, ())
    return notation.instantiate(declaration, stacked, {}, dtype=dtype)


def located(error: TilewrightError, origin: Origin) -> TilewrightError:
    """Return the error with the user's line in it."""
    return type(error)(
        error.summary,
        expected=error.expected,
        found=error.found,
        known=error.known,
        where=error.where or origin,
        mend=error.mend,
    )


# -------------------------------------------------------------------------------------- type rules


def _result_dtype(
    operator: Operator, types: Types, attrs: Attrs, numbers: tuple[Attr, ...]
) -> DType:
    rule = operator.dtype
    if callable(rule):
        return rule(types, attrs)
    if rule == "first":
        return types[0].dtype
    if rule in dtypes.BY_NAME:
        return dtypes.BY_NAME[rule]
    found = promoted(types, numbers)
    assert rule in ("promote", "float"), f"{operator.name}: no dtype rule {rule!r}"
    return F32 if rule == "float" and found.kind != "float" else found


def promoted(types: Types, numbers: tuple[Attr, ...] = ()) -> DType:
    """Return torch's result type for tensors of these types and Python numbers."""
    order = {"bool": 0, "int": 1, "float": 2}
    found: DType | None = None
    for type_ in types:
        found = type_.dtype if found is None else dtypes.promote(found, type_.dtype)
    for number in numbers:
        weak = BOOL if isinstance(number, bool) else I64 if isinstance(number, int) else F32
        if found is None or order[weak.kind] > order[found.kind]:
            found = weak
    assert found is not None, "an operator without operands names its dtype"
    return found


def dtype_attribute(_: Types, attrs: Attrs) -> DType:
    """The rule of operators that are told their result's type: attribute `dtype`."""
    name = attrs["dtype"]
    assert isinstance(name, str), "a dtype is given by name"
    if name not in dtypes.BY_NAME:
        raise DTypeError(
            f"there is no element type {name!r}", expected=", ".join(dtypes.BY_NAME), found=name
        )
    return dtypes.BY_NAME[name]


# ------------------------------------------------------------------------------------ inline loops


def write(
    builder: Builder,
    body: str,
    operands: Mapping[str, Operand] | None = None,
    /,
    *,
    dtype: DType | None = None,
    shape: tuple[Dim, ...] | None = None,
    name: str = "v",
    origin: Origin = UNKNOWN,
    **more: Operand,
) -> Value:
    """Add a node that carries its own loops: `write(b, "y[i] += x[i, j]", x=value)`.

    Operands are those of the mapping and the keyword arguments; plain numbers among them are
    attributes of the body.
    """
    given = {**(operands or {}), **more}
    tensors = {key: value for key, value in given.items() if isinstance(value, Value)}
    numbers = {key: value for key, value in given.items() if not isinstance(value, Value)}
    types = tuple(value.type for value in tensors.values())
    bound = tuple(numbers.items())
    try:
        formula = _inline(body, tuple(tensors), types, bound, repr(bound), dtype, shape)
    except TilewrightError as error:
        raise located(error, origin) from None
    return builder.formula(formula, *tensors.values(), origin=origin, name=name)


@lru_cache(maxsize=4096)
def _inline(
    body: str,
    tensors: tuple[str, ...],
    types: Types,
    numbers: tuple[tuple[str, bool | int | float], ...],
    _: str,
    dtype: DType | None,
    shape: tuple[Dim, ...] | None,
) -> Formula:
    bound = dict(numbers)
    parsed = notation.parse_body(body)
    loops = {entry.name for entry in parsed.index if isinstance(entry, Sym)}
    both = loops.intersection(bound)
    assert not both, f"{body}: {sorted(both)} is both a loop and a number"
    made = Declaration("formula", tensors, tuple(bound), parsed, body)
    check(made)
    return notation.instantiate(made, types, bound, dtype=dtype, shape=shape)
