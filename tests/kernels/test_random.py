"""Random bodies: whatever formulas are put together, the kernel equals the evaluation."""

import ctypes
import random
from pathlib import Path

import pytest
from tests.kernels.harness import Cases, assert_close, body, random_arrays, run

COUNT = 90
OFTEN = 16
"""How many bodies `make test` asks: the first."""
EXTENTS = (2, 3, 4, 6, 8, 12, 17, 36, 70)
UNARY = ("exp({})", "sigmoid({})", "abs({})", "-{}", "tanh({})", "{} * 0.5", "sqrt(abs({}))")
BINARY = ("{} + {}", "{} - {}", "{} * {}", "max({}, {})", "{} if {} > 0 else 1")


class Maker:
    """Makes one random body over a few loops; final."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.dims = {name: self.random.choice(EXTENTS) for name in "ijk"}
        self.inputs: dict[str, str] = {}
        self.steps: dict[str, str] = {}
        self.shapes: dict[str, str] = {}  # of all values: the loops that index them

    def type(self, loops: str, dtype: str = "f32") -> str:
        return f"{dtype}[{', '.join(str(self.dims[loop]) for loop in loops)}]"

    def input(self, loops: str) -> str:
        name = f"x{len(self.inputs)}"
        dtype = self.random.choice(("f32", "f32", "f32", "f64", "bf16", "i32", "bool"))
        self.inputs[name] = self.type(loops, dtype)
        self.shapes[name] = loops
        return name

    def read(self, loops: str) -> str:
        """Read a value whose loops are among those given, or a new input."""
        fitting = [name for name, own in self.shapes.items() if set(own) <= set(loops)]
        if fitting and self.random.random() < 0.7:
            name = self.random.choice(fitting)
        else:
            own = "".join(loop for loop in loops if self.random.random() < 0.8)
            if self.random.random() < 0.2:
                own = own[::-1]
            name = self.input(own)
        return f"{name}[{', '.join(self.entry(name, loop) for loop in self.shapes[name])}]"

    def entry(self, name: str, loop: str) -> str:
        extent = self.dims[loop]
        if name.startswith("x") and self.random.random() < 0.15:
            return self.random.choice(
                (f"{loop} - 1", f"{loop} + 2", f"{extent - 1} - {loop}", f"{loop} // 2")
            )
        return loop

    def value(self, loops: str, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.3:
            return self.read(loops)
        if self.random.random() < 0.5:
            return self.random.choice(UNARY).format(f"({self.value(loops, depth - 1)})")
        form = self.random.choice(BINARY)
        return form.format(*(f"({self.value(loops, depth - 1)})" for _ in range(2)))

    def step(self) -> None:
        loops = self.random.choice(("i", "ij", "ij", "ijk", "ikj", "ji"))
        target = loops
        op = "="
        if len(loops) > 1 and self.random.random() < 0.4:
            drop = self.random.randrange(1, len(loops))
            target = loops[:-drop] if self.random.random() < 0.7 else loops[drop:]
            op = self.random.choice(("+=", "+=", "max=", "min="))
        name = f"v{len(self.steps)}"
        value = self.value(loops, 2)
        where = ""
        if self.random.random() < 0.15:
            where = f" where {loops[-1]} >= 1"
        limits = ", ".join(f"{loop}<{self.dims[loop]}" for loop in loops)
        dtype = self.random.choice(("f32", "f32", "f32", "f32", "f64", "bf16"))
        index = ", ".join(target)
        self.steps[name] = (
            f"{self.type(target, dtype)}: y[{index}] {op} {value}{where} for {limits}"
        )
        self.shapes[name] = target


def made(seed: int) -> tuple[dict[str, str], dict[str, str], list[str]]:
    maker = Maker(seed)
    for _ in range(maker.random.choice((1, 2, 3, 5))):
        maker.step()
    names = list(maker.steps)
    others = [name for name in names[:-1] if maker.random.random() < 0.3]
    return maker.inputs, maker.steps, [names[-1], *others]


def compiled(seeds: range, folder: Path) -> tuple[Cases, ctypes.CDLL]:
    cases = Cases()
    for seed in seeds:
        cases.add(str(seed), body(*made(seed)))
    return cases, cases.compile(folder)


@pytest.fixture(scope="module")
def bodies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cases, ctypes.CDLL]:
    return compiled(range(OFTEN), tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def more_bodies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cases, ctypes.CDLL]:
    return compiled(range(OFTEN, COUNT), tmp_path_factory.mktemp("more"))


def check(bodies: tuple[Cases, ctypes.CDLL], seed: int) -> None:
    cases, library = bodies
    graph, fast, naive, strides = cases.kernels[str(seed)]
    arrays = random_arrays(graph, seed=seed)
    for kernel in (naive, fast):
        code, found = run(library, kernel, graph, arrays, strides)
        assert code == 0
        # A rounding to bfloat16 in between may fall to the other side: a unit of that type.
        coarse = any("bf16" in str(node.output.type) for node in graph.nodes)
        assert_close(graph, arrays, found, ulps=2.0**18 if coarse else 256)


@pytest.mark.parametrize("seed", range(OFTEN))
def test_random_body_equals_evaluation(seed: int, bodies: tuple[Cases, ctypes.CDLL]) -> None:
    check(bodies, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(OFTEN, COUNT))
def test_more_random_bodies_equal_evaluation(
    seed: int, more_bodies: tuple[Cases, ctypes.CDLL]
) -> None:
    check(more_bodies, seed)
