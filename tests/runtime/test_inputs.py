"""Inputs are what was compiled for, or copied, or refused; updates are written into them."""

import pytest
import torch

from tilewright.base.errors import DTypeError, MutationError, ShapeError
from tilewright.program import Buffer, Input, Launch, Program, Segment, whole
from tilewright.runtime import Executable

from .programs import affine, counter, f32, gather, two_counters


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(4, 3).t(),
        torch.randn(3, 8)[:, ::2],
        torch.randn(1, 4).expand(3, 4),
        torch.randn(13)[1:].view(3, 4),
        torch._neg_view(torch.randn(3, 4)),
        torch.nn.Parameter(torch.randn(3, 4)),
    ],
    ids=["transposed", "strided", "expanded", "offset", "negative", "parameter"],
)
def test_inputs_of_any_layout_give_what_contiguous_ones_give(value: torch.Tensor) -> None:
    x, y = Buffer("x", f32(3, 4), "input"), Buffer("y", f32(3, 4), "output")
    program = Program(
        "affine", (x, y), (affine("f", 12, 2.0, 1.0),),
        (Segment((Launch("f", (whole(x),), (whole(y),)),)),), (Input("x"),), (whole(y),),
    )  # fmt: skip
    executable = Executable(program)
    for _ in range(2):
        (found,) = executable.run([value])
        assert torch.equal(found, 2 * value.detach() + 1)
        assert not found.requires_grad


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ([torch.randn(3)], ShapeError, "another number of inputs"),
        (
            [torch.randn(5, 2), torch.zeros(3).long()],
            ShapeError,
            "embedding.weight has another shape",
        ),
        ([torch.randn(4, 2), torch.zeros(3)], DTypeError, "ids has another dtype"),
        ([torch.randn(4, 2).double(), torch.zeros(3).long()], DTypeError, "another dtype"),
        ([torch.randn(4, 2), [0, 1, 2]], DTypeError, "ids is no tensor"),
        ([torch.randn(4, 2, device="meta"), torch.zeros(3).long()], DTypeError, "on the CPU"),
        ([torch.randn(4, 2).to_sparse(), torch.zeros(3).long()], DTypeError, "dense"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    values: list[torch.Tensor], error: type[Exception], says: str
) -> None:
    executable = Executable(gather(4, 2, 3))
    good = [torch.randn(4, 2), torch.tensor([3, 0, 1])]
    executable.run(good)
    with pytest.raises(error, match=says):
        executable.run(values)
    assert torch.equal(executable.run(good)[0], good[0][good[1]])


# ---- updates ------------------------------------------------------------------------------------


def test_updates_are_written_in_place_and_seen_by_autograd() -> None:
    executable = Executable(counter())
    state, step = torch.zeros(4), torch.arange(4.0)
    version = state._version
    for count in (1, 2, 3):
        (y,) = executable.run([state, step])
        assert torch.equal(state, count * step)
        assert torch.equal(y, 2 * state)
        assert state._version == version + count
    assert step._version == 0
    w = torch.ones(4, requires_grad=True)
    loss = (w * state).sum()
    executable.run([state, step])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_updates_reach_tensors_of_another_layout() -> None:
    executable = Executable(counter())
    memory = torch.zeros(8)
    executable.run([memory[::2], torch.ones(4)])
    assert memory.tolist() == [1, 0, 1, 0, 1, 0, 1, 0]
    executable.run([torch._neg_view(memory[:4]), torch.ones(4)])
    assert memory.tolist() == [0, -1, 0, -1, 1, 0, 1, 0]


def test_an_update_of_memory_that_another_input_reads_is_refused() -> None:
    executable = Executable(counter())
    memory = torch.zeros(10)
    for state, step in (
        (memory[:4], memory[:4]),
        (memory[:4], memory[3:7]),
        (memory[3:7], memory[:4]),
    ):
        with pytest.raises(MutationError, match="share memory"):
            executable.run([state, step])
    executable.run([memory[:4], memory[4:8]])
    assert memory.sum() == 0


def test_an_update_that_is_written_back_has_its_memory_to_itself() -> None:
    executable = Executable(two_counters())
    memory, step, apart = torch.zeros(8), torch.ones(4), torch.zeros(4)
    for one, other, added in (
        (memory[::2], memory[:4], step),
        (memory[:4], memory[::2], step),
        (memory[::2], memory[::2], step),
        (memory[::2], apart, memory[4:]),
    ):
        with pytest.raises(MutationError, match="share memory"):
            executable.run([one, other, added])
    assert not memory.any()
    assert not apart.any()
    executable.run([memory[::2], memory[1::2], step])  # side by side: no element is another's
    assert memory.tolist() == [1] * 8


def test_updates_work_in_inference_mode() -> None:
    executable = Executable(counter())
    with torch.inference_mode():
        state = torch.zeros(4)
        executable.run([state, torch.ones(4)])
        assert state.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1, 1), (2, 1, 3)])
def test_inputs_that_were_admitted_once_are_known(shape: tuple[int, ...]) -> None:
    x = Buffer("x", f32(*shape), "input")
    executable = Executable(Program("same", (x,), (), (), (Input("x"),), (whole(x),)))
    first, second = torch.randn(shape), torch.nn.Parameter(torch.randn(shape))
    for value in (first, second, first, second):
        assert executable.run([value])[0] is value
    admission = executable._tensor_plan().admission
    assert admission.known(first) or admission.known(second)
    assert not admission.known(torch.randn(*shape, 2))


def test_inputs_that_change_in_what_does_not_count_are_admitted_for_ever() -> None:
    executable = Executable(gather(4, 2, 3))
    ids = torch.tensor([3, 0, 1])
    for i in range(40):
        table = torch.randn(4, 2, requires_grad=i % 2 == 0)
        assert torch.equal(executable.run([table, ids])[0], table.detach()[ids])
