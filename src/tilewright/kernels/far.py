"""What the loops of a row will touch soon and is far: the next row, and where results will go.

The idea: a processor looks ahead along what it reads, and a phase that computes from what is near
reads nothing new: memory would have nothing to do.  So that phase asks for each line that the first
one will read of a row that follows, and a phase before the last for each line of this row that will
be written.  What takes long asks for itself, a page ahead: a processor that waits for results looks
less far, and so it does where what it loads hangs on a condition.

This module does not know how the phases are made.
"""

from collections.abc import Iterator, Sequence

from tilewright.base import algebra
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, substitute, walk
from tilewright.base.sizes import nominal
from tilewright.kernels.body import has_read, static_shape, volume
from tilewright.kernels.keep import element_of
from tilewright.kernels.loops import Fetch
from tilewright.kernels.regions import Region
from tilewright.kernels.statement import State, Statement

LINE = 64  # bytes that memory is moved by
LEAD = 8 << 10  # bytes: the rows that are asked for begin as far away, at least
PAGE = 4 << 10  # bytes whose place is looked up at once, at least: what takes long asks one ahead
ROW_BYTES = 256 << 10  # that are read of a row, at most: two are in the second cache at a time
GATHERED_BYTES = 64 << 10  # of a row that an index names, at most
MOST_AHEAD = 8  # rows that an index names
NAMED_BYTES = 512  # of such a row, from which on it comes no nearer than the second cache
NEAR_BYTES = 16 << 10  # of rows that are nearest still when they are read again
# Of rows for which nothing takes long: that are read of one that is asked for, at most, as along
# longer ones a processor looks far enough ahead itself; and from which on into the second cache.
CHEAP_BYTES, CHEAP_NEAR_BYTES = 16 << 10, 8 << 10


