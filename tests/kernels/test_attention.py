"""Our streaming attention against NumPy in float64: any layout, mask and number of parts."""

import ctypes
import functools
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import finfo
from tests.kernels.harness import runnable
from tests.kernels.test_contraction import (
    CANARY,
    MACHINES,
    UNTOUCHED,
    before_a_wall,
    span,
    view,
)
from tests.standalone import Done, Operand, run_standalone, write_kernels

from tilewright.base.dtypes import BF16, F32, F64, DType
from tilewright.kernels import (
    Attention,
    Emitted,
    Strides,
    attention_source,
    cuts,
    emit_attention,
    emit_attention_grad,
)
from tilewright.program import KernelSource
from tilewright.runtime.toolchain import build, find_toolchain

Array = np.ndarray
FORWARD = (("q", "k", "v", "mask"), ("y", "l"))
GRADIENT = (("dy", "y", "l", "q", "k", "v", "mask"), ("dq", "dk", "dv"))


@dataclass(frozen=True)
class Problem:
    """An attention, and for each tensor its shape and its strides; masks have 1 where they are
    broadcast.  Shapes are (lead, heads, rows, columns), k and v with one head."""

    attention: Attention
    lies: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]


@functools.cache
def problems() -> list[Problem]:
    """Lengths around every border of a panel, a block and a cut; layouts of every kind."""
    source = random.Random(0)
    lengths = [1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 160]
    made = [
        problem(source, 1, 1, 300, 300, 64, 64, causal=True),
        problem(source, 2, 1, 600, 520, 40, 24, causal=True, mask="added"),
        problem(source, 2, 1, 129, 770, 16, 16, mask="kept"),
        problem(source, 1, 2, 140, 150, 256, 256, causal=True),
        problem(source, 1, 1, 140, 150, 160, 100, causal=True),
        problem(source, 1, 1, 140, 270, 128, 128, dtype=F64),
        problem(source, 1, 1, 300, 300, 64, 64, causal=True, dtype=BF16),
        problem(source, 1, 2, 131, 151, 80, 96, causal=True, dtype=BF16),
        problem(source, 1, 1, 600, 521, 33, 40, mask="added", dtype=BF16),
        problem(source, 2, 1, 129, 770, 16, 16, mask="kept", dtype=BF16),
        problem(source, 1, 1, 140, 150, 256, 200, causal=True, dtype=BF16),
    ]
    made += [_masked(kind, dtype) for kind in ("added", "kept") for dtype in (F32, F64, BF16)]
    for _ in range(60):
        made.append(
            problem(
                source,
                source.choice([1, 2, 3]),
                source.choice([1, 1, 2, 3]),
                source.choice(lengths),
                source.choice(lengths),
                source.choice([1, 3, 8, 16, 17, 32, 64]),
                source.choice([1, 5, 8, 16, 20, 64]),
                causal=source.random() < 0.5,
                mask=source.choice(["", "", "added", "kept"]),
                dtype=source.choice([F32, F64, BF16]),
            )
        )
    return made


def problem(
    source: random.Random,
    lead: int,
    heads: int,
    queries: int,
    keys: int,
    width: int,
    depth: int,
    *,
    causal: bool = False,
    mask: str = "",
    dtype: DType = F32,
) -> Problem:
    q, k, v, y = (
        (lead, heads, queries, width),
        (lead, 1, keys, width),
        (lead, 1, keys, depth),
        (lead, heads, queries, depth),
    )
    shapes: dict[str, tuple[int, ...]] = {
        "q": q,
        "k": k,
        "v": v,
        "y": y,
        "dy": y,
        "dq": q,
        "dk": k,
        "dv": v,
    }
    shapes["l"] = (lead, heads, queries, 1)
    if mask:
        whole = (lead, heads, queries, keys)
        shapes["mask"] = tuple(source.choice([1, n, n]) for n in whole)
    lies = {name: (shape, _strides(source, shape)) for name, shape in shapes.items()}
    if len(cuts(_attention(lies, dtype, causal, mask))) > 2:
        lies["dq"] = (q, _row_major(q))  # the pieces lie one after the other
    return Problem(_attention(lies, dtype, causal, mask), lies)


def _attention(
    lies: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
    dtype: DType,
    causal: bool,
    mask: str,
) -> Attention:
    (lead, heads, queries, width), _ = lies["q"]
    (_, _, keys, depth), _ = lies["v"]
    tensors = []
    for name, (shape, strides) in lies.items():
        steps = [0 if n == 1 else step for n, step in zip(shape, strides, strict=True)]
        tensors.append((name, Strides((steps[0],), *steps[1:])))
    sizes = (queries, keys, width, depth)
    return Attention(dtype, (lead,), heads, *sizes, causal, mask, 0.3, tuple(tensors))


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[at + 1 :])) for at in range(len(shape)))


