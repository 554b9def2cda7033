"""The operators of our own that a trace through torch needs, declared to torch once.

The idea: what ATen's functional form loses (the border of a `no_grad` region, the act of dropping
out as one operator, a gradient written by hand) is carried through the trace as an operator that
ATen takes for opaque.
This module does not know what becomes of them; `aten.py` and `replay.py` say that.
"""

import functools
from collections.abc import Sequence

import torch

_SCHEMAS = (
    "stop_gradient(Tensor x) -> Tensor",
    "dropout(Tensor x, float p) -> Tensor",
    "custom_gradient(Tensor[] results, Tensor[] arguments, Tensor[] saved, str backward,"
    " str numbers) -> Tensor[]",
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
    torch.library.register_vmap("tilewright::stop_gradient", _batched_stop, lib=declared)
    return declared


def _batched_stop(
    _info: object, in_dims: tuple[int | None, ...], x: torch.Tensor
) -> tuple[torch.Tensor, int | None]:
    return stop_gradient(x), in_dims[0]


def _custom_gradient(
    results: Sequence[torch.Tensor], _: object, __: object, ___: str, ____: str
) -> list[torch.Tensor]:
    return [result.clone() for result in results]


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
