"""A kernel may write a result over what it reads, if it does not read that again; and no buffer is
taken for another of its name."""

import pytest
import torch

from tilewright.base.dtypes import F32
from tilewright.base.errors import UNKNOWN
from tilewright.compiler import Options, build
from tilewright.compiler.inplace import pointwise_at
from tilewright.graph.build import Builder
from tilewright.graph.ir import FUSED, Node, TensorType
from tilewright.ops import TABLE
from tilewright.ops.operator import apply, write


@pytest.mark.parametrize("late", [False, True])
def test_what_is_read_after_it_was_overwritten_is_not_overwritten(late: bool) -> None:
    builder = Builder("body")
    w, x = (builder.input(name, TensorType((8,), F32)) for name in "wx")
    texts = ["y[...] = w[...] + x[...]", "y[...] = 3 * w[...]"]
    order = texts if late else texts[::-1]
    made = {}
    for text in order:
        operands = {"w": w, "x": x} if "x[" in text else {"w": w}
        made[text] = write(builder, text, operands, name="moved" if "x[" in text else "kept")
    body = builder.finish([made[text] for text in texts])
    node = Node(FUSED, (w, x), body.outputs, (), None, (body,), UNKNOWN)
    assert pointwise_at(node, "w", body.outputs[0].name) is not late


def test_a_copy_made_dense_is_not_taken_for_a_later_value_of_its_name() -> None:
    builder = Builder("g")
    x = builder.input("x", TensorType((4, 6), F32))
    w = builder.input("w", TensorType((3, 3), F32))
    thin = write(builder, "y[i, j] = x[i, 2*j] for j<3", x=x, name="thin")
    (product,) = apply(builder, TABLE["matmul"], thin, w)
    later = write(builder, "y[...] = exp(x[...])", x=x, name="x_dense")
    turned = write(builder, "y[j, i] = x[i, j]", x=later, name="turned")
    (last,) = apply(builder, TABLE["matmul"], later, turned)
    graph = builder.finish((product, last))
    a, b = torch.randn(4, 6), torch.randn(3, 3)
    ours = build(graph, Options(verify=True)).run([a, b])
    torch.testing.assert_close(ours[0], a[:, ::2] @ b)
    torch.testing.assert_close(ours[1], a.exp() @ a.exp().T)
