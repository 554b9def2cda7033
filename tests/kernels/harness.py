"""Compile kernels with cc, run them through ctypes, and compare them with the NumPy evaluator.

The idea: many kernels go to one compiler call (they share a translation unit: support functions are
renamed apart), so that testing hundreds costs seconds.
"""

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from tests.standalone import apart

from tilewright.base.dtypes import BY_NAME, DType
from tilewright.base.errors import OptionError
from tilewright.base.expr import Call
from tilewright.graph import notation
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Graph, TensorType
from tilewright.kernels import Emitted, emit, emit_naive
from tilewright.kernels.body import contiguous
from tilewright.kernels.cmath_tables import BY_TABLE
from tilewright.kernels.support import SUPPORT, print_support
from tilewright.runtime import check_target, processor
from tilewright.runtime.toolchain import flags_for, identity_of

Array = np.ndarray
CANARY = 64  # bytes after each output that must stay as they are
FILL = 0xFF  # what outputs hold before: a NaN, equal to nothing that should have been written


def tensor(text: str) -> TensorType:
    """Read a type such as `f32[4, 5]`."""
    match = re.fullmatch(r"(\w+)\[([\d, ]*)\]", text)
    assert match is not None, text
    shape = tuple(int(part) for part in match[2].split(",") if part.strip())
    return TensorType(shape, BY_NAME[match[1]])


def body(inputs: Mapping[str, str], steps: Mapping[str, str], outputs: Sequence[str] = ()) -> Graph:
    """Make a body: inputs by type, steps as `type: formula` (`f32[4]: y[i<4] = x[i]`)."""
    builder = Builder("body")
    values = {name: builder.input(name, tensor(text)) for name, text in inputs.items()}
    for name, step in steps.items():
        type_text, _, text = step.partition(":")
        formula = notation.read(text.strip(), tensor(type_text.strip()))
        operands = [values[operand] for operand in formula.operands]
        values[name] = builder.formula(formula, *operands, name=name)
    names = outputs or [list(steps)[-1]]
    return builder.finish([values[name] for name in names])


def by_lanes(naive: Emitted, stepped: Emitted) -> Emitted:
    """Return a naive kernel whose functions are those of lanes, of one element beside others, if
    they go by a table in `stepped`: they have other last bits than the functions of one element."""
    functions = [name for name in BY_TABLE if f" {name}(" in stepped.text]
    begin = f"\nint {naive.name}("
    above, kernel = naive.text.split(begin)
    present = [name for name, snippet in SUPPORT.items() if snippet.text in above]
    support = print_support(present)
    assert above.startswith(support), "functions stand first"
    texts = [print_support([*present, *functions]), above.removeprefix(support)]
    for name in functions:
        one = name.removesuffix("_lanes")
        texts.append(f"""\
static inline float {one}_beside(float x) {{
    float lanes[16];
    for (long l = 0; l < 16; l++) lanes[l] = l == 5 ? x : 1;
    {name}(lanes, 16);
    return lanes[5];
}}""")
        kernel = re.sub(rf"\b{one}\(", f"{one}_beside(", kernel)
    return replace(naive, text="\n".join(texts) + begin + kernel)


def runnable(target: str) -> str:
    """Return a target, or skip the test where this processor does not run code for it."""
    try:
        check_target(target, processor())
    except OptionError as error:
        pytest.skip(str(error))
    return target


def compiler(target: str = "native", *extra: str) -> list[str]:
    """Return cc with the flags of Programs, less those that hide functions and warnings."""
    flags = flags_for(identity_of(["cc"]), target)
    kept = [flag for flag in flags if flag not in ("-fvisibility=hidden", "-w")]
    return ["cc", *kept, "-shared", *extra]


def compile_all(kernels: Sequence[Emitted], folder: Path, *extra: str) -> ctypes.CDLL:
    """Compile kernels into one library."""
    unique = {kernel.name: kernel.text for kernel in kernels}
    sources = []
    for name, text in unique.items():
        path = folder / f"{name}.c"
        path.write_text(text)
        sources.append(str(path))
    library = folder / "kernels.so"
    unity = folder / "all.c"
    unity.write_text("\n".join(apart(name, text) for name, text in unique.items()))
    command = compiler("native", "-Wall", "-Wno-unused-variable", *extra)
    done = subprocess.run(
        [*command, str(unity), "-o", str(library), "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return ctypes.CDLL(str(library))


def strided(array: Array, strides: Sequence[int]) -> Array:
    """Return memory in which the array's elements lie the given strides apart."""
    span = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True) if n)
    memory = np.zeros(max(span, 1), array.dtype)
    view = np.lib.stride_tricks.as_strided(
        memory, array.shape, tuple(s * array.itemsize for s in strides)
    )
    view[...] = array
    return memory


