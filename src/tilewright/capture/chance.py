"""Dropout: the rule that makes it what eager computes, drawing from torch's own generator.

The idea: equal random numbers are needed to compare with eager bit for bit, so the mask is a
library call of its own; it is a value of the graph, and the backward pass reads that same value.
This module does not know torch's generator.
"""

from tilewright.capture.call import Call, Made, reads
from tilewright.graph.ir import LIBRARY, Attr, Value


@reads("full", "mul", "stop_gradient", "div")
def dropout(call: Call) -> Made:
    """dropout(x, p) --> x * (bernoulli(1 - p) / (1 - p))."""
    value, p = call["x"], call["p"]
    if p == 1:
        shape, dtype = value.type.shape, value.type.dtype.name
        nothing = call.emit("full", wish="noise", shape=shape, value=0, dtype=dtype)
        return call.emit("mul", value, nothing)
    like = call.emit("stop_gradient", value, wish="like")
    noise = _library(call, "noise", "aten.bernoulli.p", like, ("%", 0), 1 - p)
    return call.emit("mul", value, call.emit("div", noise, 1 - p, wish="scaled"))


def _library(call: Call, wish: str, target: str, like: Value, *args: Attr) -> Value:
    attrs: dict[str, Attr] = {"target": target, "args": args, "kwargs": (), "random": True}
    return call.walk.builder.node(
        LIBRARY,
        (like,),
        like.type,
        attrs=attrs,
        origin=call.origin,
        name=f"{call.node.name}_{wish}",
    )
