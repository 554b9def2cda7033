"""What a capture says beside the graph: where inputs come from, and what each result is.

The idea: the graph computes fresh values; that one result is the caller's own tensor, or a view of
it, or shares memory with another result, is said here as data, to be redone around every run.
This module does not know how any of it was found out (`survey`) or computed (`graph`).
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor that the graph takes.

    position: which argument of the Dynamo graph.  kind: "parameter", "buffer" or "argument".
    source: the user's name for it.  strides, requires_grad: as they were when captured.
    """

    position: int
    kind: str
    source: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Computed:
    """A fresh tensor: graph output `output`, with the strides that eager gives it."""

    output: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class SameInput:
    """The very tensor that came in as input `input` (after its update, if it has one)."""

    input: int


@dataclass(frozen=True, slots=True)
class SameResult:
    """The very tensor that is result `result`, an earlier one."""

    result: int


@dataclass(frozen=True, slots=True)
class ViewOfInput:
    """A strided view into the memory of input `input`; `offset` counts from that input's own."""

    input: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class ViewOfOutput:
    """A strided view into graph output `output`, which has the strides `base_strides`."""

    output: int
    base_strides: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Literal:
    """A plain Python value, the same at every call, or a number that sizes that vary make."""

    value: object


Result = Computed | SameInput | SameResult | ViewOfInput | ViewOfOutput | Literal


@dataclass(frozen=True, slots=True)
class Mutation:
    """Input `input` ends up holding graph output `output`.

    differentiable: gradients flow into its new value (the caller's tensor becomes part of the
    autograd graph).
    """

    input: int
    output: int
    differentiable: bool
