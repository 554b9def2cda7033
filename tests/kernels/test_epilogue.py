"""Products and what follows them in one kernel against NumPy in float64, on any loops."""

import ctypes
import functools
import random
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import runnable
from tests.standalone import Done, Operand, run_standalone, write_kernels
from tests.sweep import few

from tilewright.base.dtypes import F32, F64, DType
from tilewright.graph.ir import Graph
from tilewright.graph.text import parse
from tilewright.kernels import (
    Emitted,
    Epilogue,
    Product,
    Tiling,
    emit_product,
    keeps,
    print_epilogue,
    tiles,
)
from tilewright.program import KernelSource, contiguous
from tilewright.runtime import NATIVE
from tilewright.runtime.toolchain import build, find_toolchain

CANARY = 1e30
MACHINES = few([NATIVE, "x86-64-v3", "x86-64"], NATIVE)


@dataclass(frozen=True, slots=True)
class Case:
    """A product whose result has `shape`, its dims in groups, and what follows it.

    home: whether partial sums lie where a result goes.  scale: of the product.
    """

    shape: tuple[int, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    terms: int
    dtype: DType
    home: bool
    depth: int
    scale: float

    @property
    def left(self) -> tuple[int, ...]:
        return (*(self.shape[d] for d in (*self.batch, *self.rows)), self.terms)

    @property
    def right(self) -> tuple[int, ...]:
        return *self._of(self.batch), self.terms, *self._of(self.columns)

    def _of(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.shape[d] for d in dims)


@functools.cache
def cases() -> list[Case]:
    """Shapes around the borders of tiles, panels and what is taken at a time."""
    source = random.Random(0)
    made = [
        Case((1, 2), (), (0,), (1,), 1, F32, False, 256, 1.0),
        Case((130, 300), (), (0,), (1,), 600, F32, True, 256, 1.0),
        Case((130, 300), (), (0,), (1,), 600, F32, False, 256, 1.0),
        Case((60, 900), (), (0,), (1,), 33, F32, True, 256, 1.0),
    ]
    for _ in range(40):
        count = source.choice([2, 2, 3, 4, 5])
        shape = [source.choice([1, 2, 3, 7, 16, 20, 33, 64]) for _ in range(count)]
        if count == 2:
            shape = [source.choice([5, 15, 57, 140]), source.choice([5, 31, 33, 129, 260])]
        shape[-1] = max(shape[-1], 2)
        dims = list(range(count))
        batch = [d for d in dims[:-1] if count > 2 and source.random() < 0.3]
        rest = [d for d in dims[:-1] if d not in batch]
        rows = [d for d in rest if source.random() < 0.6] or rest[:1]
        columns = [d for d in dims if d not in batch and d not in rows]
        if not rows:
            batch, rows = batch[:-1], batch[-1:]
        case = Case(
            tuple(shape), tuple(batch), tuple(rows), tuple(columns),
            source.choice([1, 8, 100, 257, 520]), source.choice([F32, F32, F64]),
            source.random() < 0.5, source.choice([64, 256]), source.choice([1.0, 1.0, -0.25]),
        )  # fmt: skip
        made.append(case)
    return made


def following(case: Case) -> Graph:
    """Return `d = c + e`, `f = max(d, 0) * x`: e has the last dim, d and f are results."""
    loops = ", ".join(f"i{k}<{n}" for k, n in enumerate(case.shape))
    index = ", ".join(f"i{k}" for k in range(len(case.shape)))
    last, kind = case.shape[-1], case.dtype.name
    whole = f"{kind}[{', '.join(map(str, case.shape))}]"
    return parse(
        f"""graph g(%c : {whole}, %e : {kind}[{last}], %x : {whole}) {{
          %d = {{y[{loops}] = c[{index}] + e[i{len(case.shape) - 1}]}}(%c, %e) : {whole}
          %f = {{y[{loops}] = max(d[{index}], 0) * x[{index}]}}(%d, %x) : {whole}
          return %d, %f
        }}"""
    )


def kernel(case: Case) -> Emitted:
    a = dict(zip((*case.batch, *case.rows, "t"), contiguous(case.left), strict=True))
    b = dict(zip((*case.batch, "t", *case.columns), contiguous(case.right), strict=True))
    c = contiguous(case.shape)
    product = Product(
        case.dtype,
        tuple((case.shape[d], a[d], b[d], c[d]) for d in case.batch),
        tuple((case.shape[d], a[d], c[d]) for d in case.rows),
        tuple((case.shape[d], b[d], c[d]) for d in case.columns),
        ((case.terms, a["t"], b["t"]),),
        case.scale,
    )
    rows = (*case.batch, *case.rows)
    printed = print_epilogue(Epilogue(following(case), {}, rows, case.columns))
    assert printed is not None
    tiling = Tiling(depth=case.depth)
    result = 5 if case.home else 6 if keeps(product, tiling) else None
    return emit_product(product, tiling, printed, result)


@pytest.fixture(scope="module", params=MACHINES)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    found = find_toolchain(runnable(request.param))
    visible = tuple("-fvisibility=default" if "visibility" in f else f for f in found.flags)
    texts = dict(tiles(dtype) for dtype in (F32, F64))
    kernels = {made.name: made.text for made in map(kernel, cases())}
    made = build(replace(found, flags=visible), {**texts, **kernels})
    made.target = request.param  # type: ignore[attr-defined]
    return made


def memory_of(case: Case, source: np.random.Generator) -> list[np.ndarray]:
    """Return a, b, e, x, memory for d, f and sums; some of it behind the results."""
    shapes = (case.left, case.right, case.shape[-1:], case.shape)
    given = [source.standard_normal(shape).astype(case.dtype.numpy) for shape in shapes]
    size = prod(case.shape)
    return given + [np.full(size + 64, CANARY, case.dtype.numpy) for _ in range(3)]


def run(library: ctypes.CDLL, case: Case, memory: list[np.ndarray], parts: int = 0) -> None:
    made = kernel(case)
    function = library[made.name]
    function.argtypes = (ctypes.c_void_p, *(ctypes.c_long,) * 3)
    parts = parts or made.parts
    pointers = (ctypes.c_void_p * len(memory))(*(array.ctypes.data for array in memory))
    for part in range(parts):
        assert function(pointers, part, part + 1, parts) == 0


def test_what_follows_equals_numpy_and_touches_nothing_else(library: ctypes.CDLL) -> None:
    source = np.random.default_rng(0)
    for case in cases():
        memory = memory_of(case, source)
        run(library, case, memory)
        a, b, e, x = (array.astype(np.float64) for array in memory[:4])
        batch, rows, columns = (list(dims) for dims in (case.batch, case.rows, case.columns))
        term, out = len(case.shape), list(range(len(case.shape)))
        sums = np.einsum(a, [*batch, *rows, term], b, [*batch, term, *columns], out)
        sizes = np.einsum(abs(a), [*batch, *rows, term], abs(b), [*batch, term, *columns], out)
        d = case.scale * sums + e
        error = np.finfo(case.dtype.numpy).eps * (2 + case.terms / 16) * (sizes + abs(e) + 1)
        size = prod(case.shape)
        made = [array[:size].reshape(case.shape) for array in memory[4:6]]
        assert (abs(made[0] - d) <= error).all(), case
        assert (abs(made[1] - np.maximum(d, 0) * x) <= error * (1 + abs(x))).all(), case
        for array in memory[4:]:
            assert (array[size:] == array.dtype.type(CANARY)).all(), f"{case} wrote beside"


def test_the_number_of_parts_changes_no_bit(library: ctypes.CDLL) -> None:
    source = np.random.default_rng(0)
    for case in cases():
        memory = memory_of(case, source)
        run(library, case, memory, 1)
        expected = [array.copy() for array in memory[4:6]]
        for parts in (3, 7):
            for array in memory[4:]:
                array[:] = CANARY
            run(library, case, memory, parts)
            for array, whole in zip(memory[4:6], expected, strict=True):
                assert np.array_equal(array, whole), case


@pytest.mark.sweep
def test_what_follows_passes_the_sanitizers(library: ctypes.CDLL, tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    done = []
    for case in cases():
        memory = memory_of(case, source)[:6]
        if keeps_apart(case):
            continue  # the sums' own memory is part of no result that could be compared
        memory[4:] = [array[: prod(case.shape)].reshape(case.shape) for array in memory[4:]]
        for array in memory[4:]:
            array.view(np.uint8)[:] = 0
        run(library, case, memory)
        places = [Operand(x, x.shape, contiguous(x.shape), 0) for x in memory]
        done.append(Done(kernel(case), places[:4], places[4:]))
    more = [KernelSource(*tiles(dtype)) for dtype in (F32, F64)]
    write_kernels(done, tmp_path, more, library.target)
    assert run_standalone(tmp_path, "sanitize") == ""


def keeps_apart(case: Case) -> bool:
    return not case.home and case.terms > case.depth


def test_memory_in_another_direction_and_possible_errors_are_left_to_other_kernels() -> None:
    across = following(Case((8, 6), (), (0,), (1,), 4, F32, False, 256, 1.0))
    assert print_epilogue(Epilogue(across, {}, (0,), (1,))) is not None
    assert print_epilogue(Epilogue(across, {"x": (1, 8)}, (0,), (1,))) is None
    assert print_epilogue(Epilogue(across, {}, (1,), (0,))) is None
    found = parse(
        """graph g(%c : f32[8, 6], %n : i64[6]) {
          %d = {y[i<8, j<6] = c[i, j] * f32(1 // n[j])}(%c, %n) : f32[8, 6]
          return %d
        }"""
    )
    assert print_epilogue(Epilogue(found, {}, (0,), (1,))) is None
