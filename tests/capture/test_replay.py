"""A graph run by torch, node by node."""

import numpy as np
import pytest
import torch
from tests.graph import scans
from torch import nn

from tilewright.autodiff import reverse
from tilewright.base.dtypes import F32
from tilewright.base.errors import LibraryCallError
from tilewright.capture import capture, replay
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import LIBRARY, Graph, Node, TensorType, Value

Results = tuple[torch.Tensor, ...]


class Net(nn.Module):
    """Operators, a library call and a dropout, each with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.rnn = nn.Linear(4, 4), nn.GRU(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.dropout(torch.relu(self.fc(x)), 0.3)
        return torch.logsumexp(self.rnn(h)[0], -1).cumsum(1).square().mean()


@pytest.mark.parametrize(
    "graph",
    [
        scans.recurrent(), scans.recurrent(reverse=True), scans.recurrent(steps=0),
        scans.nested(), scans.shifting(), scans.branching(), scans.doubling(),
    ],
    ids=["forth", "back", "no steps", "nested", "shifting", "branching", "doubling"],
)  # fmt: skip
def test_a_replay_runs_control_flow_as_the_graph_means(graph: Graph) -> None:
    arrays = scans.arrays(graph)
    if graph.name == "doubling":  # several steps, and an end
        arrays = [np.ones(4), np.array(100.0)]
    found = replay(graph, [torch.from_numpy(np.array(array)) for array in arrays])
    for ours, theirs in zip(found, evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-12, atol=1e-14)


def test_a_replay_of_our_gradient_graph_is_torchs_gradient() -> None:
    net, x = Net(), torch.randn(2, 5, 4)
    captured = capture(net, x)
    names = [name for name, role in captured.graph.roles if role.kind == "parameter"]
    joint = reverse(captured.graph, names, of=[0], ones=True)
    inputs = captured.bind((x,), {})
    torch.manual_seed(0)
    with torch.no_grad():
        outputs = replay(joint.graph, inputs)
    torch.manual_seed(0)
    loss = net(x)
    torch.testing.assert_close(outputs[0], loss)
    expected = torch.autograd.grad(loss, [inputs[at] for at in _positions(captured.graph, names)])
    for at, gradient in zip(joint.gradients, expected, strict=True):
        assert at is not None
        torch.testing.assert_close(outputs[at], gradient)


def _positions(graph: Graph, names: list[str]) -> list[int]:
    order = [value.name for value in graph.inputs]
    return [order.index(name) for name in names]


def test_a_watcher_sees_every_node_in_order_and_says_what_follows_it() -> None:
    captured = capture(lambda x: (x + 1).exp().sum(), torch.ones(3))
    seen: list[str] = []

    def watch(node: Node, operands: Results, results: Results) -> Results:
        seen.append(node.op)
        assert len(operands) == len(node.inputs)
        return (torch.zeros(3),) if node.op == "add" else results

    (found,) = replay(captured.graph, [torch.ones(3)], watch=watch)
    assert seen == [node.op for node in captured.graph.nodes] == ["add", "exp", "sum"]
    assert found == 3


def test_masks_of_the_operator_of_chance_are_those_of_its_loops() -> None:
    from tilewright.base.dtypes import I64
    from tilewright.graph.build import Builder
    from tilewright.ops import emit

    builder = Builder("masks")
    x = builder.input("x", TensorType((4, 5), F32))
    seed = builder.input("seed", TensorType((), I64))
    made = emit(builder, "dropout", x, seed, p=0.4, stream=2)
    assert isinstance(made, Value)
    graph = builder.finish([made])
    values, key = torch.randn(4, 5), torch.tensor(12345)
    (found,) = replay(graph, [values, key])
    (meant,) = evaluate(graph, [values.numpy(), key.numpy()])
    np.testing.assert_allclose(found.numpy(), meant, rtol=1e-6)
    assert 0 < int((found == 0).sum()) < 20


def test_a_library_call_that_fails_names_itself_and_the_line() -> None:
    type_ = TensorType((2, 3), F32)
    x, y = Value("x", type_), Value("y", type_)
    attrs = (("target", "aten.mm.default"), ("args", (("%", 0), ("%", 0))), ("kwargs", ()))
    graph = Graph("g", (x,), (Node(LIBRARY, (x,), (y,), attrs),), (y,))
    with pytest.raises(LibraryCallError) as caught:
        replay(graph, [torch.ones(2, 3)])
    assert str(caught.value) == (
        "aten.mm.default failed: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)\n"
        "  found     x: f32[2, 3]"
    )