def next_row(
    state: State, region: Region, first: Sequence[Statement], block: Sym, by: int, *, dear: bool
) -> list[Fetch]:
    """Ask for each line that the first phase reads of the next row; of one after it, where `LEAD`
    bytes are not read and written until then.  A long row would not be nearest still when its turn
    comes, and is asked for into the second cache.

    block: the first of `by` columns, the innermost ones.  dear: something takes long in each row.
    """
    near, most = (NEAR_BYTES, ROW_BYTES) if dear else (CHEAP_NEAR_BYTES, CHEAP_BYTES)
    inputs = _moving(state, region, first)
    if (read := _row_bytes(state, region, inputs)) > most:
        return []
    cache = 2 if read > near else 1
    length = _row_bytes(state, region, [*inputs, *_written(state, region, region.statements)])
    after = Call("add", (Sym(region.rows[-1]), Const(-(-LEAD // length) if length else 1)))
    lines = (line for one in inputs for line in _lines(state, one, region, after, block, by))
    return [Fetch(line, cache) for line in lines]


def along_row(
    state: State, region: Region, phase: Sequence[Statement], block: Sym, by: int
) -> list[Fetch]:
    """Ask for each line that a phase reads of its row a page later, as `next_row` does; for none
    where a row is so short that what is read again is nearest still."""
    inputs = _moving(state, region, phase)
    if _row_bytes(state, region, inputs) <= NEAR_BYTES:
        return []
    found: list[Read] = []
    for one in inputs:
        later = Call("add", (block, Const(PAGE // state.body.type(one.tensor).dtype.bytes)))
        found += _lines(state, one, region, Sym(region.rows[-1]), later, by)
    return list(map(Fetch, found))


def results(
    state: State, region: Region, later: Sequence[Statement], block: Sym, by: int
) -> list[Fetch]:
    """Ask for each line of this row that later phases write, as `next_row` does."""
    this = Sym(region.rows[-1])
    return [
        Fetch(line)
        for one in _written(state, region, later)
        if _runs_along(state, region, one, ROW_BYTES)
        for line in _lines(state, one, region, this, block, by)
    ]


def next_gathered(state: State, region: Region, block: Sym, by: int) -> list[Fetch]:
    """Ask for each line that is read of the row of a table that a later row names: the one after
    the next, or where rows are short one that begins about `LEAD` bytes later.

    block: as for `next_row`.  An index is read ahead only where that is an index too.
    """
    *outer, inner = region.rows
    if not outer or all(one.type.dtype.kind == "float" for one in state.body.inputs):
        return []
    row = outer[-1]
    last = Const(state.extents[row] - 1)
    every = [read for one in region.statements for read in state.reads(one)]
    found = []
    for read in dict.fromkeys(every):
        if not _names_a_row(state, read, row, inner):
            continue
        table = state.body.type(read.tensor)
        width = table.dtype.bytes
        cache = 2 if nominal(static_shape(table)[-1]) * width >= NAMED_BYTES else 1
        ahead = max(2, min(MOST_AHEAD, LEAD // nominal(state.extents[inner] * width)))
        after = Call("min", (Call("add", (Sym(row), Const(ahead))), last))
        for column in range(0, by, LINE // width):
            place = {row: after, inner: Call("add", (block, Const(column)))}
            index = tuple(substitute(one, place) for one in read.index)
            found.append(Fetch(Read(read.tensor, index), cache))
    return found


def coming_block(
    state: State, statement: Statement, lanes: str, begin: Expr, by: int
) -> list[Fetch]:
    """Ask for each line that `by` lanes read from `begin` on, of what is as large as the result:
    the rest is near."""
    size = volume(static_shape(statement.formula.type))
    found = []
    for read in dict.fromkeys(state.reads(statement)):
        type_ = state.body.type(read.tensor)
        if any(map(has_read, read.index)) or volume(static_shape(type_)) < size:
            continue
        if dict(steps_of(state, read)).get(Sym(lanes)) != 1:
            continue
        for column in range(0, by, LINE // type_.dtype.bytes):
            place = {lanes: Call("add", (begin, Const(column)))}
            index = (state.simplify(substitute(one, place)) for one in read.index)
            found.append(Fetch(Read(read.tensor, tuple(index))))
    return found


def _names_a_row(state: State, read: Read, row: str, inner: str) -> bool:
    """Say whether a tensor is read along its rows, at one that is itself read for each row."""
    if not read.index:
        return False
    *chosen, along = read.index
    named = [one for entry in chosen for one in walk(entry) if isinstance(one, Read)]
    known = {tensor.name: static_shape(tensor.type) for tensor in state.body.inputs}
    if not named or any(one.tensor not in known for one in (read, *named)):
        return False
    if has_read(along) or inner in set().union(*map(names, chosen)):
        return False
    for one in named:
        places = zip(one.index, known[one.tensor], strict=True)
        if one.default is not None or not all(
            algebra.within(entry, extent, state.extents) for entry, extent in places
        ):
            return False
    length, width = state.extents[inner], state.body.type(read.tensor).dtype.bytes
    return (
        read.default is None
        and any(row in names(one) for one in named)
        and dict(steps_of(state, read)).get(Sym(inner)) == 1
        and length <= GATHERED_BYTES // width
    )


def _moving(state: State, region: Region, phase: Sequence[Statement]) -> list[Read]:
    """Return what a phase reads of inputs along its rows."""
    reads = [read for one in phase for read in state.reads(one)]
    inputs = [read for read in dict.fromkeys(reads) if state.body.formula(read.tensor) is None]
    return [read for read in inputs if _runs_along(state, region, read)]


def _written(state: State, region: Region, phase: Sequence[Statement]) -> list[Read]:
    """Return the elements of whole rows that a phase writes to outputs."""
    columns = set(region.columns)
    made = [one for one in phase if not one.is_reduction and one.name in state.body.outputs]
    return [element_of(state, one) for one in made if columns & set(one.parallel())]


def _row_bytes(state: State, region: Region, inputs: Sequence[Read]) -> int:
    length = nominal(volume([state.extents[name] for name in region.columns]))
    return length * sum(state.body.type(read.tensor).dtype.bytes for read in inputs)


def _lines(
    state: State, read: Read, region: Region, row: Expr, block: Expr, by: int
) -> Iterator[Read]:
    here, inner = region.rows[-1], region.columns[-1]
    for column in range(0, by, LINE // state.body.type(read.tensor).dtype.bytes):
        place = {here: row, inner: Call("add", (block, Const(column)))}
        index = (state.simplify(substitute(entry, place)) for entry in read.index)
        yield Read(read.tensor, tuple(index))


def _runs_along(state: State, region: Region, read: Read, most: int | None = None) -> bool:
    """Say whether the columns of a row, `most` bytes at most, lie side by side in memory, and those
    of the next one elsewhere."""
    if any(map(has_read, read.index)):
        return False
    steps = dict(steps_of(state, read))
    inner = region.columns[-1]
    length, apart = state.extents[inner], steps.get(Sym(region.rows[-1]))
    if steps.get(Sym(inner)) != 1 or type(length) is not int or not apart:
        return False
    return most is None or length * state.body.type(read.tensor).dtype.bytes <= most


def steps_of(state: State, read: Read) -> Iterator[tuple[Expr, int]]:
    """Yield by how many elements each loop moves a read; nothing where a size varies."""
    strides = state.body.strides(read.tensor)
    if any(type(stride) is not int for stride in strides):
        return
    offset: Expr = Const(0)
    for entry, stride in zip(read.index, strides, strict=True):
        offset = Call("add", (offset, Call("mul", (entry, Const(stride)))))
    _, terms = algebra.affine(state.simplify(offset))
    yield from terms.items()
