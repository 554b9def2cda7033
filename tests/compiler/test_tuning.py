"""What was measured of a kernel decides how it is computed, and every way computes the same.

Nothing here depends on how fast anything is: measurements are written by hand, the clock is ours.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

import tilewright as tw
from tilewright.autodiff import reverse
from tilewright.capture import capture
from tilewright.compiler import Built, Options, build, faster
from tilewright.compiler.choices import LIBRARY, OWN, Asked, usual_knobs
from tilewright.compiler.tuning import Limits, Tuned, kernels_of, program_of, tune
from tilewright.graph.evaluate import evaluate
from tilewright.kernels import Tiling
from tilewright.program import LibraryCall, flat
from tilewright.runtime import Executable
from tilewright.tune import Measured, Store, Timing, show_tiling, this_processor

LIMITS = Limits((("float32", 1e11), ("float64", 5e10)), 1e10)
USUAL = show_tiling(usual_knobs(Options()))
DEEP = show_tiling(Tiling(depth=384, tiles=8))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store(this_processor(), tmp_path, shipped=None)


def product(m: int = 200, n: int = 120, k: int = 300) -> tuple[Callable[..., Tensor], list[Tensor]]:
    return torch.matmul, [torch.randn(m, k), torch.randn(k, n)]


def convolution() -> tuple[Callable[..., Tensor], list[Tensor]]:
    return torch.conv2d, [torch.randn(2, 4, 12, 12), torch.randn(8, 4, 3, 3)]


def kernels(function: Callable[..., Tensor], inputs: list[Tensor], store: Store) -> list[Asked]:
    return [asked for asked, _ in kernels_of(capture(function, *inputs).graph, Options(), store)]


def keep(store: Store, asked: Asked, **seconds: float) -> None:
    """Write down what the ways took: usual, library, own, and deep for other knobs."""
    names = {"usual": asked.default, "library": LIBRARY, "own": OWN, "deep": DEEP}
    timings = tuple(Timing(names[way], s, 0.99 * s, 1.01 * s, 9) for way, s in seconds.items())
    measured = Measured(store.processor, asked.kernel, asked.recipe, asked.flops, timings)
    store.put(measured)


def compiled(
    function: Callable[..., Tensor], inputs: list[Tensor], store: Store, **options: bool
) -> Built:
    """Compile, check against torch in double precision, and return what was compiled."""
    built = build(capture(function, *inputs).graph, Options(**options), store)
    (found,) = built.run(inputs)
    exact = function(*(x.double() for x in inputs))
    assert torch.allclose(found.double(), exact, rtol=1e-4, atol=1e-4)
    return built


def calls(built: Built) -> int:
    return sum(isinstance(item, LibraryCall) for item in flat(built.program.instructions))


def test_a_small_product_is_the_library_s_where_that_was_faster(store: Store) -> None:
    case = product()
    (asked,) = kernels(*case, store)
    assert asked.default == USUAL
    assert calls(compiled(*case, store)) == 0
    keep(store, asked, usual=0.3, library=0.2)
    built = compiled(*case, store)
    assert calls(built) == 1
    assert "contraction by aten.mm.out; tuned: 1.50x over default" in built.explain()


def test_a_large_product_is_ours_where_that_was_faster(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faster, "library_vector", lambda: 64)  # it is the usual way there
    monkeypatch.setattr(faster, "is_library_at_home", lambda: True)
    function, operands = product(300, 300, 300)
    case = function, [x.double() for x in operands]
    (asked,) = kernels(*case, store)
    assert asked.default == LIBRARY
    assert calls(compiled(*case, store)) == 1
    keep(store, asked, library=0.3, deep=0.2)
    built = compiled(*case, store)
    assert calls(built) == 0
    assert "tuned: 1.50x over default, library 1.00x" in built.explain()


def test_other_knobs_are_taken_where_they_were_faster(store: Store) -> None:
    case = product()
    (asked,) = kernels(*case, store)
    keep(store, asked, usual=0.3, library=0.6, deep=0.25)
    built = compiled(*case, store)
    assert "tuned: 1.20x over default, library 0.50x" in built.explain()
    assert any("384, 64, 8,\n" in kernel.text for kernel in built.program.kernels)


def test_what_was_not_faster_is_told_and_not_taken(store: Store) -> None:
    case = product()
    (asked,) = kernels(*case, store)
    keep(store, asked, usual=0.3, library=0.4)
    built = compiled(*case, store)
    assert calls(built) == 0
    assert "tuned: the default is best, library 0.75x" in built.explain()


def test_measurements_are_ignored_where_that_is_asked(store: Store) -> None:
    case = product()
    (asked,) = kernels(*case, store)
    keep(store, asked, usual=0.3, library=0.2)
    built = compiled(*case, store, tuned=False)
    assert calls(built) == 0
    assert "tuned" not in built.explain()


def test_no_measurement_brings_a_call_that_is_forbidden(store: Store) -> None:
    case = product()
    (asked,) = kernels(*case, store)
    keep(store, asked, usual=0.3, library=0.1, deep=0.2)
    built = compiled(*case, store, library=False)
    assert calls(built) == 0
    assert "tuned: 1.50x over default, library 3.00x" in built.explain()


def test_a_way_that_nobody_knows_is_not_taken(store: Store) -> None:
    case = product()
    (asked,) = kernels(*case, store)
    timings = (Timing(asked.default, 0.3, 0.3, 0.3, 9), Timing("magic=1", 0.1, 0.1, 0.1, 9))
    store.put(Measured(store.processor, asked.kernel, asked.recipe, 1, timings))
    assert calls(compiled(*case, store)) == 0


@pytest.mark.parametrize(("way", "made"), [(LIBRARY, 1), (OWN, 0)])
def test_a_convolution_is_whose_it_was_measured_to_be(store: Store, way: str, made: int) -> None:
    case = convolution()
    asked = next(one for one in kernels(*case, store) if one.kernel.startswith("convolution"))
    keep(store, asked, library=0.3 - 0.1 * made, own=0.2 + 0.1 * made)
    built = compiled(*case, store)
    assert calls(built) == made
    reason = "tuned" if way == asked.default else "tuned: 1.50x over default"
    assert reason in built.explain()


def test_a_small_product_in_a_loop_is_not_asked_for(store: Store) -> None:
    cell, x = torch.nn.LSTM(16, 16), torch.randn(40, 4, 16)
    graph = capture(cell, x).graph
    inside = [asked.title for asked, _ in kernels_of(graph, Options(), store)]
    built = build(graph, Options(), store)
    assert "[4, 16] @ [16, 64] f32" in built.explain()
    assert "[4, 16] @ [16, 64] f32" not in inside


def attention(q: Tensor, k: Tensor) -> Tensor:
    return torch.bmm(q.transpose(1, 2), k) * 0.5


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.matmul, ((33, 70), (70, 45))),
        (lambda a, b: a.t() @ b.t(), ((70, 33), (45, 70))),
        (lambda a, b: a[:, 3:60] @ b[::2], ((33, 70), (114, 45))),
        (lambda a, b: a.flip(0) @ b, ((33, 70), (70, 45))),
        (attention, ((3, 20, 17), (3, 20, 9))),
        (torch.conv2d, ((2, 4, 9, 9), (6, 4, 3, 3))),
        (torch.conv2d, ((1, 16, 32, 32), (16, 16, 3, 3))),
    ],
)
def test_every_way_computes_the_same(
    store: Store, function: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    found = kernels(function, [torch.randn(shape) for shape in shapes], store)
    assert found
    for asked in found:
        for way in (asked.default, *asked.ways, *([DEEP] if asked.product else [])):
            program = program_of(asked, way, Options(), store)
            flat_ = [np.random.default_rng(0).standard_normal(s) for s in sizes(program)]
            memory = [x.astype(np.float32) for x in flat_]
            (made,) = Executable(program).run([torch.from_numpy(x) for x in memory])
            (exact,) = evaluate(asked.graph, operands(asked, program, memory), wide=True)
            assert np.allclose(made.numpy(), exact, rtol=1e-3, atol=1e-3), (asked.kernel, way)


def sizes(program: tw.Program) -> list[tuple[int, ...]]:
    return [program.buffer(item.buffer).shape for item in program.inputs]


def operands(asked: Asked, program: tw.Program, memory: list[np.ndarray]) -> list[np.ndarray]:
    """Return what the kernel reads, as its graph has it."""
    lying = dict(asked.lying or ())
    found = []
    for item, array in zip(program.inputs, memory, strict=True):
        view = lying.get(item.buffer)
        if view is not None:
            low = sum(min(0, (n - 1) * s) for n, s in zip(view.shape, view.strides, strict=True))
            strides = [4 * step for step in view.strides]
            array = as_strided(array[-low:], view.shape, strides)
        found.append(array.astype(np.float64))
    return found


# ---------------------------------------------------------------------------------------- the tuner


def ticking() -> Callable[[], float]:
    """A clock that goes on by a second with each look."""
    ticks: Iterator[int] = count()
    return lambda: float(next(ticks))


def tuned(
    case: tuple[Callable[..., Tensor], list[Tensor]], store: Store, s: float, *, again: bool = False
) -> list[Tuned]:
    options = Options()
    found = kernels_of(capture(case[0], *case[1]).graph, options, store)
    given = {"seconds": s, "clock": ticking(), "tensors": torch.from_numpy, "again": again}
    return list(tune(found, options, store, LIMITS, **given))


def three() -> tuple[Callable[..., Tensor], list[Tensor]]:
    def function(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.relu(torch.relu(x @ a) @ b) @ a

    return function, [torch.randn(32, 24), torch.randn(24, 48), torch.randn(48, 24)]


def test_the_most_expensive_kernels_are_measured_first_and_everything_is_kept(store: Store) -> None:
    found = tuned(three(), store, 1e9)
    costs = [row.asked.flops * row.count for row in found]
    assert costs == sorted(costs, reverse=True)
    assert sum(row.count for row in found) == 3
    for row in found:
        assert not row.known
        ways = {timing.choice for timing in row.measured.timings}
        assert {row.asked.default, LIBRARY} <= ways
        assert all(timing.rounds >= 5 for timing in row.measured.timings)
        assert row.measured.timing(row.asked.default).predicted > 0
        assert store.get(row.asked.kernel, row.asked.recipe) == row.measured
        assert row.verdict.gain == 1.0  # the clock gives each way as long


def test_what_is_known_is_not_measured_again(store: Store) -> None:
    first = tuned(three(), store, 1e9)
    again = tuned(three(), store, 0.0)
    assert [row.measured for row in again] == [row.measured for row in first]
    assert all(row.known for row in again)
    assert not any(row.known for row in tuned(three(), store, 1e9, again=True))


def test_a_tuner_without_time_stops_and_goes_on_later(store: Store) -> None:
    every = len(tuned(three(), Store(store.processor, store.entries.folder / "other", None), 1e9))
    assert tuned(three(), store, 0.0) == []
    part = tuned(three(), store, 5.0)
    assert [row.known for row in part] == [False]
    rest = tuned(three(), store, 1e9)
    assert [row.known for row in rest] == [True] + [False] * (every - 1)


def test_a_stopped_tuner_keeps_what_it_measured(store: Store) -> None:
    case = three()
    kernels_ = kernels_of(capture(case[0], *case[1]).graph, Options(), store)
    clock = ticking()

    def tensors(array: np.ndarray) -> Tensor:
        if clock() > 30:
            raise KeyboardInterrupt
        return torch.from_numpy(array)

    given = {"seconds": 1e9, "clock": clock, "tensors": tensors}
    rows = []
    with pytest.raises(KeyboardInterrupt):
        rows.extend(tune(kernels_, Options(), store, LIMITS, **given))
    known = [store.get(one.kernel, one.recipe) for one, _ in kernels_]
    assert known[0] is not None
    assert known[-1] is None


# -------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_computed_in_the_way_that_was_faster(
    store: Store, causal: bool, at: int
) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    inputs = [torch.randn(2, 3, 200, 16) for _ in range(3)]
    (asked,) = kernels(function, inputs, store)
    assert asked.ways == ("queries=128", "queries=64", "queries=32", LIBRARY)
    assert asked.default == "queries=128"  # two of them for each of six heads: enough for threads
    timings = [Timing(way, 0.3, 0.3, 0.3, 9) for way in asked.ways]
    timings[at] = Timing(asked.ways[at], 0.2, 0.2, 0.2, 9)
    store.put(Measured(store.processor, asked.kernel, asked.recipe, 1, tuple(timings)))
    built = compiled(function, inputs, store)
    assert calls(built) == (asked.ways[at] == LIBRARY)
    assert ("tuned: 1.50x over default" in built.explain()) == (at > 0)
    if at < 3:
        assert any(f"* {(128, 64, 32)[at]};" in kernel.text for kernel in built.program.kernels)


@pytest.mark.parametrize("way", [OWN, LIBRARY])
def test_the_gradient_of_attention_is_whose_it_was_measured_to_be(store: Store, way: str) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    inputs = [torch.randn(2, 3, 64, 16) for _ in range(4)]
    graph = capture(function, *inputs[:3]).graph
    joint = reverse(graph, [value.name for value in graph.inputs]).graph
    found = {asked.default: asked for asked, _ in kernels_of(joint, Options(), store)}
    asked = found[OWN]
    timings = (Timing(OWN, 0.3, 0.3, 0.3, 9), Timing(LIBRARY, 0.2, 0.2, 0.2, 9))
    if way == LIBRARY:
        store.put(Measured(store.processor, asked.kernel, asked.recipe, 1, timings))
    built = build(joint, Options(), store)
    assert calls(built) == (way == LIBRARY)
    made = built.run(inputs)
    leaves = [x.double().requires_grad_() for x in inputs[:3]]
    exact = torch.autograd.grad(function(*leaves), leaves, inputs[3].double())
    for one, true in zip(made[1:], exact, strict=True):
        assert torch.allclose(one.double(), true, rtol=1e-4, atol=1e-5)
