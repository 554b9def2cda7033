"""Which tensors a Program takes: exactly those it was compiled for, others copied or refused.

The idea: each input is looked at once; after that, inputs that are in all that counts like those
(one call into C compares all of them) need no look.  This module does not know what is run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tilewright.base.errors import DTypeError, MutationError, ShapeError
from tilewright.program import Program
from tilewright.runtime.arrays import Array, overlap
from tilewright.runtime.placement import allocate, matches, torch_dtype

Tensor = torch.Tensor

# Compares type, device, dtype, sizes and strides of all tensors at once, as Dynamo's guards do.
TensorGuards: Callable[..., Any] = torch._C._dynamo.guards.TensorGuards
MOST_LESSONS = 16


@dataclass(frozen=True, slots=True)
class Expected:
    """What an input must be: its number among the buffers, and the tensor's shape, dtype, strides.

    name: how the user knows it.
    """

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]
    name: str
    updated: bool


class Admission:
    """The inputs that a Program expects; `known(*inputs)` says that they need no `admit`.

    Its state is what `known` has learned; it may be wrong only in asking for one look more.
    """

    def __init__(self, program: Program) -> None:
        numbers = {buffer.name: i for i, buffer in enumerate(program.buffers)}
        expected = []
        for item in program.inputs:
            number = numbers[item.buffer]
            buffer = program.buffers[number]
            expected.append(
                Expected(
                    number=number,
                    shape=buffer.shape,
                    dtype=torch_dtype(buffer),
                    strides=buffer.strides,
                    name=item.role.source or item.buffer,
                    updated=item.buffer in program.updates,
                )
            )
        self.inputs = tuple(expected)
        self.known: Callable[..., bool] = lambda *_: False
        self._lessons = 0

    def admit(
        self, inputs: Sequence[Tensor], written_back: list[tuple[Tensor, Tensor]]
    ) -> Sequence[Tensor]:
        """Return the inputs as the Program expects them, or raise.

        Those that had to be copied and are updated join `written_back`, with their copies.
        """
        if len(inputs) != len(self.inputs):
            raise _wrong_count(len(inputs), self.inputs)
        if self.takes(inputs):
            # Inputs that differ every time in what does not count (requires_grad) end the learning.
            if inputs and self._lessons < MOST_LESSONS:
                self._lessons += 1
                self.known = alike(inputs)
            return inputs
        admitted = []
        for given, wanted in zip(inputs, self.inputs, strict=True):
            tensor = conform(given, wanted)
            if wanted.updated and tensor is not given:
                written_back.append((given, tensor))
            admitted.append(tensor)
        for given, _ in written_back:
            self._keep_apart(given, inputs)
        return admitted

    def _keep_apart(self, given: Tensor, inputs: Sequence[Tensor]) -> None:
        """Refuse inputs of which another has memory that is written back to."""
        at = next(k for k, tensor in enumerate(inputs) if tensor is given)
        for k, other in enumerate(inputs):
            if k != at and overlap(_elements(given), _elements(other)):
                raise shared(self.inputs[k].name, self.inputs[at].name)

    def takes(self, inputs: Sequence[Tensor]) -> bool:
        """Say whether the inputs are, to the letter, what the Program expects."""
        return len(inputs) == len(self.inputs) and all(map(_is_as, inputs, self.inputs))


def alike(inputs: Sequence[Tensor]) -> Callable[..., bool]:
    """Return what says of as many tensors whether they are as these: in type, sizes, strides, in
    whether they ask for gradients, and in the modes of torch that decide what is done with a tensor
    (inference, autocast, transforms)."""
    shapes = [list(tensor.shape) for tensor in inputs]
    strides = [list(tensor.stride()) for tensor in inputs]
    guards = TensorGuards(*inputs, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    check: Callable[..., bool] = guards.check
    return check


def _is_as(tensor: Tensor, wanted: Expected) -> bool:
    """Say whether the tensor is, to the letter, what the Program expects."""
    return (
        isinstance(tensor, Tensor)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.dtype is wanted.dtype
        and tensor.shape == wanted.shape
        and tensor.stride() == wanted.strides
        and not tensor.is_neg()
    )


def conform(tensor: Tensor, wanted: Expected) -> Tensor:
    """Return the tensor laid out as the Program expects; raise if it cannot be."""
    if not isinstance(tensor, Tensor):
        raise DTypeError(
            f"input {wanted.name} is no tensor",
            expected=f"a tensor {wanted.dtype}{list(wanted.shape)}",
            found=type(tensor).__name__,
            mend="pass torch.as_tensor(...), or NumPy arrays for every input (run_arrays)",
        )
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise DTypeError(
            f"input {wanted.name} is not a dense tensor on the CPU",
            expected="device cpu, layout torch.strided",
            found=f"device {tensor.device}, layout {tensor.layout}",
            mend=f"move it there: {wanted.name}.cpu()",
        )
    if tensor.dtype is not wanted.dtype:
        raise DTypeError(
            f"input {wanted.name} has another dtype than was compiled for",
            expected=str(wanted.dtype),
            found=str(tensor.dtype),
            mend=f"convert it ({wanted.name}.to({wanted.dtype})) or compile for this dtype",
        )
    if tensor.shape != wanted.shape:
        raise ShapeError(
            f"input {wanted.name} has another shape than was compiled for",
            expected=str(list(wanted.shape)),
            found=str(list(tensor.shape)),
            mend="compile for this shape",
        )
    if matches(tensor, wanted.strides) and not tensor.is_neg():
        return tensor
    with torch.no_grad():
        return allocate(wanted.shape, wanted.strides, wanted.dtype).copy_(tensor)


def _elements(tensor: Tensor) -> Array:
    """Return an array of bytes that are where the tensor's elements are, not to be read."""
    size = tensor.element_size()
    interface = {
        "data": (tensor.data_ptr(), True),
        "shape": tuple(tensor.shape),
        "strides": tuple(stride * size for stride in tensor.stride()),
        "typestr": f"|V{size}",
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def shared(one: str, other: str) -> MutationError:
    """Return the refusal of two inputs that have memory in common."""
    return MutationError(
        f"inputs {one} and {other} share memory, and one of them is updated",
        expected="each updated input to have its memory to itself",
        mend="pass a clone of one of them",
    )


def _wrong_count(found: int, expected: Sequence[Expected]) -> ShapeError:
    return ShapeError(
        "a program is called with another number of inputs than it takes",
        expected=f"{len(expected)}: {', '.join(wanted.name for wanted in expected)}",
        found=str(found),
    )
