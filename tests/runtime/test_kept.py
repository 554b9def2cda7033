"""What is prepared serves as long as its inputs are what they were, and not a call longer."""

import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.standalone import run_standalone

from tilewright.base.errors import DTypeError, ShapeError
from tilewright.graph.ir import Role
from tilewright.program import Buffer, Input, Launch, Program, Segment, whole
from tilewright.runtime import Executable, load, observe, write_standalone

from .programs import affine, f32, kernel, split

Tensor = torch.Tensor
N = 64

_ADD = kernel(
    "add",
    f"{split(N)}\n  const float *a = (const float *)p[0], *b = (const float *)p[1];\n"
    "  float *y = (float *)p[2];\n"
    "  for (long i = lo; i < hi; i++) y[i] = a[i] + b[i];\n  return 0;",
)
_X, _W, _K, _Y = (
    Buffer(name, f32(N), kind)
    for name, kind in (("x", "input"), ("w", "input"), ("k", "kept"), ("y", "output"))
)
KEEPS = Program(
    "keeps",
    (_X, _W, _K, _Y),
    (affine("twice", N, 2.0, 1.0), _ADD),
    (Segment((Launch("add", (whole(_X), whole(_K)), (whole(_Y),), parts=2),)),),
    (Input("x"), Input("w", Role("parameter", "w"))),
    (whole(_Y),),
    prepare=(Segment((Launch("twice", (whole(_W),), (whole(_K),), parts=2),)),),
)
"""y = x + (2 w + 1), the latter kept."""


class Counting:
    """An executable, and how often it has prepared."""

    def __init__(self) -> None:
        self.executable = Executable(KEEPS)
        first = self.executable._first
        assert first is not None
        self.count, self._run = 0, first.run
        first.run = self._counted  # type: ignore[method-assign]

    def _counted(self, inputs: "list[Tensor]") -> tuple[Tensor, ...]:
        self.count += 1
        return self._run(inputs)

    def check(self, x: Tensor, w: Tensor, count: int) -> None:
        """Run, and compare with torch."""
        (y,) = self.executable.run([x, w])
        assert torch.equal(y, x + (2 * w.detach() + 1))
        assert self.count == count


def _tensors() -> tuple[Tensor, Tensor]:
    return torch.randn(N), torch.randn(N)


def test_what_is_prepared_serves_many_runs() -> None:
    counting, (x, w) = Counting(), _tensors()
    for _ in range(3):
        counting.check(x, w, 1)
        counting.check(torch.randn(N), w, 1)


def test_a_write_that_torch_counts_is_seen() -> None:
    counting, (x, w) = Counting(), _tensors()
    counting.check(x, w, 1)
    w.mul_(3)
    counting.check(x, w, 2)
    w[1:3] = 7  # through a view
    counting.check(x, w, 3)
    w.requires_grad_()
    with torch.no_grad():
        w.copy_(x)
    counting.check(x, w, 4)
    counting.check(x, w, 4)


def test_another_tensor_or_other_memory_is_seen() -> None:
    counting, (x, w) = Counting(), _tensors()
    counting.check(x, w, 1)
    counting.check(x, w.clone(), 2)
    counting.check(x, w, 3)
    w.data = torch.randn(N)
    counting.check(x, w, 4)


def test_memory_of_what_was_prepared_from_is_not_given_to_others() -> None:
    counting, (x, w) = Counting(), _tensors()
    w = torch.nn.Parameter(w)
    for count in range(1, 20):
        counting.check(x, w, count)
        w.data = torch.zeros(1)  # lets go of the memory, which the next would get
        w.data = torch.randn(N)


def test_a_write_that_nobody_counts_is_seen_after_refresh() -> None:
    counting, (x, w) = Counting(), _tensors()
    counting.check(x, w, 1)
    w.data.add_(1)
    counting.executable.refresh()
    counting.check(x, w, 2)


def test_tensors_made_in_inference_mode_are_never_trusted() -> None:
    counting = Counting()
    with torch.inference_mode():
        x, w = _tensors()
        counting.check(x, w, 1)
        w.add_(1)
        counting.check(x, w, 2)


def test_what_was_prepared_in_inference_mode_serves_outside() -> None:
    counting, (x, w) = Counting(), _tensors()
    with torch.inference_mode():
        counting.check(x, w, 1)
    counting.check(x, w, 1)
    record = counting.executable._kept
    assert record is not None
    assert record._last is not None
    assert not any(tensor.is_inference() for tensor in record._last.kept)


def test_settled_calls_see_writes() -> None:
    x, w = _tensors()
    executable = Executable(KEEPS)
    settled = executable.settled([x, w])
    assert settled is not None
    found = settled([x, w])
    assert found is not None
    assert torch.equal(found[0], x + (2 * w + 1))
    w.add_(1)
    assert settled([x, w]) is None
    executable.run([x, w])
    found = settled([x, w])
    assert found is not None
    assert torch.equal(found[0], x + (2 * w + 1))
    assert settled([x]) is None
    assert settled([x.double(), w]) is None


