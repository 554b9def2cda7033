"""Dropout and leaky slopes by chance: rules that make them what eager computes, drawing from
torch's own generator.

The idea: equal random numbers are needed to compare with eager bit for bit, so what is drawn is a
library call of its own; it is a value of the graph, and the backward pass reads that same value.
This module does not know torch's generator.
"""

from tilewright.capture.call import Call, Made, reads
from tilewright.capture.library_call import library_attrs
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


@reads("mul", "leaky_relu", "stop_gradient", opaque="its slopes are random numbers of torch's")
def rrelu(call: Call) -> Made:
    """rrelu_with_noise_functional(self, noise, lower, upper, training) -> (y, noise): the slope of
    each negative element is drawn, and is its gradient."""
    value = call["self"]
    if not call["training"]:
        slope = (call["lower"] + call["upper"]) / 2
        return (call.emit("leaky_relu", value, wish="y", negative_slope=slope), call["noise"])
    operands, attrs = library_attrs(call.walk, call.node)
    operands[0] = call.emit("stop_gradient", value, wish="like")
    attrs["outputs"] = (1,)
    (slopes,) = call.walk.builder.multi(
        LIBRARY,
        operands,
        (value.type,),
        attrs=attrs,
        origin=call.origin,
        names=[f"{call.node.name}_slopes"],
    )
    return (call.emit("mul", value, slopes, wish="y"), slopes)


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
