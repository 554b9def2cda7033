"""What a kernel's loops move into a cache, predicted from the loops, for a cache of any size.

The idea: a loop whose accesses fit in a cache brings in each line once, however often it comes back
to it; a loop whose body fits, but not the loop, brings in what its body does not have from the
iteration before; a larger one brings in as much as its body does, so many times (the layer
conditions of stencils, Treibig and Hager 2010; for a product of n x n in tiles of b they say what
its textbook formula does: n^2 + n^3 / b elements of b and a).  A kernel is such loops over
references, be it made from formulas (`of_nest`) or a product in tiles (`of_product`).

    part = Ref(tensor, index, extents, strides, size)   one element, over the counters around it
         | Repeat(counter, trips, parts)

Bytes are those of whole lines, read or written once each time that they come in; what is streamed
comes into none.  Caches take any line anywhere and drop the one that was not used for longest.

This module does not know a machine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.base import algebra
from tilewright.base.dtypes import DType
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, substitute, walk
from tilewright.base.sizes import Size
from tilewright.kernels.body import has_read, is_pointwise, static_shape
from tilewright.kernels.contraction import (
    LINE,
    TILE_VECTORS,
    Batch,
    Product,
    Role,
    Tiling,
    blocks,
    count,
    grouped_rows,
    packed_columns,
    product_extents,
    tile_shape,
)
from tilewright.kernels.emit import Emitted
from tilewright.kernels.expression import bound_to
from tilewright.kernels.loops import Buffer, Do, Fold, Item, Keep, Let, Loop, LoopNest, parts
from tilewright.kernels.loops_text import parse


@dataclass(frozen=True, slots=True)
class Ref:
    """One element of a tensor.

    index: one entry a dim, over counters.  extents, strides: of the dims, in elements.  size: bytes
    of an element.
    """

    tensor: str
    index: tuple[Expr, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Parts, one after another, for a counter from 0 to before `trips`."""

    counter: str
    trips: int
    parts: "tuple[Part, ...]"


Part = Ref | Repeat


def kernel_loops(kernel: Emitted, vector: int) -> tuple[Part, ...] | None:
    """Return the loops of a kernel; None where it says nothing of them, or a size varies.

    vector: bytes of a vector of the processor.
    """
    if kernel.product is not None:
        return of_product(*kernel.product, vector)
    return of_nest(parse(kernel.nest)) if kernel.nest and not kernel.sizes else None


def moved(given: Sequence[Part], cache: int) -> int:
    """Return how many bytes come into a cache of so many bytes while the parts run."""
    total = 0
    group: list[Part] = []  # parts that follow each other and fit together
    for part in given:
        if held([*group, part]) <= cache:
            group.append(part)
            continue
        total += held(group)
        group = []
        if held([part]) <= cache:
            group = [part]
        elif isinstance(part, Repeat):
            inside = held(part.parts) <= cache
            total += held([part]) if inside else part.trips * moved(part.parts, cache)
        else:
            total += LINE
    return total + held(group)


def held(given: Sequence[Part]) -> int:
    """Return the bytes of all lines that the parts touch."""
    extents: dict[str, int] = {}
    tensors: dict[str, dict[Ref, None]] = {}
    for part in _all(given):
        if isinstance(part, Repeat):
            extents[part.counter] = part.trips
        else:
            tensors.setdefault(part.tensor, {})[part] = None
    return LINE * sum(_lines(list(refs), extents) for refs in tensors.values())


def _all(given: Iterable[Part]) -> Iterator[Part]:
    for part in given:
        yield part
        if isinstance(part, Repeat):
            yield from _all(part.parts)


# ----------------------------------------------------------------------------------------- lines


def _lines(refs: Sequence[Ref], extents: Mapping[str, int]) -> int:
    """Return the lines of one tensor that references touch: those of each, or of a box around all
    of them where these are fewer."""
    boxes = {ref: _box(ref, extents) for ref in refs}
    apart = 0
    for alike in {tuple(box): ref for ref, box in boxes.items()}.values():
        counts = _counts(alike, boxes[alike], extents)
        apart += _lines_of(alike, boxes[alike], counts, _terms(alike, extents))
    if len(refs) == 1 or any(ref.strides != refs[0].strides for ref in refs):
        return apart
    around = [
        (min(low for low, _ in dims), max(high for _, high in dims))
        for dims in zip(*boxes.values(), strict=True)
    ]
    widths = [high - low + 1 for low, high in around]
    every = sum(_terms(ref, extents) for ref in refs)
    return min(apart, _lines_of(refs[0], around, widths, every))


