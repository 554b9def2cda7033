"""A Program runs: the same bits for any number of threads, from any thread, in a forked child."""

import os
import statistics
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from tilewright.base.errors import (
    IndexRangeError,
    Origin,
)
from tilewright.program import (
    OUT_OF_RANGE,
    ZERO_DIVISION,
    Buffer,
    Input,
    Launch,
    Program,
    Segment,
    View,
    read,
    show,
    verify,
    whole,
)
from tilewright.runtime import Executable

from .programs import affine, chain, f32, gather, kernel, linear_relu

pytestmark = pytest.mark.usefixtures("any_parts")

SUMS = """\
program "sums" arena 0
size n_0 37 from 2
kernel zero
  |int zero(char **p, long part, long end, long parts) {
  |  float *y = (float *)p[1];
  |  for (long i = 0; i < *(long *)p[0]; i++) y[i] = 0;
  |  return 0;
  |}
kernel add
  |int add(char **p, long part, long end, long parts) {
  |  float *h = (float *)p[0], *x = (float *)p[1], *y = (float *)p[3];
  |  for (long i = 0; i < *(long *)p[2]; i++) y[i] = h[i] + x[i];
  |  return 0;
  |}
buffer x = input f32[3, $"n_0"]
buffer go = input bool[]
buffer sizes = sizes i64[1]
buffer t = arena f32[$"n_0"] at 0
buffer y = output f32[4, $"n_0"]
input x "argument" ""
input go "argument" ""
segment
  launch zero (sizes) -> (y{$"n_0"; 1; 0})
  launch zero (sizes) -> (t)
loop 3
segment
  launch zero (sizes) -> (y{$"n_0"; 1; $"n_0"; $"n_0"})
branch go
segment
  launch add (t, x{$"n_0"; 1; 0; $"n_0"}, sizes) -> (t)
  launch zero (sizes) -> (y{$"n_0"; 1; $"n_0"; $"n_0"})
  launch add (y{$"n_0"; 1; $"n_0"; $"n_0"}, t, sizes) -> (y{$"n_0"; 1; $"n_0"; $"n_0"})
otherwise
end
end
output y
"""


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---- values -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 64])
def test_launches_see_what_launches_before_them_wrote(parts: int) -> None:
    program = chain(9, 1000, parts)
    executable = Executable(program)
    x = torch.randn(1000)
    # Odd length: reversed once in all.
    expected = x.flip(0) + 9
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        for _ in range(20):
            (y,) = executable.run([x])
            torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.usefixtures("_threads", "any_parts")
@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="torch cannot on this processor")
def test_all_threads_take_subnormal_numbers_as_their_caller_does() -> None:
    n = 1 << 20
    x, y = Buffer("x", f32(n), "input"), Buffer("y", f32(n), "output")
    launch = Launch("half", (whole(x),), (whole(y),), 64)
    program = Program(
        "halves", (x, y), (affine("half", n, 0.5, 0.0),), (Segment((launch,)),), (Input("x"),),
        (whole(y),),
    )  # fmt: skip
    executable = Executable(program)
    value = torch.full((n,), 1e-39)
    torch.set_num_threads(4)
    for flushes in (False, True):
        try:
            torch.set_flush_denormal(flushes)
            found = [executable.run([value])[0] for _ in range(20)]
        finally:
            torch.set_flush_denormal(False)
        assert {int(y.count_nonzero()) for y in found} == {0 if flushes else n}
    # Threads, which are torch's too, are left as they were.
    assert int((value * 0.5).view(torch.int32).count_nonzero()) == n


@pytest.mark.usefixtures("_threads")
def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    n = 4096
    total = kernel(
        "total",
        "  const float *x = (const float *)p[0];\n  float *y = (float *)p[1], s = 0;\n"
        "  for (; part < end; part++) {\n    s = 0;\n"
        f"    for (long i = {n}L * part / parts; i < {n}L * (part + 1) / parts; i++) s += x[i];\n"
        "    y[part] = s;\n  }\n  return 0;",
    )
    x, t, y = (
        Buffer("x", f32(n), "input"),
        Buffer("t", f32(16), "arena"),
        Buffer("y", f32(1), "output"),
    )
    sum_up = kernel(
        "sum_up",
        "  const float *x = (const float *)p[0];\n  float *y = (float *)p[1];\n"
        "  y[0] = 0;\n  for (int i = 0; i < 16; i++) y[0] += x[i];\n  return 0;",
    )
    launches = (
        Launch("total", (whole(x),), (whole(t),), 16),
        Launch("sum_up", (whole(t),), (whole(y),)),
    )
    program = Program(
        "sum", (x, t, y), (total, sum_up), (Segment(launches),), (Input("x"),), (whole(y),),
        arena_bytes=64,
    )  # fmt: skip
    executable = Executable(program)
    value = torch.randn(n)
    found = set()
    for threads in (1, 2, 3, 4, 16, 20):
        torch.set_num_threads(threads)
        (result,) = executable.run([value])
        found.add(result.numpy().tobytes())
    assert len(found) == 1
    assert float(result) == pytest.approx(float(value.double().sum()), abs=1e-3)


