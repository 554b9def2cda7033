"""Groups of nodes: a merge is refused exactly where it would close a circle."""

import networkx as nx
import numpy as np
import pytest

from tilewright.base.dtypes import F32
from tilewright.graph.build import Builder
from tilewright.graph.ir import Graph, TensorType
from tilewright.optimize.groups import Groups

SCALAR = TensorType((), F32)


def random_graph(generator: np.random.Generator, count: int) -> Graph:
    builder = Builder()
    values = [builder.input("x", SCALAR)]
    for _ in range(count):
        picked = generator.choice(len(values), size=min(2, len(values)), replace=False)
        values.append(builder.node("op", [values[at] for at in picked], SCALAR))
    return builder.finish(values[-1:])


def quotient(graph: Graph, groups: Groups) -> nx.DiGraph:
    position = {v.name: at for at, node in enumerate(graph.nodes) for v in node.outputs}
    made = nx.DiGraph()
    made.add_nodes_from(groups.alive())
    for at, node in enumerate(graph.nodes):
        for value in node.inputs:
            if value.name in position:
                edge = groups.group_of[position[value.name]], groups.group_of[at]
                if edge[0] != edge[1]:
                    made.add_edge(*edge)
    return made


@pytest.mark.parametrize("seed", range(12))
def test_a_merge_closes_a_circle_exactly_where_a_path_leads_round(seed: int) -> None:
    generator = np.random.default_rng(seed)
    graph = random_graph(generator, 24)
    groups = Groups(graph)
    for _ in range(60):
        alive = sorted(groups.alive())
        a, b = (alive[at] for at in generator.choice(len(alive), size=2, replace=False))
        merged = nx.contracted_nodes(quotient(graph, groups), a, b, self_loops=False)
        assert groups.closes_circle(a, b) == (not nx.is_directed_acyclic_graph(merged))
        if not groups.closes_circle(a, b):
            groups.merge(a, b)
            made = quotient(graph, groups)
            for at in groups.alive():
                below = {x for x in groups.alive() if groups.after[at] >> x & 1}
                above = {x for x in groups.alive() if groups.before[at] >> x & 1}
                assert below == nx.descendants(made, at)
                assert above == nx.ancestors(made, at)
        if len(alive) == 2:
            break
