"""Our matrix products against NumPy in float64: any loops, any number of parts, any vectors."""

import ctypes
import functools
import mmap
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from tests.kernels.harness import runnable
from tests.kernels.products import looped, places, product, sliced, windows
from tests.standalone import Done, Operand, run_standalone, write_kernels
from tests.sweep import few

from tilewright.base.dtypes import BF16, F32, F64, DType
from tilewright.kernels import (
    Emitted,
    Product,
    Tiling,
    emit_product,
    emit_slices,
    merged,
    tiles,
    usual_tiling,
)
from tilewright.kernels.contraction import LIMITS, count
from tilewright.program import KernelSource
from tilewright.runtime import NATIVE
from tilewright.runtime.standalone import UNTOUCHED
from tilewright.runtime.toolchain import build, find_toolchain
from tilewright.tune import has_squares

CANARY = 1e30
LONG = 1025  # terms: more than twice those that any knobs sum at a time
FULL = 512  # terms: as many as knobs sum at a time
LINES = (4, 8, 16, 24)  # columns of slices: a line of cache in each type, and others
NARROW = (1, 3, 17)  # columns of one vector and, on most machines, of more
WIDE = (3, 4, 5, 7, 8, 11, 14, 16, 20, 33)  # places of a line: vectors of one run and of more
MACHINES = few([NATIVE, "x86-64-v3", "x86-64"], NATIVE)  # 64, 32 and 16 bytes to a vector


@functools.cache
def products() -> list[Product]:
    """Shapes around every border of a tile, panel and depth; operands in every order of dims."""
    source = random.Random(0)
    extents = [1, 2, 3, 5, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 47, 64, 100]
    made = [
        product((), 1, 1, 1),
        product((), 130, 300, 600),
        product((), 112, 300, 600),
        product((), 130, 300, 600, "TT"),
        product((2,), 40, 33, 257),
        product((), 90, 300, 600),  # one group of rows, which is packed once for all columns
        replace(product((), 90, 300, 600, "TN"), terms=((600, 260, 300),)),
    ]
    for _ in range(80):
        batch = source.choice([(), (), (3,), (2, 3)])
        rows, columns = source.choice(extents), source.choice(extents)
        length = source.choice([1, 2, 15, 16, 17, 64, 255, 256, 257, 513])
        order = source.choice(["NN", "NT", "TN", "TT"])
        one = product(batch, rows, columns, length, order, source.choice([F32, F64]))
        made.append(replace(one, scale=source.choice([1.0, 1.0, 0.125, -3.7])))
    made.append(replace(made[1], columns=((300, 0, 1),)))  # one column, read again and again
    made.append(replace(made[1], rows=((130, 0, 300),)))
    made.append(replace(made[1], rows=((130, 600, 301),)))  # columns of a wider result
    for dtype, columns in ((F32, 48), (F64, 40)):  # a line more than fills tiles of any machine
        made.append(product((2,), 20, columns, 300, dtype=dtype))
        made += [sliced(made[-1], wide) for wide in LINES if columns % wide == 0]
    made += [product((), rows, columns, 257) for rows in (7, 1) for columns in NARROW]
    made += [windows(wide, taps) for wide in WIDE for taps in (1, 2, 3)]
    made += [windows(wide, 3, turned=True) for wide in (4, 9)] + [windows(9, 3, dtype=F64)]
    made += [product((), 130, 100, LONG, order) for order in ("NN", "NT", "TN", "TT")]
    # Rows of b that lie apart, read by as many tiles as pay for packing them, or one row less.
    made += [
        product((), m, 150, 300, dtype=t) for m in (12, 13, 28, 56, 57, 72, 73) for t in (F32, F64)
    ]
    made += [places(wide, apart) for wide in WIDE for apart in (1, 2, 3)]
    made += [product((), rows, 600, 67, order) for rows in range(1, 6) for order in ("NN", "TN")]
    made += [product((2,), rows, 531, LONG) for rows in (1, 3)]
    made += [product((), rows, 600, FULL) for rows in (1, 2, 30)]
    for rows in (
        1,
        2,
        3,
        4,
        7,
        8,
    ):  # few enough for tiles of three vectors, of panels more than they take
        made += [sliced(product((), rows, 176, terms), 16) for terms in (67, LONG)]
        made.append(replace(product((2,), rows, 176, 67, "NT", F64), scale=0.125))
    made += halved()
    made += in_pairs()
    made += [looped(source) for _ in range(60)]
    # Few rows of few columns, whose terms lie together: threads take rows, but not so few that they
    # sum along the terms.
    made += [product((), m, 10, 128, "NT") for m in (32, 64, 100)]
    made += [sliced(product((), m, 48, LONG), 16) for m in (16, 31, 100)]
    # Rows that lie along the terms and all fall on one set of the first cache: lower tiles.
    made += [product((), m, n, 1024, "NT") for m in (7, 15, 100) for n in (16, 70)]
    made += [product((2,), 33, 48, 1024), product((), 31, 300, 512, "NN", F64)]
    made.append(replace(product((), 40, 20, 700), rows=((40, 1024, 20),)))
    return made


