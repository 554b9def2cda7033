"""The graph IR: functional, in SSA form, small enough to read in one sitting.

Grammar
-------
::

    graph   = Graph(name, inputs, nodes, outputs, updates, roles)
    node    = Node(op, inputs, outputs, attrs, formula, graphs, origin)
    value   = Value(name, type)                      names are unique within a graph
    type    = TensorType(shape, dtype)               shape: int | Expr over named sizes
    formula = Formula(operands, loops, index, op, value, type, where, at, fill)
    attr    = None | bool | int | float | str | tuple of attrs

- `op` is a name of the operator table, or one of the names the IR itself knows:
  `formula` (the node carries its own loops, printed as the formula), `fused` (one kernel: its
  sub-graph holds formula nodes), `constant` (attrs: value, nested tuples), `library` (a call to
  ATen; attrs: target, how the operands fill its arguments, and `through`: the derivatives and
  batches taken of it, innermost first) and `custom` (a graph with a gradient of its own: the
  sub-graphs are what it computes, and the gradient, from operands, results and the tangents of the
  results in `of` to the gradients of the operands in `wrt`).
- Control flow holds sub-graphs, which read nothing but their inputs (`control` has the details):
  `scan` runs its graph once for each index of a leading dim and hands carries on from step to step,
  `cond` runs one of its two graphs, `while` its second as long as its first says so.
- There are no effects.  A mutated input is an output as well, and `updates` pairs the two: at the
  end of a run, output `k` is written into input `name`.  An input may be updated once.
- `roles` says what an input is for: "argument", "parameter", "buffer", "state", "seed", "tangent",
  "saved"; with the name that the user knows it by ("layers.0.weight").

This module knows structs only; `build`, `verify`, `syntax`, `evaluate` and `passes` work on them.
"""

from dataclasses import dataclass, field

from tilewright.base import sizes, syntax
from tilewright.base.dtypes import DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.base.expr import Const, Expr

Dim = int | Expr
Attr = None | bool | int | float | str | tuple["Attr", ...]

FORMULA, FUSED, CONSTANT, LIBRARY = "formula", "fused", "constant", "library"
CUSTOM = "custom"
SCAN, COND, WHILE = "scan", "cond", "while"
CONTROL = (SCAN, COND, WHILE)
BUILT_IN = (FORMULA, FUSED, CONSTANT, LIBRARY, CUSTOM, *CONTROL)


def _same_dim(a: Dim, b: Dim) -> bool:
    return sizes.same(a, b) if isinstance(a, int) and isinstance(b, int) else a == b


@dataclass(frozen=True, slots=True)
class TensorType:
    """Extents and element type.  Layout is not part of a type: it is decided late."""

    shape: tuple[Dim, ...]
    dtype: DType

    def __str__(self) -> str:
        dims = (str(dim) if isinstance(dim, int) else syntax.show(dim) for dim in self.shape)
        return f"{self.dtype.name}[{', '.join(dims)}]"

    def __eq__(self, other: object) -> bool:
        # Sizes that vary are equal where they are known to be, whatever the example says.
        return self is other or (
            isinstance(other, TensorType)
            and self.dtype == other.dtype
            and len(self.shape) == len(other.shape)
            and all(map(_same_dim, self.shape, other.shape))
        )

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop: its name, and how many iterations it makes (from 0)."""

    name: str
    extent: Dim


@dataclass(frozen=True, slots=True)
class Formula:
    """One loop nest: for all loops where `where` holds, `target[index] op value`.

    operands: the names that `value`, `index` and `where` read tensors by, in the order of the
    node's inputs.  loops: all loops; those named in `index` are parallel, the others reductions.
    index: where in the result a term lands.  op: "=", "+=", "*=", "max=", "min=", "any=", "all=",
    "argmax=" or "argmin=" (for the last two, `at` is the index recorded).  fill: what the result
    holds where no term lands: a constant, or `Read(operand, ())` for `from operand`, whose type is
    the result's (terms are combined with what the operand holds there; `=` overwrites it).
    type: the result's extents and element type.
    """

    operands: tuple[str, ...]
    loops: tuple[Loop, ...]
    index: tuple[Expr, ...]
    op: str
    value: Expr
    type: TensorType
    where: Expr | None = None
    at: Expr | None = None
    fill: Expr = Const(0)

    def extent(self, loop: str) -> Dim:
        """Return how many iterations the loop of that name makes."""
        for candidate in self.loops:
            if candidate.name == loop:
                return candidate.extent
        raise AssertionError(f"formula has no loop {loop!r}")


@dataclass(frozen=True, slots=True)
class Value:
    """The result of a node, or an input: a name and a type."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.  Everything about it is in its fields; it has no effects."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    formula: Formula | None = None
    graphs: tuple["Graph", ...] = ()
    origin: Origin = UNKNOWN

    @property
    def output(self) -> Value:
        """The only output."""
        assert len(self.outputs) == 1, f"{self.op} has {len(self.outputs)} outputs, not one"
        return self.outputs[0]

    def attr(self, name: str) -> Attr:
        """Return the attribute of that name."""
        return dict(self.attrs)[name]


@dataclass(frozen=True, slots=True)
class Role:
    """What an input is for, and the name that the user knows it by."""

    kind: str = "argument"
    source: str = ""

    @property
    def stays(self) -> bool:
        """Say whether it is the same tensor run after run, unless a run updates it."""
        return self.kind in ("parameter", "buffer")


@dataclass(frozen=True, slots=True)
class Graph:
    """A function from tensors to tensors.  `updates`: (input name, position among the outputs)."""

    name: str
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    updates: tuple[tuple[str, int], ...] = ()
    roles: tuple[tuple[str, Role], ...] = field(default=())

    def role(self, name: str) -> Role:
        """Return the role of the input of that name ("argument" where nothing was said)."""
        return dict(self.roles).get(name, Role())
