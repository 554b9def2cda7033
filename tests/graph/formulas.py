"""Random formulas with operands that fit, for property tests of whatever reads formulas.

`draw(seed)` gives a formula of any kind the IR allows; `Wanted` narrows the kind: its functions,
element types, reductions, and how far its indices may stray.  Every formula evaluates without an
IndexError, unless `stray` is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from tilewright.base.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, U8, DType
from tilewright.base.expr import Const, Expr, Read, Sym, call, reads
from tilewright.graph.ir import Formula, Loop, TensorType
from tilewright.graph.notation import infer, normal

Array = np.ndarray
_T = TypeVar("_T")

SMOOTH = ("add", "sub", "mul", "neg", "sin", "tanh", "sigmoid", "exp")
KINKED = ("abs", "max", "min", "select", "floor", "sign", "round")
INTEGER = ("mod", "floordiv", "eq", "lt", "and", "not", "bitand")
ANY = (*SMOOTH, *KINKED, *INTEGER, "div", "f32", "i64", "bool", "bf16", "erf", "uniform", "pow")
OPS = ("=", "+=", "*=", "max=", "min=", "any=", "all=", "argmax=", "argmin=")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What kind of formula to draw.

    dtypes: element types of operands.  ops: reductions.  functions: scalar functions.  extents:
    of loops.  loops: how many at most.  depth: of the value.  windows: indices that reach outside
    (absent terms, `??`).  indirect: reads and targets at indices read from a tensor.  divided:
    `//`, `%` and exact division in indices.  guards: `where`.  stray: indirect indices may be
    outside.  special: NaN, infinities and signed zeros among the operands.
    """

    dtypes: tuple[DType, ...] = (F32, F64, BF16, F16, I64, I32, U8, BOOL)
    ops: tuple[str, ...] = OPS
    functions: tuple[str, ...] = ANY
    extents: tuple[int, ...] = (1, 2, 3, 4)
    loops: int = 4
    depth: int = 3
    windows: bool = True
    indirect: bool = True
    divided: bool = True
    guards: bool = True
    stray: bool = False
    special: bool = False


EVERYTHING = Wanted()
# Differentiable everywhere, in float64: what a finite difference can check.
DIFFERENTIABLE = Wanted(dtypes=(F64,), ops=("=", "+="), functions=SMOOTH)
# Sums of products: what a contraction is.
PRODUCTS = Wanted(
    dtypes=(F32,), ops=("+=",), functions=("mul",), extents=(2, 3, 4), depth=2, guards=False
)
# One kernel's worth of pointwise work and reductions, read without detours.
POINTWISE = Wanted(dtypes=(F32,), windows=False, indirect=False, divided=False)


def draw(seed: int, wanted: Wanted = EVERYTHING) -> tuple[Formula, tuple[Array, ...]]:
    """Return a formula and arrays for its operands; the same for the same seed."""
    return _Drawing(np.random.default_rng(seed), wanted).formula()


def fill_with(rng: np.random.Generator, type_: TensorType, *, special: bool = False) -> Array:
    """Return a random array of a type, small numbers with a few ties among them."""
    shape = tuple(dim for dim in type_.shape if isinstance(dim, int))
    dtype = type_.dtype
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    if dtype.kind == "int":
        return rng.integers(0 if dtype == U8 else -4, 5, shape).astype(dtype.numpy)
    data = np.round(rng.normal(size=shape) * 4) / 4 + rng.normal(size=shape) * (
        rng.random(shape) < 0.5
    )
    if special:
        odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0])
        data = np.where(rng.random(shape) < 0.2, rng.choice(odd, shape), data)
    with np.errstate(over="ignore"):
        return np.asarray(data).astype(dtype.numpy)


