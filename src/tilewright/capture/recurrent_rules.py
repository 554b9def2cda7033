"""Rules for recurrent nets: layers and directions become operators of one layer and one direction.

The idea: our operators run over time, the leading dim; what torch says with flags (batch first,
both directions, layers) is said here with views, joins and one operator after the other.

This module does not know cells.
"""

from tilewright.capture.call import Call, Made, Rule, reads
from tilewright.graph.ir import Attr, Value

_VIEWS = ("permute", "select", "cat", "stack")


def layers(operator: str, **attrs: Attr) -> Rule:
    """operator.input(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first) --> (output, last states...)

    Dropout between layers has been taken out by the trace.  A projection of the state (proj_size)
    is left to the library.
    """

    @reads(operator, *_VIEWS)
    def rule(call: Call) -> Made:
        states = call["hx"] if isinstance(call["hx"], list) else [call["hx"]]
        directions = 2 if call["bidirectional"] else 1
        count = 4 if call["has_biases"] else 2
        if len(call["params"]) != count * directions * call["num_layers"]:
            return None
        if call["dropout"] and call["train"] and call["num_layers"] > 1:
            return None
        x = call["input"]
        if call["batch_first"]:
            x = call.emit("permute", x, wish="over_time", dims=(1, 0, 2))
        last: list[list[Value]] = [[] for _ in states]
        for layer in range(call["num_layers"]):
            outputs = []
            for direction in range(directions):
                at = layer * directions + direction
                first = [
                    call.emit("select", state, wish=f"first_{at}", dim=0, index=at)
                    for state in states
                ]
                out, *ends = call.emit_all(
                    operator,
                    x,
                    *first,
                    *call["params"][at * count : (at + 1) * count],
                    wishes=(f"out_{at}", *(f"last_{at}" for _ in states)),
                    reverse=bool(direction),
                    **attrs,
                )
                outputs.append(out)
                for kept, end in zip(last, ends, strict=True):
                    kept.append(end)
            x = outputs[0]
            if len(outputs) > 1:
                x = call.emit("cat", *outputs, wish=f"layer_{layer}", dim=2)
        if call["batch_first"]:
            x = call.emit("permute", x, wish="out", dims=(1, 0, 2))
        return (x, *(call.emit("stack", *kept, wish="last", dim=0) for kept in last))

    return rule
