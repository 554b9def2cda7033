"""What the emitter promises beside numbers: names, recipes, faults, parts, vector loops."""

import ctypes
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import body, compile_all, compiler, random_arrays, run, runnable

from tilewright.base.errors import Origin
from tilewright.graph.evaluate import evaluate
from tilewright.graph.evaluate_scalar import uniform
from tilewright.graph.ir import Graph
from tilewright.kernels import Emitted, choose_recipe, emit, emit_naive

Kernels = tuple[dict[str, Graph], dict[str, tuple[Emitted, Emitted]], ctypes.CDLL]
SOFTMAX = {
    "m": "f32[512]: y[i<512] max= x[i, j<1000]",
    "e": "f32[512, 1000]: y[i<512, j<1000] = exp(x[i, j] - m[i])",
    "s": "f32[512]: y[i<512] += e[i, j<1000]",
    "y": "f32[512, 1000]: y[i<512, j<1000] = e[i, j] / s[i]",
}


def softmax() -> Graph:
    return body({"x": "f32[512, 1000]"}, SOFTMAX)


def renamed(steps: dict[str, str], mapping: dict[str, str]) -> dict[str, str]:
    pattern = re.compile(r"\b(" + "|".join(mapping) + r")\b(?=\[| *:|$)")
    return {
        mapping.get(name, name): pattern.sub(lambda m: mapping[m[1]], text)
        for name, text in steps.items()
    }


def test_names_and_origins_do_not_change_a_kernel() -> None:
    plain = softmax()
    other = body({"input_7": "f32[512, 1000]"}, renamed(SOFTMAX, {"x": "input_7", "e": "exp_3"}))
    nodes = tuple(replace(node, origin=Origin("model.py", 3)) for node in other.nodes)
    assert emit(plain) == emit(replace(other, name="layer", nodes=nodes))


def test_what_takes_long_begins_before_what_waits_for_such() -> None:
    # Three that are not taken by steps.
    graph = body(
        {"x": "f32[8, 64]"},
        {
            "g": "f32[8, 64]: y[i<8, j<64] = sinh(x[i, j])",
            "n": "f32[8, 64]: y[i<8, j<64] = g[i, j] * 2",
            "t": "f32[8, 64]: y[i<8, j<64] = sin(n[i, j])",
            "o": "f32[8, 64]: y[i<8, j<64] = erf(x[i, j])",
            "h": "f32[8, 64]: y[i<8, j<64] = o[i, j] * t[i, j]",
        },
        ("n", "h"),
    )
    text = emit(graph).text
    loop = text[text.rindex("#pragma GCC ivdep") :]
    order = [loop.index(f"= {name}_f32(") for name in ("sinh", "erf", "sin")]
    assert order == sorted(order)


def test_accumulators_are_halved_by_loops_of_known_lengths() -> None:
    rest = ["16", "8", "4", "2", "1"]
    halves = re.findall(
        r"#pragma GCC unroll 1\n *for \(long l = 0; l < (\d+); l\+\+\) s\d\[l\] =",
        emit(softmax()).text,
    )
    assert halves == ["32", *rest, *rest]


def test_a_kernel_is_named_by_its_text() -> None:
    a = emit(body({"x": "f32[8]"}, {"y": "f32[8]: y[i<8] = x[i] + 1"}))
    b = emit(body({"x": "f32[8]"}, {"y": "f32[8]: y[i<8] = x[i] + 2"}))
    assert a.name != b.name
    assert re.fullmatch(r"k_[0-9a-f]{16}", a.name)
    assert f"int {a.name}(char **p, long part, long end, long parts)" in a.text


