"""Running results in one pass: the values of the loops, whatever runs along which dim and how."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import Cases, assert_close, body, random_arrays, run

from tilewright.graph import notation
from tilewright.graph.ir import Formula
from tilewright.graph.running import running
from tilewright.kernels import emit

from .harness import tensor

ULPS = 64.0
# Which term `{i}` of `{n}` a result `{u}` has.
UP, DOWN = "where {i} <= {u}", "where {u} <= {i}"
MIRRORED, MIRRORED_DOWN = "where {n} - 1 - {i} <= {u}", "where {i} <= {n} - 1 - {u}"
FILLS = {"*=": " else 1", "all=": " else 1"}


@dataclass(frozen=True)
class Case:
    """Results of one type that run along a dim of a shape; how: the condition."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    dim: int
    how: str

    def body(self, value: str = "x[{source}]") -> tuple[dict[str, str], dict[str, str]]:
        names = [f"d{at}" for at in range(len(self.shape))]
        target = ["u" if at == self.dim else name for at, name in enumerate(names)]
        size, term = self.shape[self.dim], names[self.dim]
        shape = ", ".join(str(n) for n in self.shape)
        how = self.how.format(i=term, u="u", n=size)
        made = "i64" if self.op.startswith("arg") else self.dtype
        at = f" at {term}" if self.op.startswith("arg") else ""
        limits = [f"{name}<{n}" for name, n in zip(target, self.shape, strict=True)]
        text = f"y[{', '.join(target)}] {self.op} {value.format(source=', '.join(names))}{at} {how}"
        text += f"{FILLS.get(self.op, '')} for {', '.join([*limits, f'{term}<{size}'])}"
        return {"x": f"{self.dtype}[{shape}]"}, {"y": f"{made}[{shape}]: {text}"}


def cases() -> list[Case]:
    rng = np.random.default_rng(0)
    found = []
    for op, dtypes in (("+=", "f32 f64 bf16 i64 i32"), ("*=", "f32 f64 i64"),
                       ("max=", "f32 bf16 i64"), ("min=", "f64 u8"),
                       ("argmax=", "f32 f64 bf16 i64"), ("argmin=", "f32 i64"),
                       ("any=", "bool"), ("all=", "bool")):  # fmt: skip
        for dtype in dtypes.split():
            for how in (UP, DOWN, MIRRORED, MIRRORED_DOWN):
                rank = int(rng.integers(1, 4))
                shape = tuple(int(n) for n in rng.choice([2, 3, 7, 9, 64, 70], rank))
                found.append(Case(op, dtype, shape, int(rng.integers(0, rank)), how))
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Case, str], Cases, object]:
    collected, names = Cases(), {}
    for at, case in enumerate(cases()):
        graph = body(*case.body())
        reverse = tuple(int(np.prod(case.shape[:k], dtype=int)) for k in range(len(case.shape)))
        for name, strides in (("", None), (" turned", {"x": reverse})):
            collected.add(f"{at}{name}", graph, strides)
        names[case] = str(at)
    return names, collected, collected.compile(tmp_path_factory.mktemp("running"))


@pytest.mark.parametrize("case", cases(), ids=str)
def test_one_pass_makes_what_the_loops_say(
    case: Case, made: tuple[dict[Case, str], Cases, object]
) -> None:
    for name in (made[0][case], f"{made[0][case]} turned"):
        graph, kernel, _, strides = made[1].kernels[name]
        assert kernel.recipe.startswith("running: "), kernel.recipe
        for seed, special in ((1, False), (2, True)):
            arrays = random_arrays(graph, seed, special)
            code, found = run(made[2], kernel, graph, arrays, strides)
            again = run(made[2], kernel, graph, arrays, strides, parts=3)
            assert code == again[0] == 0
            assert found[0].tobytes() == again[1][0].tobytes(), "bits depend on the parts"
            if not (
                special and case.op == "*="
            ):  # products of such may be infinite in double alone
                assert_close(graph, arrays, found, ULPS)


def test_what_is_computed_before_it_is_computed_where_it_is_read(tmp_path: Path) -> None:
    collected = Cases()
    before = {"h": "f32[5, 40]: y[i<5, j<40] = exp(x[i, j - 2]) else 3"}
    after = {"y": "f32[5, 40]: y[i<5, u<40] += h[i, j] * k[j] where j <= u for j<40"}
    absent = {"y": "f32[5, 40]: y[i<5, u<40] += x[i, j - 7] where j <= u for j<40"}
    looked_up = {"y": "f32[5, 40]: y[i<5, u<40] += x[i, n[j]] where u <= j for j<40"}
    inputs = {"x": "f32[5, 40]", "k": "f32[40]", "n": "i64[40]"}
    collected.add("before", body(inputs, {**before, **after}))
    collected.add("absent", body(inputs, absent))
    collected.add("looked up", body(inputs, looked_up))
    library = collected.compile(tmp_path)
    rng = np.random.default_rng(5)
    x, k = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 40), 40))
    arrays = [x, k, rng.integers(0, 40, 40)]
    for graph, kernel, _, _ in collected.kernels.values():
        assert kernel.recipe.startswith("running: "), kernel.recipe
        code, found = run(library, kernel, graph, arrays)
        assert code == 0
        assert_close(graph, arrays, found, ULPS)
    graph, kernel, _, _ = collected.kernels["looked up"]
    assert run(library, kernel, graph, [x, k, np.full(40, 40)])[0] == 1


def formula(text: str, dtype: str) -> Formula:
    return notation.read(text, tensor(dtype))


@pytest.mark.parametrize(
    "text",
    [
        "y[u<9] += x[i<9] where i < u",  # the first has none
        "y[u<9] += x[i<8] where i <= u",  # the last two are alike
        "y[u<9] += x[i<9] where i + 1 <= u",
        "y[u<9] += x[i<9] where 2*i <= u",
        "y[u<9] += x[i<9] * x[u] where i <= u",
        "y[u<9] += x[i<9] where i <= u and i > 2",
        "y[u<9] += x[i<9] where i != u",
        "y[u<9] += x[i<9]",
        "y[u<9] += x[i<9] where i <= u from t",
    ],
)
def test_others_are_not_taken_for_running_results(text: str) -> None:
    found = formula(text, "f32[9]")
    assert running(found) is None
    types = {"x": "f32[8]" if "i<8" in text else "f32[9]", "t": "f32[9]"}
    graph = body({name: types[name] for name in found.operands}, {"y": f"f32[9]: {text}"})
    assert not emit(graph).recipe.startswith("running")


def test_a_long_pass_is_shared_by_its_terms_and_not_by_their_square() -> None:
    long = Case("+=", "f32", (4, 4096), 1, UP)
    assert emit(body(*long.body())).flops < 8 * 4 * 4096
