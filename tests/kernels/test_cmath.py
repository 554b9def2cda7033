"""The vector functions: errors in units of the last place, edges as in C99, loops vectorised."""

import ctypes
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from tilewright.kernels.cmath import LANES_ULP, OF_A_HALF, SNIPPETS, ULP
from tilewright.kernels.cmath_tables import BY_TABLE
from tilewright.kernels.lanes import STEPPED, TAKEN

from .harness import compiler, runnable

Array = np.ndarray
TWO = ["pow", "atan2", "hypot", "xlogy", "xlog1py"]
ONE = [name for name in ULP if name not in TWO]
STEPS = [name for name in STEPPED if name in ONE]
STEPS_OF_TWO = [name for name in STEPPED if name in TWO]


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "pow": "power", "atan2": "arctan2"}
NAMES |= {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}
REFERENCE: dict[str, Callable[..., Array]] = {
    "sigmoid": sigmoid,
    "erf": special.erf,
    "erfc": special.erfc,
    "xlogy": special.xlogy,
    "xlog1py": special.xlog1py,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "normal_cdf": special.ndtr,
}


def reference(name: str, *args: Array) -> Array:
    function = REFERENCE.get(name) or getattr(np, NAMES.get(name, name))
    with np.errstate(all="ignore"):
        return np.asarray(function(*(arg.astype(np.float64) for arg in args)))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, str]:
    return build(tmp_path_factory.mktemp("cmath"), "native")


def build(folder: Path, processor: str) -> tuple[ctypes.CDLL, str]:
    """Return the functions, compiled for a kind of processor, and what the compiler says."""
    text = "\n".join(snippet.text for snippet in SNIPPETS)
    for name in ONE:
        text += f"\nvoid loop_{name}(const float *x, float *y, long n) {{"
        text += f"for (long i = 0; i < n; i++) y[i] = {name}_f32(x[i]); }}"
    for name in TWO:
        text += f"\nvoid loop_{name}(const float *x, const float *z, float *y, long n) {{"
        text += f"for (long i = 0; i < n; i++) y[i] = {name}_f32(x[i], z[i]); }}"
    for name in STEPS:
        text += f"\nvoid loop_{name}_lanes(const float *x, float *y, long n) {{"
        text += "for (long i = 0; i < n; i++) y[i] = x[i];"
        text += f"for (long i = 0; i < n; i += 96) {{ {name}_f32_lanes(y + i, 64); "
        text += f"{name}_f32_lanes(y + i + 64, 32); }} }}"
    for name in STEPS:
        calls = (f"if (n == {n}) {name}_f32_lanes(y, {n});" for n in TAKEN)
        text += f"\nvoid some_{name}(float *y, long n) {{ {' '.join(calls)} }}"
    for name in STEPS_OF_TWO:
        text += f"\nvoid loop_{name}_lanes(const float *x, const float *z, float *y, long n) {{"
        text += "for (long i = 0; i < n; i++) y[i] = x[i];"
        text += f"for (long i = 0; i < n; i += 96) {{ {name}_f32_lanes(y + i, z + i, 64); "
        text += f"{name}_f32_lanes(y + i + 64, z + i + 64, 32); }} }}"
    text += "\n#ifdef __AVX512F__\n#define HAS 1\n#else\n#define HAS 0\n#endif"
    text += "\nint has_tables(void) { return HAS; }"
    source, library = folder / "cmath.c", folder / "cmath.so"
    source.write_text(text)
    command = compiler(processor, "-Wall", "-fopt-info-vec-optimized")
    done = subprocess.run(
        [*command, str(source), "-o", str(library), "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return ctypes.CDLL(str(library)), done.stderr


def call(library: ctypes.CDLL, name: str, *args: Array) -> Array:
    result = np.empty_like(args[0])
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*args, result)]
    getattr(library, f"loop_{name}")(*pointers, ctypes.c_long(result.size))
    return result