@pytest.mark.parametrize(
    ("inputs", "steps", "recipe"),
    [
        ({"x": "f32[8]"}, {"y": "f32[8]: y[i<8] = x[i] + 1"}, "pointwise: 1 result over 8"),
        (
            {"x": "f32[512, 1000]"},
            SOFTMAX,
            "rows: 3 results over 512 rows of 1000",
        ),
        (
            {"x": "f32[300, 64]"},
            {"y": "f32[64]: y[j<64] += x[i<300, j]"},
            "columns: 1 result over 64 rows of 300, 64 rows side by side",
        ),
        (
            {"x": "f32[64, 48]"},
            {"y": "f32[48, 64]: y[j<48, i<64] = x[i, j]"},
            "pointwise: 1 result over 48x64, in square tiles",
        ),
        (
            {"g": "f32[12, 40]", "t": "i64[12]"},
            {"y": "f32[9, 40]: y[t[r<12], d<40] += g[r, d]"},
            "scatter: v0 lands where an index that is read says, 40 apart",
        ),
        (
            {"g": "f32[4, 12, 40]", "t": "i64[4, 12, 40]"},
            {"y": "f32[4, 12, 9]: y[b<4, c<12, t[b, c, r<40]] += g[b, c, r]"},
            "scatter: v0 lands where an index that is read says, 4x12 apart",
        ),
        (
            {"x": "f32[8, 9, 10]"},
            {
                "a": "f32[8, 9]: y[i<8, j<9] += x[i, j, k<10]",
                "b": "f32[8]: y[i<8] max= a[i, j<9]",
            },
            "naive: v1 and v0 are reduced to different rows; v1 is no scatter",
        ),
    ],
)
def test_recipe_is_chosen_with_a_reason(
    inputs: dict[str, str], steps: dict[str, str], recipe: str
) -> None:
    graph = body(inputs, steps)
    assert choose_recipe(graph) == recipe
    assert emit(graph).recipe == recipe


@pytest.mark.parametrize(
    ("dtype", "width", "side"),
    [("f32", 16, 16), ("f32", 12, 12), ("f32", 17, 8), ("f64", 16, 8), ("bf16", 16, 8)],
)
def test_a_line_of_words_is_turned_as_a_whole(dtype: str, width: int, side: int) -> None:
    shapes = f"{dtype}[{width}, 40]", f"{dtype}[40, {width}]"
    graph = body({"x": shapes[0]}, {"y": f"{shapes[1]}: y[j<40, i<{width}] = x[i, j]"})
    assert f"for n in 0..{width - width % side} by {side}:" in emit(graph).nest


def test_parts_depend_on_the_shape_alone() -> None:
    small = emit(body({"x": "f32[64]"}, {"y": "f32[64]: y[i<64] = x[i] + 1"}))
    large = emit(body({"x": "f32[1000000]"}, {"y": "f32[1000000]: y[i<1000000] = x[i] + 1"}))
    assert small.parts == 1
    assert large.parts == 64
    assert emit(softmax()).parts == 64


def test_two_threads_share_units_evenly_where_there_are_enough() -> None:
    def parts(rows: int, width: int) -> int:
        shape = f"f32[{rows}, {width}]"
        formula = f"{shape}: y[i<{rows}, j<{width}] = exp(x[i, j])"
        return emit(body({"x": shape}, {"y": formula})).parts

    found = {parts(64, width) for width in range(32, 640, 32)}
    assert len(found) > 4
    assert all(n == 1 or n % 2 == 0 for n in found)
    three = body({"x": "f32[3, 65536]"}, {"y": "f32[3]: y[i<3] += exp(x[i, j<65536])"})
    assert emit(three).parts == 3


def test_price_is_that_of_the_formulas() -> None:
    kernel = emit(body({"x": "f32[64]", "z": "f32[64]"}, {"y": "f32[64]: y[i<64] = x[i] * z[i]"}))
    assert kernel.flops == 64
    assert kernel.bytes == 3 * 64 * 4


# ------------------------------------------------------------------------------------------ faults

