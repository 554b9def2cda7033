"""What half floats that are moved become: the same bits, without a conversion."""

from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import body, compile_all, run

from tilewright.base.dtypes import BY_NAME
from tilewright.kernels import emit

# Name: inputs, steps; the last step is the result.  `T` stands for the type.
MOVES = {
    "copy": ({"x": "T[6, 9]"}, {"y": "T[9, 6]: y[i<9, j<6] = x[j, i]"}),
    "chosen": (
        {"x": "T[40]", "m": "bool[40]"},
        {"y": "T[40]: y[i<40] = x[i] if m[i] else -1.3"},
    ),
    "beyond": ({"x": "T[5]"}, {"y": "T[40]: y[i<40] = (x[i - 3] ?? 65504)"}),
    "where": ({"x": "T[40]"}, {"y": "T[40]: y[i<40] = x[39 - i] where i >= 4 else 2"}),
    "named": ({"x": "T[7, 9]", "k": "i64[8]"}, {"y": "T[8, 9]: y[i<8, j<9] = x[k[i], j]"}),
    "two steps": (
        {"x": "T[40]"},
        {"h": "T[40]: y[i<40] = x[39 - i]", "y": "T[40]: y[i<40] = h[i] if i < 9 else 0.1"},
    ),
    "placed": (
        {"x": "T[4]", "k": "i64[4]", "t": "T[9]"},
        {"y": "T[9]: y[k[i]] = x[i] from t for i<4"},
    ),
}
COMPUTED = {
    "sum": ({"x": "T[40]"}, {"y": "T[40]: y[i<40] = x[i] + x[39 - i]"}),
    "asked": ({"x": "T[40]"}, {"y": "T[40]: y[i<40] = x[i] if x[i] > 0 else 0"}),
    "widened": ({"x": "T[40]"}, {"y": "f32[40]: y[i<40] = x[i]"}),
    "read twice": (
        {"x": "T[40]"},
        {"h": "T[40]: y[i<40] = x[39 - i]", "y": "T[40]: y[i<40] = h[i] * x[i]"},
    ),
}


def _typed(parts: dict[str, str], dtype: str) -> dict[str, str]:
    return {name: text.replace("T[", f"{dtype}[", 1) for name, text in parts.items()}


def _values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return numbers of all sizes, both zeros and infinities, and a NaN with bits of its own."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
    bits.flat[:2] = 0x8000, 0x7F81 if dtype == "bf16" else 0x7E55
    return bits.view(BY_NAME[dtype].numpy)


def _inputs(inputs: dict[str, str], dtype: str) -> list[np.ndarray]:
    graph = body(_typed(inputs, dtype), {"y": "f32[1]: y[i<1] = 0"})
    found = []
    for value in graph.inputs:
        shape = tuple(int(str(n)) for n in value.type.shape)
        kind = value.type.dtype.kind
        made = np.arange(np.prod(shape)).reshape(shape)
        if kind == "float":
            found.append(_values(shape, dtype))
        else:
            found.append(made % 2 == 0 if kind == "bool" else (made * 3 + 1) % 7)
    return found


def _wanted(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """Return what NumPy makes of the arrays."""
    x = arrays[0]
    one = x.dtype.type
    match name:
        case "copy":
            return x.T
        case "chosen":
            return np.where(arrays[1], x, one(-1.3))
        case "beyond":
            made = np.full(40, one(65504))
            made[3:8] = x
            return made
        case "where":
            made = x[::-1].copy()
            made[:4] = one(2)
            return made
        case "named":
            return x[arrays[1]]
        case "two steps":
            made = x[::-1].copy()
            made[9:] = one(0.1)
            return made
    made = arrays[2].copy()
    made[arrays[1]] = x
    return made


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", MOVES)
def test_what_is_moved_keeps_its_bits(name: str, dtype: str, tmp_path: Path) -> None:
    inputs, steps = (_typed(parts, dtype) for parts in MOVES[name])
    graph = body(inputs, steps)
    kernel = emit(graph, check=True)
    for word in ("load_bf16", "store_bf16", "_Float16", "float"):
        assert word not in kernel.text, kernel.text
    arrays = _inputs(MOVES[name][0], dtype)
    code, (made,) = run(compile_all([kernel], tmp_path), kernel, graph, arrays)
    assert code == 0
    np.testing.assert_array_equal(made.view(np.uint16), _wanted(name, arrays).view(np.uint16))


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_from_is_widened(name: str) -> None:
    inputs, steps = (_typed(parts, "bf16") for parts in COMPUTED[name])
    assert "load_bf16" in emit(body(inputs, steps)).text