def check(name: str, found: Array, expected: Array, ulps: float) -> None:
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    infinite = np.isinf(rounded)
    np.testing.assert_array_equal(found[infinite], rounded[infinite])
    zero = expected == 0
    np.testing.assert_array_equal(found[zero], 0)
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))
    finite = np.isfinite(rounded)
    assert np.isfinite(found[finite]).all()
    least = np.float32(0.5 if name in OF_A_HALF else 0)
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), least)).astype(np.float64)
    error = np.abs(found[finite].astype(np.float64) - expected[finite]) / unit
    assert error.max() <= ulps


EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, 3, -3, 1e-45, -1e-45, 1.2e-38]
EDGES += [
    88.72,
    88.73,
    -87.4,
    -103.97,
    -104,
    128,
    129,
    -149,
    -151,
    10.05,
    880804.4375,
    1036212.75,
    3.4e38,
    -3.4e38,
    16777217,
]


IN_DOUBLE = ("exp", "log", "log1p", "log2", "log10", "sigmoid", "tanh")
IN_DOUBLE += ("tan", "asin", "acos", "erfc")


@pytest.fixture(scope="module")
def unfused(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the functions for processors without a fused multiply-add."""
    return build(tmp_path_factory.mktemp("unfused"), runnable("x86-64-v2"))[0]


def dense() -> Array:
    rng = np.random.default_rng(0)
    every = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = [rng.uniform(-s, s, 150_000) for s in (1, 12, 110, 1e6)]
    x = np.concatenate([EDGES, *near]).astype(np.float32)
    return np.concatenate([x, every])


@pytest.mark.parametrize("name", ONE)
def test_error_is_within_the_table(name: str, compiled: tuple[ctypes.CDLL, str]) -> None:
    x = dense()
    check(name, call(compiled[0], name, x), reference(name, x), ULP[name])


@pytest.mark.parametrize("name", ONE)
def test_error_without_fused_operations_is_within_the_table(
    name: str, unfused: ctypes.CDLL
) -> None:
    x, ulps = dense(), 0.501 if name in IN_DOUBLE else ULP[name]
    check(name, call(unfused, name, x), reference(name, x), ulps)


@pytest.mark.parametrize(
    ("name", "base", "low", "high"), [("log2", 2, -149, 127), ("log10", 10, 0, 10)]
)
def test_logarithms_of_powers_are_whole(
    name: str, base: int, low: int, high: int, compiled: tuple[ctypes.CDLL, str]
) -> None:
    powers = np.arange(low, high + 1)
    x = np.power(float(base), powers).astype(np.float32)
    np.testing.assert_array_equal(call(compiled[0], name, x), powers)


@pytest.mark.parametrize("name", TWO)
def test_error_of_two_arguments_is_within_the_table(
    name: str, compiled: tuple[ctypes.CDLL, str]
) -> None:
    rng = np.random.default_rng(1)
    pairs = np.array([(a, b) for a in EDGES for b in EDGES], np.float32)
    x = [pairs[:, 0], rng.uniform(0, 10, 200_000), np.exp(rng.uniform(-80, 80, 100_000))]
    z = [pairs[:, 1], rng.uniform(-20, 20, 200_000), rng.uniform(-2, 2, 100_000)]
    a = np.concatenate([*x, rng.uniform(-9, 9, 100_000)]).astype(np.float32)
    b = np.concatenate([*z, np.round(rng.uniform(-9, 9, 100_000))]).astype(np.float32)
    check(name, call(compiled[0], name, a, b), reference(name, a, b), ULP[name])


def test_every_loop_is_vectorised(compiled: tuple[ctypes.CDLL, str]) -> None:
    version = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout
    if "Free Software Foundation" not in version:
        pytest.skip("only gcc says what it has vectorised in this form")
    lines = {int(line) for line in re.findall(r":(\d+):\d+: optimized: loop vec", compiled[1])}
    count = len("\n".join(snippet.text for snippet in SNIPPETS).split("\n"))
    loops = set(range(count + 1, count + 1 + len(ONE) + len(TWO)))
    assert loops <= lines


@pytest.fixture(scope="module", params=["native", "x86-64-v3"])
def for_lanes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    if request.param != "native":
        runnable(request.param)
    return build(tmp_path_factory.mktemp("lanes"), request.param)[0]


def goes_by_table(name: str, library: ctypes.CDLL) -> bool:
    return f"{name}_f32_lanes" in BY_TABLE and bool(library.has_tables())


@pytest.mark.parametrize("name", STEPS)
def test_functions_of_lanes_have_the_bits_of_one(name: str, for_lanes: ctypes.CDLL) -> None:
    bits = np.arange(0, 2**32, 977, dtype=np.uint64).astype(np.uint32)
    near = np.linspace(-106, 90, 3_000_000, dtype=np.float32)  # from all that is 0 to all infinite
    x = np.concatenate([np.float32(EDGES), bits.view(np.float32), near])
    x = x[: x.size // 96 * 96]
    one, lanes = (call(for_lanes, loop, x) for loop in (name, f"{name}_lanes"))
    if goes_by_table(name, for_lanes):
        check(name, lanes, reference(name, x), LANES_ULP.get(name, ULP[name]))
        one = call(for_lanes, f"{name}_lanes", x[::-1].copy())[::-1]  # in other lanes
    np.testing.assert_array_equal(one.view(np.uint32), lanes.view(np.uint32))


@pytest.mark.parametrize("count", TAKEN)
@pytest.mark.parametrize("name", STEPS)
def test_functions_of_lanes_touch_no_other(name: str, count: int, for_lanes: ctypes.CDLL) -> None:
    x = np.linspace(0.1, 0.9, 128, dtype=np.float32)
    y = x.copy()
    getattr(for_lanes, f"some_{name}")(ctypes.c_void_p(y.ctypes.data), ctypes.c_long(count))
    np.testing.assert_array_equal(y[count:], x[count:])
    alone = f"{name}_lanes" if goes_by_table(name, for_lanes) else name
    np.testing.assert_array_equal(y[:count], call(for_lanes, alone, x[:96])[:count])


@pytest.mark.parametrize("name", STEPS_OF_TWO)
def test_functions_of_lanes_of_two_have_the_bits_of_one(name: str, for_lanes: ctypes.CDLL) -> None:
    rng = np.random.default_rng(2)
    pairs = np.array([(a, b) for a in EDGES for b in EDGES], np.float32)
    bits = rng.integers(0, 2**32, (96 * 3000, 2), dtype=np.uint64).astype(np.uint32)
    drawn = rng.uniform(-9, 9, (96 * 3000, 2)).astype(np.float32)
    every = np.concatenate([pairs, bits.view(np.float32), drawn])
    x, z = every[: len(every) // 96 * 96].T.copy()
    one, lanes = (call(for_lanes, loop, x, z) for loop in (name, f"{name}_lanes"))
    np.testing.assert_array_equal(one.view(np.uint32), lanes.view(np.uint32))


UNDERFLOW = 16  # fenv's, of x86


@pytest.mark.skipif(platform.machine() != "x86_64", reason="says underflow by another number")
@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid", "exp_lanes", "sigmoid_lanes"])
def test_what_is_below_all_numbers_is_0_without_rounding_there(
    name: str, for_lanes: ctypes.CDLL
) -> None:
    """Intel's processors take hundreds of clocks for a result that rounds to a subnormal or to 0:
    rows with masks have many."""
    library = ctypes.CDLL("libm.so.6")
    last = np.nextafter(np.float32(-151 if name == "exp2" else -104), np.float32(-np.inf))
    below = np.geomspace(last, -3.4e38, 95, dtype=np.float32)
    x = np.concatenate([below, np.float32([-np.inf]), np.linspace(last, -1e4, 960 * 8)])
    x = x.astype(np.float32)
    library.feclearexcept(UNDERFLOW)
    found = call(for_lanes, name, x)
    assert not library.fetestexcept(UNDERFLOW)
    np.testing.assert_array_equal(found, 0)
    library.feclearexcept(UNDERFLOW)
    call(for_lanes, name, np.full(96, -140.5 if name == "exp2" else -100, np.float32))
    assert library.fetestexcept(UNDERFLOW)
    library.feclearexcept(UNDERFLOW)
