"""Squares that are turned near: what is read across by lanes, of any sides and element types."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.kernels.harness import Cases, assert_close, body, random_arrays, run, runnable
from tests.kernels.interpreter import Interpreter
from tests.sweep import few

import tilewright as tw
from tilewright.graph.ir import Graph
from tilewright.kernels import emit
from tilewright.kernels.loops import Buffer, Loop, LoopNest, walk
from tilewright.kernels.loops_check import verify
from tilewright.kernels.loops_text import parse, show
from tilewright.runtime import NATIVE

FORMS = {
    "turned": "x[j, i]",
    "added to itself": "x[j, i] + x[j, i] * 2",
    "beside what lies right": "x[j, i] * z[i, j]",
    "of two": "(x[j, i] + z[i, j]) * w[j, i]",
    "with a row": "x[j, i] + v[j]",
}


def turned(source: random.Random, dtype: str, form: str) -> Graph:
    """Return a body that reads across what it writes along."""
    m, n = (source.choice([8, 9, 15, 16, 17, 24, 31, 40, 64, 77, 100]) for _ in range(2))
    shapes = {"x": (m, n), "w": (m, n), "z": (n, m), "v": (m,)}
    inputs = {
        name: f"{dtype}[{', '.join(map(str, shape))}]"
        for name, shape in shapes.items()
        if f"{name}[" in form
    }
    return body(inputs, {"y": f"{dtype}[{n}, {m}]: y[i<{n}, j<{m}] = {form}"})


CASES = Cases()
SOURCE = random.Random(0)
for dtype in ("f32", "i32", "bf16", "f16", "i16", "f64"):
    for name, form in FORMS.items():
        CASES.add(f"{name} {dtype}", turned(SOURCE, dtype, form))
# Beside what is computed by steps, and what is divided where it is read.
FUNCTIONS = {
    "beside a function": "x[j, i] * exp(z[i, j])",
    "of a function": "tanh(x[j, i])",
    "beside a division": "x[j, i] + v[j // 3]",
    "beside a rest": "x[j, i] + v[j % 5]",
}
for dtype in ("f32", "bf16", "f64"):
    for name, form in FUNCTIONS.items():
        CASES.add(f"{name} {dtype}", turned(SOURCE, dtype, form))
LAST = "f32[3, 25, 7, 40]: y[a<3, b<25, c<7, d<40] = x[a, d, b, c]"
CASES.add("channels last", body({"x": "f32[3, 40, 25, 7]"}, {"y": LAST}))
IMAGE = "f32[196, 40]: y[i<196, j<40] = x[j, i // 14, i % 14] * exp(z[i, j])"
CASES.add("of an image", body({"x": "f32[40, 14, 14]", "z": "f32[196, 40]"}, {"y": IMAGE}))
SLICE = "f32[40, 30]: y[i<40, j<30] = x[j + 9, i + 11]"
CASES.add("of a slice", body({"x": "f32[50, 60]"}, {"y": SLICE}))


@pytest.mark.parametrize("target", few([NATIVE, "x86-64-v3", "x86-64"], NATIVE, "x86-64"))
def test_turned_squares_hold_what_they_should(target: str, tmp_path: Path) -> None:
    library = CASES.compile(tmp_path, *([f"-march={runnable(target)}"] if target else []))
    squares = 0
    for name, (graph, fast, _, _) in CASES.kernels.items():
        arrays = random_arrays(graph, len(name), special=True)
        code, found = run(library, fast, graph, arrays)
        assert code == 0
        function = "exp" in str(graph.nodes) or "tanh" in str(graph.nodes)
        assert_close(graph, arrays, found, ulps=5 if function else 2)  # the oracle rounds twice too
        again = run(library, fast, graph, arrays, parts=3)[1]
        np.testing.assert_array_equal(again[0].view(np.uint8), found[0].view(np.uint8))
        squares += "turn_" in fast.text
        assert name != "of an image" or "turn_4(" in fast.text
    assert squares >= 22


def test_strides_are_those_of_memory(tmp_path: Path) -> None:
    """Rows that lie apart, and of which the last has nothing behind it."""
    cases = Cases()
    graph = body({"x": "f32[19, 21]"}, {"y": "f32[21, 19]: y[i<21, j<19] = x[j, i]"})
    for k, strides in enumerate([(21, 1), (33, 1), (1, 19), (1, 40)]):
        cases.add(f"strides{k}", graph, {"x": strides})
    library = cases.compile(tmp_path)
    for graph, fast, _, strides in cases.kernels.values():
        arrays = random_arrays(graph, 3)
        code, found = run(library, fast, graph, arrays, strides)
        assert code == 0
        np.testing.assert_array_equal(found[0], arrays[0].T)


SQUARES = body({"x": "f32[20, 40]"}, {"y": "f32[40, 20]: y[i<40, j<20] = x[j, i]"})


def interpreted(nest: LoopNest) -> bool:
    """Say whether loops compute what they are to."""
    arrays = random_arrays(SQUARES, 0)
    return bool((Interpreter(nest, arrays, 0).run()["v0"] == arrays[0].T).all())


def test_a_square_is_kept_by_loops_that_mean_the_same() -> None:
    nest = parse(emit(SQUARES).nest)
    verify(nest)
    assert parse(show(nest)) == nest
    assert interpreted(nest)
    mixed = show(nest).replace("k0[(r0-m)*8+(l-0)]", "k0[(r0-m)*8]")
    assert mixed != show(nest)
    assert not interpreted(parse(mixed))
    buffers = [item for item in walk(nest.items) if isinstance(item, Buffer)]
    assert [(buffer.formula, buffer.length) for buffer in buffers] == [("a0", 64)]
    holding = [i for i in walk(nest.items) if isinstance(i, Loop) and buffers[0] in i.items]
    assert [loop.name for loop in holding] == ["n"]


@pytest.mark.parametrize(
    "text",
    [
        "x[j, i] ?? 0.0",  # turned or not: a default of elements that all are there is none
        "x[j - 1, i] ?? 0.0",
        "x[j // 2, i]",
        "x[j, i * 2]",
    ],
)
def test_what_is_no_square_is_read_as_it_lies(text: str, tmp_path: Path) -> None:
    extent = 80 if "* 2" in text else 40
    graph = body({"x": f"f32[24, {extent}]"}, {"y": f"f32[40, 24]: y[i<40, j<24] = {text}"})
    cases = Cases()
    cases.add("one", graph)
    (_, fast, _, _) = cases.kernels["one"]
    arrays = random_arrays(graph, 1)
    code, found = run(cases.compile(tmp_path), fast, graph, arrays)
    assert code == 0
    assert_close(graph, arrays, found, ulps=0)
    if "- 1" in text or "* 2" in text or "//" in text:
        assert "turn_" not in fast.text


def test_a_tensor_and_what_it_is_turned_are_not_mixed_up() -> None:
    torch.manual_seed(0)
    for size in (8, 16, 19, 64):
        x = torch.randn(size, size)
        for f in (lambda x: x + x.t(), lambda x: x.t() - x, lambda x: (x * 2).t() + x.t() * x):
            torch.testing.assert_close(tw.compile(f, x)(x), f(x))


def test_sizes_that_vary_are_right() -> None:
    f = torch.compile(lambda x: x.t().contiguous() * 2, backend="tilewright", dynamic=True)
    for shape in ((30, 50), (8, 8), (100, 9), (17, 200), (1, 64), (3, 5)):
        x = torch.randn(shape)
        assert torch.equal(f(x), x.t() * 2)


def test_halves_are_kept_as_they_are() -> None:
    kernel = emit(body({"x": "bf16[24, 40]"}, {"y": "bf16[40, 24]: y[i<40, j<24] = x[j, i] + 1"}))
    assert "unsigned short k0[64];" in kernel.text