def _box(ref: Ref, extents: Mapping[str, int]) -> list[tuple[int, int]]:
    """Return the least and the greatest index in each dim, as far as the tensor goes; counters
    around stand at 0."""
    known = {name: extents.get(name, 1) for entry in ref.index for name in names(entry)}
    found = []
    for entry, extent in zip(ref.index, ref.extents, strict=True):
        low, high = (None if has_read(entry) else algebra.bounds(entry, known)) or (0, extent - 1)
        if high - low >= extent:
            low, high = 0, extent - 1
        found.append((low, high))
    return found


def _counts(ref: Ref, box: Sequence[tuple[int, int]], extents: Mapping[str, int]) -> list[int]:
    """Return how many indices of each dim are met."""
    return [
        min(high - low + 1, extent if has_read(entry) else _trips(names(entry), extents))
        for entry, extent, (low, high) in zip(ref.index, ref.extents, box, strict=True)
    ]


def _terms(ref: Ref, extents: Mapping[str, int]) -> int:
    """Return how many elements are met at most."""
    return _trips({name for entry in ref.index for name in names(entry)}, extents)


def _trips(counters: Iterable[str], extents: Mapping[str, int]) -> int:
    total = 1
    for name in set(counters):
        total *= extents.get(name, 1)
    return total


