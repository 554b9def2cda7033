"""Each simplifying pass: what it does, as text, and what it leaves alone."""

from collections.abc import Sequence

import pytest

from tilewright.graph.ir import Graph
from tilewright.graph.passes import Pass, run
from tilewright.graph.text import parse, show
from tilewright.optimize import (
    Algebraic,
    CommonSubexpressions,
    DeadCode,
    Expand,
    FoldConstants,
    SimplifyViews,
    SplitReductions,
    simplifications,
)

from .graphs import GRAPHS, NAMES, assert_equal


def assert_rewrites(
    passes: Pass | Sequence[Pass], before: str, after: str, *, bits: bool = True
) -> None:
    graph = parse(before)
    steps = passes if isinstance(passes, Sequence) else (passes,)
    found = run(graph, steps, verify=True)
    assert show(found) == show(parse(after))
    assert_equal(graph, found, bits=bits)


def test_equal_nodes_become_one_whatever_their_loops_are_called() -> None:
    assert_rewrites(
        CommonSubexpressions(),
        """graph g(%x : f32[4, 3], %w : f32[3]) {
          %a = {y[i<4, j<3] = x[i, j] * w[j]}(%x, %w) : f32[4, 3]
          %b = {y[p<4, q<3] = w[q] * x[p, q]}(%w, %x) : f32[4, 3]
          %c = {y[i<4] += a[i, j<3]}(%a) : f32[4]
          %d = {y[j<4] += a[j, i<3]}(%b) : f32[4]
          return %c, %d
        }""",
        """graph g(%x : f32[4, 3], %w : f32[3]) {
          %a = {y[i<4, j<3] = x[i, j] * w[j]}(%x, %w) : f32[4, 3]
          %c = {y[i<4] += a[i, j<3]}(%a) : f32[4]
          return %c, %c
        }""",
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x[i] - w[i]", "w[i] - x[i]"),
        ("(x[i] + w[i]) + 1", "x[i] + (w[i] + 1)"),
        ("x[i] * w[i] * 1", "x[i] * w[i] * 1.5"),
        ("x[i] * w[i] where i > 0", "x[i] * w[i] where i > 1"),
        ("x[i+1] * w[i] else 0", "x[i+1] * w[i] else 1"),
    ],
)
def test_what_is_not_equal_stays(a: str, b: str) -> None:
    graph = parse(
        f"""graph g(%x : f32[4], %w : f32[4]) {{
          %a = {{x, w: y[i<4] = {a}}}(%x, %w) : f32[4]
          %b = {{x, w: y[i<4] = {b}}}(%x, %w) : f32[4]
          return %a, %b
        }}"""
    )
    assert CommonSubexpressions()(graph) == graph


def test_library_calls_are_never_shared() -> None:
    graph = parse(
        """graph g(%x : f32[4]) {
          %a = library(%x, target="aten.rand_like.default") : f32[4]
          %b = library(%x, target="aten.rand_like.default") : f32[4]
          return %a, %b
        }"""
    )
    assert CommonSubexpressions()(graph) == graph


def test_dead_code_goes_and_inputs_stay() -> None:
    assert_rewrites(
        DeadCode(),
        """graph g(%x : f32[4], %w : f32[4]) {
          %a = {y[i<4] = x[i] + 1}(%w) : f32[4]
          %b = {y[i<4] = x[i] * 2}(%x) : f32[4]
          return %b
        }""",
        """graph g(%x : f32[4], %w : f32[4]) {
          %b = {y[i<4] = x[i] * 2}(%x) : f32[4]
          return %b
        }""",
    )


def test_uniform_constants_become_part_of_what_reads_them() -> None:
    assert_rewrites(
        [FoldConstants(), DeadCode()],
        """graph g(%x : f32[2]) {
          %c = constant(value=(2.0, 2.0)) : f32[2]
          %d = {y[i<2] = c[i] * 3}(%c) : f32[2]
          %y = {y[i<2] = x[i] + d[i]}(%x, %d) : f32[2]
          return %y
        }""",
        """graph g(%x : f32[2]) {
          %y = {y[i<2] = x[i] + f32(6.0)}(%x) : f32[2]
          return %y
        }""",
    )


