"""The functions of doubles: errors beside the C library's functions of 80 bits, edges as in C99."""

import ctypes
import platform
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.dtypes import F64
from tilewright.kernels.cmath import DOUBLE_ULP, OF_A_HALF, SNIPPETS
from tilewright.kernels.lanes import STEPPED

from .harness import compiler

Array = np.ndarray
TWO = ("pow", "atan2", "hypot")
UNDERFLOW = 16  # fenv's, of x86
ROADS = sorted(
    name for name in DOUBLE_ULP if F64 in STEPPED.get(name, ())
)  # branches, but by lanes
UNFUSED = {"tanh": 2.5, "sigmoid": 2.3, "exp2": 1.2, "erfc": 3.6, "tan": 1.7, "asin": 1.0}
UNFUSED |= {"acos": 1.0, "acosh": 1.6, "atan": 1.5, "atanh": 1.3, "hypot": 1.0}
BOUNDS = {
    "native": DOUBLE_ULP,
    "x86-64": {**DOUBLE_ULP, **UNFUSED},
}
EXACT = {
    "sigmoid": "1 / (1 + expl(-(long double)x[i]))",
    "normal_cdf": "erfcl(-sqrtl(0.5L) * x[i]) / 2",
}
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, 3, -3, 5e-324, -5e-324, 2.2e-308]
EDGES += [709.78, 709.79, -708.4, -745.13, -745.14, -746, 710.47, 710.48, 1024, 1023.9999, -1074]
EDGES += [-1075, -1075.5, 27.3, 1.7e308, -1.7e308, 1048575.9, 1048576]


@pytest.fixture(scope="module", params=BOUNDS)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ctypes.CDLL, set[str], dict[str, float]]:
    """Return loops over the functions, which of them are vectorised, and what errors may be."""
    assert np.finfo(np.longdouble).nmant >= 63, "long double is no more than double here"
    lines = ["#include <math.h>", *(snippet.text for snippet in SNIPPETS)]
    first = "\n".join(lines).count("\n") + 2
    loop = "for (long i = 0; i < n; i++)"
    for name in DOUBLE_ULP:
        args = "x[i], z[i]" if name in TWO else "x[i]"
        exact = EXACT.get(name, f"{name}l({args})")
        for function, c, value in (("loop", "double", f"{name}_f64({args})"),
                                   ("exact", "long double", exact)):  # fmt: skip
            head = f"void {function}_{name}(const double *x, const double *z, {c} *y, long n)"
            lines.append(f"{head} {{ {loop} y[i] = {value}; }}")
    for name in ROADS:
        head = f"void lanes_{name}(const double *x, const double *z, double *y, long n)"
        by_lanes = f"{name}_f64_lanes(y + i, 64); {name}_f64_lanes(y + i + 64, 32);"
        each = f"for (long i = 0; i < n; i += 96) {{ {by_lanes} }}"
        lines.append(f"{head} {{ {loop} y[i] = x[i]; {each} }}")
    return _compiled(tmp_path_factory.mktemp("doubles"), "\n".join(lines), first, request.param)


def _compiled(
    folder: Path, text: str, first: int, processor: str
) -> tuple[ctypes.CDLL, set[str], dict[str, float]]:
    source, library = folder / "doubles.c", folder / "doubles.so"
    source.write_text(text)
    command = [
        *compiler(processor, "-fopt-info-vec-optimized"),
        str(source),
        "-o",
        str(library),
        "-lm",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {int(at) for at in re.findall(r":(\d+):\d+: optimized: loop vec", done.stderr)}
    vectors = {name for at, name in enumerate(DOUBLE_ULP) if first + 2 * at in found}
    return ctypes.CDLL(str(library)), vectors, BOUNDS[processor]


def call(library: ctypes.CDLL, function: str, x: Array, z: Array, dtype: type = float) -> Array:
    result = np.empty(x.shape, dtype)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, z, result)]
    getattr(library, function)(*pointers, ctypes.c_long(x.size))
    return result


def check(library: ctypes.CDLL, name: str, x: Array, z: Array, ulps: float) -> None:
    found = call(library, f"loop_{name}", x, z)
    exact = call(library, f"exact_{name}", x, z, np.longdouble)
    with np.errstate(all="ignore"):
        rounded = exact.astype(float)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    zero = exact == 0
    np.testing.assert_array_equal(found[zero], 0)
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(exact[zero]))
    assert np.isfinite(found[finite]).all()
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), 0.5 if name in OF_A_HALF else 0))
    assert (np.abs(found[finite] - exact[finite]) / unit).max() <= ulps


