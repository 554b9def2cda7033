"""Results written past the caches: which are, that they are the same, and what is refused."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import Array, body, compile_all, random_arrays
from tests.kernels.interpreter import Interpreter
from tests.kernels.test_far import scheduled, softmax

from tilewright.base.errors import LoopError
from tilewright.base.syntax import show as show_expr
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Graph
from tilewright.kernels import Emitted, emit, kernel_loops, moved
from tilewright.kernels.loops import Do, Fetch, LoopNest, walk
from tilewright.kernels.loops_check import verify
from tilewright.kernels.loops_text import parse, show
from tilewright.kernels.stream import stream

LINE = 64
GRAPHS: dict[str, Graph] = {
    "pieces": body({"x": "f32[256, 64]"}, {"y": "f32[256, 64]: y[i<256, j<64] = x[i, j] * 3"}),
    "rest": body({"x": "f32[3, 176]"}, {"y": "f32[3, 176]: y[i<3, j<176] = x[i, j] + i"}),
    "one block": body({"x": "f32[5, 48]"}, {"y": "f32[5, 48]: y[i<5, j<48] = x[i, j] + i"}),
    "a tail of no line": body(
        {"x": "f32[2000]", "z": "f32[40]"}, {"y": "f32[40, 112]: y[i<40, j<112] = x[3 * j] * z[i]"}
    ),
    "choice": body(
        {"g": "f32[64, 96]", "x": "f32[64, 96]"},
        {"y": "f32[64, 96]: y[i<64, j<96] = g[i, j] if x[i, j] > 0 else 0"},
    ),
    "bias": body(
        {"x": "f32[9, 96]", "b": "f32[96]"},
        {"y": "f32[9, 96]: y[i<9, j<96] = exp(x[i, j] + b[j])"},
    ),
    "half": body({"x": "f32[7, 320]"}, {"y": "bf16[7, 320]: y[i<7, j<320] = tanh(x[i, j]) + i"}),
    "wide": body({"x": "f64[7, 40]"}, {"y": "f64[7, 40]: y[i<7, j<40] = x[i, j] / 3 + i"}),
    "truth": body({"x": "f32[5, 512]"}, {"y": "bool[5, 512]: y[i<5, j<512] = x[i, j] > i"}),
    "two": body(
        {"x": "f32[6, 128]"},
        {
            "y": "f32[6, 128]: y[i<6, j<128] = x[i, j] + i",
            "z": "bf16[6, 128]: y[i<6, j<128] = x[i, j] * i",
        },
        ("y", "z"),
    ),
    "of several widths": body(
        {"x": "f32[6, 192]"},
        {
            "y": "f64[6, 192]: y[i<6, j<192] = x[i, j] * 3 + i",
            "z": "bool[6, 192]: y[i<6, j<192] = x[i, j] > i",
        },
        ("y", "z"),
    ),
    "gather": body(
        {"t": "f32[9, 96]", "ids": "i64[30]"}, {"y": "f32[30, 96]: y[i<30, j<96] = t[ids[i], j]"}
    ),
    "softmax": softmax("5", "i<5", 160),
    "softmax by blocks": softmax("4, 3", "i<4, k<3", 64),
    "gradient": body(
        {"p": "f32[6, 128]", "g": "f32[6, 128]"},
        {
            "d": "f32[6]: y[i<6] += p[i, j<128] * g[i, j]",
            "x": "f32[6, 128]: y[i<6, j<128] = (g[i, j] - d[i]) * p[i, j]",
        },
    ),
}
ORDINARY: dict[str, Graph] = {
    "rows that begin within a line": body(
        {"x": "f32[5, 99]"}, {"y": "f32[5, 99]: y[i<5, j<99] = x[i, j] + i"}
    ),
    "pieces that are not equally long": body(
        {"x": "f32[200, 999]"}, {"y": "f32[200, 999]: y[i<200, j<999] = x[i, j] + 1"}
    ),
    "square tiles": body({"x": "f32[96, 64]"}, {"y": "f32[64, 96]: y[i<64, j<96] = x[j, i] * 2"}),
    "short rows": body({"x": "f32[16]"}, {"y": "f32[9, 16]: y[i<9, j<16] = x[j] * i"}),
    "sums": body({"x": "f32[64, 96]"}, {"y": "f32[64]: y[i<64] += x[i, j<96]"}),
    "a result that is read again": body(
        {"x": "f32[5, 128]"},
        {
            "e": "f32[5, 128]: y[i<5, j<128] = exp(x[i, j])",
            "t": "f32[5]: y[i<5] += e[i, j<128]",
            "y": "f32[5, 128]: y[i<5, j<128] = e[i, j] / t[i]",
        },
        ("e", "y"),
    ),
}


def streamed(nest: LoopNest) -> set[str]:
    return {item.formula for item in walk(nest.items) if isinstance(item, Do) and item.streamed}


@pytest.mark.parametrize("name", list(GRAPHS))
def test_what_is_streamed_prints_parses_is_right_and_computes_the_same(name: str) -> None:
    graph = GRAPHS[name]
    nest = stream(scheduled(graph))
    assert streamed(nest) == set(nest.body.outputs)
    assert parse(show(nest)) == nest
    verify(nest)
    if name == "gather":
        return  # the interpreter reads no indices
    arrays = random_arrays(graph, 3)
    found = Interpreter(nest, arrays, 3).run()
    for output, expected in zip(nest.body.outputs, evaluate(graph, arrays, wide=True), strict=True):
        np.testing.assert_allclose(found[output], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", list(ORDINARY))
def test_nothing_is_streamed_of(name: str) -> None:
    graph = ORDINARY[name]
    nest = scheduled(graph)
    if name == "a result that is read again":
        assert streamed(stream(nest)) == {"v2"}  # the other result
        return
    assert stream(nest) == nest
    assert emit(graph, cache=1) == emit(graph)


def aligned(size: int, offset: int) -> Array:
    raw = np.full(size + 2 * LINE + offset, 7, np.uint8)
    start = -raw.ctypes.data % LINE + offset
    return raw[start : start + size + LINE]


def run(library: ctypes.CDLL, kernel: Emitted, graph: Graph, offset: int) -> list[bytes]:
    """Run a kernel in two halves on outputs that begin so many bytes after a line."""
    arrays = [np.ascontiguousarray(array) for array in random_arrays(graph, 1)]
    if any(value.type.dtype.name == "i64" for value in graph.inputs):
        arrays[1] %= 9
    sizes = [
        int(np.prod([int(str(dim)) for dim in value.type.shape])) * value.type.dtype.bytes
        for value in graph.outputs
    ]
    outputs = [aligned(size, offset) for size in sizes]
    pointers = [array.ctypes.data for array in (*arrays, *outputs)]
    function = getattr(library, kernel.name)
    function.argtypes = [ctypes.c_void_p, *(ctypes.c_long,) * 3]
    table = (ctypes.c_void_p * len(pointers))(*pointers)
    for part in (1, 0):
        assert function(table, part, part + 1, 2) == 0
    for memory, size in zip(outputs, sizes, strict=True):
        assert (memory[size:] == 7).all(), "a kernel wrote beyond its output"
    return [memory[:size].tobytes() for memory, size in zip(outputs, sizes, strict=True)]


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64"])
def test_streamed_kernels_give_the_same_bits_wherever_results_begin(
    target: str, tmp_path: Path
) -> None:
    made = {name: (emit(graph, check=True, cache=1), emit(graph)) for name, graph in GRAPHS.items()}
    kernels = [kernel for both in made.values() for kernel in both]
    library = compile_all(kernels, tmp_path, f"-march={target}")
    for name, (past, usual) in made.items():
        assert past.streams == ("stream(" in past.text) is True, name
        assert usual.streams == ("stream(" in usual.text) is False, name
        expected = run(library, usual, GRAPHS[name], 0)
        for offset in (0, 8, 32):
            assert run(library, past, GRAPHS[name], offset) == expected, (name, offset)


def test_a_kernel_streams_where_it_moves_more_than_the_cache_holds() -> None:
    graph = GRAPHS["pieces"]  # reads 64 KiB and writes as much
    assert emit(graph, cache=2**17 - 1).streams
    assert not emit(graph, cache=2**17).streams
    assert not emit(graph).streams


def test_nobody_asks_for_lines_that_are_streamed_but_for_where_the_next_page_lies() -> None:
    nest = stream(scheduled(softmax("6", "i<6", 2048)))
    fetched = (item.element for item in walk(nest.items) if isinstance(item, Fetch))
    written = [show_expr(element) for element in fetched if element.tensor == "v3"]
    assert written == ["v3[0, r0*2048+q0//1024*1024+1024]"]


def test_blocks_ask_for_what_the_next_one_reads() -> None:
    nest = stream(scheduled(GRAPHS["choice"]))
    fetched = [item.element for item in walk(nest.items) if isinstance(item, Fetch)]
    assert [element.tensor for element in fetched] == ["v0", *(4 * ["a0"]), *(4 * ["a1"])]
    bias = stream(scheduled(GRAPHS["bias"]))  # what is as large as a row alone is near
    fetched = [item.element for item in walk(bias.items) if isinstance(item, Fetch)]
    assert {element.tensor for element in fetched} == {"v0", "a0"}


def test_the_compiler_sees_where_blocks_end_so_that_a_concatenation_asks_of_no_element() -> None:
    value = "x[i, j] if j < 128 else z[i, j - 128]"
    graph = body(
        {"x": "f32[8, 128]", "z": "f32[8, 128]"}, {"y": f"f32[8, 256]: y[i<8, j<256] = {value}"}
    )
    text = emit(graph, cache=1).text
    assert text.count("stream((char *)") == 2
    assert "q0 < 65; q0 += 64" in text
    assert "q1 < 65; q1 += 64" in text


def test_what_is_streamed_moves_into_no_cache() -> None:
    graph = body({"x": "f32[64, 64]"}, {"y": "f32[64, 64]: y[i<64, j<64] = x[i, j] * 3"})
    parts = [kernel_loops(emit(graph, cache=cache), 64) for cache in (0, 1)]
    usual, past = (moved(made, 1 << 20) for made in parts if made is not None)
    assert (usual, past) == (2 * 4 * 64 * 64, 4 * 64 * 64)


HEAD = "a0: f32[6, 64]\nv0: f32[6, 64]  y[i0<6, i1<64] = a0[i0, i1]\n-> v0\n"
WRONG = {
    "no lanes": HEAD + "parallel r in 0..6:\n  for c in 0..64:\n    stream v0(r, c)\n",
    "lanes that step by rows": HEAD
    + "parallel c in 0..64:\n  lanes r in 0..6:\n    stream v0(r, c)\n",
    "a block within a line": HEAD
    + "parallel r in 0..6:\n  for b in 0..64 by 8:\n    lanes l in 0..8:\n      let c = b + l\n"
    + "      stream v0(r, c)\n",
    "what is read again": HEAD
    + "parallel r in 0..6:\n  lanes c in 0..64:\n    stream v0(r, c)\n    keep v0[r, c]\n",
}


@pytest.mark.parametrize("name", list(WRONG))
def test_the_verifier_refuses_to_stream(name: str) -> None:
    with pytest.raises(LoopError, match="v0 cannot be streamed"):
        verify(parse(WRONG[name]))


def test_the_verifier_takes_what_is_streamed_in_whole_lines() -> None:
    lines = "parallel r in 0..6:\n  for b in 0..64 by 16:\n    lanes l in 0..16:\n"
    verify(parse(HEAD + lines + "      let c = b + l\n      stream v0(r, c)\n"))