def test_views_of_inputs_and_outputs_may_be_strided() -> None:
    n = 6
    x, y = Buffer("x", f32(n), "input"), Buffer("y", f32(2 * n), "output")
    copy = kernel(
        "copy",
        "  const float *x = (const float *)p[0];\n  float *y = (float *)p[1];\n"
        "  for (int i = 0; i < 6; i++) y[2 * i] = x[-i];\n  return 0;",
    )
    launches = (
        Launch("copy", (View("x", (n,), (-1,), n - 1),), (View("y", (n,), (2,), 0),)),
        Launch("copy", (View("x", (n,), (-1,), n - 1),), (View("y", (n,), (2,), 1),)),
    )
    program = Program(
        "flip", (x, y), (copy,), (Segment(launches),), (Input("x"),),
        (whole(y), View("y", (n, 2), (2, 1)), View("y", (n - 1,), (2,), 2)),
    )  # fmt: skip
    value = torch.randn(n)
    whole_y, pairs, evens = Executable(program).run([value])
    expected = value.flip(0).repeat_interleave(2)
    assert torch.equal(whole_y, expected)
    assert torch.equal(pairs, expected.view(n, 2))
    assert torch.equal(evens, expected[2::2])
    assert pairs.data_ptr() == whole_y.data_ptr()


def test_constants_are_read_as_they_were_saved() -> None:
    data = np.arange(5, dtype=np.float32)
    c, d = (Buffer(n, f32(5), "constant", data=(data + i).tobytes()) for i, n in enumerate("cd"))
    y = Buffer("y", f32(5), "output")
    add = kernel(
        "add",
        "  const float *a = (const float *)p[0], *b = (const float *)p[1];\n"
        "  float *y = (float *)p[2];\n  for (int i = 0; i < 5; i++) y[i] = a[i] + b[i];\n"
        "  return 0;",
    )
    program = Program(
        "c", (c, d, y), (add,), (Segment((Launch("add", (whole(c), whole(d)), (whole(y),)),)),), (),
        (whole(y),),
    )  # fmt: skip
    assert Executable(program).run([])[0].tolist() == [1, 3, 5, 7, 9]
    assert Executable(program).run_arrays([])[0].tolist() == [1, 3, 5, 7, 9]


def test_loops_and_branches_move_by_sizes_that_vary() -> None:
    program = read(SUMS)
    verify(program)
    assert show(program) == SUMS
    executable = Executable(program)
    for n in (2, 5, 300):
        x = torch.randint(-9, 9, (3, n)).float()  # sums are exact
        expected = torch.cat([torch.zeros(1, n), x.cumsum(0)])
        for go in (True, False):
            (y,) = executable.run([x, torch.tensor(go)])
            assert torch.equal(y, expected if go else torch.zeros(4, n))
            (y,) = executable.run_arrays([x.numpy(), np.array(go)])
            np.testing.assert_array_equal(y, expected if go else np.zeros((4, n)))


def test_empty_tensors_run() -> None:
    x, y = Buffer("x", f32(0, 3), "input"), Buffer("y", f32(3, 0), "output")
    nothing = kernel("nothing", "  return 0;")
    program = Program(
        "empty", (x, y), (nothing,), (Segment((Launch("nothing", (whole(x),), (whole(y),)),)),),
        (Input("x"),), (whole(y),),
    )  # fmt: skip
    assert Executable(program).run([torch.empty(0, 3)])[0].shape == (3, 0)


def test_a_program_that_does_nothing_hands_its_input_back() -> None:
    x = Buffer("x", f32(3), "input")
    program = Program("same", (x,), (), (), (Input("x"),), (whole(x),))
    value = torch.randn(3)
    assert Executable(program).run([value])[0] is value


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("parts", [1, 3])
def test_an_index_out_of_range_names_the_line_of_the_user(parts: int) -> None:
    executable = Executable(gather(4, 2, 3, parts))
    table = torch.randn(4, 2)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with pytest.raises(IndexRangeError) as raised:
            executable.run([table, torch.tensor([0, 4, 1])])
        assert raised.value.summary == "an index is out of range"
        assert raised.value.where == "model.py:7   table[ids]"
        assert raised.value.found.endswith("in a kernel that reads table, ids")
        assert isinstance(raised.value, IndexError)
        assert torch.equal(executable.run([table, torch.tensor([3, 3, 0])])[0], table[[3, 3, 0]])


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("codes", [OUT_OF_RANGE, OUT_OF_RANGE | ZERO_DIVISION])
def test_the_first_launch_that_fails_is_named_and_nothing_after_it_runs(codes: int) -> None:
    """Many times, on two threads, with barriers after the failure."""
    y = Buffer("y", f32(1), "output")
    bad = kernel("bad", f"  return end == parts ? {codes} : 0;")
    write = kernel("write", "  *(float *)0 = 1;\n  return 2;")
    origins = [Origin(f"line{i}.py", i) for i in range(3)]
    launches = [Launch("bad", (), (whole(y),), 4, origin) for origin in origins]
    launches.append(Launch("write", (whole(y),), (whole(y),), 4))
    program = Program("bad", (y,), (bad, write), (Segment(tuple(launches)),), (), (whole(y),))
    executable = Executable(program)
    torch.set_num_threads(2)
    for _ in range(200):
        with pytest.raises(IndexRangeError, match=r"line0\.py"):
            executable.run([])