def test_small_constants_are_computed_and_large_ones_are_not() -> None:
    text = """graph g() {{
          %c = {{y[i<{n}] = i * 2}}() : i64[{n}]
          %d = {{y[i<{n}] += c[j<{n}] where j <= i}}(%c) : i64[{n}]
          return %d
        }}"""
    assert_rewrites(
        [FoldConstants(), DeadCode()],
        text.format(n=3),
        """graph g() {
          %d = constant(value=(0, 2, 6)) : i64[3]
          return %d
        }""",
    )
    large = FoldConstants(limit=8)(parse(text.format(n=9)))
    assert [node.op for node in large.nodes] == ["formula", "formula"]


def test_a_zero_of_either_sign_is_no_uniform_value_of_the_other() -> None:
    graph = parse(
        """graph g() {
          %c = constant(value=(0.0, -0.0)) : f32[2]
          return %c
        }"""
    )
    assert FoldConstants()(graph) == graph


def test_random_numbers_are_not_constants() -> None:
    graph = parse(
        """graph g() {
          %s = {y[] = 7}() : i64[]
          %u = {y[i<4] = uniform(s[], i)}(%s) : f32[4]
          return %u
        }"""
    )
    assert FoldConstants()(graph).nodes[-1].op == "formula"


def test_an_index_out_of_range_is_left_to_the_run() -> None:
    graph = parse(
        """graph g() {
          %t = constant(value=(1.0, 2.0)) : f32[2]
          %i = constant(value=(0, 5)) : i64[2]
          %y = {y[i<2] = t[n[i]]}(%t, %i) : f32[2]
          return %y
        }"""
    )
    assert FoldConstants()(graph).nodes[-1].op == "formula"


def test_a_chain_of_views_is_one_view_and_one_that_changes_nothing_is_none() -> None:
    assert_rewrites(
        [SimplifyViews(), DeadCode()],
        """graph g(%x : f32[4, 6]) {
          %a = {y[j<6, i<4] = x[i, j]}(%x) : f32[6, 4]
          %b = {y[i<4, j<6] = x[j, i]}(%a) : f32[4, 6]
          %c = {y[n<24] = x[n//6, n%6]}(%b) : f32[24]
          %d = {y[i<2, j<12] = x[i*12+j]}(%c) : f32[2, 12]
          %e = {y[i<2, j<12] = x[i, j] * 2}(%d) : f32[2, 12]
          return %b, %d, %e
        }""",
        """graph g(%x : f32[4, 6]) {
          %d = {y[i<2, j<12] = x[i*2+j//6, j%6]}(%x) : f32[2, 12]
          %e = {y[i<2, j<12] = x[i*2+j//6, j%6] * 2}(%x) : f32[2, 12]
          return %x, %d, %e
        }""",
    )


def test_a_matrix_product_reads_views_as_they_are() -> None:
    text = """graph g(%a : f32[4, 3], %b : f32[5, 4]) {
          %t = {y[j<3, i<4] = x[i, j]}(%a) : f32[3, 4]
          %y = {y[m<5, n<3] += x[m, k<4] * w[n, k]}(%b, %t) : f32[5, 3]
          return %y
        }"""
    assert_rewrites(SimplifyViews(), text, text)


def test_composites_are_expanded_but_for_those_that_are_kept() -> None:
    graph = parse(
        """graph g(%x : f32[4, 6]) {
          %y = softmax(%x, dim=-1) : f32[4, 6]
          return %y
        }"""
    )
    assert all(node.op == "formula" for node in Expand()(graph).nodes)
    assert Expand(keep=lambda node: node.op == "softmax")(graph) == graph
    assert_equal(graph, Expand()(graph), bits=True)


