"""Rows that end inside of a vector: against the evaluator, and nothing behind them is read."""

import ctypes
import re
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import Cases, assert_close, body, random_arrays, run, runnable
from tests.kernels.test_contraction import before_a_wall

from tilewright.graph.ir import Graph

WIDTHS = (3, 10, 16, 31, 47, 77, 100)
TARGETS = ("native", "x86-64-v3", "x86-64-v2")
# By name: the type of x, steps of it and of truth values k, and whether lanes beyond the last take
# what changes nothing where a width is over 16 and no multiple of it.
STEPS: dict[str, tuple[str, dict[str, str], bool]] = {
    **{
        f"{op} of {dtype}": (dtype, {"y": f"{dtype}[3]: y[i<3] {op} x[i, j<{{n}}]"}, words)
        for op, dtype, words in (
            ("+=", "f32", True),
            ("max=", "f32", True),
            ("min=", "f64", True),
            ("+=", "f64", True),
            ("max=", "i64", True),
            ("+=", "i32", True),
            ("*=", "f32", True),
            ("+=", "bf16", False),
        )
    },
    "any": ("f32", {"y": "bool[3]: y[i<3] any= x[i, j<{n}] > 1"}, True),
    "sum of exponentials": ("f32", {"y": "f32[3]: y[i<3] += exp(x[i, j<{n}])"}, True),
    "sum of waves": ("f32", {"y": "f32[3]: y[i<3] += sin(x[i, j<{n}]) * tanh(x[i, j])"}, True),
    "exponentials": (
        "f32",
        {"y": "f32[3, {n}]: y[i<3, j<{n}] = exp(x[i, j]) + i * erf(x[i, j])"},
        False,
    ),
    "softmax": (
        "f32",
        {
            "m": "f32[3]: y[i<3] max= x[i, j<{n}]",
            "e": "f32[3, {n}]: y[i<3, j<{n}] = exp(x[i, j] - m[i])",
            "s": "f32[3]: y[i<3] += e[i, j<{n}]",
            "y": "f32[3, {n}]: y[i<3, j<{n}] = e[i, j] / s[i]",
        },
        True,
    ),
    "deviations": (
        "f32",
        {
            "m": "f32[3]: y[i<3] += x[i, j<{n}]",
            "d": "f32[3, {n}]: y[i<3, j<{n}] = x[i, j] - m[i] / {n}",
            "s": "f32[3]: y[i<3] += d[i, j<{n}] * d[i, j]",
            "y": "f32[3, {n}]: y[i<3, j<{n}] = d[i, j] / sqrt(s[i] + 1)",
        },
        True,
    ),
    "backwards": ("f32", {"y": "f32[3]: y[i<3] += x[i, {n} - 1 - j] for j<{n}"}, False),
    "of each two": ("f32", {"y": "f32[3]: y[i<3] += x[i, j<{n}] * x[i, j // 2]"}, False),
    "masked softmax": (
        "f32",
        {
            "k": "bool[3, {n}]: y[i<3, j<{n}] = x[i, j] > 0",
            "h": "f32[3, {n}]: y[i<3, j<{n}] = select(k[i, j], x[i, j], -9.0)",
            "m": "f32[3]: y[i<3] max= h[i, j<{n}]",
            "e": "f32[3, {n}]: y[i<3, j<{n}] = exp(h[i, j] - m[i])",
            "s": "f32[3]: y[i<3] += e[i, j<{n}]",
            "y": "f32[3, {n}]: y[i<3, j<{n}] = e[i, j] / s[i]",
        },
        True,
    ),
    "softmax of what truth values leave": (
        "f32",
        {
            "h": "f32[3, {n}]: y[i<3, j<{n}] = select(k[i, j], x[i, j], -9.0)",
            "m": "f32[3]: y[i<3] max= h[i, j<{n}]",
            "e": "f32[3, {n}]: y[i<3, j<{n}] = exp(h[i, j] - m[i])",
            "s": "f32[3]: y[i<3] += e[i, j<{n}]",
            "y": "f32[3, {n}]: y[i<3, j<{n}] = e[i, j] / s[i]",
        },
        True,
    ),
    "sum of exponentials of signed bytes": (
        "i8",
        {"y": "f32[3]: y[i<3] += exp(f32(x[i, j<{n}]) * 0.05)"},
        True,
    ),
    "exponentials that shared truth values leave": (
        "f32",
        {
            "m": "f32[3]: y[i<3] max= select(k[0, j<{n}], x[i, j], -9.0)",
            "y": "f32[3]: y[i<3] += exp(select(k[2, j<{n}], x[i, {n} - 1 - j], -9.0) - m[i])",
        },
        True,
    ),
    "some": ("f32", {"y": "f32[3]: y[i<3] += x[i, j<{n}] where i <= j"}, False),
    "the first of the largest": ("f32", {"y": "i64[3]: y[i<3] argmax= x[i, j<{n}] at j"}, False),
}
Rows = tuple[Cases, ctypes.CDLL]


@pytest.fixture(scope="module", params=TARGETS)
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    march = request.param if request.param == "native" else runnable(request.param)
    cases = Cases()
    for name, (dtype, steps, _) in STEPS.items():
        for n in WIDTHS:
            cases.add(f"{name}, {n}", rows_of(n, dtype, steps))
    return cases, cases.compile(tmp_path_factory.mktemp("rows"), f"-march={march}")