def run(
    library: ctypes.CDLL,
    kernel: Emitted,
    graph: Graph,
    arrays: Sequence[Array],
    strides: Mapping[str, tuple[int, ...]] | None = None,
    parts: int | None = None,
    together: int = 1,
) -> tuple[int, list[Array]]:
    """Run all parts of a kernel, the last ones first, so many `together`; return its code and its
    outputs."""
    memory = []
    for value, array in zip(graph.inputs, arrays, strict=True):
        steps = (strides or {}).get(value.name)
        plain = np.ascontiguousarray(array)
        memory.append(plain if steps is None else strided(plain, steps))
    outputs = []
    for value in graph.outputs:
        dtype: DType = value.type.dtype
        shape = tuple(int(dim) for dim in value.type.shape if isinstance(dim, int))
        steps = (strides or {}).get(value.name, contiguous(shape))
        span = sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + 1 if all(shape) else 0
        raw = np.full(span * dtype.bytes + CANARY, FILL, np.uint8)
        outputs.append((raw, shape, steps, dtype))
    pointers = [array.ctypes.data for array in (*memory, *(raw for raw, *_ in outputs))]
    table = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
    function = getattr(library, kernel.name)
    function.argtypes = [ctypes.c_void_p, *(ctypes.c_long,) * 3]
    count = kernel.parts if parts is None else parts
    code = 0
    for end in range(count, 0, -together):
        code |= function(table, max(end - together, 0), end, count)
    results = []
    for raw, shape, steps, dtype in outputs:
        size = raw.size - CANARY
        apart = tuple(step * dtype.bytes for step in steps)
        lying = np.lib.stride_tricks.as_strided
        results.append(lying(raw[:size].view(dtype.numpy), shape, apart).copy())
        lying(raw, (*shape, dtype.bytes), (*apart, 1))[...] = FILL
        assert (raw == FILL).all(), "a kernel wrote beside its output, or beyond it"
    return code, results


@dataclass
class Cases:
    """Kernels collected to be compiled together, both recipes of each."""

    kernels: dict[str, tuple[Graph, Emitted, Emitted, dict[str, tuple[int, ...]]]] = field(
        default_factory=dict
    )

    def add(
        self, name: str, graph: Graph, strides: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        """Collect one body."""
        steps = dict(strides or {})
        self.kernels[name] = (
            graph,
            emit(graph, steps, check=True),
            emit_naive(graph, steps),
            steps,
        )

    def compile(self, folder: Path, *extra: str) -> ctypes.CDLL:
        """Compile all."""
        kernels = [k for _, a, b, _ in self.kernels.values() for k in (a, b)]
        return compile_all(kernels, folder, *extra)


def random_arrays(graph: Graph, seed: int, special: bool = False) -> list[Array]:
    """Return normal floats (NaN, infinities, zeros among them where `special`), small integers."""
    rng = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        shape = tuple(int(dim) for dim in value.type.shape if isinstance(dim, int))
        dtype = value.type.dtype
        if dtype.kind == "float":
            array = rng.standard_normal(shape).astype(np.float32)
            if special and array.size:
                odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 1e15], np.float32)
                where = rng.random(shape) < 0.2
                array = np.where(where, rng.choice(odd, shape), array)
            with np.errstate(all="ignore"):
                arrays.append(array.astype(dtype.numpy))
        elif dtype.kind == "bool":
            arrays.append(rng.random(shape) < 0.5)
        else:
            low = 0 if dtype.name == "u8" else -5
            arrays.append(rng.integers(low, 6, shape).astype(dtype.numpy))
    return arrays


def terms_size(graph: Graph, name: str, arrays: Sequence[Array]) -> Array | None:
    """Return the sums of the absolute terms that a summed output is made of; None for others."""
    nodes = list(graph.nodes)
    at = next(k for k, node in enumerate(nodes) if node.output.name == name)
    formula = nodes[at].formula
    assert formula is not None
    if formula.op != "+=" or formula.type.dtype.kind != "float":
        return None
    nodes[at] = replace(nodes[at], formula=replace(formula, value=Call("abs", (formula.value,))))
    outputs = (nodes[at].output,)
    return evaluate(replace(graph, nodes=tuple(nodes), outputs=outputs), list(arrays))[0]


UNIT = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53}


def only_f64(graph: Graph) -> bool:
    """Say whether nothing is computed in less than double precision."""
    types = [v.type for v in graph.inputs] + [node.output.type for node in graph.nodes]
    return all(type_.dtype.compute.name != "f32" for type_ in types)


def assert_close(
    graph: Graph, arrays: Sequence[Array], found: Sequence[Array], ulps: float
) -> None:
    """Compare with the evaluator: within `ulps` units of each element or of its terms' sum."""
    expected = evaluate(graph, list(arrays))
    for value, mine, other in zip(graph.outputs, found, expected, strict=True):
        assert mine.shape == other.shape
        dtype = value.type.dtype
        if dtype.kind != "float":
            np.testing.assert_array_equal(mine, other, err_msg=value.name)
            continue
        a, b = mine.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite], err_msg=value.name)
        assert np.isfinite(a[finite]).all(), value.name
        size = terms_size(graph, value.name, arrays)
        scale = np.maximum(np.abs(b) if size is None else size.astype(np.float64), 1.0)
        error = np.abs(a[finite] - b[finite]) / scale[finite]
        unit = UNIT[dtype.name] if only_f64(graph) else max(UNIT[dtype.name], UNIT["f32"])
        worst = error.max(initial=0) / unit
        assert worst <= ulps, f"{value.name}: {worst} units"
