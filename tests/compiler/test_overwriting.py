"""A kernel may write a result over what it reads, if it does not read that again."""

import pytest

from tilewright.base.dtypes import F32
from tilewright.base.errors import UNKNOWN
from tilewright.compiler.inplace import pointwise_at
from tilewright.graph.build import Builder
from tilewright.graph.ir import FUSED, Node, TensorType
from tilewright.ops.operator import write


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
