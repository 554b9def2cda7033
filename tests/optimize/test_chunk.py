"""Chunks of rows: the same numbers without the wide values, and graphs that must stay whole."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tilewright as tw
from tilewright.base.errors import OptionError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import SCAN, Graph
from tilewright.graph.parse import parse
from tilewright.graph.verify import verify
from tilewright.optimize import ChunkRows

LOSS = """
graph main(%x : {t}[{b}, {r}, {d}], %w : {t}[{v}, {d}], %c : {t}[{r}, {v}]) {{
  %s = {{y[i<{b}, j<{r}, o<{v}] += x[i, j, k<{d}] * w[o, k]}}(%x, %w) : {t}[{b}, {r}, {v}]
  %m = {{y[i<{n}] max= s[i//{r}, i%{r}, o<{v}]}}(%s) : {t}[{n}]
  %t = {{y[i<{n}] += exp(s[i//{r}, i%{r}, o<{v}] - m[i])}}(%s, %m) : {t}[{n}]
  %p = {{y[i<{n}, o<{v}] = exp(s[i//{r}, i%{r}, o] - m[i]) / t[i] * c[i%{r}, o]}}(%s, %m, %t, %c) : {t}[{n}, {v}]
  %dx = {{y[i<{n}, k<{d}] += p[i, o<{v}] * w[o, k]}}(%p, %w) : {t}[{n}, {d}]
  %dw = {{y[o<{v}, k<{d}] += p[i<{n}, o] * x[i//{r}, i%{r}, k]}}(%p, %x) : {t}[{v}, {d}]
  return %t, %dx, %dw
}}
"""  # noqa: E501
TINY = ChunkRows(bytes=1, room=1, least=1)


def _loss(b: int, r: int, v: int, d: int, t: str = "f64") -> Graph:
    text = LOSS.format(b=b, r=r, v=v, d=d, n=b * r, t=t)
    return parse(text)


def _scans(graph: Graph) -> list[int]:
    return [dict(node.attrs)["length"] for node in graph.nodes if node.op == SCAN]  # type: ignore[misc]


def _inputs(graph: Graph) -> list[np.ndarray]:
    source = np.random.default_rng(0)
    shapes = [tuple(int(str(dim)) for dim in value.type.shape) for value in graph.inputs]
    return [source.standard_normal(shape) for shape in shapes]


@settings(max_examples=30, deadline=None)
@given(
    b=st.integers(1, 6),
    r=st.integers(1, 5),
    v=st.integers(2, 7),
    d=st.integers(2, 4),
    least=st.integers(1, 8),
)
def test_chunks_compute_what_the_whole_computes(b: int, r: int, v: int, d: int, least: int) -> None:
    graph = _loss(b, r, v, d)
    made = ChunkRows(bytes=1, room=1, least=least)(graph)
    verify(made)
    for whole, chunked in zip(
        evaluate(graph, _inputs(graph)), evaluate(made, _inputs(graph)), strict=True
    ):
        np.testing.assert_allclose(chunked, whole, rtol=1e-12)


def test_a_chunk_has_room_or_the_least_rows() -> None:
    graph = _loss(8, 4, 16, 2)
    size = 8 * 4 * 16 * 8
    assert _scans(ChunkRows(bytes=1, room=size // 4, least=1)(graph)) == [4]
    assert _scans(ChunkRows(bytes=1, room=1, least=8)(graph)) == [4]
    assert _scans(ChunkRows(bytes=size + 1, room=1, least=1)(graph)) == []
    (scan,) = (node for node in TINY(graph).nodes if node.op == SCAN)
    wide = [value.type for node in scan.graphs[0].nodes for value in node.outputs]
    assert max(math.prod(int(str(dim)) for dim in type_.shape) for type_ in wide) == 4 * 16


WHOLE = {
    "the wide value is a result": ("%y = {y[i<8, o<9] = exp(s[i, o])}(%s) : f64[8, 9]", "%y"),
    "a sum over rows is read by what would be chunked": (
        """%t = {y[o<9] += s[i<8, o]}(%s) : f64[9]
  %p = {y[i<8, o<9] = s[i, o] / t[o]}(%s, %t) : f64[8, 9]
  %y = {y[i<8] += p[i, o<9]}(%p) : f64[8]""",
        "%y",
    ),
    "a condition asks for the row": (
        """%p = {y[i<8, o<9] = s[i, o] if i == o else 0.0}(%s) : f64[8, 9]
  %y = {y[i<8] += p[i, o<9]}(%p) : f64[8]""",
        "%y",
    ),
    "rows meet their neighbours": (
        """%p = {y[i<7, o<9] = s[i, o] - s[i+1, o]}(%s) : f64[7, 9]
  %y = {y[i<7] += p[i, o<9]}(%p) : f64[7]""",
        "%y",
    ),
    "rows are turned over": ("%y = {y[i<8] += s[7-i, o<9]}(%s) : f64[8]", "%y"),
    "the greatest of a column": ("%y = {y[o<9] max= s[i<8, o]}(%s) : f64[9]", "%y"),
}


@pytest.mark.parametrize("reason", WHOLE)
def test_what_has_to_know_its_chunk_stays_whole(reason: str) -> None:
    nodes, result = WHOLE[reason]
    graph = parse(
        f"""graph main(%x : f64[8, 3], %w : f64[9, 3]) {{
  %s = {{y[i<8, o<9] += x[i, k<3] * w[o, k]}}(%x, %w) : f64[8, 9]
  {nodes}
  return {result}
}}
"""
    )
    assert TINY(graph) == graph


class _Model(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(400, 8), nn.Linear(8, 400, bias=bias)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.tokens(ids)))
        return scores


LOSSES = {
    "cross-entropy": lambda scores, y: F.cross_entropy(scores.flatten(0, 1), y.flatten()),
    "smoothed": lambda scores, y: F.cross_entropy(
        scores.flatten(0, 1), y.flatten(), label_smoothing=0.1
    ),
    "weighted": lambda scores, y: F.cross_entropy(
        scores.flatten(0, 1),
        y.flatten(),
        torch.linspace(0.5, 2, 400, dtype=scores.dtype),
        reduction="sum",
    ),
    "capped": lambda scores, y: F.cross_entropy(
        30 * torch.tanh(scores.flatten(0, 1) / 30), y.flatten()
    ),
}


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_training_with_chunks_is_eager_training_in_a_fraction_of_the_memory(
    name: str, library: bool
) -> None:
    torch.manual_seed(0)
    ids, targets = torch.randint(400, (16, 64)), torch.randint(400, (16, 64))
    targets[3, 5] = -100
    rate = 5e-4 if name == "weighted" else 0.5  # that one is a sum, not a mean
    programs = []
    for size in (0, 1):
        torch.manual_seed(1)
        ours = _Model(bias=name != "weighted")
        torch.manual_seed(1)
        eager = _Model(bias=name != "weighted").double()
        loss = LOSSES[name]
        step = tw.train_step(
            ours,
            loss,
            torch.optim.SGD(ours.parameters(), lr=rate),
            ids,
            targets,
            options=tw.Options(chunk_mib=size, library=library, verify=True),
        )
        programs.append(step.program)
        optimizer = torch.optim.SGD(eager.parameters(), lr=rate)
        for _ in range(3):
            optimizer.zero_grad()
            expected = loss(eager(ids), targets)
            expected.backward()
            optimizer.step()
            assert float(step(ids, targets)) == pytest.approx(expected.item(), rel=2e-6)
        for a, b in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
    whole, chunked = programs
    assert chunked.arena_bytes < 0.5 * whole.arena_bytes


@pytest.mark.parametrize("size", [-1, 1.5, True, "64"])
def test_a_size_is_a_whole_number(size: object) -> None:
    with pytest.raises(OptionError, match="chunk_mib"):
        tw.Options(chunk_mib=size)  # type: ignore[arg-type]
