"""What follows a product element by element joins it, and nothing else does."""

import pytest

from tilewright.graph.ir import FUSED, Graph
from tilewright.graph.passes import run
from tilewright.graph.text import parse
from tilewright.graph.verify import verify
from tilewright.optimize import Fuse, FuseEpilogues, parted, simplifications

from .graphs import GRAPHS, NAMES, assert_equal

BEFORE = """graph g(%a : f32[8, 6], %b : f32[6, 4], %e : f32[4], %x : f32[8, 4],
    %w : f32[4, 4]) {
  %c = {y[i<8, j<4] += a[i, k<6] * b[k, j]}(%a, %b) : f32[8, 4]
"""
JOINED = {
    "a bias": "%d = {y[i<8, j<4] = c[i, j] + e[j]}(%c, %e) : f32[8, 4] return %d",
    "a bias and relu": """%d = {y[i<8, j<4] = c[i, j] + e[j]}(%c, %e) : f32[8, 4]
        %f = {y[i<8, j<4] = max(d[i, j], 0)}(%d) : f32[8, 4] return %f""",
    "what a gradient needs besides": """%d = {y[i<8, j<4] = c[i, j] + e[j]}(%c, %e) : f32[8, 4]
        %f = {y[i<8, j<4] = d[i, j] * d[i, j]}(%d) : f32[8, 4] return %d, %f""",
    "a cast": "%d = {y[i<8, j<4] = f64(c[i, j])}(%c) : f64[8, 4] return %d",
    "a square": "%d = {y[i<8, j<4] = c[i, j] * c[i, j]}(%c) : f32[8, 4] return %d",
}
APART = {
    "what computes for long": "%d = {y[i<8, j<4] = tanh(c[i, j])}(%c) : f32[8, 4] return %d",
    "another large operand": """%d = {y[i<8, j<4] = x[i, j] + c[i, j]}(%x, %c)
        : f32[8, 4] return %d""",
    "a row's sum": """%d = {y[i<8] += c[i, j<4]}(%c) : f32[8]
        %f = {y[i<8, j<4] = c[i, j] / d[i]}(%c, %d) : f32[8, 4] return %f""",
    "another order": "%d = {y[j<4, i<8] = exp(c[i, j])}(%c) : f32[4, 8] return %d",
    "a neighbour": "%d = {y[i<8, j<3] = c[i, j] - c[i, j + 1]}(%c) : f32[8, 3] return %d",
    "a larger shape": "%d = {y[n<2, i<8, j<4] = exp(c[i, j]) * n}(%c) : f32[2, 8, 4] return %d",
    "a product that is a result": "%d = {y[i<8, j<4] = exp(c[i, j])}(%c) : f32[8, 4] return %c, %d",
    "a view": "%d = {y[j<4, i<8] = c[i, j]}(%c) : f32[4, 8] return %d",
}


def fused(text: str) -> tuple[Graph, Graph]:
    before = parse(BEFORE + text + "}")
    after = FuseEpilogues()(Fuse()(before))
    verify(after)
    return before, after


@pytest.mark.parametrize("name", JOINED)
def test_what_has_the_products_elements_joins_it(name: str) -> None:
    before, after = fused(JOINED[name])
    (node,) = after.nodes
    assert node.op == FUSED
    assert node.outputs == before.outputs
    assert node.inputs[:2] == before.inputs[:2]
    assert_equal(before, after, bits=True)


@pytest.mark.parametrize("name", APART)
def test_what_has_not_stays_apart(name: str) -> None:
    before, after = fused(APART[name])
    assert all(parted(node) is None for node in after.nodes)
    assert_equal(before, after, bits=True)


def test_the_two_parts_are_the_product_and_what_reads_it() -> None:
    _, after = fused(JOINED["what a gradient needs besides"])
    found = parted(after.nodes[0])
    assert found is not None
    product, rest = found
    assert product.output.name == "c"
    assert [value.name for value in product.inputs] == ["a", "b"]
    assert [value.name for value in rest.inputs] == ["c", "e"]
    assert [value.name for value in rest.outputs] == ["d", "f"]


def test_a_product_does_not_wait_for_what_is_made_later() -> None:
    """Its operands would have to live as long."""
    later = """%s = {y[j<4] = e[j] * 2}(%e) : f32[4]
      %p = {y[i<8, j<4] += x[i, k<4] * w[k, j]}(%x, %w) : f32[8, 4]
      %q = {y[j<4] max= p[i<8, j]}(%p) : f32[4]
      """
    _, after = fused(later + "%d = {y[i<8, j<4] = c[i, j] + q[j]}(%c, %q) : f32[8, 4] return %d")
    assert all(parted(node) is None for node in after.nodes)
    _, after = fused(
        later + "%d = {y[i<8, j<4] = c[i, j] + s[j]}(%c, %s) : f32[8, 4] return %d, %q"
    )
    assert parted(after.nodes[0]) is not None


@pytest.mark.parametrize("graph", GRAPHS, ids=NAMES)
def test_graphs_stay_equal_and_legal(graph: Graph) -> None:
    before = Fuse()(run(graph, simplifications(), verify=True))
    after = FuseEpilogues()(before)
    verify(after)
    assert_equal(before, after, bits=True)
