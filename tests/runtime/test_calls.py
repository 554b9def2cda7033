"""Calls that C makes give what Python gives for them, and the others are left to Python."""

import copy
import gc
import subprocess
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tilewright.base.errors import IndexRangeError
from tilewright.program import Buffer, Launch, Program, Segment, whole
from tilewright.runtime import Executable, calls
from tilewright.runtime.calls import SOURCE, unquickened, unsettled

from .programs import affine, chain, counter, f32, gather, two_counters
from .test_kept import KEEPS

Array = np.ndarray[Any, Any]
Given = list[Any]


@pytest.fixture(autouse=True)
def _found_anew() -> Iterator[None]:
    """Let no test leave another one what it found."""
    calls.types.cache_clear()
    yield
    calls.types.cache_clear()


def _quick(program: Program, given: Given) -> Executable:
    """Return an executable whose calls C makes: from the third one on."""
    executable = Executable(program)
    for _ in range(2):
        executable(*copy.deepcopy(given))
    if executable._first is not None:  # what is kept is known by the arrays it is made of
        executable(*given)
        executable(*given)
    assert executable._quick not in (unsettled, unquickened)
    return executable


def _by_python(program: Program) -> Executable:
    executable = Executable(program)
    executable._quick = unquickened
    return executable


def _floats(*shape: int) -> Array:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _two_updates() -> Program:
    """Return the Program that adds `step` to two states, and gives the step doubled."""
    program, y = two_counters(), Buffer("y", f32(4), "output")
    doubled = Segment((Launch("affine", (program.outputs[0],), (whole(y),)),))
    return replace(
        program,
        buffers=(*program.buffers, y),
        kernels=(*program.kernels, affine("affine", 4, 2.0, 0.0)),
        instructions=(*program.instructions, doubled),
        outputs=(whole(y),),
    )


PROGRAMS: dict[str, tuple[Program, Given]] = {
    "chain": (chain(5, 1000, 4), [_floats(1000)]),
    "gather": (gather(5, 6, 4), [_floats(5, 6), np.array([4, 0, 2, 4])]),
    "gather nothing": (gather(5, 6, 0), [_floats(5, 6), np.zeros(0, np.int64)]),
    "one update": (counter(), [_floats(4), _floats(4)]),
    "two updates": (_two_updates(), [_floats(4), _floats(4) + 1, _floats(4)]),
    "kept": (KEEPS, [_floats(64), _floats(64) + 1]),
}


def _strided(x: Array) -> Array:
    return np.repeat(x, 2, axis=-1)[..., ::2]


def unaligned(x: Array) -> Array:
    apart = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    apart[...] = x
    return apart


def _read_only(x: Array) -> Array:
    x.flags.writeable = False
    return x


def special(x: Array) -> Array:
    if x.dtype == np.float32:
        x.flat[: x.size // 2] = [(np.nan, np.inf, -np.inf, -0.0)[k % 4] for k in range(x.size // 2)]
    return x


ONE: dict[str, Callable[[Array], Any]] = {
    "as it is": lambda x: x,
    "other memory": np.copy,
    "special values": special,
    "strided": _strided,
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "by columns": np.asfortranarray,
    "unaligned": unaligned,
    "read only": _read_only,
    "a subclass": lambda x: x.view(np.recarray),
    "a matrix": lambda x: np.ma.masked_array(x),
    "wider": lambda x: x.astype(np.float64),
    "other bytes": lambda x: x.astype(x.dtype.newbyteorder()),
    "the same dtype, another object": lambda x: x.astype(np.dtype(x.dtype.str, copy=True)),
    "one dim more": lambda x: x[None],
    "one element": lambda x: x.flat[:1].copy(),
    "0-d": lambda _: np.array(1.0, np.float32),
    "longer": lambda x: np.concatenate([x, x]),
    "expanded": lambda x: np.broadcast_to(x.flat[:1] if x.size else x, x.shape),
    "a list": lambda x: x.tolist(),
    "a number": lambda _: 2.0,
    "nothing": lambda _: None,
    "a scalar": lambda _: np.float32(2),
}


def _changed(given: Given, place: int, change: Callable[[Array], Any]) -> Given:
    values = copy.deepcopy(given)
    values[place] = change(values[place])
    return values


ALL: dict[str, Callable[[Given], Given]] = {
    "one too few": lambda given: given[:-1],
    "one too many": lambda given: [*given, given[0]],
    "none": lambda _: [],
    "one array for all": lambda given: [given[0]] * len(given),
    "overlapping": lambda given: [np.tile(given[0].reshape(-1), 3)[:4], *given[1:]],
}


def _told(executable: Executable, given: Given) -> Any:
    """Return what a call gives, and what its inputs are after it; or how it is refused."""
    try:
        found = executable.run_arrays(given)
    except Exception as error:
        return type(error), str(error)
    assert all(type(value) is np.ndarray for value in found)
    return [(value.dtype, value.shape, value.strides, value.tobytes()) for value in found], [
        np.asarray(value).tobytes() for value in given
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_gives_what_python_gives_for_any_inputs(name: str) -> None:
    program, given = PROGRAMS[name]
    quick, slow = _quick(program, given), _by_python(program)
    changes = [
        partial(_changed, place=k, change=c) for k in range(len(given)) for c in ONE.values()
    ]
    for change in (*changes, *ALL.values()):
        for _ in range(2):
            values, same = change(copy.deepcopy(given)), change(copy.deepcopy(given))
            assert _told(quick, values) == _told(slow, same)
            assert _told(quick, values) == _told(slow, same)  # updates were made, then; or refused
        assert _told(quick, copy.deepcopy(given)) == _told(slow, copy.deepcopy(given))


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "gather nothing"])
def test_what_is_as_expected_is_answered_by_c(name: str) -> None:
    program, given = PROGRAMS[name]
    executable, slow = _quick(program, given), _by_python(program)
    for values in (given, tuple(given)):
        expected = slow.run_arrays(copy.deepcopy(given))
        found = executable._quick(copy.deepcopy(given) if program.updates else values)
        assert found is not None
        assert all(map(np.array_equal, found, expected))


