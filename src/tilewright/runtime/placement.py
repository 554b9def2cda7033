"""Tensors over memory that is placed by hand: views of buffers, constants, fresh memory.

The idea: where a Program says buffer, offset and strides, torch has storage and `as_strided`.
This module does not know when anything runs.
"""

import array
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from weakref import getweakrefcount

import torch

from tilewright.program import CONSTANT, Buffer, Program, View
from tilewright.runtime.control import shift
from tilewright.runtime.pages import LARGE, SPARE

Tensor = torch.Tensor
Lens = Callable[[Tensor], Tensor]
"""Makes the view that a library call or a caller asks for from the tensor of a whole buffer."""

ALIGNMENT = 64
CPU = torch.device("cpu")  # said each time: the caller may be in a `with torch.device(...)`

# torch.empty_strided without its argument parsing, for CPU tensors: a third of the time.
allocate: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor] = (
    torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]
)


def torch_dtype(buffer: Buffer) -> torch.dtype:
    """Return torch's element type for the buffer's."""
    dtype = getattr(torch, buffer.dtype.torch_name)
    assert isinstance(dtype, torch.dtype), f"torch has no dtype {buffer.dtype}"
    return dtype


def maker(buffer: Buffer) -> Callable[[], Tensor]:
    """Return what makes a tensor for an output: each time one in memory that nobody else has."""
    form = buffer.shape, buffer.strides, torch_dtype(buffer)
    reusable = buffer.bytes >= LARGE and hasattr(torch._C, _USERS)
    return Reusing(*form) if reusable else partial(allocate, *form)


_USERS = "_storage_Use_Count"
"""How many own a storage: torch's own, no public name; as read here in 2.11 to 2.13."""


class _Lent(NamedTuple):
    """Memory that was given out, and how it was then.

    base: a tensor of it that nobody else has, from which others are made.  number: of the storage,
    in torch.  inference: whether it came about in inference mode, as what is made of it then has.
    """

    base: Tensor
    storage: torch.UntypedStorage
    number: int
    address: int
    bytes: int
    inference: bool


def _lend(base: Tensor) -> _Lent:
    storage = base.untyped_storage()
    return _Lent(
        base,
        storage,
        number=storage._cdata,
        address=storage.data_ptr(),
        bytes=storage.nbytes(),
        inference=base.is_inference(),
    )


class Reusing:
    """Makes tensors in the memory of earlier ones that nobody has any more; else in fresh memory.

    Nobody has a storage whose owners are this one's: no tensor, view, array or saved value of it is
    left.  What was moved or resized meanwhile, as by `share_memory_`, is let go.
    One thread at a time may call it.
    """

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self._form = shape, strides
        self._dtype = dtype
        self._lent: list[_Lent] = []  # last given out first

    def __call__(self) -> Tensor:
        if torch._C._len_torch_dispatch_stack():  # a mode would be asked for what `data` gives
            return allocate(*self._form, self._dtype)
        for place, lent in enumerate(self._lent):
            if _is_free(lent):
                del self._lent[place]
                self._lent.insert(0, lent)
                return lent.base.data
        base = allocate(*self._form, self._dtype)
        self._lent = [_lend(base), *self._lent[: SPARE - 1]]
        return base.data


def _is_free(lent: _Lent) -> bool:
    """Say whether memory that was given out is held by nobody else, and lies as it did."""
    return (
        torch._C._storage_Use_Count(lent.number) == 2  # of the storage, and of the base
        and torch.is_inference_mode_enabled() is lent.inference
        and sys.getrefcount(lent.storage) == _ALONE
        and not getweakrefcount(lent.storage)  # by which somebody may come by it
        and lent.storage.data_ptr() == lent.address
        and lent.storage.nbytes() == lent.bytes
    )


# What `sys.getrefcount` says in `_is_free` of a storage that nobody else has: versions of Python
# differ in what they count.
_ALONE = (lambda lent: sys.getrefcount(lent.storage))(_lend(torch.empty(0, device=CPU)))


def place_constants(program: Program) -> tuple[Tensor, dict[str, int]]:
    """Return all constants in one piece of memory, and where each begins in it."""
    offsets: dict[str, int] = {}
    content = bytearray()
    for buffer in program.buffers:
        if buffer.kind == CONSTANT:
            content += bytes(-len(content) % ALIGNMENT)
            offsets[buffer.name] = len(content)
            content += buffer.data
    block = torch.empty(len(content), dtype=torch.uint8, device=CPU)
    if content:
        block.copy_(torch.frombuffer(content, dtype=torch.uint8))
    return block, offsets


def place(block: Tensor, buffer: Buffer, start: int, view: View) -> Tensor:
    """Return the tensor of a view of a buffer that begins `start` bytes into a block of bytes."""
    offset = start // buffer.dtype.bytes + view.offset
    tensor = torch.empty(0, dtype=torch_dtype(buffer), device=CPU)
    return tensor.set_(block.untyped_storage(), offset, view.shape, view.strides)


class RememberedLens:
    """Keeps the last view it made; it serves as long as the tensor's memory is where it was."""

    def __init__(self, view: View, buffer: Buffer) -> None:
        self.view = view
        self.bytes = view.offset * buffer.dtype.bytes
        self.made: Tensor | None = None

    def __call__(self, tensor: Tensor) -> Tensor:
        made = self.made
        if made is None or made.data_ptr() != tensor.data_ptr() + self.bytes:
            self.made = made = look(tensor.detach(), self.view)
        return made


class MovingLens:
    """Makes the view where the loops around are now; of memory that stays, each one once.

    block: where the view's buffer lies, if it stays there: a block of bytes, the buffer, its start.
    """

    def __init__(
        self, view: View, index: "array.array[int]", block: tuple[Tensor, Buffer, int] | None
    ) -> None:
        self.view = view
        self.index = index
        self.block = block
        self.made: dict[int, Tensor] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        moved = shift(self.view, self.index)
        made = self.made.get(moved)
        if made is None:
            view = replace(self.view, offset=self.view.offset + moved)
            if self.block is None:
                return look(tensor, view)
            made = self.made[moved] = place(*self.block, view)
        return made


def look(tensor: Tensor, view: View) -> Tensor:
    return tensor.as_strided(view.shape, view.strides, tensor.storage_offset() + view.offset)


def restride(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return the tensor with those strides; dims of extent 1 need no copy."""
    if matches(tensor, strides):
        return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())
    return allocate(tuple(tensor.shape), strides, tensor.dtype).copy_(tensor)


def matches(tensor: Tensor, strides: tuple[int, ...]) -> bool:
    """Say whether elements lie as the strides say; those of dims of extent 1 mean nothing."""
    if tensor.numel() == 0:
        return True
    found = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(theirs == ours or extent == 1 for extent, theirs, ours in found)