@dataclass(slots=True)
class _Drawing:
    rng: np.random.Generator
    wanted: Wanted
    extents: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    dtypes: dict[str, DType] = field(default_factory=dict)

    def formula(self) -> tuple[Formula, tuple[Array, ...]]:
        wanted = self.wanted
        for name in "ijkl"[: self.integer(1, wanted.loops)]:
            self.extents[name] = int(self.pick(wanted.extents))
        op = self.pick(wanted.ops)
        value = self.value(wanted.depth)
        if not reads(value):
            value = self.read()
        best = op in ("argmax=", "argmin=")
        index, shape = self.target(every=op == "=" and self.chance(0.8))
        where = self.condition() if wanted.guards and self.chance(0.3) else None
        at = Sym(self.pick(tuple(self.extents))) if best else None
        dtype = self.result_dtype(op, value)
        fill: Expr = Const(0)
        if not best and self.chance(0.2):
            fill = Read(self.operand(shape, dtype), ())
        elif self.chance(0.3):
            fill = Const(self.pick((1, -2, True) if dtype.kind != "float" else (0.5, -1, 2)))
        loops = tuple(Loop(name, extent) for name, extent in self.extents.items())
        made = Formula(
            tuple(self.arrays), loops, index, op, value, TensorType(shape, dtype), where, at, fill
        )
        return normal(made), tuple(self.arrays.values())

    # --- the target

    def target(self, *, every: bool) -> tuple[tuple[Expr, ...], tuple[int, ...]]:
        loops = [name for name in self.extents if every or self.chance(0.6)]
        self.rng.shuffle(loops)
        index: list[Expr] = []
        shape: list[int] = []
        for name in loops:
            entry: Expr = Sym(name)
            extent = self.extents[name]
            if self.wanted.windows and self.chance(0.25):
                step, shift = self.integer(1, 2), self.integer(-1, 2)
                entry = call("add", call("mul", entry, step), shift)
                extent = max(1, extent * step + shift + self.integer(-1, 1))
            elif self.wanted.indirect and self.chance(0.15):
                extent = self.integer(1, 4)
                entry = self.pointer(extent, (name,))
            elif self.wanted.divided and self.chance(0.15):
                fn, q = self.pick(("floordiv", "mod", "exactdiv")), self.integer(1, 3)
                entry, extent = call(fn, entry, q), max(1, extent)
            index.append(entry)
            shape.append(extent)
        return tuple(index), tuple(shape)

    def result_dtype(self, op: str, value: Expr) -> DType:
        if op in ("argmax=", "argmin="):
            return I64
        if op in ("any=", "all="):
            return BOOL
        found = infer(value, self.dtypes)
        if found.kind == "float" and F32 in self.wanted.dtypes and self.chance(0.2):
            return self.pick((BF16, F16, F64))
        if found == BOOL and op in ("+=", "*="):
            return I64
        return found

    # --- the value

    def value(self, depth: int) -> Expr:
        if depth == 0 or self.chance(0.15):
            return self.leaf()
        fn = self.pick(self.wanted.functions)
        if fn in ("neg", "sin", "tanh", "sigmoid", "abs", "floor", "sign", "round", "not", "erf"):
            return call(fn, self.numeric(depth - 1))
        if fn in ("f32", "i64", "bool", "bf16"):
            return call(fn, self.bounded(depth - 1))
        return self.restricted(fn, depth)

    def restricted(self, fn: str, depth: int) -> Expr:
        """Return a call whose arguments stay where the function has one meaning everywhere."""
        match fn:
            case "exp":
                return call(fn, call("min", self.value(depth - 1), 2))
            case "select":
                return call(fn, self.condition(), self.value(depth - 1), self.value(depth - 1))
            case "mod" | "floordiv":
                return call(fn, self.numeric(depth - 1), self.integer(1, 3))
            case "div":
                return call(fn, self.value(depth - 1), self.pick((2, -4, 0.5)))
            case "pow":
                return call(fn, call("abs", self.numeric(depth - 1)), 2)
            case "bitand":
                return call(fn, call("i64", self.bounded(depth - 1)), 3)
            case "uniform":
                return call(fn, self.integer(0, 1 << 40), Sym(self.pick(tuple(self.extents))))
        return call(fn, self.numeric(depth - 1), self.numeric(depth - 1))

    def numeric(self, depth: int) -> Expr:
        """Return a value that is not a bool, which some functions do not take."""
        value = self.value(depth)
        return value if infer(value, self.dtypes) != BOOL else call("select", value, 2, -1)

    def bounded(self, depth: int) -> Expr:
        """Return a finite value: a conversion to an integer has no meaning for others."""
        value = self.value(depth)
        safe = call("select", call("lt", call("abs", call("f32", value)), 100), value, 1)
        return safe if infer(value, self.dtypes).kind == "float" else value

    def leaf(self) -> Expr:
        if self.chance(0.1) and "select" in self.wanted.functions:
            return Sym(self.pick(tuple(self.extents)))
        if self.chance(0.1):
            return Const(self.pick((2, -1, 0.5, 1.25, 3)))
        return self.read()

    def condition(self) -> Expr:
        loops = tuple(self.extents)
        a: Expr = Sym(self.pick(loops))
        if self.chance(0.3):
            return call(self.pick(("lt", "ge", "ne")), self.read(), Const(0))
        b: Expr = Sym(self.pick(loops)) if self.chance(0.5) else Const(self.integer(0, 2))
        test = call(self.pick(("lt", "le", "eq", "ne", "gt")), a, b)
        return call("and", test, self.condition()) if self.chance(0.2) else test

    # --- reads

    def read(self) -> Expr:
        loops = [name for name in self.extents if self.chance(0.6)]
        self.rng.shuffle(loops)
        entries: list[Expr] = []
        shape: list[int] = []
        default: Expr | None = None
        for name in loops:
            entry, extent = self.entry(name)
            entries.append(entry)
            shape.append(extent)
        if self.chance(0.2) and self.wanted.windows:
            default = self.read() if self.chance(0.2) else Const(self.pick((0, 1, -2)))
        return Read(self.operand(tuple(shape)), tuple(entries), default)

    def entry(self, name: str) -> tuple[Expr, int]:
        """Return an index entry that varies with a loop, and an extent of the dim it indexes."""
        wanted, extent, loop = self.wanted, self.extents[name], Sym(name)
        kind = self.rng.random()
        if wanted.windows and kind < 0.2:
            other = self.pick(tuple(self.extents))
            step, shift = self.integer(1, 2), self.integer(-1, 1)
            moved = call("add", call("add", call("mul", loop, step), Sym(other)), shift)
            return moved, max(1, (extent - 1) * step + self.extents[other] - self.integer(0, 2))
        if kind < 0.3:
            return call("sub", extent - 1, loop), extent  # backwards
        if wanted.indirect and kind < 0.4:
            size = self.integer(1, 4)
            return self.pointer(size, (name,)), size
        if wanted.divided and kind < 0.5:
            fn, q = self.pick(("floordiv", "mod", "exactdiv")), self.integer(1, 3)
            return call(fn, loop, q), max(extent, q)
        if kind < 0.55:
            return Const(0), 1
        return loop, extent

    def pointer(self, extent: int, loops: Sequence[str]) -> Expr:
        """Return an index read from a tensor of indices into a dim of that extent."""
        low, high = (-1, extent + 1) if self.wanted.stray else (0, extent)
        shape = tuple(self.extents[name] for name in loops)
        data = self.rng.integers(low, high, shape)
        return Read(self.add(data, I64), tuple(Sym(name) for name in loops))

    def operand(self, shape: tuple[int, ...], dtype: DType | None = None) -> str:
        dtype = dtype or self.pick(self.wanted.dtypes)
        type_ = TensorType(shape, dtype)
        return self.add(fill_with(self.rng, type_, special=self.wanted.special), dtype)

    def add(self, data: Array, dtype: DType) -> str:
        name = "abcdefghmnopqrstuvwxz"[len(self.arrays)] if len(self.arrays) < 21 else ""
        name = name or f"t{len(self.arrays)}"
        self.arrays[name], self.dtypes[name] = data, dtype
        return name

    # --- chance

    def pick(self, items: Sequence[_T]) -> _T:
        return items[int(self.rng.integers(len(items)))]

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)