def test_inputs_that_share_memory_with_one_that_is_updated_are_left_to_python() -> None:
    executable = _quick(*PROGRAMS["one update"])
    memory = np.zeros(16, np.float32)
    assert executable._quick([memory[:4], memory[4:8]]) is not None
    assert executable._quick([memory[:4], memory[3:7]]) is None
    assert executable._quick([memory[4:8], memory[1:5]]) is None
    assert executable._quick([memory[:4], memory[:4]]) is None


def test_an_array_that_changes_in_place_is_looked_at() -> None:
    executable, (x, w) = _quick(*PROGRAMS["kept"]), PROGRAMS["kept"][1]
    assert executable._quick([x, w]) is not None
    for change, back in (
        (partial(setattr, w, "shape", (8, 8)), partial(setattr, w, "shape", (64,))),
        (partial(setattr, w, "dtype", np.int32), partial(setattr, w, "dtype", np.float32)),
    ):
        change()
        assert executable._quick([x, w]) is None
        back()
        assert executable._quick([x, w]) is not None


def test_what_is_kept_is_made_anew_as_python_makes_it() -> None:
    executable, (x, w) = _quick(*PROGRAMS["kept"]), copy.deepcopy(PROGRAMS["kept"][1])
    for turn in range(4):
        for _ in range(3):
            assert np.array_equal(executable(x, w)[0], x + (2 * w + 1))
        assert executable._quick([x, w]) is not None
        if turn == 1:
            w[:] = 3
            executable.refresh()
        elif turn == 2:
            executable.release()
        else:
            w = w + 1
        assert executable._quick([x, w]) is None


def test_what_is_kept_of_tensors_is_not_taken_for_arrays() -> None:
    executable, (x, w) = _quick(*PROGRAMS["kept"]), PROGRAMS["kept"][1]
    for _ in range(3):
        for kind in (torch.from_numpy, np.asarray):
            for _ in range(3):
                (y,) = executable(kind(x), kind(w))
                assert np.array_equal(np.asarray(y), x + (2 * w + 1))


def test_what_was_kept_before_is_let_go_of() -> None:
    executable, (x, w) = _quick(*PROGRAMS["kept"]), PROGRAMS["kept"][1]
    executable(x, w)
    assert executable._kept is not None
    record = executable._kept.record
    assert record is not None
    kept = weakref.ref(record.kept[0])
    del record
    executable(x, w + 1)
    assert kept() is None


def test_c_makes_the_calls_again_whoever_prepared_last() -> None:
    executable, (x, w) = _quick(*PROGRAMS["kept"]), PROGRAMS["kept"][1]
    other = Executable(KEEPS)  # as for another value of a size: what is kept is both's
    other._first, other._kept = executable._first, executable._kept
    for values in (w + 1, w + 2, w):
        for one in (other, executable, other):
            for _ in range(3):
                assert np.array_equal(one(x, values)[0], x + (2 * values + 1))
            assert one._quick([x, values]) is not None