FAULTS = {
    "gather": ({"w": "f32[7, 3]", "t": "i64[5]"}, "f32[5, 3]: y[i<5, d<3] = w[t[i], d]"),
    "scatter": ({"w": "f32[5, 3]", "t": "i64[5]"}, "f32[7, 3]: y[t[i<5], d<3] += w[i, d]"),
    "guarded": (
        {"w": "f32[7]", "t": "i64[5]"},
        "f32[5]: y[i<5] = w[t[i]] if t[i] != 99 else 0",
    ),
    "where": ({"w": "f32[7]", "t": "i64[5]"}, "f32[5]: y[i<5] = w[t[i]] where t[i] != 99"),
    "reduced": ({"w": "f32[7]", "t": "i64[5]"}, "f32[]: y[] += w[t[i<5]] where t[i] != 99"),
    "empty": ({"w": "f32[0]", "t": "i64[5]"}, "f32[5]: y[i<5] = w[t[i]] where t[i] != 99"),
    "division": ({"w": "i64[7]", "t": "i64[5]"}, "i64[5]: y[i<5] = w[i] // (t[i] - 99)"),
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    graphs = {name: body(inputs, {"y": step}) for name, (inputs, step) in FAULTS.items()}
    made = {name: (emit(graph), emit_naive(graph)) for name, graph in graphs.items()}
    folder = Path(tmp_path_factory.mktemp("faults"))
    return graphs, made, compile_all([k for pair in made.values() for k in pair], folder)


@pytest.mark.parametrize("name", list(FAULTS))
@pytest.mark.parametrize("index", [0, 6, 7, -1, 99, 2**40])
def test_an_index_out_of_range_is_an_error_unless_guarded(
    name: str, index: int, kernels: Kernels
) -> None:
    graphs, made, library = kernels
    arrays = random_arrays(graphs[name], seed=0)
    arrays[1] = np.array([1, 2, index, 0, 3])
    guarded = name in ("guarded", "where", "reduced", "empty") and index == 99
    if name == "empty":
        arrays[1][:] = index
    wrong = not guarded and (not 0 <= index < 7 or name == "empty")
    expected = int(wrong)
    if name == "division":
        expected = 2 * (index == 99)
    for kernel in made[name]:
        code, _ = run(library, kernel, graphs[name], arrays)
        assert code == expected


@pytest.mark.parametrize("wrong", [None, -1, 6, 2**40])
def test_a_row_that_is_asked_for_ahead_changes_nothing(wrong: int | None, tmp_path: Path) -> None:
    graph = body(
        {"t": "f32[6, 70]", "i": "i64[2, 5]", "p": "f32[2, 5, 70]"},
        {"y": "f32[2, 5, 70]: y[b<2, r<5, c<70] = t[i[b, r], c] + p[b, r, c]"},
    )
    kernel = emit(graph, check=True)
    assert "__builtin_prefetch" in kernel.text
    library = compile_all([kernel], tmp_path)
    table, _, added = random_arrays(graph, seed=0)
    chosen = np.array([[5, 0, 3, 3, 1], [2, 4, 0, 5, 1]])
    if wrong is not None:
        chosen[1, 4] = wrong
    for parts in (1, 2, 7):
        code, (found,) = run(library, kernel, graph, [table, chosen, added], parts=parts)
        assert code == (wrong is not None)
        valid = (chosen >= 0) & (chosen < 6)
        np.testing.assert_array_equal(found[valid], (table[np.clip(chosen, 0, 5)] + added)[valid])


def test_uniform_is_philox(tmp_path: Path) -> None:
    graph = body({"s": "i64[]"}, {"y": "f32[4096]: y[i<4096] = uniform(s[], i * 1000003 - 5)"})
    kernel = emit(graph)
    library = compile_all([kernel], tmp_path)
    seed = np.array(0x1234567887654321)
    _, found = run(library, kernel, graph, [seed])
    expected = uniform(seed, np.arange(4096) * 1000003 - 5)
    np.testing.assert_array_equal(found[0], expected)


def test_a_long_chain_is_printed(tmp_path: Path) -> None:
    steps = {"v0": "f32[9]: y[i<9] = x[i] * 0.5"}
    for k in range(1, 150):
        steps[f"v{k}"] = f"f32[9]: y[i<9] = v{k - 1}[i] * 0.5 + v{max(k - 2, 0)}[i] * 0.5"
    graph = body({"x": "f32[9]"}, steps)
    kernel = emit(graph)
    assert kernel.text.count("\n") < 500
    library = compile_all([kernel], tmp_path)
    arrays = random_arrays(graph, seed=1)
    a, b = arrays[0] * np.float32(0.5), arrays[0] * np.float32(0.5)
    for _ in range(1, 150):
        a, b = a * np.float32(0.5) + b * np.float32(0.5), a
    np.testing.assert_array_equal(run(library, kernel, graph, arrays)[1][0], a)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("machine", ["native", "x86-64-v3"])
def test_what_is_read_under_a_condition_has_its_own(
    machine: str, dtype: str, tmp_path: Path
) -> None:
    # GCC 12.2 reads all vectors of a loop that it has written out under the mask of the first.
    if machine != "native":
        runnable(machine)
    types = {"x": f"{dtype}[9, 55]", "b": f"{dtype}[9]", "c": f"{dtype}[9, 55]"}
    graph = body(
        types,
        {
            "r": f"{dtype}[9, 55]: y[i<9, j<55] = 0 if x[i, j] + b[i] <= 0 else x[i, j] + b[i]",
            "m": f"{dtype}[9, 55]: y[i<9, j<55] = 0 if r[i, j] <= 0 else c[i, j]",
            "s": f"{dtype}[9]: y[i<9] += m[i, j<55]",
        },
        ("m", "s"),
    )
    kernel = emit(graph, check=True)
    library, arrays = (
        compile_all([kernel], tmp_path, f"-march={machine}"),
        random_arrays(graph, seed=2),
    )
    code, found = run(library, kernel, graph, arrays)
    assert code == 0
    for ours, exact in zip(found, evaluate(graph, list(arrays)), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-5)


BESIDE = {
    "neighbours": (
        {"x": "f32[3, 21]", "z": "f32[3, 21]"},
        {"y": "f32[3, 42]: y[i<3, j<42] = x[i, j // 2] if j % 2 == 0 else z[i, j // 2]"},
    ),
    "channels last": (
        {"x": "f32[2, 9, 17]"},
        {"y": "f32[2, 17, 3]: y[i<2, j<17, c<3] = x[i, c * 3, j] * 2"},
    ),
    "shuffle": (
        {"x": "f32[8, 5, 19]"},
        {"y": "f32[10, 38]: y[h<10, w<38] = x[h % 2 * 2 + w % 2, h // 2, w // 2]"},
    ),
    "a row of few": ({"x": "f32[4, 5]"}, {"y": "f32[5, 4]: y[i<5, j<4] = x[j, i] + j"}),
    "border": ({"x": "f32[6, 4]"}, {"y": "f32[8, 4]: y[i<8, j<4] = x[i - 1, j - 1]"}),
}


@pytest.mark.parametrize("name", list(BESIDE))
def test_few_elements_beside_each_other_are_right(name: str, tmp_path: Path) -> None:
    graph = body(*BESIDE[name])
    kernel = emit(graph, check=True)
    library, arrays = compile_all([kernel], tmp_path), random_arrays(graph, seed=2)
    code, (found,) = run(library, kernel, graph, arrays)
    assert code == 0
    np.testing.assert_array_equal(found, evaluate(graph, list(arrays))[0])


# ----------------------------------------------------------------------------------------- vectors

VECTORS = {
    "add": ({"x": "f32[9999]", "z": "f32[9999]"}, {"y": "f32[9999]: y[i<9999] = x[i] + z[i]"}),
    "gelu": ({"x": "f32[9999]"}, {"y": "f32[9999]: y[i<9999] = x[i] * normal_cdf(x[i])"}),
    "gelu by erf": (
        {"x": "f32[9999]"},
        {"y": "f32[9999]: y[i<9999] = x[i] * (1 + erf(x[i] * 0.7071067811865476))"},
    ),
    "dropout": (
        {"x": "f32[9999]", "s": "i64[]"},
        {"y": "f32[9999]: y[i<9999] = x[i] * 2 if uniform(s[], i) >= 0.5 else 0"},
    ),
    "softmax": ({"x": "f32[512, 1000]"}, SOFTMAX),
    "layernorm": (
        {"x": "f32[64, 768]", "w": "f32[768]"},
        {
            "m": "f32[64]: y[i<64] += x[i, j<768]",
            "v": "f32[64]: y[i<64] += (x[i, j<768] - m[i] / 768) * (x[i, j] - m[i] / 768)",
            "y": "f32[64, 768]: y[i<64, j<768] = (x[i, j] - m[i]) * rsqrt(v[i]) * w[j]",
        },
    ),
    "colsum": ({"x": "f32[999, 768]"}, {"y": "f32[768]: y[j<768] += x[i<999, j]"}),
    "bf16": ({"x": "bf16[9999]"}, {"y": "bf16[9999]: y[i<9999] = x[i] * 2 + 1"}),
    "pad": ({"x": "f32[99, 99]"}, {"y": "f32[101, 101]: y[i<101, j<101] = x[i - 1, j - 1]"}),
    "shortrows": (
        {"x": "f32[99, 16]", "k": "i64[64]"},
        {"y": "f32[64, 16]: y[i<64, j<16] = x[k[i], j]"},
    ),
    "outer": ({"x": "f32[64]", "z": "f32[16]"}, {"y": "f32[64, 16]: y[i<64, j<16] = x[i] * z[j]"}),
    "words": ({"x": "bf16[99, 99]"}, {"y": "bf16[99, 101]: y[i<99, j<101] = x[i, j - 1]"}),
    "beside": (
        {"x": "f32[64, 99]", "z": "f32[64, 99]"},
        {"y": "f32[64, 198]: y[i<64, j<198] = x[i, j // 2] if j % 2 == 0 else z[i, j // 2]"},
    ),
    "longpad": ({"x": "f32[9990]"}, {"y": "f32[10000]: y[j<10000] = x[j - 7] else 5"}),
    # What one function chooses at its ends decides what the other chooses.
    "softplus": (
        {"x": "f32[9999]"},
        {"y": "f32[9999]: y[i<9999] = x[i] if x[i] > 20 else log1p(exp(x[i]))"},
    ),
    "entropy": ({"x": "f32[9999]"}, {"y": "f32[9999]: y[i<9999] = xlogy(exp(x[i]), exp(x[i]))"}),
}


@pytest.mark.parametrize("name", list(VECTORS))
def test_innermost_loops_are_vectorised(name: str, tmp_path: Path) -> None:
    version = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout
    if "Free Software Foundation" not in version:
        pytest.skip("only gcc says what it has vectorised in this form")
    kernel = emit(body(*VECTORS[name]))
    source = tmp_path / "kernel.c"
    source.write_text(kernel.text)
    done = subprocess.run(
        [*compiler("native", "-fopt-info-vec"), str(source), "-o", str(tmp_path / "kernel.so")],
        capture_output=True,
        text=True,
        check=True,
    )
    vectorised = {int(n) for n in re.findall(r":(\d+):\d+: optimized: loop vec", done.stderr)}
    lines = kernel.text.split("\n")
    wanted = [at + 2 for at, line in enumerate(lines) if "#pragma GCC ivdep" in line]
    assert wanted
    tails = {at for at in wanted if re.search(r"l\d+ < ([1-9]|1[0-5]);", lines[at - 1])}
    assert set(wanted) - tails <= vectorised, lines[min(set(wanted) - tails - vectorised) - 1]


@pytest.mark.parametrize(
    "step",
    [
        "y[t[e<50], d<16] += g[e, d]",
        "y[t[e<50], d<16] += g[e, d + 1]",
        "y[t[e<50], d<16] += g[e, d] where d > 3",
        "y[t[e<50], d<16] = g[e, d] where g[e, d] > 0 else 2",
    ],
)
@pytest.mark.parametrize("wrong", [None, -1, 20, 2**62])
def test_a_term_that_lands_in_no_row_is_an_error_whoever_has_the_rows(
    step: str, wrong: int | None, tmp_path: Path
) -> None:
    graph = body({"t": "i64[50]", "g": "f32[50, 16]"}, {"y": f"f32[20, 16]: {step}"})
    kernel = emit(graph)
    assert "continue" in kernel.text
    library = compile_all([kernel], tmp_path)
    arrays = random_arrays(graph, seed=3)
    arrays[0] = np.arange(50) * 7 % 20
    if wrong is not None:
        arrays[0][30] = wrong
        arrays[1][30, 8] = 1.0
    for parts in (1, 2, 14):
        code, _ = run(library, kernel, graph, arrays, parts=parts)
        assert code == (wrong is not None)


@pytest.mark.parametrize(
    ("made", "step"),
    [
        ("f32[20]: y[i<20] = x[t[i], 0]", "f32[20]: y[i<20] += g[k<50, 0] from z"),
        (
            "f32[20, 16]: y[i<20, d<16] = x[t[i], d]",
            "f32[20, 16]: y[u[e<50], d<16] += g[e, d] from z",
        ),
        (
            "f32[20, 16]: y[i<20, d<16] = x[t[i], d]",
            "f32[20, 16]: y[u[e], d<16] max= g[e<50, d] from z",
        ),
        (
            "f32[16, 20]: y[d<16, i<20] = x[t[i], d]",
            "f32[16, 20]: y[d<16, u[e<50]] += g[e, d] from z",
        ),
    ],
    ids=["rows", "scatter", "extremes", "planes"],
)
@pytest.mark.parametrize("wrong", [None, -1, 20])
def test_an_index_that_chooses_what_terms_are_added_to_is_asked_for(
    made: str, step: str, wrong: int | None, tmp_path: Path
) -> None:
    inputs = {"x": "f32[20, 16]", "t": "i64[20]", "g": "f32[50, 16]", "u": "i64[50]"}
    graph = body(inputs, {"z": made, "y": step}, ("y",))
    kernel = emit(graph)
    library = compile_all([kernel], tmp_path)
    arrays = random_arrays(graph, seed=3)
    arrays[1], arrays[3] = np.arange(20) * 3 % 20, np.arange(50) * 7 % 20
    if wrong is not None:
        arrays[1][7] = wrong
    for parts in (1, 2, 7):
        code, _ = run(library, kernel, graph, arrays, parts=parts)
        assert code == (wrong is not None)
