"""Memory of outputs: used again when nobody has it, and never before."""

import ctypes
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.base.dtypes import F32
from tilewright.graph.ir import TensorType
from tilewright.program import Buffer
from tilewright.runtime import Executable
from tilewright.runtime.arrays import ALIGNMENT, ReusingArrays
from tilewright.runtime.pages import LARGE, SPARE
from tilewright.runtime.placement import Reusing, maker

from .programs import chain

N = LARGE // 4
ROWS = 1024
HOLDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "the tensor": lambda y: y,
    "a view": lambda y: y[N // 2 :],
    "a detached tensor": lambda y: y.detach(),
    "an array": lambda y: y.numpy(),
    "a memoryview": lambda y: memoryview(y.numpy())[5:],
    "its storage": lambda y: y.untyped_storage(),
    "a capsule": torch.utils.dlpack.to_dlpack,
    "what is saved for a gradient": lambda y: y.clone().requires_grad_() * y,
    "another form of it": lambda y: y.view(torch.int32).reshape(ROWS, -1).T,
    "a parameter": torch.nn.Parameter,
    "a tensor that was set to it": lambda y: torch.empty(0).set_(y),
}


def shift() -> Executable:
    """Return y = x + 1 of `LARGE` bytes."""
    return Executable(chain(1, N, 2))


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_has_is_not_written(holder: str) -> None:
    run, x = shift(), torch.zeros(N)
    (y,) = run.run([x])
    address, held = y.data_ptr(), HOLDERS[holder](y)
    del y
    others = [run.run([x + i])[0] for i in range(1, 5)]
    assert address not in [other.data_ptr() for other in others]
    assert [other[0].item() for other in others] == [2, 3, 4, 5]
    del held, others
    gc.collect()
    assert len({run.run([x])[0].data_ptr() for _ in range(4)}) == 1


def test_dropped_memory_is_used_again_and_whole() -> None:
    run, x = shift(), torch.randn(N)
    seen = set()
    for i in range(6):
        (y,) = run.run([x + i])
        assert torch.equal(y, (x + i).flip(0) + 1)
        assert (y.is_contiguous(), y.storage_offset(), y._is_view()) == (True, 0, False)
        assert y.untyped_storage().nbytes() == LARGE
        seen.add(y.data_ptr())
    assert len(seen) == SPARE, "the last result lives until the next is there"


def test_small_outputs_are_left_to_torch() -> None:
    assert isinstance(maker(_buffer(N)), Reusing)
    assert not isinstance(maker(_buffer(N - 1)), Reusing)


def test_any_order_of_holding_and_dropping() -> None:
    chance = random.Random(5)
    make = Reusing((N,), (1,), torch.float32)
    held: list[tuple[torch.Tensor, float]] = []
    for i in range(300):
        if held and chance.random() < 0.5:
            del held[chance.randrange(len(held))]
        else:
            tensor = make().fill_(float(i))
            held.append((tensor[1:] if chance.random() < 0.5 else tensor, float(i)))
        assert all(bool((t == value).all()) for t, value in held[-3:])
    assert all(bool((t == value).all()) for t, value in held)


def test_no_more_is_kept_than_a_loop_needs() -> None:
    make = Reusing((N,), (1,), torch.float32)
    many = [make() for _ in range(7)]
    kept = [weakref.ref(lent.storage) for lent in make._lent]
    assert len(kept) == SPARE
    del many
    del make
    gc.collect()
    assert all(ref() is None for ref in kept)


def test_memory_that_was_moved_or_resized_is_let_go() -> None:
    make = Reusing((N,), (1,), torch.float32)
    shared = make()
    shared.share_memory_()
    address = shared.data_ptr()
    del shared
    assert make().data_ptr() != address, "another process may read it"
    emptied = make()
    emptied.untyped_storage().resize_(0)
    del emptied
    grown = make()
    grown.resize_(2 * N)
    del grown
    for tensor in [make(), make(), make()]:
        assert tensor.shape == (N,)
        assert tensor.untyped_storage().nbytes() == LARGE
        assert not tensor.is_shared()


