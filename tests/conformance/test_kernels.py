"""The kernel of every formula that an operator stands for computes what the evaluator does."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import assert_close, compile_all, run
from tests.sweep import few

from tilewright.autodiff import reverse
from tilewright.base.dtypes import F16, F32, DType
from tilewright.graph.build import Builder
from tilewright.graph.ir import FORMULA, Graph, Node
from tilewright.kernels import Emitted, emit
from tilewright.ops import PAGES, Operator, Sample

from .cases import Array, Case, formula_values, make


def narrowed(operator: Operator, sample: Sample, dtype: DType) -> Case:
    chosen = {
        at: dtype
        for at, item in enumerate(sample.inputs)
        if isinstance(item, str) and item[0] in "fc"
    }
    return make(operator, sample, chosen)


def with_gradients(case: Case) -> Case:
    """The same operator and its gradients, tangents of 0.5."""
    pairs = zip(case.graph.inputs, case.wanted, strict=True)
    wrt = [value.name for value, want in pairs if want]
    floats = [at for at, v in enumerate(case.graph.outputs) if v.type.dtype.kind == "float"]
    if not wrt or not floats or not case.operator.eager:
        return case
    joint = reverse(case.graph, wrt, of=floats[:1])
    tangents = tuple(
        np.full([int(dim) for dim in value.type.shape if isinstance(dim, int)], 0.5).astype(
            value.type.dtype.numpy
        )
        for value in joint.graph.inputs[len(case.inputs) :]
    )
    return Case(case.operator, case.sample, joint.graph, (*case.inputs, *tangents), ())


def body_of(node: Node) -> Graph:
    builder = Builder("body")
    values = {value.name: builder.input(value.name, value.type) for value in node.inputs}
    assert node.formula is not None, "a kernel is made of formulas"
    result = builder.formula(
        node.formula, *(values[value.name] for value in node.inputs), name=node.output.name
    )
    graph = builder.finish((result,))
    assert graph.nodes[0].op == FORMULA
    return graph


def cases_of(operator: Operator, *, every: bool) -> Iterator[Case]:
    """The first sample, or every one, with its gradients in float32; and the first in float16."""
    for sample in operator.samples if every else operator.samples[:1]:
        yield with_gradients(narrowed(operator, sample, F32))
    for sample in operator.samples[:1]:
        yield narrowed(operator, sample, F16)


@pytest.mark.parametrize("every", few([False, True], False), ids={False: "first", True: "all"}.get)
@pytest.mark.parametrize("page", [name for name, _ in PAGES])
def test_kernels_equal_the_evaluator(page: str, every: bool, tmp_path: Path) -> None:
    found: dict[str, tuple[Graph, list[Array], Emitted, str]] = {}
    with np.errstate(all="ignore"):
        for operator in dict(PAGES)[page]:
            for case in cases_of(operator, every=every):
                for node, arrays in formula_values(case):
                    graph = body_of(node)
                    distinct = {v.name: a for v, a in zip(node.inputs, arrays, strict=True)}
                    given = [distinct[value.name] for value in graph.inputs]
                    kernel = emit(graph)
                    name = f"{operator.name} {case.sample}"
                    found.setdefault(kernel.name, (graph, given, kernel, name))
        # What the optimiser makes of it is the compiler's business: -O0 is quicker.
        library = compile_all(
            [kernel for _, _, kernel, _ in found.values()], tmp_path, "-O0", "-Wno-parentheses"
        )
        for graph, given, kernel, name in found.values():
            code, results = run(library, kernel, graph, given)
            assert code == 0, name
            try:
                assert_close(graph, given, results, ulps=64)
            except AssertionError as error:
                raise AssertionError(f"{name}: {graph.nodes[0].formula}\n{error}") from error
