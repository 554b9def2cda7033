"""Rules of the derivatives that a captured function takes itself: nodes that say what is asked.

The idea: `mark` is its operand again; `pull` and `push` hold results, marks and what goes with
them, and have the types of what they stand for, until `autodiff.resolve` puts it there.
This module does not know how a derivative is taken.
"""

from tilewright.base.expr import Read, Sym
from tilewright.capture.call import Call, Made, reads
from tilewright.graph.ir import Formula, Loop, Value
from tilewright.graph.notation import normal


@reads()
def mark(call: Call) -> Made:
    """mark(x) --> x, as a value of its own."""
    x: Value = call["x"]
    loops = tuple(Loop(f"i{k}", dim) for k, dim in enumerate(x.type.shape))
    index = tuple(Sym(loop.name) for loop in loops)
    formula = normal(Formula(("x",), loops, index, "=", Read("x", index), x.type))
    name = call.walk.claim(call.node.name)
    return call.walk.builder.node(
        "mark", (x,), x.type, formula=formula, origin=call.origin, name=name
    )


@reads()
def pull(call: Call) -> Made:
    """pull(results, marks, seeds) --> the gradients of the marks."""
    results, marks, seeds = call["results"], call["marks"], call["seeds"]
    return call.walk.builder.multi(
        "pull",
        (*results, *marks, *seeds),
        [value.type for value in marks],
        attrs={"results": len(results), "marks": len(marks)},
        origin=call.origin,
        names=[f"{call.node.name}_{at}" for at in range(len(marks))],
    )


@reads()
def push(call: Call) -> Made:
    """push(result, marks, changes) --> the change of the result."""
    result, marks, changes = call["result"], call["marks"], call["changes"]
    return call.walk.builder.node(
        "push",
        (result, *marks, *changes),
        result.type,
        attrs={"results": 1, "marks": len(marks)},
        origin=call.origin,
        name=call.walk.claim(call.node.name),
    )