def _lines_of(ref: Ref, box: Sequence[tuple[int, int]], counts: Sequence[int], most: int) -> int:
    """Return the lines of a box's elements, at most one for each of `most`."""
    times, run = 1, ref.size  # so many runs, each of so many bytes one after another
    dims = zip(ref.strides, box, counts, strict=True)
    for stride, (low, high), met in sorted((abs(s), b, n) for s, b, n in dims):
        step, width = stride * ref.size, high - low + 1
        if not stride or width == 1:
            continue
        close = step < LINE or (step <= run and met == width)
        if times == 1 and close:
            run += (width - 1) * step
        else:
            if times == 1:  # a run that does not begin with a line lies in one more, at times
                run = -(-run // LINE) * LINE if step % LINE == 0 else run + LINE - ref.size
            times *= met
    return min(most, -(-times * run // LINE))


# ------------------------------------------------------------------------------ kernels of formulas


def of_nest(nest: LoopNest) -> tuple[Part, ...] | None:
    """Return the loops of a nest; None where a size varies."""
    if any(
        isinstance(dim, Size) for _, formula in nest.body.formulas for dim in formula.type.shape
    ):
        return None
    return tuple(_Reader(nest).parts(nest.items, {}))


class _Reader:
    """Turns items into parts: loops count from 0, and each statement is what it reads and writes.

    Its state is what has been met so far: how many loops, and which values are kept where.
    """

    def __init__(self, nest: LoopNest) -> None:
        self.nest = nest
        self.loops = 0
        self.kept: dict[str, str] = {}
        self.lengths: dict[str, tuple[int, DType]] = {}
        self.extents: dict[str, int] = {}

    def parts(self, items: Sequence[Item], env: Mapping[str, Expr]) -> Iterator[Part]:
        """Yield the parts of items under what the names around them are, over counters."""
        env = dict(env)
        for item in items:
            match item:
                case Loop():
                    yield self.loop(item, env)
                case Let(name, value):
                    env[name] = substitute(value, env)
                case Do():
                    yield from self.statement(item, env)
                case Buffer(name, formula, length):
                    self.lengths[name] = length, self.nest.body.type(formula).dtype.compute
                case Keep(read, buffer, place):
                    yield from self.keep(read, buffer, substitute(place, env), env)
                case Fold(formula, index) if formula in self.nest.body.outputs:
                    yield self.ref(formula, tuple(substitute(entry, env) for entry in index))

    def loop(self, loop: Loop, env: Mapping[str, Expr]) -> Repeat:
        counter = f"n{self.loops}"
        self.loops += 1
        trips = max(1, -(-max(self.spans(loop, env)) // loop.step))
        self.extents[counter] = trips
        at: Expr = Sym(counter)
        if loop.step != 1:
            at = Call("mul", (at, Const(loop.step)))
        start = Call("add", (substitute(parts(loop.low, "max")[0], env), at))
        return Repeat(counter, trips, tuple(self.parts(loop.items, {**env, loop.name: start})))

    def spans(self, loop: Loop, env: Mapping[str, Expr]) -> Iterator[int]:
        """Yield how far a loop runs in the first and in the last pass of those around it."""
        for last in (0, 1):
            at = {name: Const(last * (trips - 1)) for name, trips in self.extents.items()}
            lows = [_number(substitute(substitute(low, env), at)) for low in parts(loop.low, "max")]
            highs = [_number(substitute(substitute(e, env), at)) for e in parts(loop.high, "min")]
            yield min(highs) - max(lows)

    def statement(self, do: Do, env: Mapping[str, Expr]) -> Iterator[Ref]:
        statement = self.nest.statement(do)
        formula = statement.formula
        over = [formula.value, formula.where, formula.at, *formula.index]
        for expr in over:
            if expr is not None:
                yield from self.reads(substitute(statement.bound(expr), env))
        index = tuple(substitute(statement.bound(entry), env) for entry in formula.index)
        if isinstance(formula.fill, Read):
            yield from self.reads(Read(formula.fill.tensor, index))
        if not do.into and not do.streamed and do.formula in self.nest.body.outputs:
            yield self.ref(do.formula, index)

    def keep(self, read: Read, buffer: str, place: Expr, env: Mapping[str, Expr]) -> Iterator[Ref]:
        if buffer:
            yield from self.reads(substitute(read, env))
            yield self.near(buffer, place)
        self.kept[read.tensor] = buffer

    def reads(self, expr: Expr) -> Iterator[Ref]:
        """Yield what an expression reads from memory; what is computed where it is read, reads
        what its formula does."""
        for node in walk(expr):
            if isinstance(node, Read):
                yield from self.read(node)

    def read(self, read: Read) -> Iterator[Ref]:
        formula = self.nest.body.formula(read.tensor)
        buffer = self.kept.get(read.tensor)
        if formula is None or buffer == "":
            yield self.ref(read.tensor, read.index)
        elif buffer:
            yield self.near(buffer, read.index[-1] if read.index else Const(0))
        elif is_pointwise(formula):
            value, where, fill = bound_to(formula, read.index)
            for part in (value, where, fill):
                if part is not None:
                    yield from self.reads(part)

    def ref(self, tensor: str, index: tuple[Expr, ...]) -> Ref:
        type_, strides = self.nest.body.type(tensor), self.nest.body.strides(tensor)
        return Ref(tensor, index, static_shape(type_), strides, type_.dtype.bytes)

    def near(self, buffer: str, place: Expr) -> Ref:
        length, dtype = self.lengths[buffer]
        return Ref(buffer, (place,), (length,), (1,), dtype.bytes)


def _number(expr: Expr) -> int:
    """Return the value of an expression without names; its upper bound where it reads one."""
    found = algebra.bounds(expr, {})
    assert found is not None, "loops run between numbers"
    return found[1]


# ----------------------------------------------------------------------------------------- products

FAR, SPREAD = 512, 128  # elements between rows of a and of b that share lines of a cache, as in C
PAGE = 4096  # bytes
WAYS = 8  # lines of a set of the first cache, as in C
READING = 2  # panels that read rows far apart where they lie; on AMD's processors it may be eight


def of_product(product: Product, tiling: Tiling, vector: int) -> tuple[Part, ...]:
    """Return the loops of a product as `contraction.c` runs them, one block after another."""
    height, width = tile = tile_shape(product.dtype, vector)
    batch, rows, columns, terms = product_extents(product)
    down, across = blocks(product, tiling)
    tall, wide = -(-rows // down), -(-columns // across)
    packs_b = _packs_b(product, -(-tall // height), width, vector)
    if _on_one_set(product) and wide <= READING * width:
        height, width = tile = min(height, WAYS - 1), width
    group = min(tall, grouped_rows(product, tiling, tile))
    alone = group == tall
    turn = min(wide, packed_columns(product, tiling, tile, tall))
    deep = min(tiling.depth, terms)
    trips = {
        "batch": batch, "down": down, "across": across, "turn": -(-wide // turn),
        "deep": -(-terms // deep), "group": -(-tall // group), "panel": -(-turn // width),
        "tile": -(-group // height), "i": min(height, tall), "j": min(width, wide), "t": deep,
    }  # fmt: skip

    def loop(name: str, *inside: Part) -> Repeat:
        return Repeat(name, trips[name], inside)

    i = _sum(down=tall, group=group, tile=height, i=1)
    j = _sum(across=wide, turn=turn, panel=width, j=1)
    t = _sum(deep=deep, t=1)
    lead, size = Sym("batch"), product.dtype.bytes

    def operand(name: str, *roles: tuple[Expr, Batch | Role, int]) -> Ref:
        dims = [dim for at, role, which in roles for dim in _dims(at, role, which)]
        index, extents, strides = zip(*dims, strict=True)
        return Ref(name, index, extents, strides, size)

    a = operand("a", (lead, product.batch, 0), (i, product.rows, 0), (t, product.terms, 0))
    b = operand("b", (lead, product.batch, 1), (t, product.terms, 1), (j, product.columns, 0))
    c = operand("c", (lead, product.batch, 2), (i, product.rows, 1), (j, product.columns, 1))
    before: list[Part] = []
    inside: list[Part] = []
    if packs_b:
        panel = (trips["panel"], deep, width), (deep * width, width, 1)
        packed = Ref("packed b", (Sym("panel"), Sym("t"), Sym("j")), *panel, size)
        before, b = [loop("panel", loop("t", loop("j", b, packed)))], packed
    if _packs_a(product, (wide if alone else turn) > READING * width):
        heap = (trips["tile"], deep, height), (deep * height, height, 1)
        packed = Ref("packed a", (Sym("tile"), Sym("t"), Sym("i")), *heap, size)
        inside, a = [loop("tile", loop("t", loop("i", a, packed)))], packed
    tiles = loop("tile", loop("t", loop("i", a), loop("j", b)), loop("i", loop("j", c)))
    panels = loop("panel", tiles)
    if alone:
        turns = loop("deep", loop("group", *inside, loop("turn", *before, panels)))
    else:
        turns = loop("turn", loop("deep", *before, loop("group", *inside, panels)))
    return (loop("batch", loop("across", loop("down", turns))),)


def _on_one_set(product: Product) -> bool:
    """Say whether the rows of a tile lie along the terms, and all fall on one set of the first
    cache: then a tile has fewer of them."""
    step, apart = product.terms[-1][1], product.rows[-1][1] * product.dtype.bytes
    return step == 1 and apart != 0 and apart % PAGE == 0


def _packs_a(product: Product, reused: bool) -> bool:
    """Say whether rows of a are packed: where they are not a step apart, or far and used again."""
    if len(product.terms) > 1 or len(product.rows) > 1:
        return True
    step = product.terms[0][1]
    return reused and abs(product.rows[0][1] if step == 1 else 2 * step) >= FAR


def _packs_b(product: Product, tiles: int, width: int, vector: int) -> bool:
    """Say whether columns of b are packed: where those of a tile do not lie together (of a vector,
    if a tile's row is longer than a line), or rows lie far apart and many tiles read them."""
    together = width if width * product.dtype.bytes <= LINE else width // TILE_VECTORS
    run, step, _ = product.columns[-1]
    whole = len(product.columns) == 1 or run % together == 0
    if len(product.terms) > 1 or step != 1 or not whole:
        return True
    along, spread = product.terms[0][1] == 1, abs(product.terms[0][2])
    if vector == 64:
        few = 4 if spread * product.dtype.bytes <= PAGE else 2
    else:
        few = 12 if along and spread <= 2 * SPREAD else 2
    return tiles > few and spread >= SPREAD


def _sum(**steps: int) -> Expr:
    """Return the sum of counters times steps."""
    made: Expr = Const(0)
    for name, step in steps.items():
        made = Call("add", (made, Call("mul", (Sym(name), Const(step)))))
    return made


def _dims(at: Expr, role: Batch | Role, which: int) -> Iterator[tuple[Expr, int, int]]:
    """Yield for each loop of a role, which count `at` together, its index, its extent and one of
    its strides."""
    inner = count(role)
    for place, (extent, *strides) in enumerate(role):
        inner //= extent
        index = at if inner == 1 else Call("floordiv", (at, Const(inner)))
        yield index if place == 0 else Call("mod", (index, Const(extent))), extent, strides[which]