def in_pairs() -> list[Product]:
    """Products of bfloat16."""
    made, pairs = [], random.Random(2)
    for order in ("NN", "NT", "TN", "TT"):
        for shape in (
            (1, 1, 1),
            (3, 5, 7),
            (15, 33, 64),
            (17, 64, 255),
            (130, 100, 2049),
            (15, 33, 2048),
        ):
            made.append(product((), *shape, order, BF16))
        made += [product((), rows, 600, 67, order, BF16) for rows in range(1, 6)]
        made += [product((), rows, 96, 1100, order, BF16) for rows in (2, 30)]
        made.append(product((2,), 9, 48, 70, order, BF16))
    made += [sliced(product((2,), 20, 48, 300, dtype=BF16), 16, pair=2)]
    made += [replace(looped(pairs), dtype=BF16) for _ in range(40)]
    # Columns of words where they lie, lines of them an even or odd number of elements apart.
    for terms in (32, 1024, 1025, 1056):
        along, lines = (((terms, 1, 1),), terms + 30)
        for apart in (lines, lines + 1):
            columns = ((40, apart, 16), (16, 2, 1))
            made.append(Product(BF16, (), ((17, terms, 640),), columns, along))
    return made


def halved() -> list[Product]:
    """Products whose rows and columns are both cut into blocks."""
    even = (128, 128, 32), (128, 64, 32), (100, 100, 100), (112, 128, 32), (192, 64, 128)
    return [*(product((), *shape) for shape in even), product((), 128, 128, 32, "NT")]


def emitted(one: Product) -> Emitted:
    """Return a product's kernel: of every second one of random shape with knobs at random."""
    usual = usual_tiling(64) if count(one.terms) in (LONG, FULL) else Tiling()
    return emit_product(one, tilings().get(one, usual))