def _strides(source: random.Random, shape: Sequence[int]) -> tuple[int, ...]:
    """Return strides of dims in some order, most often with dense rows, with gaps at places."""
    order = list(range(len(shape)))
    if source.random() < 0.7:
        order[:-1] = source.sample(order[:-1], len(order) - 1)
    else:
        source.shuffle(order)
    strides, step = [0] * len(shape), 1
    for at in reversed(order):
        strides[at] = step
        step *= shape[at]
        step += source.choice([0, 0, 3])
    return tuple(strides)


def kernels(one: Problem) -> tuple[Emitted, Emitted]:
    return emit_attention(one.attention), emit_attention_grad(one.attention)


@pytest.fixture(scope="module", params=MACHINES)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """Compile every problem for one kind of machine; skip what this one cannot run."""
    found = find_toolchain(runnable(request.param))
    visible = tuple("-fvisibility=default" if "visibility" in f else f for f in found.flags)
    texts = {}
    for dtype in (F32, F64, BF16):
        for backward in (False, True):
            name, text = attention_source(dtype, backward=backward)
            texts[name] = text
        if dtype == BF16:
            continue  # its powers are those of F32
        name = f"powers_{dtype.name}"
        before, _, _ = text.partition("/* ----")  # all that comes in front of the products
        texts[name] = before + POWERS.replace("POWERS", name)
    made = {kernel.name: kernel.text for one in problems() for kernel in kernels(one)}
    built = build(replace(found, flags=visible), {**texts, "problems": "\n".join(made.values())})
    built.target = request.param  # type: ignore[attr-defined]
    return built


POWERS = """
void POWERS(const T *x, T *y, long n) {
  for (long i = 0; i < n; i++) y[i] = x[i];
  powers_of(n / LANES, y, LANES, (V){});
}
"""


class Memory:
    """The memory of a problem's tensors by name: operands without an element to spare, results
    with some."""

    def __init__(self, one: Problem, seed: int = 0) -> None:
        source = np.random.default_rng(seed)
        self.one = one
        self.arrays: dict[str, Array] = {}
        for name, lies in one.lies.items():
            size = span(*lies)
            sums = one.attention.dtype.compute
            dtype = (sums if name in ("l", "dq") else one.attention.dtype).numpy
            if name in ("y", "l", "dq", "dk", "dv"):
                pieces = len(cuts(one.attention)) - 1 if name == "dq" else 1
                self.arrays[name] = np.full(size * pieces + 64, CANARY, dtype)
            elif name == "mask" and one.attention.mask == "kept":
                self.arrays[name] = source.random(size) < 0.6
            else:
                self.arrays[name] = source.standard_normal(size).astype(dtype)

    def __getitem__(self, name: str) -> Array:
        """The tensor; of dq, the sum of what the pieces give."""
        shape, strides = self.one.lies[name]
        pieces = len(cuts(self.one.attention)) - 1 if name == "dq" else 1
        if pieces == 1:
            return view(self.arrays[name], shape, strides)
        size = int(np.prod(shape))
        return np.asarray(self.arrays[name][: pieces * size].reshape(pieces, *shape).sum(0))

    def run(
        self,
        library: ctypes.CDLL,
        parts: int | None = None,
        together: int = 1,
        given: Mapping[str, Array] | None = None,
    ) -> "Memory":
        """Run forward and backward, so many parts in a call, the last ones first."""
        arrays = self.arrays | dict(given or {})
        for kernel, (reads, writes) in zip(kernels(self.one), (FORWARD, GRADIENT), strict=True):
            names = [name for name in (*reads, *writes) if name in arrays]
            table = (ctypes.c_void_p * len(names))(*(arrays[n].ctypes.data for n in names))
            function = library[kernel.name]
            function.argtypes = (ctypes.c_void_p, *(ctypes.c_long,) * 3)
            count = kernel.parts if parts is None else parts
            for end in range(count, 0, -together):
                assert function(table, max(end - together, 0), end, count) == 0
        return self