def test_strides_and_modes_are_as_those_of_fresh_memory() -> None:
    make = Reusing((2, N), (1, 2), torch.bfloat16)
    for mode in (True, False, True, False):
        with torch.inference_mode(mode=mode):
            tensor = make()
        assert tensor.is_inference() is mode
        assert (tensor.shape, tensor.stride()) == ((2, N), (1, 2))
        assert tensor.dtype is torch.bfloat16
        assert not tensor.requires_grad


def test_modes_that_hear_of_operators_do_not_hear_of_outputs() -> None:
    class Other(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            return found.double() if isinstance(found, torch.Tensor) else found

    make = Reusing((N,), (1,), torch.float32)
    for _ in range(3):
        with Other():
            assert make().dtype is torch.float32
        with FakeTensorMode():
            assert type(make()) is torch.Tensor
        assert make().dtype is torch.float32
    run, x = shift(), torch.randn(N)
    expected = x.flip(0) + 1
    for _ in range(4):
        with Other():
            (y,) = run.run([x])
        assert torch.equal(y, expected)


def _buffer(elements: int) -> Buffer:
    return Buffer("y", TensorType((elements,), F32), "output")


ARRAY_HOLDERS: dict[str, Callable[[np.ndarray], object]] = {
    "the array": lambda y: y,
    "a view": lambda y: y[N // 2 :],
    "a view of a view": lambda y: y[5:][::2],
    "its base": lambda y: y.base,
    "a memoryview": lambda y: memoryview(y)[5:],
    "a tensor": torch.from_numpy,
    "another type's": lambda y: y.view(np.int32).T,
    "a part that is pointed to": lambda y: (ctypes.c_float * 8).from_buffer(y, 64),
}


@pytest.mark.parametrize("holder", ARRAY_HOLDERS)
def test_an_array_that_somebody_has_is_not_written(holder: str) -> None:
    run, x = shift(), np.zeros(N, np.float32)
    (y,) = run.run_arrays([x])
    address, held = y.ctypes.data, ARRAY_HOLDERS[holder](y)
    assert address % ALIGNMENT == 0
    del y
    others = [run.run_arrays([x + i])[0] for i in range(1, 5)]
    assert address not in [other.ctypes.data for other in others]
    assert [other[0] for other in others] == [2, 3, 4, 5]
    del held, others
    gc.collect()
    assert len({run.run_arrays([x])[0].ctypes.data for _ in range(4)}) == 1


def test_what_a_weak_reference_leads_to_is_not_written() -> None:
    run, x = shift(), np.zeros(N, np.float32)
    (y,) = run.run_arrays([x])
    base = weakref.ref(y.base)
    del y
    found = [run.run_arrays([x + i])[0] for i in range(1, 5)]
    block = base()
    if block is not None:
        assert not any(np.shares_memory(block, y) for y in found)
    tensor = torch.zeros(N)
    (z,) = run.run([tensor])
    storage = weakref.ref(z.untyped_storage())
    del z
    others = [run.run([tensor + i])[0] for i in range(1, 5)]
    left = storage()
    assert left is None or left.data_ptr() not in [other.data_ptr() for other in others]


def test_dropped_arrays_memory_is_used_again_and_whole() -> None:
    run, x = shift(), np.arange(N, dtype=np.float32)
    seen = set()
    for i in range(6):
        (y,) = run.run_arrays([x + i])
        assert np.array_equal(y, (x + i)[::-1] + 1)
        assert y.flags.c_contiguous
        assert y.flags.writeable
        seen.add(y.ctypes.data)
    assert len(seen) == SPARE, "the last result lives until the next is there"


def test_arrays_with_strides_are_made_in_what_was_dropped() -> None:
    buffer = Buffer("y", TensorType((2, N), F32), "output", strides=(1, 2))
    make, seen = ReusingArrays(buffer), set()
    for i in range(4):
        y = make()
        seen.add(y.ctypes.data)
        assert (y.shape, y.strides, y.dtype) == ((2, N), (4, 8), np.float32)
        y[...] = i
        assert (y == i).all()
    assert len(seen) == SPARE