def test_what_the_native_code_refuses_is_raised() -> None:
    executable = _quick(*PROGRAMS["gather"])
    table, ids = PROGRAMS["gather"][1]
    for _ in range(3):
        with pytest.raises(IndexRangeError) as error:
            executable._quick([table, ids + 3])
        assert str(error.value) == _told(_by_python(gather(5, 6, 4)), [table, ids + 3])[1]
        assert np.array_equal(executable(table, ids)[0], table[ids])


def test_an_executable_and_what_it_made_are_let_go_of() -> None:
    program, given = PROGRAMS["kept"]
    executable = _quick(program, given)
    frame, quick = executable._idle_arrays[0].frame, executable._quick
    held = weakref.ref(executable)
    del executable, quick, frame
    assert held() is None


def test_calls_leave_nothing_behind() -> None:
    program, given = PROGRAMS["two updates"]
    executable = _quick(program, given)
    gathered, (table, ids) = _quick(*PROGRAMS["gather"]), PROGRAMS["gather"][1]
    wrong, apart = ids + 3, _strided(given[0])

    def work() -> None:
        executable(*given)
        executable._quick([apart, *given[1:]])
        executable._quick([given[0], given[0], given[2]])
        with pytest.raises(IndexRangeError):
            gathered(table, wrong)

    check_that_nothing_stays(work, [*given, None, executable._quick])


def check_that_nothing_stays(work: Callable[[], object], values: Given) -> None:
    """Work a thousand times; look again where others have let go of something, or made it."""
    grown = []
    for _ in range(4):
        gc.collect()
        before = [sys.getallocatedblocks(), *map(sys.getrefcount, values)]
        for _ in range(1000):
            work()
        gc.collect()
        after = [sys.getallocatedblocks(), *map(sys.getrefcount, values)]
        grown.append([now - then for now, then in zip(after, before, strict=True)])
    assert all(min(map(abs, each)) < 200 for each in zip(*grown, strict=True)), grown


def test_several_threads_may_call_at_once() -> None:
    executable, (x, w) = _quick(*PROGRAMS["kept"]), PROGRAMS["kept"][1]
    wrong: list[int] = []

    def work(seed: int) -> None:
        mine = np.random.default_rng(seed).normal(size=64).astype(np.float32)
        expected = mine + (2 * w + 1)
        for turn in range(1000):
            if not np.array_equal(executable(mine, w)[0], expected):
                wrong.append(turn)

    assert np.array_equal(executable(x, w)[0], x + (2 * w + 1))
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(context.frame is not None for context in executable._idle_arrays[-1:])


def test_a_program_that_gives_an_input_back_is_left_to_python() -> None:
    executable, given = Executable(two_counters()), copy.deepcopy(PROGRAMS["two updates"][1])
    for _ in range(3):
        assert executable(*given)[0] is given[2]
    assert executable._quick is unquickened


def test_a_call_takes_one_sequence() -> None:
    quick: Any = _quick(*PROGRAMS["chain"])._quick
    for wrong in ((), ([], [])):
        with pytest.raises(TypeError, match="sequence of its inputs"):
            quick(*wrong)
    assert quick(iter([])) is None
    assert quick(None) is None


# ---- where there is no C ------------------------------------------------------------------------


def _without_headers(module: ModuleType, patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(module.sysconfig, "get_path", lambda _: str(folder))


def _without_compiler(_: ModuleType, patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("CC", str(folder / "none"))


def _without_lock(module: ModuleType, patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setattr(module.sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)


def _with_other_arrays(module: ModuleType, patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setattr(module, "_reads_arrays", lambda _: False)


@pytest.mark.parametrize(
    "lack", [_without_headers, _without_compiler, _without_lock, _with_other_arrays]
)
def test_python_makes_all_calls_where_c_cannot(
    lack: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, given = PROGRAMS["chain"]
    executable = Executable(program)
    lack(calls, monkeypatch, tmp_path)
    expected = executable(*given)
    for _ in range(3):
        assert np.array_equal(executable(*given)[0], expected[0])
    assert executable._quick is unquickened


def test_the_text_is_without_warnings(tmp_path: Path) -> None:
    include = sysconfig.get_path("include")
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", f"-I{include}"]
    done = subprocess.run(
        [*command, "-fPIC", "-c", str(SOURCE), "-o", str(tmp_path / "calls.o")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