def arguments() -> Array:
    rng = np.random.default_rng(0)
    every = rng.integers(0, 2**64, 200_000, dtype=np.uint64).view(float)
    near = [rng.uniform(-s, s, 150_000) for s in (1e-3, 0.5, 1, 2, 7, 40, 800, 1e6)]
    turns = np.arange(1, 200_000) * (np.pi / 2)
    shrinking = np.exp(rng.uniform(-40, 3, 100_000))
    narrow = [rng.uniform(1.01, 1.1, 150_000), rng.uniform(24, 27.3, 150_000)]
    wide = [turns, shrinking, 1 + rng.uniform(-0.3, 0.5, 150_000), every]
    x = np.concatenate([EDGES, *near, *narrow, *wide])
    return x[: x.size // 96 * 96]


@pytest.mark.parametrize("name", [name for name in DOUBLE_ULP if name not in TWO])
def test_error_is_within_the_table(
    name: str, built: tuple[ctypes.CDLL, set[str], dict[str, float]]
) -> None:
    x = arguments()
    check(built[0], name, x, x, built[2][name])


@pytest.mark.parametrize("name", TWO)
def test_error_of_two_arguments_is_within_the_table(
    name: str, built: tuple[ctypes.CDLL, set[str], dict[str, float]]
) -> None:
    rng = np.random.default_rng(1)
    pairs = np.array([(a, b) for a in EDGES for b in EDGES])
    x = [rng.uniform(0, 10, 200_000), np.exp(rng.uniform(-700, 700, 200_000)),
         rng.uniform(-9, 9, 200_000), 1 + rng.uniform(-1e-3, 1e-3, 200_000),
         rng.uniform(0.5, 2, 200_000), rng.uniform(0, 2.2e-308, 1000),
         rng.uniform(0.4, 2, 200_000), rng.uniform(0, 4e-308, 100_000)]  # fmt: skip
    z = [rng.uniform(-300, 300, 200_000), rng.uniform(-2, 2, 200_000),
         np.round(rng.uniform(-300, 300, 200_000)), rng.uniform(-7e5, 7e5, 200_000),
         rng.uniform(-1000, 1000, 200_000), rng.uniform(-0.9, 0.9, 1000),
         rng.uniform(0.4, 2, 200_000), rng.uniform(0, 4e-308, 100_000)]  # fmt: skip
    first, second = np.concatenate([pairs[:, 0], *x]), np.concatenate([pairs[:, 1], *z])
    check(built[0], name, first, second, built[2][name])


def test_every_loop_is_vectorised(
    built: tuple[ctypes.CDLL, set[str], dict[str, float]],
) -> None:
    version = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout
    if "Free Software Foundation" not in version:
        pytest.skip("only gcc says what it has vectorised in this form")
    wanted = set(DOUBLE_ULP).difference(ROADS)
    assert built[1] >= (wanted if built[2] is DOUBLE_ULP else wanted - {"pow"})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="says underflow by another number")
@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid"])
def test_what_is_below_all_numbers_is_0_without_rounding_there(
    name: str, built: tuple[ctypes.CDLL, set[str], dict[str, float]]
) -> None:
    """As of float32, for Intel's processors."""
    library = ctypes.CDLL("libm.so.6")
    last = np.nextafter(-1076 if name == "exp2" else -746, -np.inf)
    x = np.concatenate([np.geomspace(last, -1.7e308, 95), [-np.inf], np.linspace(last, -1e4, 9600)])
    library.feclearexcept(UNDERFLOW)
    found = call(built[0], f"loop_{name}", x, x)
    assert not library.fetestexcept(UNDERFLOW)
    np.testing.assert_array_equal(found, 0)
    library.feclearexcept(UNDERFLOW)
    subnormal = np.full(96, -1070.5 if name == "exp2" else -740.5)
    call(built[0], f"loop_{name}", subnormal, subnormal)
    assert library.fetestexcept(UNDERFLOW)
    library.feclearexcept(UNDERFLOW)


@pytest.mark.parametrize("name", ROADS)
def test_functions_of_lanes_have_the_bits_of_one(
    name: str, built: tuple[ctypes.CDLL, set[str], dict[str, float]]
) -> None:
    x = arguments()
    one, lanes = (call(built[0], f"{how}_{name}", x, x) for how in ("loop", "lanes"))
    known = ~np.isnan(one)
    np.testing.assert_array_equal(one[known].view(np.uint64), lanes[known].view(np.uint64))
    assert np.isnan(lanes[~known]).all()
