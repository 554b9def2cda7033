"""Our matrix products against NumPy in float64: any strides, any number of parts, any vectors."""

import ctypes
import functools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from tests.sweep import few

from tilewright.base.dtypes import F32, F64, DType
from tilewright.kernels import Emitted, Product, emit_product, tiles
from tilewright.runtime.toolchain import Toolchain, build, find_toolchain

CANARY = 1e30
MACHINES = few(["native", "x86-64-v3", "x86-64"], "native")  # 64, 32 and 16 bytes to a vector


@functools.cache
def products() -> list[Product]:
    """Shapes around every border of a tile, panel and depth; operands in every order of dims."""
    source = random.Random(0)
    extents = [1, 2, 3, 5, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 47, 64, 100]
    made = [
        product((), 1, 1, 1),
        product((), 130, 300, 600),
        product((), 130, 300, 600, "TT"),
        product((2,), 40, 33, 257),
    ]
    for _ in range(80):
        batch = source.choice([(), (), (3,), (2, 3)])
        rows, columns = source.choice(extents), source.choice(extents)
        length = source.choice([1, 2, 15, 16, 17, 64, 255, 256, 257, 513])
        order = source.choice(["NN", "NT", "TN", "TT"])
        one = product(batch, rows, columns, length, order, source.choice([F32, F64]))
        made.append(replace(one, scale=source.choice([1.0, 1.0, 0.125, -3.7])))
    made.append(replace(made[1], b=(0, 1)))  # one row, read again and again
    made.append(replace(made[1], a=(600, 0)))
    made.append(replace(made[1], c=(301, 1)))  # columns of a wider result
    made.append(product((2,), 20, 96, 300))
    made.append(replace(made[-1], b=(300 * 96, 32, 1), slice_=32 * 300))
    return made


def product(
    batch: tuple[int, ...],
    rows: int,
    columns: int,
    length: int,
    order: str = "NN",
    dtype: DType = F32,
) -> Product:
    a = (length, 1) if order[0] == "N" else (1, rows)
    b = (columns, 1) if order[1] == "N" else (1, length)
    outer = [0] * len(batch)
    steps = ([*outer, *a], [*outer, *b], [*outer, columns, 1])
    sizes = (rows * length, length * columns, rows * columns)
    for strides, size in zip(steps, sizes, strict=True):
        step = size
        for at in reversed(range(len(batch))):
            strides[at] = step
            step *= batch[at]
    return Product(dtype, batch, rows, columns, length, *(tuple(strides) for strides in steps))


@pytest.fixture(scope="module", params=MACHINES)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """Compile every product for one kind of machine; skip what this one cannot run."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if (request.param == "x86-64-v3" and "avx2" not in flags) or (
        request.param != "native" and "sse2" not in flags
    ):
        pytest.skip("this processor does not run such code")
    found = find_toolchain()
    given = tuple(f"-march={request.param}" if "-march" in f else f for f in found.flags)
    visible = tuple("-fvisibility=default" if "visibility" in flag else flag for flag in given)
    toolchain: Toolchain = replace(found, flags=visible)
    texts = dict(tiles(dtype) for dtype in (F32, F64))
    kernels = {made.name: made.text for made in map(emit_product, products())}
    return build(toolchain, {**texts, "products": "\n".join(kernels.values())})


def run(
    library: ctypes.CDLL, made: Emitted, memory: Sequence[np.ndarray], parts: Sequence[int]
) -> None:
    pointers = (ctypes.c_void_p * 3)(*(array.ctypes.data for array in memory))
    function = library[made.name]
    function.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long)
    for part in parts:
        assert function(pointers, part, len(parts)) == 0


def memory_of(one: Product, source: np.random.Generator) -> list[np.ndarray]:
    dtype = one.dtype.numpy
    sizes = [span(shape, strides) for shape, strides in operands(one)]
    a, b = (source.standard_normal(size).astype(dtype) for size in sizes[:2])
    return [a, b, np.full(sizes[2] + 64, CANARY, dtype)]


def operands(one: Product) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    m, n, k = one.rows, one.columns, one.length
    return [
        ((*one.batch, *two), strides)
        for two, strides in (((m, k), one.a), ((k, n), one.b), ((m, n), one.c))
    ]


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def view(array: np.ndarray, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    return as_strided(array, shape, [step * array.itemsize for step in strides])


def test_products_equal_numpy_and_touch_nothing_else(library: ctypes.CDLL) -> None:
    source = np.random.default_rng(0)
    for one in products():
        if one.slice_ is not None:
            continue
        made = emit_product(one)
        memory = memory_of(one, source)
        run(library, made, memory, range(made.parts))
        a, b, c = (
            view(array, *operand) for array, operand in zip(memory, operands(one), strict=True)
        )
        exact = one.scale * np.matmul(a.astype(np.float64), b.astype(np.float64))
        sizes = abs(one.scale) * np.matmul(abs(a).astype(np.float64), abs(b).astype(np.float64))
        rounding = np.finfo(one.dtype.numpy).eps * (2 + one.length / 16)
        assert (abs(c - exact) <= rounding * sizes).all(), one
        c[...] = CANARY
        assert (memory[2] == memory[2].dtype.type(CANARY)).all(), f"{one} wrote beside its result"


def test_the_number_of_parts_changes_no_bit(library: ctypes.CDLL) -> None:
    source = np.random.default_rng(0)
    for one in products()[:20]:
        made = emit_product(one)
        memory = memory_of(one, source)
        run(library, made, memory, range(1))
        whole = memory[2].copy()
        memory[2][:] = CANARY
        run(library, made, memory, range(7))
        assert np.array_equal(memory[2], whole), one


def test_what_is_not_finite_stays_in_its_row_and_column(library: ctypes.CDLL) -> None:
    one = next(p for p in products() if p.rows > 14 and p.columns % 16 and p.length > 1)
    made = emit_product(one)
    memory = memory_of(one, np.random.default_rng(0))
    a, b, c = (view(array, *operand) for array, operand in zip(memory, operands(one), strict=True))
    a[..., 3, 0], b[..., 0, 1] = np.nan, np.inf
    run(library, made, memory, range(made.parts))
    with np.errstate(invalid="ignore"):
        expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert np.array_equal(np.isnan(c), np.isnan(expected))
    assert np.array_equal(np.isinf(c), np.isinf(expected))


def test_large_products_are_cut_for_many_threads_and_small_ones_are_not() -> None:
    assert emit_product(product((), 32, 64, 64)).parts == 1
    assert emit_product(product((), 1024, 1024, 1024)).parts >= 16
    assert emit_product(product((), 8, 1024, 256)).parts >= 4
    assert emit_product(product((64,), 32, 32, 64)).parts >= 8


def test_an_operand_may_lie_in_slices_of_columns(library: ctypes.CDLL) -> None:
    plain = product((2,), 20, 96, 300)
    one = replace(plain, b=(300 * 96, 32, 1), slice_=32 * 300)
    memory = memory_of(plain, np.random.default_rng(0))
    run(library, emit_product(plain), memory, range(1))
    expected = memory[2].copy()
    b = memory[1].reshape(2, 300, 3, 32)
    memory[1] = np.ascontiguousarray(b.transpose(0, 2, 1, 3)).reshape(-1)
    memory[2][:] = CANARY
    run(library, emit_product(one), memory, range(3))
    assert np.array_equal(memory[2], expected)
