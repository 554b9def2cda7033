"""Long sums: a few terms at a time in the type of the terms, and these in a wider one."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.kernels.harness import Cases, assert_close, body, compile_all, random_arrays, run
from tests.kernels.interpreter import Interpreter
from torch.nn import functional as F

from tilewright.base.errors import LoopError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import Graph
from tilewright.kernels import emit, rows
from tilewright.kernels.loops import LoopNest, Merge, walk
from tilewright.kernels.loops_check import verify
from tilewright.kernels.loops_text import parse, show
from tilewright.kernels.regions import Region
from tilewright.kernels.rows import TOGETHER

MERGED = """a0: f32[6, 1000]
v0: f32[6]  y[i0<6] += a0[i0, i1<1000]
-> v0
parallel r0 in 0..6:
  sums s0[20]: f64 of v0
  for q0 in 0..800 by 160:
    sums t0[20]: f32 of v0
    for b0 in q0..q0 + 160 by 20:
      lanes l0 in 0..20:
        let c0 = b0 + l0
        v0(r0, c0) into t0[l0]
    merge t0 into s0
  for b0 in 800..1000 by 20:
    lanes l0 in 0..20:
      let c0 = b0 + l0
      v0(r0, c0) into s0[l0]
  v0[r0] from s0
"""
MERGE = "    merge t0 into s0\n"
REFUSED = {
    "twice": (MERGED.replace(MERGE, 2 * MERGE), "t0 cannot be merged into s0"),
    "each turn": (
        MERGED.replace(MERGE, "").replace("into t0[l0]\n", "into t0[l0]\n      merge t0 into s0\n"),
        "t0 cannot be merged into s0",
    ),
    "late": (MERGED.replace(MERGE, MERGE[2:]), "t0 uses t0, which is not defined there"),
    "early": (
        MERGED.replace(MERGE, "").replace("    for b0 in q0", MERGE + "    for b0 in q0"),
        "t0 is made before all its terms have come",
    ),
    "of another length": (
        MERGED.replace("sums s0[20]", "sums s0[32]"),
        "t0 cannot be merged into s0",
    ),
    "into itself": (MERGED.replace("into s0\n  for", "into t0\n  for"), "t0 cannot be merged"),
    "into nothing": (MERGED.replace("merge t0 into s0", "merge t0 into s1"), "t0 uses s1"),
    "after what comes out": (
        MERGED.replace("  v0[r0] from s0\n", "").replace("  for q0", "  v0[r0] from s0\n  for q0"),
        "v0 is made before all its terms have come",
    ),
    "never": (MERGED.replace(MERGE, ""), "what comes into t0 is lost"),
    "nowhere": (
        MERGED.replace("  v0[r0] from s0\n", ""),
        "what comes into s0 is lost",
    ),
    "by several threads": (MERGED.replace("for q0", "lanes q0"), "do not run apart"),
}


def test_what_is_merged_is_right_and_reads_back() -> None:
    nest = parse(MERGED)
    verify(nest)
    assert show(nest) == show(parse(show(nest)))
    assert parse(show(nest)) == nest
    graph = body({"x": "f32[6, 1000]"}, {"y": "f32[6]: y[i<6] += x[i, j<1000]"})
    arrays = random_arrays(graph, 0)
    found = Interpreter(nest, arrays, 0).run()["v0"]
    np.testing.assert_allclose(found, evaluate(graph, arrays, wide=True)[0], rtol=1e-9)


@pytest.mark.parametrize("name", REFUSED)
def test_the_verifier_refuses_what_would_be_lost_or_come_twice(name: str) -> None:
    text, why = REFUSED[name]
    assert text != MERGED
    with pytest.raises(LoopError, match=re.escape(why)):
        verify(parse(text))


def sums(source: random.Random) -> Graph:
    """Return sums of many terms: along rows, across them, of all, of products, some marked."""
    rows, terms = source.choice([1, 3, 8, 17, 40, 300]), source.randint(257, 6000)
    dtype = source.choice(["f32", "f32", "bf16"])
    value = source.choice(["x[{at}]", "x[{at}] * x[{at}]", "exp(x[{at}])"])
    shape, at = f"{rows}, {terms}", f"i, j<{terms}"
    if across := source.random() < 0.5:
        shape, at = f"{terms}, {rows}", f"j<{terms}, i"
    value = value.format(at=at)
    steps = {"y": f"{source.choice(['f32', dtype])}[{rows}]: y[i<{rows}] += {value}"}
    if source.random() < 0.3:
        plain = "j, i" if across else "i, j"
        steps["y"] += f" where x[{plain}] > {source.choice([-1, 1, 9])} else 7.0"
    return body({"x": f"{dtype}[{shape}]"}, steps)


CASES = Cases()
for seed in range(24):
    CASES.add(f"sums{seed}", sums(random.Random(seed)))


def test_long_sums_are_near_to_their_terms(tmp_path: Path) -> None:
    """A chain of eight roundings, and the last one."""
    library = CASES.compile(tmp_path)
    merged = 0
    for seed, (graph, fast, naive, _) in enumerate(CASES.kernels.values()):
        arrays = random_arrays(graph, seed)
        merged += "merge" in fast.nest
        for kernel in (fast, naive):
            code, found = run(library, kernel, graph, arrays)
            assert code == 0
            assert_close(graph, arrays, found, ulps=TOGETHER + 4)
        again = run(library, fast, graph, arrays, parts=3)[1]
        once = run(library, fast, graph, arrays, parts=1)[1]
        np.testing.assert_array_equal(again[0], once[0])
    assert merged >= 16


@pytest.mark.parametrize("order", ["i, j", "j, i"])
def test_long_sums_of_many_terms_lose_no_more_than_short_ones(order: str, tmp_path: Path) -> None:
    """A million terms of one size, of which a sum in float32 would lose one in a thousand."""
    n, rows = 2**20, 3
    shape = f"{n}, {rows}" if order == "j, i" else f"{rows}, {n}"
    index = order.replace("j", f"j<{n}")
    graph = body({"x": f"f32[{shape}]"}, {"y": f"f32[{rows}]: y[i<{rows}] += x[{index}]"})
    kernel = emit(graph)
    assert any(isinstance(item, Merge) for item in walk(parse(kernel.nest).items))
    arrays = [np.full([int(each) for each in shape.split(",")], 0.1, np.float32)]
    code, found = run(compile_all([kernel], tmp_path), kernel, graph, arrays)
    assert code == 0
    np.testing.assert_allclose(found[0], np.float32(0.1) * np.float64(n), rtol=TOGETHER * 2.0**-24)


def test_columns_that_vary_and_are_long_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = [0]
    plain = rows.schedule_rows

    def counted(nest: LoopNest, region: Region) -> LoopNest:
        count[0] += 1
        return plain(nest, region)

    monkeypatch.setattr(rows, "schedule_rows", counted)
    compiled = torch.compile(
        lambda x: F.pad(x[:, :, 0], (600, 0), value=0.5).sum(1), backend="tilewright"
    )
    seen = []
    for size in (12, 20, 1000, 7, 168, 169):
        x = torch.randn(5, size, 3)
        torch._dynamo.mark_dynamic(x, 1)
        found, expected = compiled(x), 300 + x[:, :, 0].double().sum(1)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-4)
        seen.append(count[0])
    assert seen[0] > 0
    assert len(set(seen)) == 1


@pytest.mark.parametrize("dtype", ["f64", "i64"])
def test_sums_of_wide_types_are_formed_in_one_go(dtype: str) -> None:
    graph = body({"x": f"{dtype}[4, 5000]"}, {"y": f"{dtype}[4]: y[i<4] += x[i, j<5000]"})
    assert "merge" not in emit(graph).nest


def test_a_sum_that_asks_for_double_gets_it_for_each_term() -> None:
    graph = body({"x": "f32[4, 5000]"}, {"y": "f64[4]: y[i<4] += x[i, j<5000]"})
    assert "merge" not in emit(graph).nest
