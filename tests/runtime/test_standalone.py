"""A Program as C of its own: it computes the same, and what goes beyond a buffer is told."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.test_native_loops import INNER, OUTER, N, nested
from tests.standalone import run_standalone

from tilewright.base.dtypes import BOOL, I64
from tilewright.base.errors import LibraryCallError
from tilewright.graph.ir import TensorType
from tilewright.program import (
    Branch,
    Buffer,
    Input,
    KernelSource,
    Launch,
    Loop,
    Program,
    Segment,
    View,
    While,
    whole,
)
from tilewright.runtime import find_toolchain, observe, write_standalone

from .programs import chain, counter, gather, kernel, linear_relu

Array = np.ndarray
X = np.random.default_rng(0).normal(size=1001).astype(np.float32)


def said(program: Program, inputs: Sequence[Array], folder: Path, target: str = "check") -> str:
    write_standalone(program, observe(program, inputs), folder)
    return run_standalone(folder, target)


def test_c_is_compiled_as_programs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc")
    program = chain(2, 1001, 2)
    write_standalone(program, observe(program, [X]), tmp_path)
    made = subprocess.run(["make", "-n", "plain"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    compiled = [line.split() for line in made.stdout.splitlines() if " -c " in line]
    assert compiled
    assert all(set(line) >= set(find_toolchain().flags) for line in compiled)


def collatz(count: int) -> Program:
    """Return for each number how many steps lead from it to 1: a while with a branch in a loop."""
    scalar = TensorType((), I64)
    x, y = (Buffer(b, TensorType((count,), I64), k) for b, k in (("x", "input"), ("y", "output")))
    n, steps = Buffer("n", scalar, "arena"), Buffer("steps", scalar, "arena", offset=8)
    goes_on, odd = (Buffer(b, TensorType((), BOOL), "arena", offset=16) for b in ("on", "odd"))
    odd = replace(odd, offset=17)

    def integers(name: str, code: str) -> KernelSource:
        return kernel(name, f"  long long *x = (long long *)p[0], *y = (long long *)p[1];\n{code}")

    def launch(name: str, *views: View) -> Segment:
        return Segment((Launch(name, views[:-1], views[-1:]),))

    def at(buffer: Buffer) -> View:
        return View(buffer.name, (), (), 0, (1,))

    whole_n = whole(n)
    body = (
        launch("same", at(x), whole_n),
        launch("none", whole_n, whole(steps)),
        While(
            (launch("above", whole_n, whole(goes_on)),),
            whole(goes_on),
            (
                launch("parity", whole_n, whole(odd)),
                Branch(
                    whole(odd),
                    (launch("triple", whole_n, whole_n),),
                    (launch("half", whole_n, whole_n),),
                ),
                launch("more", whole(steps), whole(steps)),
            ),
        ),
        launch("same", whole(steps), at(y)),
    )
    kernels = (
        integers("same", "  *y = *x; return 0;"),
        integers("none", "  *y = 0; return 0;"),
        integers("triple", "  *y = 3 * *x + 1; return 0;"),
        integers("half", "  *y = *x / 2; return 0;"),
        integers("more", "  *y = *x + 1; return 0;"),
        integers("above", "  *(unsigned char *)y = *x > 1; return 0;"),
        integers("parity", "  *(unsigned char *)y = *x % 2; return 0;"),
    )
    buffers = (x, y, n, steps, goes_on, odd)
    return Program(
        "collatz", buffers, kernels, (Loop(body, count),), (Input("x"),), (whole(y),),
        arena_bytes=24,
    )  # fmt: skip


@pytest.mark.parametrize("target", ["check", "sanitize"])
def test_it_computes_what_the_program_does(target: str, tmp_path: Path) -> None:
    assert said(chain(5, 1001, 4), [X], tmp_path / "chain", target) == ""
    state, step = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert said(counter(), [state, step], tmp_path / "counter", target) == ""


def test_loops_and_branches_are_those_of_the_program(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).normal(size=(OUTER + 1, N)).astype(np.float32)
    program = nested(called=False, outer=OUTER, inner=INNER)
    assert said(program, [drawn[0], drawn[1:]], tmp_path / "nested") == ""
    starts = np.array([1, 6, 7, 27], np.int64)
    observed = observe(collatz(4), [starts])
    assert np.frombuffer(observed.after["y"], np.int64).tolist() == [0, 8, 16, 111]
    assert said(collatz(4), [starts], tmp_path / "collatz") == ""


BEYOND, ELSE = "of 4004 bytes: the program goes beyond its memory, at byte", "buffer y differs at"
FAULTS = (
    ("reads_beyond_the_end", "x[1000 - i]", "x[1001 - i]", f"buffer x {BEYOND} 4004"),
    ("reads_before_the_begin", "x[1000 - i]", "x[999 - i]", f"buffer x {BEYOND} -4"),
    ("writes_beyond_the_end", "y[i] =", "y[hi] = y[i] =", f"buffer t0 {BEYOND} 4004"),
    ("writes_its_input", "y[i] =", "((float *)x)[i] = y[i] =", "writes what it may only read"),
    ("makes_something_else", "+ 1.0f", "+ 1.5f", f"{ELSE} element 0 of 1001: found 0x"),
    ("counts_the_ranges", "+ 1.0f", "+ 1.0f * (end - part)", f"{ELSE} element 0 of 1001"),
    ("leaves_out_the_last", "i < hi", "i < hi - (hi == 1001)", f"{ELSE} element 0 of 1001"),
)
UNDEFINED = (
    ("shifts_too_far", "+ 1.0f", "+ (1 << (32 + part) ? 1.0f : 1.0f)", "shift exponent"),
    ("converts_too_much", "+ 1.0f", "+ (float)((int)(x[i] * 1e12f) != 5)", "outside the range of"),
    ("indexes_too_far", "for (", "volatile float z[4]; z[part + 4] = 0; for (", "out of bounds"),
    ("leaves_its_stack", "for (", "float z[4], *volatile q = z; q[4] = 0; for (", "stack-buffer-"),
)


@pytest.mark.parametrize(
    ("target", "old", "new", "told"),
    [
        pytest.param(target, *rest, id=name)
        for target, faults in (("check", FAULTS), ("sanitize", UNDEFINED))
        for name, *rest in faults
    ],
)
def test_a_faulty_kernel_is_told(
    target: str, old: str, new: str, told: str, tmp_path: Path
) -> None:
    good = chain(2, 1001, 4)
    (shift,) = good.kernels
    assert old in shift.text
    bad = replace(good, kernels=(replace(shift, text=shift.text.replace(old, new)),))
    write_standalone(bad, observe(good, [X]), tmp_path)
    assert told in run_standalone(tmp_path, target)


def test_a_failing_kernel_is_named(tmp_path: Path) -> None:
    program = gather(10, 3, 4)
    table, ids = np.ones((10, 3), np.float32), np.array([1, 2, 3, 4])
    observed = observe(program, [table, ids])
    bad = {**observed.before, "ids": np.array([1, 2, 10, 4]).tobytes()}
    write_standalone(program, replace(observed, before=bad), tmp_path)
    assert "take fails: an index is out of range\n" in run_standalone(tmp_path, "check")


def test_numbers_that_are_none_are_equal_whatever_their_bits(tmp_path: Path) -> None:
    program = chain(1, 8, 1)
    observed = observe(program, [np.full(8, np.nan, np.float32)])
    other = np.full(8, 0xFFC00001, np.uint32).tobytes()
    write_standalone(program, replace(observed, after={"y": other}), tmp_path)
    assert run_standalone(tmp_path, "check") == ""


def test_library_calls_are_refused(tmp_path: Path) -> None:
    observed = observe(chain(1, 8, 1), [np.zeros(8, np.float32)])
    with pytest.raises(LibraryCallError, match=re.escape("cannot run without torch")):
        write_standalone(linear_relu(2, 3, 4), observed, tmp_path)