def rows_of(n: int, dtype: str, steps: dict[str, str]) -> Graph:
    made = {key: step.replace("{n}", str(n)) for key, step in steps.items()}
    masked = any("k[" in step for step in made.values()) and "k" not in made
    return body({"x": f"{dtype}[3, {n}]"} | ({"k": f"bool[3, {n}]"} if masked else {}), made)


def each(rows: Rows, name: str) -> list[tuple[int, Graph]]:
    return [(n, rows[0].kernels[f"{name}, {n}"][0]) for n in WIDTHS]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_rows_of_any_width_equal_the_evaluator(name: str, special: bool, rows: Rows) -> None:
    for n, graph in each(rows, name):
        _, kernel, naive, _ = rows[0].kernels[f"{name}, {n}"]
        arrays = random_arrays(graph, n, special)
        code, found = run(rows[1], kernel, graph, arrays)
        assert code == 0
        if not special:
            assert_close(graph, arrays, found, ulps=64)
            continue
        _, expected = run(rows[1], naive, graph, arrays)
        for mine, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.isnan(mine), np.isnan(other))
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(
                    mine.astype(np.float64),
                    other.astype(np.float64),
                    rtol=1e-2 if STEPS[name][0] == "bf16" else 1e-5,
                    atol=1e-5,
                )


@pytest.mark.parametrize("name", STEPS)
def test_nothing_behind_a_row_is_read(name: str, rows: Rows) -> None:
    for n, graph in each(rows, name):
        kernel = rows[0].kernels[f"{name}, {n}"][1]
        arrays = random_arrays(graph, n)
        _, expected = run(rows[1], kernel, graph, arrays)
        with ExitStack() as pages:
            walled = [
                pages.enter_context(before_a_wall(array.ravel())).reshape(array.shape)
                for array in arrays
            ]
            _, found = run(rows[1], kernel, graph, walled)
        for mine, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("march", TARGETS)
def test_a_nan_is_found_wherever_it_lies(march: str, tmp_path: Path) -> None:
    cases = Cases()
    for n in (*WIDTHS, 512, 600):  # from 512 on there are 64 accumulators
        cases.add(f"largest {n}", rows_of(n, "f32", {"y": "f32[3]: y[i<3] max= x[i, j<{n}]"}))
        cases.add(f"least {n}", rows_of(n, "f64", {"y": "f64[3]: y[i<3] min= x[i, j<{n}]"}))
        some = "f32[3]: y[i<3] max= x[i, j<{n}] where x[i, j] < 1e30 or x[i, j] != x[i, j] else 2"
        cases.add(f"some {n}", rows_of(n, "f32", {"y": some}))
    march = march if march == "native" else runnable(march)
    library = cases.compile(tmp_path, f"-march={march}")
    for graph, kernel, _, _ in cases.kernels.values():
        (x,) = random_arrays(graph, 1)
        for place in range(0, x.shape[1], 1 if x.shape[1] <= 100 else 7):
            with_one = x.copy()
            with_one[1, place] = np.nan
            _, (found,) = run(library, kernel, graph, [with_one])
            np.testing.assert_array_equal(np.isnan(found), [False, True, False])


@pytest.mark.parametrize("march", TARGETS)
def test_bytes_keep_their_sign_as_words(march: str, tmp_path: Path) -> None:
    cases = Cases()
    for n in WIDTHS:
        for dtype in ("u8", "i8"):
            step = {"y": "f32[3]: y[i<3] += exp(f32(x[i, j<{n}]) * 0.01)"}
            cases.add(f"{dtype} {n}", rows_of(n, dtype, step))
    library = cases.compile(tmp_path, f"-march={march if march == 'native' else runnable(march)}")
    for graph, kernel, _, _ in cases.kernels.values():
        (x,) = random_arrays(graph, 1)
        x = np.arange(x.size).astype(x.dtype).reshape(x.shape) * x.dtype.type(37)
        _, (found,) = run(library, kernel, graph, [x])
        np.testing.assert_allclose(found, np.exp(x.astype(np.float64) * 0.01).sum(1), rtol=1e-6)


def test_functions_by_steps_wait_for_no_bytes() -> None:
    for name in ("softmax of what truth values leave", "sum of exponentials of signed bytes"):
        dtype, steps, _ = STEPS[name]
        for n, made in ((15, 0), (16, 1), (100, 1)):
            cases = Cases()
            cases.add(name, rows_of(n, dtype, steps))
            text = cases.kernels[name][1].text
            function = "words_of_i8" if dtype == "i8" else "words_of_bool"
            assert bool(re.findall(rf"{function}\(words\d+, ", text)) == bool(made), (n, text)


@pytest.mark.parametrize("name", STEPS)
def test_lanes_without_terms_run_where_elements_lie_side_by_side(name: str) -> None:
    dtype, steps, filled = STEPS[name]
    for n in (31, 47, 77):
        cases = Cases()
        cases.add(name, rows_of(n, dtype, steps))
        text = cases.kernels[name][1].text
        taken = re.findall(r"^ +(?!const| )[a-z ]+ t\d+ = ", text, re.M)
        assert bool(taken) == filled, (n, text)
