"""Fusion keeps the meaning of every graph, moves fewer bytes, and says why."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.graph.build import Builder
from tilewright.graph.ir import Graph
from tilewright.graph.notation import declare, instantiate
from tilewright.graph.passes import run
from tilewright.graph.text import parse, show
from tilewright.graph.verify import verify
from tilewright.kernels import emit
from tilewright.ops.operator import write
from tilewright.optimize import Fuse, SplitReductions, plan_fusion, simplifications
from tilewright.optimize.merge import Limits
from tilewright.optimize.plan import problems

from .graphs import GRAPHS, NAMES, assert_equal, joint, normed_net, tensor


def simplified(graph: Graph) -> Graph:
    return run(graph, simplifications(), verify=True)


@pytest.mark.parametrize("graph", GRAPHS, ids=NAMES)
def test_fused_graphs_are_equal_and_legal(graph: Graph) -> None:
    small = SplitReductions(size=64, few=4, chunks=4, least=2)
    before = simplified(graph)
    assert_equal(graph, before, bits=False)
    split = small(before)
    verify(split)
    assert_equal(before, split, bits=False)
    for made in (before, split):
        fused = Fuse()(made)
        verify(fused)
        assert_equal(made, fused, bits=True)


def test_a_row_of_softmax_is_one_kernel_and_a_second_reader_another() -> None:
    graph = parse(
        """graph g(%x : f32[64, 128], %w : f32[128, 64]) {
          %m = {y[i<64] max= x[i, j<128]}(%x) : f32[64]
          %e = {y[i<64, j<128] = exp(x[i, j] - m[i])}(%x, %m) : f32[64, 128]
          %s = {y[i<64] += e[i, j<128]}(%e) : f32[64]
          %p = {y[i<64, j<128] = e[i, j] / s[i]}(%e, %s) : f32[64, 128]
          %o = {y[i<64, n<64] += p[i, k<128] * w[k, n]}(%p, %w) : f32[64, 64]
          %r = {y[i<64, n<64] = max(o[i, n], 0)}(%o) : f32[64, 64]
          return %r
        }"""
    )
    fused = Fuse()(graph)
    assert [node.op for node in fused.nodes] == ["fused", "formula", "fused"]
    first = fused.nodes[0]
    assert [node.output.name for node in first.graphs[0].nodes] == ["m", "e", "s", "p"]
    assert [value.name for value in first.outputs] == ["p"]
    assert first.attr("recipe") == "rows"
    assert_equal(graph, fused, bits=True)


def test_what_an_index_picks_of_a_row_is_read_while_the_row_is_near() -> None:
    graph = parse(
        """graph g(%x : f32[4096, 256], %t : i64[4096]) {
          %m = {y[i<4096] max= x[i, j<256]}(%x) : f32[4096]
          %s = {y[i<4096] += exp(x[i, j<256] - m[i])}(%x, %m) : f32[4096]
          %l = {y[i<4096] = log(s[i]) + m[i]}(%s, %m) : f32[4096]
          %p = {y[i<4096] = l[i] - x[i, t[i]]}(%l, %x, %t) : f32[4096]
          %c = {y[k<16] += p[256*k + i] for i<256}(%p) : f32[16]
          return %c
        }"""
    )
    rows, parts = Fuse()(graph).nodes
    assert [value.name for value in rows.outputs] == ["p"]
    assert [value.name for value in parts.inputs] == ["p"]  # no reason to pick it again there


def test_loops_of_other_ranks_and_orders_are_one_space() -> None:
    graph = parse(
        """graph g(%x : f32[4, 6, 8]) {
          %a = {y[i<4, j<6, k<8] = x[i, j, k] * 2}(%x) : f32[4, 6, 8]
          %b = {y[n<24, k<8] = a[n//6, n%6, k] + 1}(%a) : f32[24, 8]
          %c = {y[q<192] = b[q//8, q%8] - x[q//48, q//8%6, q%8]}(%b, %x) : f32[192]
          %d = {y[n<24] += c[n*8+k] for k<8}(%c) : f32[24]
          %e = {y[k<8, j<6, i<4] = c[i*48+j*8+k] / d[i*6+j]}(%c, %d) : f32[8, 6, 4]
          return %e
        }"""
    )
    plan = plan_fusion(graph)
    (region,) = plan.regions
    assert (region.recipe, region.rows, region.columns) == ("rows", 24, 8)
    assert [value.name for value in region.outputs] == ["e"]
    assert_equal(graph, Fuse()(graph), bits=True)


def test_no_merge_closes_a_circle() -> None:
    # a -> product -> c and a -> c: a and c cannot be one kernel with the product outside.
    graph = parse(
        """graph g(%x : f32[64, 64], %w : f32[64, 64]) {
          %a = {y[i<64, j<64] = x[i, j] * 2}(%x) : f32[64, 64]
          %p = {y[i<64, j<64] += a[i, k<64] * w[k, j]}(%a, %w) : f32[64, 64]
          %c = {y[i<64, j<64] = exp(a[i, j]) + p[i, j]}(%a, %p) : f32[64, 64]
          return %c
        }"""
    )
    fused = Fuse()(graph)
    assert [node.op for node in fused.nodes] == ["fused", "formula", "fused"]
    assert_equal(graph, fused, bits=True)


def test_a_cheap_value_is_computed_again_and_a_dear_one_is_kept() -> None:
    text = """graph g(%x : f32[64, 64], %w : f32[64, 64]) {{
          %a = {{y[i<64, j<64] = {}}}(%x) : f32[64, 64]
          %b = {{y[j<64] += a[i<64, j]}}(%a) : f32[64]
          %c = {{y[i<64] += a[i, j<64]}}(%a) : f32[64]
          return %b, %c
        }}"""
    cheap, dear = parse(text.format("x[i, j] * 2")), parse(text.format("erf(exp(sin(x[i, j])))"))
    again = plan_fusion(cheap)
    assert sum(len(region.again) for region in again.regions) == 1
    assert all("a" not in {v.name for v in region.outputs} for region in again.regions)
    kept = plan_fusion(dear)
    assert not any(region.again for region in kept.regions)
    assert any("a" in {v.name for v in region.outputs} for region in kept.regions)
    for graph in (cheap, dear):
        assert_equal(graph, Fuse()(graph), bits=True)


def test_what_is_read_at_another_place_is_not_merged_and_says_so() -> None:
    graph = parse(
        """graph g(%x : f32[64, 64]) {
          %a = {y[i<64, j<64] = erf(exp(sin(x[i, j])))}(%x) : f32[64, 64]
          %b = {y[i<64, j<64] = a[i, 63-j] + a[i, j]}(%a) : f32[64, 64]
          return %b
        }"""
    )
    plan = plan_fusion(graph)
    assert len(plan.regions) == 2
    assert "not with b: a is read at another place than it is made: would save 32 KB" in str(plan)
    assert_equal(graph, Fuse()(graph), bits=True)


def test_a_few_rows_are_not_made_of_what_many_threads_can_share() -> None:
    graph = parse(
        """graph g(%x : f32[200000]) {
          %s = {y[] += x[i<200000]}(%x) : f32[]
          %y = {y[i<200000] = x[i] / s[]}(%x, %s) : f32[200000]
          return %y
        }"""
    )
    plan = plan_fusion(graph)
    assert len(plan.regions) == 2
    assert "1 rows are too few to share among threads" in str(plan)


LANDING = """graph g(%x : f32[300, 64], %s : i64[900], %w : f32[900], %t : i64[900]) {{
  %r = {{y[e<900, d<64] = {}}}(%x, %s, %w) : f32[900, 64]
  %z = {{y[i<300, d<64] = 0}}() : f32[300, 64]
  %y = {{y[t[e<900], d<64] += r[e, d] from z}}(%t, %r, %z) : f32[300, 64]
  {}
}}"""


def test_what_lands_where_an_index_says_is_computed_there_if_it_costs_little() -> None:
    row, whole = "x[s[e], d] * w[e]", "return %y"
    (one,) = Fuse()(parse(LANDING.format(row, whole))).nodes
    assert one.op == "fused"
    assert len(one.graphs[0].nodes) == 3
    dear = Fuse()(parse(LANDING.format(f"exp({row})", whole)))
    assert [len(node.graphs[0].nodes) for node in dear.nodes] == [1, 2]
    assert "r is computed again" in str(plan_fusion(parse(LANDING.format(row, whole))))
    largest = LANDING.format(row, whole).replace("+= r[e, d]", "max= r[e, d]")
    assert len(Fuse()(parse(largest)).nodes) == 1
    filled = parse(largest.replace(" from z", " else 0").replace("%r, %z)", "%r)"))
    assert [len(node.graphs[0].nodes) for node in Fuse()(filled).nodes] == [1, 1]


def test_what_lands_over_what_it_is_made_of_is_computed_before() -> None:
    text = LANDING.format("x[s[e], d] * w[e]", "return %y\n  updates %x = 0").replace(
        "from z", "from x"
    )
    nodes = Fuse()(parse(text.replace("%r, %z", "%r, %x"))).nodes
    assert [node.output.name for node in nodes] == ["r", "y"]


def test_an_addition_to_a_product_is_left_to_the_library_unless_more_follows() -> None:
    text = """graph g(%x : f32[64, 64], %w : f32[64, 64], %b : f32[64]) {{
          %p = {{y[i<64, j<64] += x[i, k<64] * w[k, j]}}(%x, %w) : f32[64, 64]
          %h = {{y[i<64, j<64] = p[i, j] + b[j]}}(%p, %b) : f32[64, 64]
          {}
        }}"""
    alone = Fuse()(parse(text.format("return %h")))
    assert [node.op for node in alone.nodes] == ["formula", "formula"]
    more = "%r = {y[i<64, j<64] = max(h[i, j], 0)}(%h) : f32[64, 64]\n return %r"
    assert [node.op for node in Fuse()(parse(text.format(more))).nodes] == ["formula", "fused"]


def test_views_for_a_library_stay_and_copies_for_kernels_do_not() -> None:
    graph = parse(
        """graph g(%x : f32[8, 4, 6], %w : f32[24, 5]) {
          %a = {y[i<8, j<4, k<6] = sin(x[i, j, k])}(%x) : f32[8, 4, 6]
          %v = {y[i<8, n<24] = a[i, n//6, n%6]}(%a) : f32[8, 24]
          %p = {y[i<8, n<5] += v[i, k<24] * w[k, n]}(%v, %w) : f32[8, 5]
          return %p
        }"""
    )
    fused = Fuse()(graph)
    assert [node.op for node in fused.nodes] == ["fused", "formula", "formula"]
    assert dict(plan_fusion(graph).kept)["v"] == "a view of a"


def test_a_plan_prints(golden: Callable[[str, str], None]) -> None:
    plan = plan_fusion(run(joint(normed_net()), (*simplifications(), SplitReductions(size=64))))
    golden("plan.txt", str(plan))


@pytest.mark.parametrize("graph", GRAPHS, ids=NAMES)
def test_a_plan_moves_no_more_bytes_and_every_body_is_one_kernel(graph: Graph) -> None:
    before = run(simplified(graph), [SplitReductions(size=64, few=4, chunks=4, least=2)])
    plan = plan_fusion(before)
    assert plan.after <= plan.before
    assert plan.after == sum(region.bytes for region in plan.regions)
    for node in Fuse()(before).nodes:
        if node.op == "fused" and node.attr("recipe") != "alone":
            assert not emit(node.graphs[0]).recipe.startswith("naive")


def test_an_impossible_plan_is_seen() -> None:
    graph = simplified(normed_net())
    plan = plan_fusion(graph)
    region = plan.regions[0]
    assert list(problems(plan, graph)) == []
    assert list(problems(replace(plan, regions=()), graph))
    assert list(problems(replace(plan, regions=(region, *plan.regions)), graph))
    headless = replace(region, nodes=region.nodes[1:])
    assert list(problems(replace(plan, regions=(headless, *plan.regions[1:])), graph))


def _random_graph(draw: st.DrawFn) -> Graph:
    """Return a graph of pointwise formulas, reductions, views, shifts and products, 4 x 6 each."""
    builder = Builder("random")
    full = [builder.input(name, tensor(4, 6)) for name in ("x", "z")]
    rows = [builder.input("r", tensor(4))]
    columns = [builder.input("c", tensor(6))]
    square = builder.input("w", tensor(6, 6))
    bodies = (
        ("y[i, j] = a[i, j] * 0.5 + b[i, j]", "ff", full),
        ("y[i, j] = exp(-(a[i, j] * a[i, j])) - r[i]", "fr", full),
        ("y[i, j] = a[i, j] + c[j]", "fc", full),
        ("y[i, j] = (a[i, j-1] ?? 0) + b[3-i, j]", "ff", full),
        ("y[i<4, j<6] = a[j // 2, i + 1] + b[i, j] where j < 4 else 3", "ff", full),
        ("y[i<4, j<6] = a[(i*6+j)//8*2 % 4, j]", "f", full),
        ("y[i] += a[i, j]", "f", rows),
        ("y[i] max= a[i, j] - r[i]", "fr", rows),
        ("y[i] = r[i] / (1 + s[i] * s[i])", "rr", rows),
        ("y[j] += a[i, j] * b[i, j]", "ff", columns),
        ("y[j] = c[j] * 2", "c", columns),
    )
    for step in range(draw(st.integers(3, 12))):
        if draw(st.integers(0, 8)) == 0:
            value = full[draw(st.integers(0, len(full) - 1))]
            body = "y[i, j] += a[i, k] * w[k, j]"
            full.append(write(builder, body, a=value, w=square, name=f"p{step}"))
            continue
        body, kinds, made = draw(st.sampled_from(bodies))
        pools = {"f": full, "r": rows, "c": columns}
        letters = {"ff": "ab", "fr": "ar", "fc": "ac", "f": "a", "rr": "rs", "c": "c"}[kinds]
        operands = {
            letter: pools[kind][draw(st.integers(0, len(pools[kind]) - 1))]
            for letter, kind in zip(letters, kinds, strict=True)
        }
        shape = {id(full): (4, 6), id(rows): (4,), id(columns): (6,)}[id(made)]
        declared = declare(f"f({', '.join(operands)})  {body}")
        types = [value.type for value in operands.values()]
        formula = instantiate(declared, types, shape=shape)
        made.append(builder.formula(formula, *operands.values(), name=f"v{step}"))
    results = [pool[-1] for pool in (full, rows, columns)]
    results.append(full[draw(st.integers(0, len(full) - 1))])
    return builder.finish(results)


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    return _random_graph(draw)


@given(random_graphs())
def test_random_graphs_keep_their_meaning(graph: Graph) -> None:
    verify(graph)
    tight = Limits(nodes=5, tensors=4, rows=1, points=1, shared=1)
    for limits in (Limits(shared=1), tight):
        fused = Fuse(limits=limits)(graph)
        verify(fused)
        assert_equal(graph, fused, bits=True)
    split = SplitReductions(size=8, few=8, chunks=2, least=2)
    everything = run(graph, (*simplifications(), split, Fuse()), verify=True)
    assert_equal(graph, everything, bits=False)


def test_tiny_formulas_share_a_kernel_unless_one_waits_for_what_comes_between() -> None:
    graph = parse(
        """graph g(%s : f32[], %t : f32[3], %x : f32[256, 256]) {
          %a = {y[] = s[] + 1}(%s) : f32[]
          %b = {y[i<3] = t[i] * 2}(%t) : f32[3]
          %m = {y[] max= x[i<256, j<256]}(%x) : f32[]
          %c = {y[] = a[] / m[]}(%a, %m) : f32[]
          %q = {y[i<256, j<256] = x[i, j] * c[]}(%x, %c) : f32[256, 256]
          %p = {y[i<256, n<256] += x[i, k<256] * q[k, n]}(%x, %q) : f32[256, 256]
          %d = {y[] = p[0, 0] + b[0]}(%p, %b) : f32[]
          return %b, %c, %d, %p
        }"""
    )
    fused = Fuse()(graph)
    verify(fused)
    bodies = [
        {node.output.name for node in node.graphs[0].nodes}
        for node in fused.nodes
        if node.op == "fused"
    ]
    assert {"a", "b", "c"} in bodies
    assert {"d"} in bodies
    assert_equal(graph, fused, bits=True)


@pytest.mark.parametrize("graph", GRAPHS, ids=NAMES)
def test_fused_graphs_print_and_read_back(graph: Graph) -> None:
    fused = Fuse()(simplified(graph))
    assert parse(show(fused)) == fused