@functools.cache
def tilings() -> dict[Product, Tiling]:
    source = random.Random(1)
    knobs = {name: (1, 2, 3, most // 3, most) for name, most in LIMITS}
    return {
        one: Tiling(**{name: source.choice(values) for name, values in knobs.items()})
        for one in (*products()[:85:2], *products()[-60::2])
    }


def compile_products(target: str, kernels: Iterable[Emitted], *flags: str) -> ctypes.CDLL:
    """Compile kernels and the functions that they call; skip what this machine cannot run."""
    found = find_toolchain(runnable(target))
    visible = tuple("-fvisibility=default" if "visibility" in f else f for f in found.flags) + flags
    texts = dict(tiles(dtype) for dtype in (F32, F64, BF16))
    together = "\n".join({made.name: made.text for made in kernels}.values())
    made = build(replace(found, flags=visible), {**texts, "products": together})
    made.target = target  # type: ignore[attr-defined]
    return made


@pytest.fixture(scope="module", params=MACHINES)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return compile_products(request.param, (*map(emitted, products()), *map(laid, SLICES)))


def run(
    library: ctypes.CDLL,
    one: Product,
    memory: Sequence[np.ndarray],
    parts: Sequence[int] | None = None,
    together: int = 1,
) -> None:
    """Run a product's parts, all of those that it wants where none are given, so many in a call."""
    starts = [
        array[first(*lies) :].ctypes.data for array, lies in zip(memory, operands(one), strict=True)
    ]
    made = emitted(one)
    function = library[made.name]
    function.argtypes = (ctypes.c_void_p, *(ctypes.c_long,) * 3)
    parts = range(made.parts) if parts is None else parts
    for k in range(0, len(parts), together):
        part, end = parts[k], parts[min(k + together, len(parts)) - 1] + 1
        assert function((ctypes.c_void_p * 3)(*starts), part, end, len(parts)) == 0


def memory_of(one: Product, source: np.random.Generator) -> list[np.ndarray]:
    """Return a's and b's memory without an element to spare, and c's with some."""
    sizes = [span(shape, strides) for shape, strides in operands(one)]
    a, b = (source.standard_normal(size).astype(one.dtype.numpy) for size in sizes[:2])
    return [a, b, np.full(sizes[2] + 64, CANARY, one.dtype.compute.numpy)]


def operands(one: Product) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return extents and strides of all loops of a, b and c."""
    found = []
    for at, roles in enumerate(((one.rows, 0, one.terms, 0), (one.terms, 1, one.columns, 0))):
        loops = [(loop[0], loop[1 + at]) for loop in one.batch]
        for role, side in (roles[:2], roles[2:]):
            loops += [(loop[0], loop[1 + side]) for loop in role]
        found.append(loops)
    found.append([(loop[0], loop[3]) for loop in one.batch])
    found[2] += [(loop[0], loop[2]) for loop in (*one.rows, *one.columns)]
    return [tuple(zip(*loops, strict=True)) for loops in found]


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))


def first(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements lie before the one whose index is all zeros."""
    return sum((n - 1) * max(-s, 0) for n, s in zip(shape, strides, strict=True))


def view(array: np.ndarray, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    start = array[first(shape, strides) :]
    return as_strided(start, shape, [step * array.itemsize for step in strides])


def views(one: Product, memory: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return a, b and c with as many dims as the batch has, and two."""
    found = []
    for at, (array, lies) in enumerate(zip(memory, operands(one), strict=True)):
        own = view(array, *lies)
        dims = [[one.rows, one.terms], [one.terms, one.columns], [one.rows, one.columns]][at]
        shape = [loop[0] for loop in one.batch] + [count(role) for role in dims]
        found.append(own if own.ndim == len(shape) else own.reshape(shape))
    return found


def assert_equal_numpy(library: ctypes.CDLL, some: Iterable[Product]) -> None:
    """Assert that products are right, and write nothing but their results."""
    source = np.random.default_rng(0)
    for one in some:
        memory = memory_of(one, source)
        run(library, one, memory)
        a, b, c = views(one, memory)
        exact = one.scale * np.matmul(a.astype(np.float64), b.astype(np.float64))
        sizes = abs(one.scale) * np.matmul(abs(a).astype(np.float64), abs(b).astype(np.float64))
        rounding = np.finfo(one.dtype.compute.numpy).eps * (2 + count(one.terms) / 16)
        assert (abs(c - exact) <= rounding * sizes).all(), one
        view(memory[2], *operands(one)[2])[...] = CANARY
        assert (memory[2] == memory[2].dtype.type(CANARY)).all(), f"{one} wrote beside its result"


def assert_nothing_else_is_read(library: ctypes.CDLL, some: Iterable[Product]) -> None:
    """Assert that products read nothing that lies behind their operands."""
    source = np.random.default_rng(0)
    for one in some:
        memory = memory_of(one, source)
        run(library, one, memory)
        with ExitStack() as pages:
            a, b = (pages.enter_context(before_a_wall(array)) for array in memory[:2])
            expected = memory[2].copy()
            run(library, one, (a, b, memory[2]))
            assert np.array_equal(memory[2], expected), one


def test_products_equal_numpy_and_touch_nothing_else(library: ctypes.CDLL) -> None:
    assert_equal_numpy(library, products())


def test_products_read_nothing_but_their_operands(library: ctypes.CDLL) -> None:
    assert_nothing_else_is_read(library, products())


@contextmanager
def before_a_wall(array: np.ndarray) -> Iterator[np.ndarray]:
    """Give a copy whose memory ends where the process may read no further."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None)
    size = -(-array.nbytes // page) * page
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, size + page, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    try:
        assert libc.mprotect(ctypes.c_void_p(start + size), page, 0) == 0
        bytes_ = (ctypes.c_char * array.nbytes).from_address(start + size - array.nbytes)
        copy = np.frombuffer(bytes_, array.dtype)
        copy[:] = array
        yield copy
    finally:
        libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size + page))


def sanitized(library: ctypes.CDLL, some: Iterable[Product], folder: Path) -> str:
    """Return what the sanitizers say of products."""
    source, done = np.random.default_rng(0), list[Done]()
    for one in some:
        a, b, c = memory_of(one, source)
        c = c[: span(*operands(one)[2])]
        c.view(np.uint8)[:] = UNTOUCHED
        run(library, one, (a, b, c))
        pairs = zip((a, b, c), operands(one), strict=True)
        places = [Operand(x, *lies, first(*lies)) for x, lies in pairs]
        done.append(Done(emitted(one), places[:2], places[2:]))
    more = [KernelSource(*tiles(dtype)) for dtype in (F32, F64, BF16)]
    write_kernels(done, folder, more, library.target)
    return run_standalone(folder, "sanitize")


@pytest.mark.sweep
def test_products_pass_the_sanitizers(library: ctypes.CDLL, tmp_path: Path) -> None:
    assert sanitized(library, products(), tmp_path) == ""


def test_half_of_the_parts_is_rows_of_a_tall_product(library: ctypes.CDLL) -> None:
    """But columns where rows are fewer, or are cut in three, or b has to be turned."""
    for one, tall in zip(halved(), (True,) * 3 + (False,) * 3, strict=True):
        memory = memory_of(one, np.random.default_rng(0))
        parts = emitted(one).parts
        run(library, one, memory, range(1))
        whole = memory[2].copy()
        memory[2][:] = CANARY
        pointers = [array.ctypes.data for array in memory]
        function = library[emitted(one).name]
        assert function((ctypes.c_void_p * 3)(*pointers), 0, parts // 2, parts) == 0
        rows, columns = count(one.rows), count(one.columns)
        expected = np.full((rows, columns), CANARY, np.float32)
        half = np.s_[: rows // 2] if tall else np.s_[:, : columns // 2]
        expected[half] = whole[: rows * columns].reshape(rows, columns)[half]
        assert np.array_equal(memory[2][: rows * columns].reshape(rows, columns), expected), one


def assert_parts_change_no_bit(library: ctypes.CDLL, some: Iterable[Product]) -> None:
    source = np.random.default_rng(0)
    for one in some:
        memory = memory_of(one, source)
        run(library, one, memory, range(1))
        whole = memory[2].copy()
        for parts, together in ((7, 1), (12, 5)):
            memory[2][:] = CANARY
            run(library, one, memory, range(parts), together)
            assert np.array_equal(memory[2], whole), one


def test_the_number_of_parts_changes_no_bit(library: ctypes.CDLL) -> None:
    assert_parts_change_no_bit(library, (*products()[:20], *products()[-20:], *in_pairs()[::3]))


@pytest.mark.skipif(not has_squares(), reason="this processor multiplies no squares of bfloat16")
def test_pairs_are_right_where_squares_may_not_be_multiplied() -> None:
    pairs = in_pairs()
    assert_equal_numpy(compile_products(NATIVE, map(emitted, pairs), "-mno-amx-bf16"), pairs)


def test_a_row_alone_has_the_bits_of_that_row_among_others(library: ctypes.CDLL) -> None:
    """A lone chain of sums is rounded as those of larger tiles are."""
    source = np.random.default_rng(0)
    for columns in NARROW:
        memory = memory_of(product((), 7, columns, 257), source)
        run(library, product((), 7, columns, 257), memory)
        a, _, c = views(product((), 7, columns, 257), memory)
        for row in range(7):
            alone = [a[row].copy(), memory[1], np.full(columns + 64, CANARY, np.float32)]
            run(library, product((), 1, columns, 257), alone)
            assert np.array_equal(alone[2][:columns], c[row]), (columns, row)


def test_a_sum_is_rounded_at_most_256_times_in_a_row(library: ctypes.CDLL) -> None:
    """Ones are lost, one by one, beside a large term that came first; together they are not."""
    source = np.random.default_rng(0)
    for rows in (1, 2, 30):
        one = product((), rows, 600, FULL)
        memory = memory_of(one, source)
        a, b, c = views(one, memory)
        a[...], b[...] = 1, 1
        a[:, 0], a[:, 1:256] = 2**24, 0
        run(library, one, memory)
        assert (c == 2**24 + 256).all(), rows


def test_a_block_without_rows_or_columns_computes_nothing(library: ctypes.CDLL) -> None:
    function = library[tiles(F32)[0]]
    function.argtypes = (
        *(ctypes.c_void_p,) * 3,
        *(ctypes.c_long,) * 4,
        *(ctypes.c_void_p,) * 3,
        ctypes.c_float,
        *(ctypes.c_long,) * 3,
        *(ctypes.c_void_p,) * 2,
    )
    function.restype = None
    loop, memory = (ctypes.c_long * 4)(1, 9, 1, 1), np.full(9, CANARY, np.float32)
    for bottom, right in ((2, 9), (3, 4)):
        places = [memory.ctypes.data] * 3
        function(loop, loop, loop, 2, bottom, 4, right, *places, 1.0, 256, 64, 16, None, None)
    assert (memory == np.float32(CANARY)).all()


@pytest.mark.parametrize(("dtype", "odd"), [(F32, 0), (BF16, 0), (BF16, 1)])
def test_what_is_not_finite_stays_in_its_row_and_column(
    library: ctypes.CDLL, dtype: DType, odd: int
) -> None:
    one = next(
        p
        for p in products()
        if p.dtype == dtype and count(p.rows) > 14 and count(p.columns) % 16
        if p.terms[0][0] > 1 and len(p.columns) == 1 and (dtype == F32 or p.terms[0][0] % 2 == odd)
    )
    memory = memory_of(one, np.random.default_rng(0))
    a, b, c = views(one, memory)
    a[..., 3, 0], b[..., 0, 1] = np.nan, np.inf
    run(library, one, memory)
    with np.errstate(invalid="ignore"):
        expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert np.array_equal(np.isnan(c), np.isnan(expected))
    assert np.array_equal(np.isinf(c), np.isinf(expected))


def test_large_products_are_cut_for_many_threads_and_small_ones_are_not() -> None:
    assert emit_product(product((), 32, 64, 64)).parts == 1
    assert emit_product(product((), 1024, 1024, 1024)).parts >= 16
    assert emit_product(product((), 8, 1024, 256)).parts >= 4
    assert emit_product(product((64,), 32, 32, 64)).parts >= 8
    assert [emit_product(product((8,), 32, 32, n)).parts for n in (32, 48, 80)] == [2, 4, 6]


def test_a_product_is_cut_into_as_many_blocks_as_its_knob_says() -> None:
    one = product((), 512, 512, 512)
    few, many = (emit_product(one, Tiling(blocks=blocks)) for blocks in (1, 64))
    assert few.parts < emit_product(one).parts < many.parts


@pytest.mark.parametrize(("dtype", "columns"), [(F32, 48), (F64, 40)])
def test_an_operand_may_lie_in_slices_of_columns(
    library: ctypes.CDLL, dtype: DType, columns: int
) -> None:
    plain = product((2,), 20, columns, 300, dtype=dtype)
    memory = memory_of(plain, np.random.default_rng(0))
    run(library, plain, memory, range(1))
    expected, dense = memory[2].copy(), memory[1].reshape(2, 300, columns)
    for wide in (wide for wide in LINES if columns % wide == 0):
        b = dense.reshape(2, 300, columns // wide, wide)
        memory[1] = np.ascontiguousarray(b.transpose(0, 2, 1, 3)).reshape(-1)
        memory[2][:] = CANARY
        run(library, sliced(plain, wide), memory, range(3))
        assert np.array_equal(memory[2], expected), wide


# Element type, and strides of batch, columns and terms in an operand of [2, 48, 20, 10].
SLICES = [
    (dtype, strides)
    for dtype in (F32, F64, BF16)
    for strides in ((9600, (200,), (10, 1)), (1, (2,), (96, 1920)), (9600, (1,), (480, 48)))
]


def laid(case: tuple[DType, tuple[int, tuple[int], tuple[int, int]]]) -> Emitted:
    dtype, (batch, (columns,), (outer, inner)) = case
    return emit_slices(
        dtype, ((2, batch, 0),), ((48, columns, 0),), ((20, outer, 0), (10, inner, 0))
    )


@pytest.mark.parametrize("at", range(len(SLICES)))
def test_slices_hold_the_columns_of_a_line_and_pairs_of_terms(
    library: ctypes.CDLL, at: int
) -> None:
    (dtype, (batch, (columns,), (outer, inner))), made = SLICES[at], laid(SLICES[at])
    source = np.random.default_rng(0).standard_normal(2 * 48 * 200).astype(dtype.numpy)
    result = np.zeros(source.size + 64, dtype.numpy)
    function = library[made.name]
    function.argtypes = (ctypes.c_void_p, *(ctypes.c_long,) * 3)
    starts = (ctypes.c_void_p * 2)(source.ctypes.data, result.ctypes.data)
    for part in range(3):
        assert function(starts, part, part + 1, 3) == 0
    pair, line = dtype.compute.bytes // dtype.bytes, 64 // dtype.compute.bytes
    own = view(source, (2, 48, 20, 10), (batch, columns, outer, inner))
    whole = own.reshape(2, 48 // line, line, 200 // pair, pair).transpose(0, 1, 3, 2, 4)
    assert np.array_equal(result[: source.size], whole.reshape(-1))
    assert not result[source.size :].any()


def test_loops_that_go_on_are_one() -> None:
    assert merged(((2, 12, 60), (1, 5, 5), (3, 4, 20), (4, 1, 5))) == ((24, 1, 5),)
    assert merged(((3, 4, 21), (4, 1, 5))) == ((3, 4, 21), (4, 1, 5))
    assert merged(((1, 7, 7),)) == ((1, 0, 0),)
