"""The support functions: divisions with a rest are exact, by the short road as by the long one."""

import ctypes
import subprocess
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.base.dtypes import BY_NAME
from tilewright.kernels.support import print_support

from .harness import compiler, runnable

Array = np.ndarray
BLOCK = 64
RESTS = ("fmod", "mod", "floordiv")
TYPES = ("f32", "f64")


@pytest.fixture(scope="module", params=["native", "x86-64-v2"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """Return a call of a function, element by element or by lanes."""
    if request.param != "native":
        runnable(request.param)
    names = [f"{name}_{n}{lanes}" for name in RESTS for n in TYPES for lanes in ("", "_lanes")]
    text = print_support(names)
    for name in RESTS:
        for n in TYPES:
            c = BY_NAME[n].c
            text += f"\nvoid each_{name}_{n}({c} *x, const {c} *y, long n) {{"
            text += f"for (long i = 0; i < n; i++) x[i] = {name}_{n}(x[i], y[i]); }}"
            text += f"\nvoid lanes_{name}_{n}({c} *x, const {c} *y, long n) {{"
            text += f"for (long i = 0; i < n; i += {BLOCK}) "
            text += f"{name}_{n}_lanes(x + i, y + i, {BLOCK}); }}"
    folder = tmp_path_factory.mktemp("support")
    source, made = folder / "support.c", folder / "support.so"
    source.write_text(text)
    command = [*compiler(request.param, "-Wall"), str(source), "-o", str(made), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(made))

    def call(road: str, name: str, a: Array, b: Array) -> Array:
        result = a.copy()
        function = getattr(library, f"{road}_{name}_{'f32' if a.dtype == np.float32 else 'f64'}")
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (result, b)]
        function(*pointers, ctypes.c_long(result.size))
        return result

    return call


def reference(name: str, a: Array, b: Array) -> Array:
    """Compute with the C library's exact rest, as NumPy and torch do."""
    with np.errstate(all="ignore"):
        if name == "floordiv":
            return np.asarray(np.floor_divide(a, b))
        rest = np.fmod(a, b)
        if name == "mod":
            rest = np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
        return np.asarray(rest)


def pairs(dtype: type) -> dict[str, tuple[Array, Array]]:
    """Return operands: of all sizes, with quotients about what one division can tell, whole
    multiples and their neighbours, and what is special."""
    rng = np.random.default_rng(0)
    count, digits = 100 * BLOCK, np.finfo(dtype).nmant + 1
    largest = {np.float32: 100.0, np.float64: 800.0}[dtype]

    def spread(most: float) -> Array:
        return (rng.normal(size=count) * 2.0 ** rng.uniform(-most, most, count)).astype(dtype)

    b = spread(30)
    whole = (b * rng.integers(-(10**6), 10**6, count)).astype(dtype)
    near = np.nextafter(whole, rng.choice([-np.inf, np.inf], count).astype(dtype))
    about = b * rng.choice([-1, 1], count) * 2.0 ** rng.uniform(digits - 3, digits + 3, count)
    tiny = np.finfo(dtype).smallest_subnormal
    special = np.array([0, -0.0, 1, -1, 3, -3, np.inf, -np.inf, np.nan, tiny, -tiny, 3 * tiny,
                        np.finfo(dtype).max, -np.finfo(dtype).max, np.finfo(dtype).tiny, 0.1],
                       dtype)  # fmt: skip
    return {
        "plain": (spread(3), spread(3)),
        "of all sizes": (spread(largest), spread(largest)),
        "whole": (whole, b),
        "near whole": (near, b),
        "about the digits": (about.astype(dtype), b),
        "special": (np.repeat(special, special.size), np.tile(special, special.size)),
    }


@pytest.mark.parametrize("name", RESTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rests_of_divisions_are_exact(name: str, dtype: type, compiled: Callable) -> None:
    for kind, (a, b) in pairs(dtype).items():
        expected = reference(name, a, b)
        for road in ("each", "lanes"):
            found = compiled(road, name, a, b)
            np.testing.assert_array_equal(found, expected, err_msg=f"{kind}, {road}")
            told = ~np.isnan(expected)
            np.testing.assert_array_equal(
                np.signbit(found[told]), np.signbit(expected[told]), err_msg=f"{kind}, {road}"
            )
