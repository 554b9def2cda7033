"""Bind a declaration to operand types and attributes: every loop gets its extent.

The idea: a loop's extent is the dim it indexes bare, or what `<` says; `...` stands for the dims
not named, aligned at the right as broadcasting has it.

This module does not know any operator.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from tilewright.base import algebra
from tilewright.base.dtypes import BOOL, BY_NAME, F32, I64, DType
from tilewright.base.errors import UNKNOWN, NotationError, Origin, ShapeError
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, substitute, transform, walk
from tilewright.base.sizes import Size, same
from tilewright.base.syntax import ELLIPSIS
from tilewright.base.syntax import show as show_expr
from tilewright.graph.declare import TARGET, Declaration
from tilewright.graph.formulas import (
    as_dim,
    normal,
    reads_in,
    show_dim,
    simplify_indices,
    static,
    static_extents,
)
from tilewright.graph.infer import infer
from tilewright.graph.ir import Dim, Formula, Loop, TensorType

_LETTERS = "ijklmnopqrstuvwabcdefgh"


def instantiate(
    declaration: Declaration,
    operands: Sequence[TensorType],
    attributes: Mapping[str, bool | int | float] | None = None,
    *,
    dtype: DType | None = None,
    shape: tuple[Dim, ...] | None = None,
    origin: Origin = UNKNOWN,
) -> Formula:
    """Bind a declaration to operand types and attributes.

    dtype: the result's element type (inferred from the value where None).  shape: the result's
    extents; needed only where the target's index does not give them.  Raises ShapeError naming the
    loop, the two extents and the user's line.
    """
    binding = _Binding(declaration, tuple(operands), dict(attributes or {}), shape, origin)
    return binding.formula(dtype, shape)


class _Binding:
    """The steps of one instantiation; final, lives for one call."""

    def __init__(
        self,
        declaration: Declaration,
        operands: tuple[TensorType, ...],
        attributes: dict[str, bool | int | float],
        shape: tuple[Dim, ...] | None,
        origin: Origin,
    ) -> None:
        self.declaration = declaration
        self.origin = origin
        assert len(operands) == len(declaration.operands), (
            f"{declaration.name} takes {len(declaration.operands)} operands, got {len(operands)}"
        )
        self.types = dict(zip(declaration.operands, operands, strict=True))
        missing = [name for name in declaration.attributes if name not in attributes]
        assert not missing, f"{declaration.name} lacks the attributes {missing}"
        self.attributes = {name: Const(attributes[name]) for name in declaration.attributes}
        known = (type_.shape for type_ in operands)
        self.attributes |= _named_sizes((*known, tuple(attributes.values()), shape or ()))
        self.extents: dict[str, Dim] = {}
        self.source: dict[str, str] = {}  # where a loop's extent was read, for messages
        self.batch = self._batch_loops()

    def formula(self, dtype: DType | None, shape: tuple[Dim, ...] | None) -> Formula:
        body = self.declaration.body
        parts = (body.value, body.at, body.where, *body.index)
        late = [item for item in body.limits if _asks_size(item[1])]
        for name, _ in body.limits:
            self.source[name] = "declared"
        self._declare(item for item in body.limits if item not in late)
        reads = [read for part in parts for read in reads_in(part)]
        for read in reads:
            self._read_extents(read)
        self._declare(late)
        for read in reads:
            self._read_radix(read)
        self._check_loops(parts)
        index = self._expand(TARGET, body.index)
        bound = [None if part is None else self._finish(part) for part in parts[:3]]
        value, at, where = bound
        assert value is not None, "a body has a value"
        index = tuple(self._finish(entry) for entry in index)
        fill = body.fill if isinstance(body.fill, Read) else self._finish(body.fill)
        if dtype is None:
            dtype = self._result_dtype(value)
        if shape is None and isinstance(fill, Read):  # `from x`: x has the result's type
            shape = self.types[fill.tensor].shape
        type_ = TensorType(shape if shape is not None else self._shape(index), dtype)
        loops = tuple(Loop(name, extent) for name, extent in self.extents.items())
        made = Formula(
            self.declaration.operands, loops, index, body.op, value, type_, where, at, fill
        )
        return normal(made)

    def _check_loops(self, parts: Sequence[Expr | None]) -> None:
        known = {*self.extents, *self.attributes, ELLIPSIS.name}
        used = {name for part in parts if part is not None for name in names(part)}
        for name in sorted(used - known):
            raise NotationError(
                f"{self.declaration.name}: loop {name!r} has no extent",
                expected=f"a dim that {name} indexes bare, or {name}<extent",
                found=self.declaration.text.strip(),
                where=self.origin,
            )

    def _result_dtype(self, value: Expr) -> DType:
        op = self.declaration.body.op
        if op in ("argmax=", "argmin="):
            return I64
        if op in ("any=", "all="):
            return BOOL
        if isinstance(value, Call) and value.fn in BY_NAME:  # a conversion says it itself
            return BY_NAME[value.fn]
        dtypes = {name: type_.dtype for name, type_ in self.types.items()}
        found = infer(value, dtypes)
        floats = [dtypes[read.tensor] for read in reads_in(value) if dtypes[read.tensor] != found]
        halves = {dtype for dtype in floats if dtype.compute == found and dtype != found}
        # Arithmetic on half types is done in float32; the result is stored as what was read.
        if (
            found == F32
            and len(halves) == 1
            and all(d in halves for d in _float_reads(value, dtypes))
        ):
            return halves.pop()
        return found

    def _shape(self, index: tuple[Expr, ...]) -> tuple[Dim, ...]:
        shape: list[Dim] = []
        for entry in index:
            match entry:
                case Sym(name) if name in self.extents:
                    shape.append(self.extents[name])
                case _:
                    limits = algebra.bounds(entry, static_extents(self.extents))
                    if limits is None or limits[0] < 0:
                        raise NotationError(
                            f"{self.declaration.name}: the extent of the target's index "
                            f"{show_expr(entry, index=True)!r} cannot be told",
                            mend="give the result's shape",
                        )
                    shape.append(limits[1] + 1)
        return tuple(shape)

    # ... is expanded per operand, aligned at the right as broadcasting has it.

    def _batch_loops(self) -> tuple[str, ...]:
        ranks = [0]
        body = self.declaration.body
        for part in (body.value, body.at, body.where):
            for read in reads_in(part):
                if ELLIPSIS in read.index:
                    ranks.append(self.types[read.tensor].rank - len(read.index) + 1)
        if min(ranks) < 0:
            raise ShapeError(
                f"{self.declaration.name} needs operands of higher rank",
                expected=self.declaration.text.strip(),
                found=", ".join(f"{n} {t}" for n, t in self.types.items()),
                where=self.origin,
            )
        used = {
            name
            for part in (body.value, body.at, body.where, *body.index)
            if part is not None
            for name in names(part)
        }
        used |= set(self.declaration.operands) | set(self.declaration.attributes) | {TARGET}
        free = [letter for letter in _LETTERS if letter not in used]
        free += [f"i{number}" for number in range(max(ranks))]
        return tuple(free[: max(ranks)])

    def _expand(self, tensor: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        if ELLIPSIS not in index:
            return index
        at = index.index(ELLIPSIS)
        if tensor == TARGET:
            return (*index[:at], *(Sym(name) for name in self.batch), *index[at + 1 :])
        shape = self.types[tensor].shape
        count = len(shape) - len(index) + 1
        loops = self.batch[len(self.batch) - count :]
        # A size-1 dim broadcast against n reads index 0; a named size is never 1 unless proved.
        middle: list[Expr] = []
        for loop, dim in zip(loops, shape[at : at + count], strict=True):
            middle.append(
                Const(0) if _is_one(dim) and not _is_one(self.extents.get(loop, 1)) else Sym(loop)
            )
        return (*index[:at], *middle, *index[at + 1 :])

    def _declare(self, limits: Iterable[tuple[str, Expr]]) -> None:
        for name, limit in limits:
            self.extents[name] = static(self._bind(limit))

    def _read_extents(self, read: Read) -> None:
        entries, shape = self._batch_entries(read), self.types[read.tensor].shape
        if len(entries) != len(shape):
            raise ShapeError(
                f"{self.declaration.name}: {read.tensor} has the wrong rank",
                expected=f"{read.tensor} of rank {len(entries)}  ({self.declaration.text.strip()})",
                found=f"{read.tensor} {self.types[read.tensor]}",
                where=self.origin,
            )
        for entry, dim in zip(entries, shape, strict=True):
            match entry:
                case Sym(name) if name not in self.attributes:
                    source = f"{read.tensor} {self.types[read.tensor]}"
                    self._meet(name, dim, source, batch=name in self.batch)

    def _read_radix(self, read: Read) -> None:
        entries, shape = self._batch_entries(read), self.types[read.tensor].shape
        for entry, dim in zip(entries, shape, strict=True):
            if isinstance(entry, Call) and entry.fn == "radix":
                self._meet_radix(entry.args, dim, read)

    def _batch_entries(self, read: Read) -> list[Expr]:
        """Return a read's index with `...` replaced by its loops, size-1 dims included."""
        entries = list(read.index)
        if ELLIPSIS in entries:
            at = entries.index(ELLIPSIS)
            count = self.types[read.tensor].rank - len(entries) + 1
            entries[at : at + 1] = [Sym(name) for name in self.batch[len(self.batch) - count :]]
        return entries

    def _meet_radix(self, args: tuple[Expr, ...], dim: Dim, read: Read) -> None:
        """Give the one loop of `(g o)` whose extent is not known yet what the dim leaves it."""
        loops = [arg.name for arg in args if isinstance(arg, Sym)]
        known = 1
        for name in loops:
            extent = self.extents.get(name, 1)
            known *= extent if isinstance(extent, int) else 1
        unknown = [name for name in loops if name not in self.extents]
        if len(unknown) == 1 and isinstance(dim, int) and known and dim % known == 0:
            self._meet(unknown[0], dim // known, f"{read.tensor}", batch=False)
        elif unknown or known != dim:
            raise ShapeError(
                f"{self.declaration.name}: the dim of extent {dim} does not split into "
                f"({' '.join(loops)})",
                expected=f"a multiple of {known}",
                found=f"{read.tensor} {self.types[read.tensor]}",
                where=self.origin,
            )

    def _meet(self, loop: str, dim: Dim, source: str, *, batch: bool) -> None:
        if self.source.get(loop) == "declared":
            return
        before = self.extents.get(loop)
        if before is None or (batch and _is_one(before)):
            self.extents[loop] = dim
            self.source[loop] = source
            return
        if before == dim or (batch and _is_one(dim)):
            return
        raise ShapeError(
            f"{self.declaration.name}: loop {loop!r} is {before} in one operand "
            f"and {dim} in another",
            expected=f"{loop} = {show_dim(before)}, as in {self.source[loop]}",
            found=f"{loop} = {show_dim(dim)} in {source}",
            known=self.declaration.text.strip(),
            where=self.origin,
        )

    def _finish(self, part: Expr) -> Expr:
        """Expand `...`, bind attributes, resolve (g o) and size(loop), simplify indices."""

        def visit(node: Expr) -> Expr:
            match node:
                case Read(tensor, index, default):
                    return Read(tensor, self._expand(tensor, index), default)
            return node

        bound = self._bind(transform(part, visit))
        return simplify_indices(bound, static_extents(self.extents))

    def _bind(self, part: Expr) -> Expr:
        def visit(node: Expr) -> Expr:
            match node:
                case Call("radix", args):
                    return self._radix(args)
                case Call("size", (Sym(name),)):
                    return as_dim(self.extents[name])
            return node

        return substitute(transform(part, visit), self.attributes)

    def _radix(self, args: tuple[Expr, ...]) -> Expr:
        result = args[0]
        for arg in args[1:]:
            assert isinstance(arg, Sym), "a mixed-radix index holds names"
            extent = as_dim(self.extents[arg.name])
            result = Call("add", (Call("mul", (result, extent)), arg))
        return result


def _is_one(dim: Dim) -> bool:
    return isinstance(dim, int) and same(dim, 1)


def _named_sizes(values: Iterable[Iterable[object]]) -> dict[str, Const]:
    """Return the named sizes of the compilation that any value among these belongs to."""
    for value in chain.from_iterable(values):
        if isinstance(value, Size):
            return {name: Const(value.sizes.size(name)) for name in value.sizes.values}
    return {}


def _asks_size(limit: Expr) -> bool:
    return any(isinstance(node, Call) and node.fn == "size" for node in walk(limit))


def _float_reads(value: Expr, dtypes: Mapping[str, DType]) -> list[DType]:
    return [dtypes[read.tensor] for read in reads_in(value) if dtypes[read.tensor].kind == "float"]