def test_another_number_of_inputs_is_refused() -> None:
    x, _ = _tensors()
    with pytest.raises(ShapeError, match="another number of inputs"):
        Executable(KEEPS).run([x])


def test_arrays_are_known_by_who_they_are() -> None:
    executable = Executable(KEEPS)
    x, w = (tensor.numpy() for tensor in _tensors())
    assert np.array_equal(executable.run_arrays([x, w])[0], x + (2 * w + 1))
    before = executable.run_arrays([x, w])[0]
    w += 1
    assert np.array_equal(executable.run_arrays([x, w])[0], before)
    executable.refresh()
    assert np.array_equal(executable.run_arrays([x, w])[0], x + (2 * w + 1))
    assert np.array_equal(executable.run_arrays([x, w.copy()])[0], x + (2 * w + 1))
    tensors = torch.from_numpy(x), torch.from_numpy(w)
    assert torch.equal(executable.run(tensors)[0], torch.from_numpy(x + (2 * w + 1)))


def test_what_was_prepared_of_arrays_is_let_go_of() -> None:
    executable = Executable(KEEPS)
    x, w = (tensor.numpy() for tensor in _tensors())
    executable.run_arrays([x, w])
    assert executable._kept is not None
    assert executable._kept._last is not None
    prepared = weakref.ref(executable._kept._last.kept[0])
    assert prepared() is not None
    executable.refresh()
    assert prepared() is None
    for scale in (2, 3):  # others may lie where it was, or elsewhere
        w = w * scale
        assert np.array_equal(executable.run_arrays([x, w])[0], x + (2 * w + 1))


def test_arrays_that_change_in_place_what_they_are_made_of_are_refused() -> None:
    executable = Executable(KEEPS)
    x, w = (tensor.numpy() for tensor in _tensors())
    executable.run_arrays([x, w])
    w.shape = (N // 2, 2)
    with pytest.raises(ShapeError):
        executable.run_arrays([x, w])
    w.shape = (N,)
    executable.run_arrays([x, w])
    w.dtype = np.int32  # type: ignore[misc]
    with pytest.raises(DTypeError):
        executable.run_arrays([x, w])
    with pytest.raises(DTypeError):
        executable.run_arrays([x, 2.0])  # type: ignore[list-item]


def test_a_saved_program_prepares_at_its_first_call(tmp_path: Path) -> None:
    KEEPS.save(tmp_path / "keeps.program")
    loaded = load(tmp_path / "keeps.program")
    assert loaded.program == KEEPS
    x, w = _tensors()
    assert torch.equal(loaded.run([x, w])[0], x + (2 * w + 1))


def test_runs_on_many_threads_see_one_set_of_weights_each() -> None:
    executable = Executable(KEEPS)
    weights = [torch.full((N,), float(k)) for k in range(4)]
    wrong: list[float] = []

    def work(at: int) -> None:
        x = torch.zeros(N)
        for turn in range(300):
            w = weights[(at + turn) % 4]
            (y,) = executable.run([x, w])
            if not torch.equal(y, 2 * w + 1):
                wrong.append(y[0].item())

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_measured_runs_are_of_what_runs_each_time() -> None:
    x, w = _tensors()
    trace = Executable(KEEPS).measure([x, w], 3)
    assert [row.step for row in trace.rows] == list(KEEPS.instructions[0].launches)  # type: ignore[union-attr]


@pytest.mark.parametrize("target", ["check", "sanitize"])
def test_it_runs_without_python(target: str, tmp_path: Path) -> None:
    inputs = [tensor.numpy() for tensor in _tensors()]
    write_standalone(KEEPS, observe(KEEPS, inputs), tmp_path)
    assert run_standalone(tmp_path, target) == ""


def test_another_layout_at_the_same_place_is_seen() -> None:
    """Through `.data` a tensor may change how it lies, where it is and without a counted write."""
    counting, x, place = Counting(), torch.randn(N), torch.randn(2 * N)
    every, other = place[:N], place[::2]
    w = every.detach()
    counting.check(x, w, 1)
    settled = counting.executable.settled([x, w])
    assert settled is not None
    w.data = other
    assert settled([x, w]) is None
    counting.check(x, w, 2)
    w.data = every
    assert settled([x, w]) is None, "what is kept now is of the other layout"
    counting.check(x, w, 3)
    found = settled([x, w])
    assert found is not None
    assert torch.equal(found[0], x + (2 * every + 1))


def test_another_shape_at_the_same_place_is_refused() -> None:
    counting, (x, w) = Counting(), _tensors()
    counting.check(x, w, 1)
    w.data = w.data[: N // 2]
    with pytest.raises(ShapeError):
        counting.executable.run([x, w])


def test_what_is_no_tensor_is_refused_by_name() -> None:
    x, w = _tensors()
    executable = Executable(KEEPS)
    executable.run([x, w])
    with pytest.raises(DTypeError, match="no tensor"):
        executable.run([x, 2.0])  # type: ignore[list-item]
