"""Memory of outputs: used again when nobody has it, and never before."""

import gc
import random
import weakref
from collections.abc import Callable

import pytest
import torch

from tilewright.base.dtypes import F32
from tilewright.graph.ir import TensorType
from tilewright.program import Buffer
from tilewright.runtime import Executable
from tilewright.runtime.placement import LARGE, SPARE, Reusing, maker

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


def _buffer(elements: int) -> Buffer:
    return Buffer("y", TensorType((elements,), F32), "output")