def test_a_long_sum_down_columns_is_cut_in_chunks() -> None:
    assert_rewrites(
        SplitReductions(size=64, chunks=4, least=2, enough=4),
        """graph g(%x : f32[12, 8]) {
          %s = {y[d<8] += x[i<12, d]}(%x) : f32[8]
          return %s
        }""",
        """graph g(%x : f32[12, 8]) {
          %s_parts = {y[i<4, d<8] += x[i*3+i_, d] for i_<3}(%x) : f32[4, 8]
          %s = {y[t0<8] += s_parts[c0<4, t0]}(%s_parts) : f32[8]
          return %s
        }""",
        bits=False,
    )


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("y[i<64] += x[i, j<16]", "f32[64]"),  # along memory, enough rows
        ("y[j<16] argmax= x[i<64, j] at i", "i64[16]"),  # the first of equals wins
        ("y[j<16] *= x[i<64, j]", "f32[16]"),
        ("y[j<16] max= x[i<64, j] where i > j", "f32[16]"),  # a chunk may have no term
        ("y[j<16] += x[i<8, j]", "f32[16]"),  # short
    ],
)
def test_other_reductions_are_not_cut(text: str, type_: str) -> None:
    graph = parse(
        f"""graph g(%x : f32[64, 16]) {{
          %s = {{{text}}}(%x) : {type_}
          return %s
        }}"""
    )
    assert SplitReductions(size=512)(graph) == graph


@pytest.mark.parametrize(("rows", "terms", "cut"), [(8, 16, False), (7, 16, True), (8, 17, True)])
def test_columns_of_few_terms_are_left_whole_where_there_are_rows_to_share(
    rows: int, terms: int, cut: bool
) -> None:
    graph = parse(
        f"""graph g(%x : f32[{rows}, {terms}, 4]) {{
          %s = {{y[i<{rows}, d<4] += x[i, k<{terms}, d]}}(%x) : f32[{rows}, 4]
          return %s
        }}"""
    )
    split = run(graph, [SplitReductions(size=64, least=2, short=16, rows=8)], verify=True)
    assert (len(split.nodes) == 2) == cut


@pytest.mark.parametrize("rows", [13, 32, 50])
def test_chunks_need_not_divide(rows: int) -> None:
    graph = parse(
        f"""graph g(%x : f32[{rows}, 8], %w : f32[{rows}]) {{
          %s = {{y[d<8] += x[i<{rows}, d] * w[i]}}(%x, %w) : f32[8]
          %m = {{y[] max= x[i<{rows}, d<8]}}(%x) : f32[]
          return %s, %m
        }}"""
    )
    split = run(graph, [SplitReductions(size=64, few=4, chunks=5, least=2)], verify=True)
    assert len(split.nodes) == 4
    assert_equal(graph, split, bits=False)


@pytest.mark.parametrize("rows", [*range(33, 80), 491, 509])
def test_no_chunk_is_left_without_terms(rows: int) -> None:
    # Such a chunk would give its fill, 0, which is more than any of these maxima.
    graph = parse(
        f"""graph g(%x : f32[{rows}, 8]) {{
          %m = {{y[d<8] max= -1 - x[i<{rows}, d] * x[i, d]}}(%x) : f32[8]
          %n = {{y[d<8] min= 1 + x[i<{rows}, d] * x[i, d]}}(%x) : f32[8]
          return %m, %n
        }}"""
    )
    split = run(graph, [SplitReductions(size=64, few=4, least=2, enough=32)], verify=True)
    assert len(split.nodes) == 4
    assert_equal(graph, split, bits=True)


@pytest.mark.parametrize("graph", GRAPHS, ids=NAMES)
def test_simplifying_again_changes_nothing(graph: Graph) -> None:
    once = run(graph, simplifications(), verify=True)
    assert run(once, simplifications(), verify=True) == once


def test_a_rule_shows_in_the_graph() -> None:
    assert_rewrites(
        Algebraic(),
        """graph g(%x : f32[4]) {
          %a = {y[i<4] = -(-x[i]) * 1}(%x) : f32[4]
          return %a
        }""",
        """graph g(%x : f32[4]) {
          %a = {y[i<4] = x[i]}(%x) : f32[4]
          return %a
        }""",
    )


def test_loops_of_which_each_result_has_a_window_are_not_cut() -> None:
    window = "i >= p * 64 // 7 and i < (p * 64 + 70) // 7"
    graph = parse(f"""graph g(%x : f32[64, 40]) {{
      %y = {{y[p<7, d<40] += x[i<64, d] where {window}}}(%x) : f32[7, 40]
      return %y
    }}""")
    assert SplitReductions(size=64, chunks=4, least=2)(graph) == graph
