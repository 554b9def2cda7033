"""Functions by steps: what they make of blocks of lanes is what they make of an element."""

import ctypes
import re
from typing import Any

import numpy as np
import pytest
from tests.kernels.harness import (
    assert_close,
    body,
    by_lanes,
    compile_all,
    random_arrays,
    run,
)

from tilewright.graph.ir import Graph
from tilewright.kernels import Emitted, emit, emit_naive
from tilewright.kernels.body import canonical
from tilewright.kernels.lanes import has_steps

GELU = "0.5 * {0} * (1 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))"
X = "x[i, j]"
# Bodies, and how many functions of each are taken by steps.
BODIES: dict[str, tuple[int, dict[str, str], dict[str, str], tuple[str, ...]]] = {
    **{
        f"gelu {n}": (
            1,
            {"x": f"f32[5, {n}]", "w": f"f32[{n}]"},
            {
                "a": f"f32[5, {n}]: y[i<5, j<{n}] = x[i, j] + w[j]",
                "y": f"f32[5, {n}]: y[i<5, j<{n}] = {GELU.format('a[i, j]')}",
            },
            (),
        )
        for n in (63, 64, 65, 127, 128, 200)
    },
    "uneven pieces": (
        1,
        {"x": "f32[9973]"},
        {"y": f"f32[9973]: y[i<9973] = {GELU.format('x[i]')}"},
        (),
    ),
    "one in another": (
        2,
        {"x": "f32[5, 200]"},
        {"y": "f32[5, 200]: y[i<5, j<200] = tanh(2 * tanh(x[i, j]) + x[i, j]) * x[i, j]"},
        (),
    ),
    "one after another": (
        3,
        {"x": "f32[3, 150]", "w": "f32[150]"},
        {
            "a": "f32[3, 150]: y[i<3, j<150] = tanh(x[i, j] + w[j])",
            "b": "f32[3, 150]: y[i<3, j<150] = a[i, j] * tanh(w[j] * x[i, j])",
            "c": "f32[3, 150]: y[i<3, j<150] = tanh(b[i, j]) + a[i, j]",
        },
        ("a", "c"),
    ),
    "of a row": (
        0,
        {"x": "f32[3, 150]", "w": "f32[3]"},
        {"y": "f32[3, 150]: y[i<3, j<150] = tanh(w[i]) * x[i, j]"},
        (),
    ),
    "of a sum": (
        1,
        {"x": "f32[3, 150]"},
        {
            "s": "f32[3]: y[i<3] += x[i, j<150]",
            "y": "f32[3, 150]: y[i<3, j<150] = tanh(x[i, j] - s[i])",
        },
        (),
    ),
    "kept": (  # by blocks of fewer lanes
        1,
        {"x": "f32[3, 150]"},
        {
            "t": "f32[3, 150]: y[i<3, j<150] = tanh(x[i, j])",
            "s": "f32[3]: y[i<3] += t[i, j<150]",
            "y": "f32[3, 150]: y[i<3, j<150] = t[i, j] - s[i]",
        },
        (),
    ),
    "silu": (
        1,
        {"x": "bf16[3, 150]"},
        {"y": "bf16[3, 150]: y[i<3, j<150] = x[i, j] * sigmoid(x[i, j])"},
        (),
    ),
    "a cell": (
        5,
        {"p": "f32[3, 400]", "q": "f32[400]", "c": "f32[3, 100]"},
        {
            "g": "f32[3, 400]: y[i<3, j<400] = p[i, j] + q[j]",
            "f": "f32[3, 100]: y[i<3, j<100] = sigmoid(g[i, j + 100])",
            "n": "f32[3, 100]: y[i<3, j<100] = f[i, j] * c[i, j] + sigmoid(g[i, j]) * "
            "tanh(g[i, j + 200])",
            "h": "f32[3, 100]: y[i<3, j<100] = sigmoid(g[i, j + 300]) * tanh(n[i, j])",
        },
        ("f", "n", "h"),
    ),
    "beside what has no steps": (
        0,
        {"x": "f32[3, 150]"},
        {"y": "f32[3, 150]: y[i<3, j<150] = tanh(x[i, j]) * sinh(x[i, j])"},
        (),
    ),
    "exponentials": (
        2,
        {"x": "f32[3, 150]"},
        {"y": "f32[3, 150]: y[i<3, j<150] = exp(x[i, j]) - exp(-x[i, j])"},
        (),
    ),
    **{
        f"softmax of {n}": (
            1,
            {"x": f"f32[5, {n}]"},
            {
                "m": f"f32[5]: y[i<5] max= x[i, j<{n}]",
                "e": f"f32[5, {n}]: y[i<5, j<{n}] = exp(x[i, j] - m[i])",
                "s": f"f32[5]: y[i<5] += e[i, j<{n}]",
                "y": f"f32[5, {n}]: y[i<5, j<{n}] = e[i, j] / s[i]",
            },
            (),
        )
        for n in (1, 31, 64, 65, 96, 200)
    },
    "two sums of exponentials": (
        2,
        {"x": "f32[3, 150]"},
        {
            "s": "f32[3]: y[i<3] += exp(x[i, j<150])",
            "t": "f32[3]: y[i<3] += exp(2 * x[i, j<150]) * x[i, j<150]",
        },
        ("s", "t"),
    ),
    "less what a row gives": (
        2,
        {"x": "f32[3, 150]"},
        {
            "a": "f32[3, 150]: y[i<3, j<150] = tanh(x[i, j])",
            "m": "f32[3]: y[i<3] max= a[i, j<150]",
            "s": "f32[3]: y[i<3] += exp(a[i, j<150] - m[i])",
        },
        (),
    ),
    "a sum of some": (
        0,
        {"x": "f32[3, 150]"},
        {"s": "f32[3]: y[i<3] += exp(x[i, j<150]) where j <= 40 * i"},
        (),
    ),
    "the first of several": (
        0,
        {"x": "f32[3, 150]"},
        {"s": "i64[3]: y[i<3] argmax= exp(x[i, j<150]) at j"},
        (),
    ),
    "bf16": (
        1,
        {"x": "bf16[3, 150]"},
        {"y": f"bf16[3, 150]: y[i<3, j<150] = {GELU.format(X)}"},
        (),
    ),
    "f64": (0, {"x": "f64[150]"}, {"y": "f64[150]: y[i<150] = tanh(x[i])"}, ()),
    "integers": (0, {"x": "i32[150]"}, {"y": "f32[150]: y[i<150] = tanh(x[i])"}, ()),
    "of numbers": (
        0,
        {"x": "f32[150]"},
        {"y": "f32[150]: y[i<150] = x[i] * tanh(0.3 if x[i] > 0 else 0.7)"},
        (),
    ),
    "absent": (
        0,
        {"x": "f32[150]"},
        {"y": "f32[150]: y[i<150] = tanh(x[i - 20] ?? 0.5) + x[i + 30] else 7"},
        (),
    ),
    "where": (
        0,
        {"x": "f32[150]"},
        {"y": "f32[150]: y[i<150] = tanh(x[i]) where x[i] > 0 else 7"},
        (),
    ),
    "pieces": (
        0,
        {"x": "f32[5000]", "z": "f32[3000]"},
        {"y": "f32[8000]: y[j<8000] = tanh(x[j]) if j < 5000 else tanh(z[j - 5000] + 1)"},
        (),
    ),
    "pieces of values": (
        0,
        {"x": "f32[5000]", "z": "f32[3000]"},
        {
            "t": "f32[5000]: y[j<5000] = tanh(x[j])",
            "y": "f32[8000]: y[j<8000] = t[j] if j < 5000 else z[j - 5000]",
        },
        (),
    ),
    "a choice of it": (
        1,
        {"x": "f32[150]"},
        {"y": "f32[150]: y[j<150] = x[j] if tanh(x[j]) > 0.5 else -1"},
        (),
    ),
    "a choice by values": (
        2,
        {"x": "f32[3, 150]", "m": "bool[3, 150]"},
        {
            "y": "f32[3, 150]: y[i<3, j<150] = (x[i, j] if x[i, j] > 1 else log1p(exp(x[i, j]))) "
            "* (0 if m[i, j] else exp(x[i, j]))"
        },
        (),
    ),
    "a choice of what is looked up": (
        0,
        {"x": "f32[3, 150]", "t": "i64[150]", "z": "f32[9]"},
        {"y": "f32[3, 150]: y[i<3, j<150] = x[i, j] if t[j] < 0 else exp(z[t[j]])"},
        (),
    ),
    "a choice of what is looked up at once": (
        1,
        {"x": "f32[3, 150]", "t": "i64[150]", "z": "f32[9]"},
        {"y": "f32[3, 150]: y[i<3, j<150] = x[i, j] if t[j] < 0 else exp(z[t[j] % 9])"},
        (),
    ),
    "a choice of what can be divided": (
        0,
        {"x": "f32[150]", "t": "i64[150]"},
        {"y": "f32[150]: y[j<150] = x[j] if t[j] == 0 else exp(x[j] * (7 // t[j]))"},
        (),
    ),
    "logarithms": (
        2,
        {"x": "f32[3, 150]"},
        {"y": "f32[3, 150]: y[i<3, j<150] = log(abs(x[i, j])) * log1p(x[i, j])"},
        (),
    ),
    "a choice of all lanes": (
        1,
        {"x": "f32[9, 150]", "t": "i64[9]"},
        {"y": "f32[9, 150]: y[i<9, j<150] = 0 if t[i] < 0 else exp(x[i, j]) - 1"},
        (),
    ),
    "choices of all lanes": (
        3,
        {"x": "f32[9, 150]", "t": "i64[9]", "w": "f32[9]"},
        {
            "y": "f32[9, 150]: y[i<9, j<150] = (tanh(erf(x[i, j])) if t[i] < 0 else exp(x[i, j]))"
            " if w[i] > 0 else x[i, j]"
        },
        (),
    ),
    "chosen and not": (
        1,
        {"x": "f32[9, 150]", "w": "f32[9]"},
        {
            "y": "f32[9, 150]: y[i<9, j<150] = tanh(x[i, j]) * "
            "(tanh(x[i, j]) + 1 if w[i] > 0 else 2)"
        },
        (),
    ),
    "chosen either way": (
        1,
        {"x": "f32[9, 150]", "w": "f32[9]"},
        {
            "y": "f32[9, 150]: y[i<9, j<150] = tanh(x[i, j]) + 1 if w[i] > 0"
            " else tanh(x[i, j]) * x[i, j]"
        },
        (),
    ),
    "gelu, with its gradient": (
        2,
        {"x": "f32[5, 200]"},
        {
            "y": "f32[5, 200]: y[i<5, j<200] = x[i, j] * normal_cdf(x[i, j])",
            "g": "f32[5, 200]: y[i<5, j<200] = normal_cdf(x[i, j]) + "
            "x[i, j] * (0.3989422804014327 * exp(-0.5 * (x[i, j] * x[i, j])))",
        },
        ("y", "g"),
    ),
    "gelu by erf, with its gradient": (
        2,
        {"x": "f32[5, 200]"},
        {
            "y": "f32[5, 200]: y[i<5, j<200] = "
            "0.5 * (1 + erf(0.7 * x[i, j])) + x[i, j] * exp(-(x[i, j] * x[i, j]))"
        },
        (),
    ),
    "waves": (
        3,
        {"x": "f32[3, 150]"},
        {"y": "f32[3, 150]: y[i<3, j<150] = sin(x[i, j]) * cos(9 * x[i, j]) + tan(x[i, j])"},
        (),
    ),
    **{
        f"rests in {n}": (
            4,
            {"a": f"{n}[3, 150]", "b": f"{n}[150]"},
            {
                "r": f"{n}[3, 150]: y[i<3, j<150] = a[i, j] % b[j]",
                "s": f"{n}[3, 150]: y[i<3, j<150] = fmod(a[i, j], 3)",
                "t": f"{n}[3, 150]: y[i<3, j<150] = floordiv(b[j], a[i, j]) + (7 % b[j])",
            },
            ("r", "s", "t"),
        )
        for n in ("f32", "f64", "bf16")
    },
    **{
        f"powers in {n}": (
            steps,
            {"a": f"{n}[3, 150]", "b": f"{n}[150]"},
            {"y": f"{n}[3, 150]: y[i<3, j<150] = pow(abs(a[i, j]), b[j]) + b[j]"},
            (),
        )
        for n, steps in (("f32", 0), ("bf16", 1), ("f16", 1))
    },
    "rests of integers": (
        1,
        {"x": "f32[150]", "t": "i64[150]"},
        {"y": "f32[150]: y[i<150] = tanh(x[i]) * (t[i] % 7)"},
        (),
    ),
    "a rest of indices": (
        1,
        {"x": "f32[150]"},
        {"y": "f32[150]: y[i<150] = tanh(x[i]) * (i % 7)"},
        (),
    ),
    "backwards": (1, {"x": "f32[150]"}, {"y": "f32[150]: y[i<150] = tanh(x[149 - i])"}, ()),
    "looked up": (
        1,
        {"x": "f32[6]", "t": "i64[150]"},
        {"y": "f32[150]: y[i<150] = x[t[i]] + tanh(x[t[i]])"},
        (),
    ),
}
Kernels = tuple[dict[str, tuple[Graph, Emitted, Emitted]], ctypes.CDLL]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    made = {}
    for name, (_, inputs, steps, outputs) in BODIES.items():
        graph = body(inputs, steps, outputs)
        stepped = emit(graph, check=True)
        made[name] = graph, stepped, by_lanes(emit_naive(graph), stepped)
    every = [kernel for _, *both in made.values() for kernel in both]
    return made, compile_all(every, tmp_path_factory.mktemp("lanes"))


