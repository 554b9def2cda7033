"""Measured runs say where the time went, and compute what any run computes."""

import pytest
import torch

from tilewright.base.errors import OptionError
from tilewright.program import Buffer, Launch, Loop, Program, Segment, whole
from tilewright.runtime import Executable
from tilewright.runtime.tensors import TensorContext
from tilewright.runtime.trace import Clock

from .programs import f32, gather, kernel, linear_relu
from .test_native_loops import nested

SLOW = 2_000_000  # nanoseconds


def sleepy(parts: int, count: int = 1) -> Program:
    """A launch whose parts each take `SLOW`, in a loop, and one that takes nothing."""
    y = Buffer("y", f32(1), "output")
    text = (
        "  struct { long s, n; } now, then;\n  extern int clock_gettime(int, void *);\n"
        "  clock_gettime(1, &then);\n"
        f"  do clock_gettime(1, &now); while ((now.s - then.s) * 1000000000L + now.n - then.n < "
        f"{SLOW}L * (end - part));\n"
        "  return 0;"
    )
    slow, quick = kernel("slow", text), kernel("quick", "  return 0;")
    launches = Segment((Launch("slow", (), (whole(y),), parts), Launch("quick", (), (whole(y),))))
    body = (Loop((launches,), count),) if count > 1 else (launches,)
    return Program("sleepy", (y,), (slow, quick), body, (), (whole(y),))


@pytest.mark.usefixtures("any_parts")
@pytest.mark.parametrize("count", [1, 3])
def test_the_time_of_a_launch_is_its_own_in_all_iterations(count: int) -> None:
    trace = Executable(sleepy(1, count)).measure([], runs=3)
    slow, quick = trace.rows
    assert (slow.step.kernel, quick.step.kernel) == ("slow", "quick")
    assert count * SLOW * 1e-9 <= slow.seconds <= trace.seconds * 3
    assert quick.seconds < slow.seconds / 10
    assert trace.seconds >= count * SLOW * 1e-9


@pytest.mark.usefixtures("any_parts")
def test_threads_are_added_up_and_those_that_wait_are_seen() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trace = Executable(sleepy(3)).measure([], runs=3)
    finally:
        torch.set_num_threads(before)
    slow, quick = trace.rows
    assert trace.threads == 2
    assert slow.work >= 3 * SLOW * 1e-9  # three parts: one for one thread, two for the other
    assert slow.work > slow.seconds >= 2 * SLOW * 1e-9
    # Who has one comes late, or waits for who has two.
    assert slow.waited + quick.waited >= 0.9 * SLOW * 1e-9


@pytest.mark.parametrize("called", [False, True])
def test_a_measured_run_computes_what_any_run_does(called: bool) -> None:
    program = nested(called=called)
    executable = Executable(program)
    inputs = [torch.randn(b.shape) for b in program.buffers if b.kind == "input"]
    (before,) = executable.run(inputs)
    trace = executable.measure(inputs, runs=1)
    assert torch.equal(executable.run(inputs)[0], before)
    assert all(row.seconds > 0 for row in trace.rows)
    assert len({id(row.step) for row in trace.rows}) == len(trace.rows) == 6 + 2 * called


def test_library_calls_are_measured_too() -> None:
    trace = Executable(linear_relu(64, 64, 64)).measure([torch.randn(64, 64)] * 2, runs=2)
    assert [type(row.step).__name__ for row in trace.rows] == ["Launch", "LibraryCall", "Launch"]
    assert all(row.seconds > 0 for row in trace.rows)


@pytest.mark.parametrize("runs", [0, -2])
def test_no_runs_are_refused(runs: int) -> None:
    with pytest.raises(OptionError, match="nothing is measured"):
        Executable(sleepy(1)).measure([], runs=runs)


@pytest.mark.usefixtures("any_parts")
def test_threads_that_come_meanwhile_are_not_counted() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        executable = Executable(sleepy(4))
        clock = Clock(1)
        context = TensorContext(executable._tensor_plan(), clock)
        torch.set_num_threads(4)
        context.run([])
        assert context.call.threads == 1
    finally:
        torch.set_num_threads(before)


def test_what_fails_fails_when_it_is_measured() -> None:
    executable = Executable(gather(4, 2, 3))
    with pytest.raises(IndexError):
        executable.measure([torch.zeros(4, 2), torch.tensor([0, 9, 0])])