# ---- many at once -------------------------------------------------------------------------------


def test_runs_from_several_threads_do_not_disturb_each_other() -> None:
    executables = [Executable(chain(5, 2000, 4)), Executable(linear_relu(16, 16, 16))]
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(2000, generator=generator)
        a, w = (torch.randn(16, 16, generator=generator) for _ in range(2))
        expected = x.flip(0) + 5
        product = torch.relu(2 * a @ w.t())
        for _ in range(100):
            (y,) = executables[0].run([x])
            (z,) = executables[1].run([a, w])
            if not torch.allclose(y, expected, atol=1e-5):
                failures.append(f"thread {seed} got another's chain")
            if not torch.allclose(z, product, atol=1e-4):
                failures.append(f"thread {seed} got another's product")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_other_python_threads_run_while_a_kernel_does() -> None:
    """The GIL is released: a counting thread advances during one long call."""
    y = Buffer("y", f32(1), "output")
    slow = kernel(
        "slow",
        "  volatile float s = 0;\n  for (long i = 0; i < 100000000L; i++) s += 1;\n"
        "  *(float *)p[0] = s;\n  return 0;",
    )
    program = Program(
        "slow", (y,), (slow,), (Segment((Launch("slow", (), (whole(y),)),)),), (), (whole(y),)
    )
    executable = Executable(program)
    stop = threading.Event()
    stamps: list[float] = []

    def count() -> None:
        while not stop.is_set():
            stamps.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    start = time.perf_counter()
    executable.run([])
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(start < stamp < end for stamp in stamps) >= 5


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_runs_too() -> None:
    executable = Executable(chain(5, 100_000, 8))
    x = torch.randn(100_000)
    expected = x.flip(0) + 5
    assert torch.allclose(executable.run([x])[0], expected, atol=1e-5)
    child = os.fork()
    if child == 0:
        # Compared by NumPy: torch's own parallel operators hang in such a child.
        good = np.allclose(executable.run([x])[0].numpy(), expected.numpy(), atol=1e-5)
        os._exit(0 if good else 1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise AssertionError("the child hangs")
    assert status == 0
    assert torch.allclose(executable.run([x])[0], expected, atol=1e-5)


# ---- memory -------------------------------------------------------------------------------------


def test_nothing_of_a_run_is_kept_but_the_arena() -> None:
    executable = Executable(gather(4, 2, 3))
    table, ids = torch.randn(4, 2), torch.tensor([0, 1, 2])
    (y,) = executable.run([table, ids])
    references = [weakref.ref(value) for value in (table, ids, y)]
    del table, ids, y
    assert [reference() for reference in references] == [None] * 3


def test_outputs_of_two_runs_are_two_tensors() -> None:
    executable = Executable(chain(3, 10, 1))
    (first,) = executable.run([torch.zeros(10)])
    (second,) = executable.run([torch.ones(10)])
    assert first.tolist() == [3] * 10
    assert second.tolist() == [4] * 10


# ---- cost ---------------------------------------------------------------------------------------


def test_a_call_costs_little_beside_what_eager_does_for_the_same() -> None:
    """Four inputs and one output of 64 floats; judged by the ratio to three eager operators, since
    the machine may be busy (on a quiet one a call takes about 4 us)."""
    program = four_inputs()
    executable = Executable(program)
    values = [torch.randn(64) for _ in range(4)]
    a, b, c, d = values
    assert torch.equal(executable.run(values)[0], a * b + c * d)
    ratios = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(500):
            executable.run(values)
        middle = time.perf_counter()
        for _ in range(500):
            a * b + c * d
        ratios.append((middle - start) / (time.perf_counter() - middle))
    assert statistics.median(ratios) < 2


def four_inputs() -> Program:
    """Return y = a * b + c * d on 64 floats."""
    inputs = [Buffer(name, f32(64), "input") for name in "abcd"]
    y = Buffer("y", f32(64), "output")
    fused = kernel(
        "fused",
        "  const float *a = (float *)p[0], *b = (float *)p[1], *c = (float *)p[2];\n"
        "  const float *d = (float *)p[3];\n  float *y = (float *)p[4];\n"
        "  for (int i = 0; i < 64; i++) y[i] = a[i] * b[i] + c[i] * d[i];\n  return 0;",
    )
    launch = Launch("fused", tuple(whole(b) for b in inputs), (whole(y),))
    return Program(
        "four", (*inputs, y), (fused,), (Segment((launch,)),),
        tuple(Input(b.name) for b in inputs), (whole(y),),
    )  # fmt: skip


def test_release_frees_the_arena() -> None:
    executable = Executable(replace(chain(3, 10, 1), arena_bytes=1 << 20))
    executable.run([torch.zeros(10)])
    (context,) = executable._idle
    arena = weakref.ref(context.arena)
    del context
    executable.release()
    import gc

    gc.collect()
    assert arena() is None