@pytest.mark.parametrize("name", BODIES)
def test_steps_are_taken_where_all_that_takes_long_has_them(name: str, kernels: Kernels) -> None:
    _, stepped, naive = kernels[0][name]
    # Blocks of lanes, and the last lanes, which fill none.
    parts = sum(bool(re.search(head, stepped.text)) for head in (r"\(long at\d", r"if \(rest\d"))
    found = len(re.findall(r"^ +\w+_f\d\d_lanes\(", stepped.text, re.M))
    assert found == parts * BODIES[name][0]
    assert bool(parts) == bool(BODIES[name][0])
    assert not re.search(r"_lanes\(", naive.text.split(f"int {naive.name}(")[1])


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_steps_change_no_bit(name: str, special: bool, kernels: Kernels) -> None:
    graph, stepped, naive = kernels[0][name]
    arrays = random_arrays(graph, 7, special)
    code, found = run(kernels[1], stepped, graph, arrays)
    usual, expected = run(kernels[1], naive, graph, arrays)
    assert code == usual == (name == "looked up")  # some of the indices are below 0
    if code:
        return
    if not any("+=" in step for step in BODIES[name][2].values()):  # sums have another order
        for mine, other in zip(found, expected, strict=True):
            assert _bits(mine) == _bits(other)
    if not special:
        assert_close(graph, arrays, found, ulps=16)


def test_what_is_looked_up_keeps_its_bits(kernels: Kernels) -> None:
    graph, stepped, naive = kernels[0]["looked up"]
    x, t = random_arrays(graph, 7)
    arrays = [x, np.abs(t)]
    (code, found), (usual, expected) = (
        run(kernels[1], kernel, graph, arrays) for kernel in (stepped, naive)
    )
    assert code == usual == 0
    assert _bits(found[0]) == _bits(expected[0])


def _bits(array: Any) -> bytes:
    """Return the bits of an array; a NaN has but one."""
    plain: np.ndarray = array.astype(np.float64)
    return np.where(np.isnan(plain), np.nan, plain).tobytes()


def test_where_an_element_lies_takes_no_steps() -> None:
    for value, steps in (("x[i // 14, i % 14]", False), ("x[i // 14, i % 14] % 1.5", True)):
        made = body({"x": "f32[14, 14]"}, {"y": f"f32[196]: y[i<196] = {value}"})
        assert has_steps(canonical(made, {})) == steps
