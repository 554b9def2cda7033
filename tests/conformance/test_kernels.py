"""The kernel of every formula that an operator stands for computes what the evaluator does."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import assert_close, compile_all, run
from tests.standalone import Done, Operand, run_standalone, write_kernels

from tilewright.autodiff import reverse
from tilewright.base.dtypes import BF16, F16, F32, DType
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


def first_cases(operator: Operator) -> Iterator[Case]:
    """The first sample: with its gradients in float32, without in float16."""
    for sample in operator.samples[:1]:
        yield with_gradients(narrowed(operator, sample, F32))
        yield narrowed(operator, sample, F16)


def all_cases(operator: Operator) -> Iterator[Case]:
    """Every sample with its gradients, in float32 and bfloat16."""
    for sample in operator.samples:
        yield with_gradients(narrowed(operator, sample, F32))
        yield with_gradients(narrowed(operator, sample, BF16))


def checked(cases: Iterable[Case], folder: Path) -> list[Done]:
    """Return the kernels of all formulas in the cases, once each, after comparing what they make
    with the evaluator."""
    found: dict[str, tuple[Graph, list[Array], Emitted, str]] = {}
    for case in cases:
        for node, arrays in formula_values(case):
            graph = body_of(node)
            distinct = {v.name: a for v, a in zip(node.inputs, arrays, strict=True)}
            given = [distinct[value.name] for value in graph.inputs]
            kernel = emit(graph)
            name = f"{case.operator.name} {case.sample}"
            found.setdefault(kernel.name, (graph, given, kernel, name))
    if not found:
        return []
    # What the optimiser makes of it is the compiler's business: -O0 is quicker.
    kernels = [kernel for _, _, kernel, _ in found.values()]
    library = compile_all(kernels, folder, "-O0", "-Wno-parentheses")
    done = []
    for graph, given, kernel, name in found.values():
        code, results = run(library, kernel, graph, given)
        assert code == 0, name
        try:
            assert_close(graph, given, results, ulps=64)
        except AssertionError as error:
            raise AssertionError(f"{name}: {graph.nodes[0].formula}\n{error}") from error
        done.append(Done(kernel, [*map(Operand, given)], [*map(Operand, results)]))
    return done


@pytest.mark.parametrize("page", [name for name, _ in PAGES])
def test_kernels_equal_the_evaluator(page: str, tmp_path: Path) -> None:
    with np.errstate(all="ignore"):
        checked(chain.from_iterable(map(first_cases, dict(PAGES)[page])), tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("page", [name for name, _ in PAGES])
def test_all_kernels_equal_the_evaluator_and_pass_the_sanitizers(page: str, tmp_path: Path) -> None:
    with np.errstate(all="ignore"):
        done = checked(chain.from_iterable(map(all_cases, dict(PAGES)[page])), tmp_path)
    if done:
        write_kernels(done, tmp_path / "standalone")
        assert run_standalone(tmp_path / "standalone", "sanitize") == ""
