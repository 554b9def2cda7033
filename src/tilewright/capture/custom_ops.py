"""The operators of our own that a trace through torch needs, declared to torch once.

The idea: what ATen's functional form loses (the border of a `no_grad` region, the act of dropping
out as one operator, a gradient written by hand) is carried through the trace as an operator that
ATen takes for opaque.
This module does not know what becomes of them; `aten.py` and `replay.py` say that.
"""

import ast
import functools
from collections.abc import Sequence
from typing import Any

import torch

_SCHEMAS = (
    "stop_gradient(Tensor x) -> Tensor",
    "dropout(Tensor x, float p) -> Tensor",
    "custom_gradient(Tensor[] results, Tensor[] arguments, Tensor[] saved, str backward,"
    " str numbers) -> Tensor[]",
    "control_flow(Tensor[] operands, str name, str kind, int carries, int sequences, str results)"
    " -> Tensor[]",
    "mark(Tensor x, Tensor[] batches) -> Tensor",
    "pull(Tensor[] results, Tensor[] marks, Tensor[] seeds) -> Tensor[]",
    "push(Tensor result, Tensor[] marks, Tensor[] changes) -> Tensor",
)


@functools.cache
def library() -> torch.library.Library:
    """Declare the operators under `torch.ops.tilewright`, at the first trace."""
    declared = torch.library.Library("tilewright", "FRAGMENT")
    seeded = (torch.Tag.nondeterministic_seeded,)
    for schema in _SCHEMAS:
        declared.define(schema, tags=seeded if schema.startswith("dropout") else ())
    declared.impl("stop_gradient", torch.clone, "CompositeExplicitAutograd")
    declared.impl("dropout", dropout, "CompositeExplicitAutograd")
    declared.impl("custom_gradient", _custom_gradient, "CompositeExplicitAutograd")
    declared.impl("control_flow", _control_flow, "CompositeExplicitAutograd")
    torch.library.register_vmap("tilewright::stop_gradient", _batched_stop, lib=declared)
    torch.library.register_vmap("tilewright::control_flow", _batched_flow, lib=declared)
    # What they give is told by our own passes; here it has the right type alone.
    declared.impl("mark", lambda x, _: torch.clone(x), "CompositeExplicitAutograd")
    declared.impl("pull", _like_marks, "CompositeExplicitAutograd")
    declared.impl("push", lambda result, *_: torch.empty_like(result), "CompositeExplicitAutograd")
    torch.library.register_vmap("tilewright::mark", _batched_mark, lib=declared)
    torch.library.register_vmap("tilewright::pull", _batched_pull, lib=declared)
    torch.library.register_vmap("tilewright::push", _batched_push, lib=declared)
    return declared


def _like_marks(
    _: list[torch.Tensor], marks: list[torch.Tensor], __: list[torch.Tensor]
) -> list[torch.Tensor]:
    return [torch.empty_like(marked) for marked in marks]


def _in_front(info: Any, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Return a tensor with the batch as its first dim, repeated where it has none.

    What has it there already is the same value: a mark has to be found again.
    """
    if dim is None:
        return tensor.expand(info.batch_size, *tensor.shape)
    return tensor if dim == 0 else tensor.movedim(dim, 0)


def _all_in_front(
    info: Any, tensors: list[torch.Tensor], dims: list[int | None]
) -> list[torch.Tensor]:
    return [_in_front(info, *pair) for pair in zip(tensors, dims, strict=True)]


def _sample(tensor: torch.Tensor, dim: int | None, at: int) -> torch.Tensor:
    return tensor if dim is None else tensor.select(dim, at)


def _samples(tensors: list[torch.Tensor], dims: list[int | None], at: int) -> list[torch.Tensor]:
    return [_sample(*pair, at) for pair in zip(tensors, dims, strict=True)]


def _batched_mark(
    info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, batches: list[torch.Tensor]
) -> tuple[torch.Tensor, int]:
    rest = [b for b, dim in zip(batches, in_dims[1], strict=True) if dim is None]
    made: torch.Tensor = torch.ops.tilewright.mark.default(_in_front(info, x, in_dims[0]), rest)
    return made, 0


def _batched_pull(
    info: Any, in_dims: tuple[Any, ...], *lists: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[int]]:
    """Where the marks have the batch, samples do not meet.  Where they have not, each sample's
    gradient is of the same marks: one after the other."""
    results, marks, seeds = lists
    of, at, along = in_dims
    made: list[torch.Tensor]
    if all(dim is not None for dim in at):
        moved = [_all_in_front(info, *pair) for pair in zip(lists, in_dims, strict=True)]
        made = torch.ops.tilewright.pull.default(*moved)
    else:
        each = []
        for k in range(info.batch_size):
            given = _samples(results, of, k), list(marks), _samples(seeds, along, k)
            each.append(torch.ops.tilewright.pull.default(*given))
        made = [torch.stack(parts) for parts in zip(*each, strict=True)]
    return made, [0] * len(made)


def _batched_push(
    info: Any,
    in_dims: tuple[Any, ...],
    result: torch.Tensor,
    marks: list[torch.Tensor],
    changes: list[torch.Tensor],
) -> tuple[torch.Tensor, int]:
    of, at, along = in_dims
    made: torch.Tensor
    if all(dim is not None for dim in at):
        rest = _all_in_front(info, marks, at), _all_in_front(info, changes, along)
        made = torch.ops.tilewright.push.default(_in_front(info, result, of), *rest)
        return made, 0
    each = []
    for k in range(info.batch_size):
        given = _sample(result, of, k), list(marks), _samples(changes, along, k)
        each.append(torch.ops.tilewright.push.default(*given))
    return torch.stack(each), 0


def _batched_stop(
    _info: object, in_dims: tuple[int | None, ...], x: torch.Tensor
) -> tuple[torch.Tensor, int | None]:
    return stop_gradient(x), in_dims[0]


def _custom_gradient(
    results: Sequence[torch.Tensor], _: object, __: object, ___: str, ____: str
) -> list[torch.Tensor]:
    return [result.clone() for result in results]


def _control_flow(
    operands: list[torch.Tensor], _: str, __: str, ___: int, ____: int, results: str
) -> list[torch.Tensor]:
    """What it gives is told by bodies that are traced later; here it has the right types alone."""
    types = ast.literal_eval(results)
    return [operands[0].new_empty(shape, dtype=getattr(torch, name)) for shape, name in types]


def _batched_flow(
    info: Any, in_dims: tuple[Any, ...], operands: list[torch.Tensor], *described: Any
) -> tuple[list[torch.Tensor], list[int]]:
    """Each sample takes its own way: one after the other."""
    each = [
        torch.ops.tilewright.control_flow.default(_samples(operands, in_dims[0], k), *described)
        for k in range(info.batch_size)
    ]
    made = [torch.stack(parts) for parts in zip(*each, strict=True)]
    return made, [0] * len(made)


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """Drop each element with probability `p`, drawing from torch's generator just as eager does."""
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype)
    noise = torch.empty_like(x).bernoulli_(1 - p)
    return x * noise.div_(1 - p)


def stop_gradient(x: torch.Tensor) -> torch.Tensor:
    """Return `x` as a value that no gradient passes through."""
    library()
    stopped: torch.Tensor = torch.ops.tilewright.stop_gradient.default(x)
    return stopped