def exact(one: Problem, memory: Memory) -> dict[str, Array]:
    """Return results and gradients in float64, from the whole matrix of probabilities."""
    a = one.attention
    q, k, v, dy = (memory[name].astype(np.float64) for name in ("q", "k", "v", "dy"))
    with np.errstate(all="ignore"):
        scores = a.scale * (q @ k.swapaxes(-1, -2))
        if a.mask == "added":
            scores = scores + memory["mask"].astype(np.float64)
        elif a.mask == "kept":
            scores = np.where(memory["mask"], scores, -np.inf)
        if a.causal:
            scores = np.where(np.tri(a.queries, a.keys, dtype=bool), scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        powers = np.where(scores == -np.inf, 0.0, np.exp(scores - top))
        total = powers.sum(-1, keepdims=True)
        p = np.where(total == 0, 0.0, powers / total)
        y = p @ v
        ds = p * (dy @ v.swapaxes(-1, -2) - (dy * y).sum(-1, keepdims=True))
        return {
            "y": y,
            "l": np.where(total == 0, -np.inf, np.log(total) + top),
            "dq": a.scale * (ds @ k),
            "dk": a.scale * (ds.swapaxes(-1, -2) @ q).sum(1, keepdims=True),
            "dv": (p.swapaxes(-1, -2) @ dy).sum(1, keepdims=True),
        }


def check(memory: Memory) -> None:
    """Results are those of the whole matrix but for rounding: of sums, and in bfloat16 of
    probabilities, of gradients of scores and of results."""
    one = memory.one
    for name, expected in exact(one, memory).items():
        halves = one.attention.dtype == BF16 and name != "l"
        dtype = one.attention.dtype if halves else one.attention.dtype.compute
        finite, found = np.isfinite(expected), memory[name].astype(np.float64)
        assert np.array_equal(found[~finite], expected[~finite]), (name, one.attention)
        error = abs(found[finite] - expected[finite]).max(initial=0)
        size = max(1.0, abs(expected[finite]).max(initial=0))
        unit = float(finfo(dtype.numpy).eps)
        assert error <= (2 if halves else 32) * unit * size, (name, one.attention)


def test_results_and_gradients_are_those_of_the_whole_matrix(library: ctypes.CDLL) -> None:
    for one in problems():
        check(Memory(one).run(library))


def test_nothing_is_written_beside_the_results(library: ctypes.CDLL) -> None:
    for one in problems():
        memory = Memory(one).run(library)
        for name in ("y", "l", "dq", "dk", "dv"):
            array, (shape, strides) = memory.arrays[name], one.lies[name]
            if name == "dq" and len(cuts(one.attention)) > 2:
                array = array[-64:]
            else:
                view(array, shape, strides)[...] = CANARY
            assert (array == array.dtype.type(CANARY)).all(), (name, one.attention)


def test_nothing_is_read_but_the_operands(library: ctypes.CDLL) -> None:
    for one in problems()[:26]:
        memory = Memory(one).run(library)
        expected = {name: array.copy() for name, array in memory.arrays.items()}
        with ExitStack() as pages:
            walled: dict[str, Array] = {
                name: pages.enter_context(before_a_wall(memory.arrays[name]))
                for name in ("q", "k", "v", "dy", "mask")
                if name in memory.arrays
            }
            memory.run(library, given=walled)
        for name in ("y", "l", "dq", "dk", "dv"):
            assert np.array_equal(memory.arrays[name], expected[name]), (name, one.attention)


@pytest.mark.sweep
def test_attentions_pass_the_sanitizers(library: ctypes.CDLL, tmp_path: Path) -> None:
    done = list[Done]()
    for one in problems()[:26]:
        memory = Memory(one)
        for name in ("y", "l", "dq", "dk", "dv"):
            memory.arrays[name] = memory.arrays[name][:-64]
            memory.arrays[name].view(np.uint8)[:] = UNTOUCHED
        memory.run(library)
        for kernel, both in zip(kernels(one), (FORWARD, GRADIENT), strict=True):
            reads, writes = ([n for n in names if n in memory.arrays] for names in both)
            places = [[Operand(memory.arrays[n]) for n in names] for names in (reads, writes)]
            done.append(Done(kernel, *places))
    pairs = [(dtype, backward) for dtype in (F32, F64, BF16) for backward in (False, True)]
    more = [KernelSource(*attention_source(dtype, backward=b)) for dtype, b in pairs]
    write_kernels(done, tmp_path, more, library.target)
    assert run_standalone(tmp_path, "sanitize") == ""


def test_the_number_of_parts_changes_no_bit(library: ctypes.CDLL) -> None:
    for one in problems()[:26]:
        whole = Memory(one).run(library, 1)
        for parts, together in ((7, 1), (12, 5)):
            other = Memory(one).run(library, parts, together)
            for name in ("y", "l", "dq", "dk", "dv"):
                assert np.array_equal(whole.arrays[name], other.arrays[name]), (name, one)


def _masked(kind: str, dtype: DType) -> Problem:
    source = random.Random(1)
    sizes = (2, 2, 33, 45, 24, 17)
    return next(
        one
        for one in (problem(source, *sizes, mask=kind, dtype=dtype) for _ in range(99))
        if min(one.lies["mask"][0][2:]) > 3
    )


@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("kind", ["added", "kept"])
def test_a_row_that_is_masked_everywhere_gives_zeros(
    library: ctypes.CDLL, kind: str, dtype: DType
) -> None:
    memory = Memory(_masked(kind, dtype))
    memory["mask"][..., 2, :] = -np.inf if kind == "added" else False
    memory.run(library)
    assert (memory["y"][..., 2, :] == 0).all()
    assert (memory["l"][..., 2, :] == -np.inf).all()
    assert (memory["dq"][..., 2, :] == 0).all()
    check(memory)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_in_a_row_of_q_stays_in_that_row(
    library: ctypes.CDLL, value: float, dtype: DType
) -> None:
    one = next(
        one
        for one in problems()
        if one.attention.dtype == dtype and min(one.attention.queries, one.attention.keys) > 3
    )
    memory = Memory(one)
    memory["q"][..., 2, 0] = value
    memory.run(library)
    for name in ("y", "l", "dq"):
        bad = ~np.isfinite(memory[name].astype(np.float32)).all(-1)
        assert bad[..., 2].all(), name
        assert not np.delete(bad, 2, -1).any(), name


def test_the_last_of_an_odd_number_of_keys_has_none_beside_it(library: ctypes.CDLL) -> None:
    """Of some query the power of a score of 0 less its logarithm would be infinite."""
    one = next(
        one
        for one in problems()
        if one.attention.dtype == BF16 and one.attention.keys % 2 and one.attention.queries > 500
    )
    memory, rows = Memory(one), one.attention.queries
    memory["k"][...] = 1
    scores = -60 - 60 * np.arange(rows) / rows
    memory["q"][...] = (scores / (one.attention.scale * one.attention.width))[:, None]
    memory.run(library)
    assert (memory["l"].min(), memory["l"].max()) == (
        pytest.approx(-110, abs=10),
        pytest.approx(-50, abs=10),
    )
    assert np.isfinite(memory["dq"]).all()


@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
def test_a_score_of_minus_infinity_has_no_probability(library: ctypes.CDLL, dtype: DType) -> None:
    memory = Memory(_masked("added", dtype))
    memory["mask"][...] = np.where(memory["mask"] > 0, -np.inf, memory["mask"])
    check(memory.run(library))


def test_powers_are_right_to_two_units_and_zero_below_the_normal_numbers(
    library: ctypes.CDLL,
) -> None:
    for dtype, least in ((F32, -87.0), (F64, -708.0)):
        x = np.concatenate([np.linspace(least, 0, 1_000_000), -np.geomspace(1e-30, 1, 1000)])
        x = np.concatenate([x, [0.0, -np.inf, np.nan, least * 1.1, -1e30, 1e-6, -0.0, 0.0]])
        x = x.astype(dtype.numpy)
        y = np.empty_like(x)
        library[f"powers_{dtype.name}"](
            x.ctypes.data_as(ctypes.c_void_p),
            y.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_long(x.size),
        )
        wide = np.exp(x[:-8].astype(np.longdouble))
        error = abs(y[:-8] - wide) / np.spacing(wide.astype(dtype.numpy))
        assert error.max() <= 2
        assert y[-8] == 1
        assert (y[[-7, -5, -4]] == 0).all()
        assert np.isnan(y[-6])


def test_keys_are_cut_into_units_of_equal_work_where_heads_are_few() -> None:
    source = random.Random(0)
    one = problem(source, 1, 1, 4096, 4096, 64, 64, causal=True).attention
    bounds = cuts(one)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, 4096, 9)
    work = [sum(4096 - key for key in range(*pair)) for pair in pairwise(bounds)]
    assert max(work) <= 1.25 * sum(work) / len(work)
    assert cuts(problem(source, 8, 1, 4096, 4096, 64, 64).attention) == (0, 4096)
    assert cuts(problem(source, 1, 1, 256, 256, 64, 64).attention) == (0, 256)


def test_large_ones_are_cut_for_many_threads_and_small_ones_are_not() -> None:
    source = random.Random(0)
    large, small = (problem(source, 1, 1, n, n, 64, 64) for n in (2048, 16))
    assert [kernel.parts for kernel in kernels(large)] == [8, 8]
    assert [kernel.parts for kernel in kernels(small)] == [1, 1]
