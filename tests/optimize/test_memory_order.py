"""Values are computed in the order of what they are made from, and are the same values."""

import itertools

import numpy as np
import pytest

from tilewright.graph.evaluate import evaluate
from tilewright.graph.orders import canonical
from tilewright.graph.text import parse, show
from tilewright.graph.verify import verify
from tilewright.optimize import follow_memory, followed

from .graphs import expand, inputs_for

GRAPHS = {
    "windows and sums": """graph g(%x : f32[2, 5, 6], %z : f32[2, 5, 6]) {
        %a = {y[i<2, j<5, k<6] = exp(x[i, j, k]) + z[i, j, k]}(%x, %z) : f32[2, 5, 6]
        %b = {y[i<2, j<3, k<3] max= a[i, j+p, 2*k+q] for p<3, q<2}(%a) : f32[2, 3, 3]
        %c = {y[j<3] += b[i<2, j, k<3]}(%b) : f32[3]
        %d = {y[i<2, k<3, j<3] = b[i, j, k] * c[j]}(%b, %c) : f32[2, 3, 3]
        return %b, %c, %d }""",
    "products": """graph g(%x : f32[2, 3, 4], %w : f32[4, 5]) {
        %a = {y[i<2, j<3, k<4] = x[i, j, k] * 2}(%x) : f32[2, 3, 4]
        %b = {y[i<2, j<3, n<5] += a[i, j, k<4] * w[k, n]}(%a, %w) : f32[2, 3, 5]
        %c = {y[i<2, j<3, n<5] = b[i, j, n] + x[i, j, 1]}(%b, %x) : f32[2, 3, 5]
        return %b, %c }""",
    "what is written into": """graph g(%x : f32[2, 3, 4], %z : f32[2, 3, 4], %n : i64[2]) {
        %a = {y[n[i<2], j<3, k<4] += x[i, j, k] from z}(%n, %x, %z) : f32[2, 3, 4]
        %b = {y[i<2, j<3] argmax= a[i, j, k<4] at k}(%a) : i64[2, 3]
        %c = {y[i<8, j<3] = x[i//4, j, i%4] if j < 2 else 7}(%x) : f32[8, 3]
        return %a, %b, %c }""",
    "ends that are no work": """graph g(%x : f32[2, 1, 4], %z : f32[2, 3, 4]) {
        %a = {y[i<2, j<3, k<4] = x[i, 0, k]}(%x) : f32[2, 3, 4]
        return %a, %z, %x }""",
}
ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("first", ORDERS)
def test_values_are_the_same_in_every_order(name: str, first: tuple[int, ...]) -> None:
    graph = parse(GRAPHS[name])
    for other, last in itertools.product(ORDERS[::2], ORDERS[1::2]):
        orders = {}
        for value, order in zip(graph.inputs, (first, other), strict=False):
            if value.type.rank == 3:
                orders[value.name] = canonical(order, value.type.shape)
        ends = {
            k: canonical(last, value.type.shape)
            for k, value in enumerate(graph.outputs)
            if value.type.rank == 3
        }
        after = follow_memory(graph, orders, ends)
        verify(after)
        arrays = inputs_for(graph)
        lain = [
            array.transpose(orders[value.name]) if value.name in orders else array
            for value, array in zip(graph.inputs, arrays, strict=True)
        ]
        expected = evaluate(graph, arrays, expand=expand)
        for k, found in enumerate(evaluate(after, lain, expand=expand)):
            wanted = expected[k].transpose(ends[k]) if k in ends else expected[k]
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_a_chain_is_computed_as_its_input_lies() -> None:
    graph = parse("""graph g(%x : f32[2, 3, 4]) {
        %a = {y[i<2, j<3, k<4] = exp(x[i, j, k])}(%x) : f32[2, 3, 4]
        %b = {y[i<2, j<3, k<4] = a[i, j, k] * 2}(%a) : f32[2, 3, 4]
        return %b }""")
    after = follow_memory(graph, {"x": (0, 2, 1)}, {0: (0, 2, 1)})
    assert show(after) == show(
        parse("""graph g(%x : f32[2, 4, 3]) {
        %a_lain = {y[i<2, k<4, j<3] = exp(x[i, k, j])}(%x) : f32[2, 4, 3]
        %b_lain = {y[i<2, k<4, j<3] = a_lain[i, k, j] * 2}(%a_lain) : f32[2, 4, 3]
        return %b_lain }""")
    )
    assert followed(graph, {"x": (0, 2, 1)}) == {name: (0, 2, 1) for name in "xab"}


def test_without_orders_a_graph_stays_what_it_is() -> None:
    graph = parse(GRAPHS["products"])
    assert follow_memory(graph, {}, {}) is graph
    assert followed(graph, {}) == {}


def test_channels_that_meet_a_kernel_each_are_taken_last_and_kernels_as_they_are() -> None:
    graph = parse("""graph g(%x : f32[2, 3, 4, 5], %k : f32[3, 1, 2, 2]) {
        %p = {y[n<2, c<3, h<3, w<4] += x[n, c, h+i, w+j] * k[c, 0, i<2, j<2]}(
            %x, %k) : f32[2, 3, 3, 4]
        %y = {y[n<2, c<3, h<3, w<4] = exp(p[n, c, h, w])}(%p) : f32[2, 3, 3, 4]
        return %y }""")
    last = (0, 2, 3, 1)
    kernels = {"p": "k"}
    after = follow_memory(graph, {"x": last}, {0: last}, lambda n: kernels.get(n.output.name))
    verify(after)
    assert [value.type.shape for value in after.inputs] == [(2, 4, 5, 3), (3, 1, 2, 2)]
    assert len(after.nodes) == 2
    x, k = inputs_for(graph)
    (found,) = evaluate(after, [x.transpose(last), k], expand=expand)
    (wanted,) = evaluate(graph, [x, k], expand=expand)
    np.testing.assert_allclose(found, wanted.transpose(last), rtol=1e-6, atol=1e-6)
