"""Settled calls that C makes give what Python gives for them, and torch hears of their writes."""

import math
import random
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tilewright.base.errors import IndexRangeError, MutationError
from tilewright.program import Program
from tilewright.runtime import Executable, calls
from tilewright.runtime.calls import unquickened, unsettled

from .programs import counter
from .test_calls import PROGRAMS, Given, check_that_nothing_stays, special, unaligned
from .test_kept import KEEPS


def _settled(executable: Executable, given: Given) -> Any:
    """Return what makes settled calls, which C does for inputs like these."""
    calls.types.cache_clear()
    executable.run(given)
    settled = executable.settled(given)
    assert settled is not None
    assert settled(given) is not None
    assert _native(settled).quick(given) is not None
    return settled


def _native(settled: Any) -> Any:
    names = settled.__code__.co_freevars
    return settled.__closure__[names.index("native")].cell_contents


class _Marked(torch.Tensor):
    pass


TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "as it is": lambda x: x,
    "other memory": torch.clone,
    "special values": lambda x: torch.from_numpy(special(x.numpy())),
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x.flatten()[:1].expand(x.shape),
    "negated": torch._neg_view,
    "a parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "asking for gradients": lambda x: x.requires_grad_() if x.is_floating_point() else x,
    "a subclass": lambda x: x.as_subclass(_Marked),
    "unaligned": lambda x: torch.from_numpy(unaligned(x.numpy())),
    "other values in its place": lambda x: setattr(x, "data", x + 1) or x,
    "written": lambda x: x.add_(1),
    "of inference mode": lambda x: _of_inference(x),
    "wider": lambda x: x.to(torch.float64),
    "one element": lambda x: x.flatten()[:1],
    "0-d": lambda _: torch.tensor(1.0),
    "resized": lambda x: x.resize_(2, 32) if x.numel() == 64 else x,
    "a list": lambda x: x.tolist(),
    "nothing": lambda _: None,
    "an array": lambda x: x.numpy(),
}


def _of_inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


def _answer(run: Callable[[Given], Any], given: Given) -> Any:
    """Return what a settled call gives and has done to its inputs, or how it is refused."""
    before = [value._version if _counts(value) else 0 for value in given]
    try:
        found = run(given)
    except Exception as error:
        return type(error), str(error)
    if found is not None:
        found = [
            (value.dtype, value.shape, value.stride(), value.is_inference(), _bytes(value))
            for value in found
        ]
    after = [value._version if _counts(value) else 0 for value in given]
    return (
        found,
        [now - then for now, then in zip(after, before, strict=True)],
        [_bytes(value) for value in given if isinstance(value, torch.Tensor)],
    )


def _counts(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_inference()


def _bytes(value: torch.Tensor) -> bytes:
    return value.detach().resolve_neg().contiguous().numpy().tobytes()


def _tensors(given: Given) -> Given:
    held = map(torch.from_numpy, given)
    return [torch.empty(value.shape, dtype=value.dtype).copy_(value) for value in held]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_settled_call_gives_what_python_gives_for_any_inputs(name: str) -> None:
    program, arrays = PROGRAMS[name]
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        for place in range(len(arrays)):
            for change in TENSORS.values():
                answers = []
                for in_c in (True, False):
                    executable, given = Executable(program), _tensors(arrays)
                    settled = _settled(executable, given)
                    if not in_c:
                        _native(settled).quick = unquickened
                    with torch.no_grad():
                        given[place] = change(given[place])
                    with mode():
                        answers.append([_answer(settled, given) for _ in range(3)])
                assert repr(answers[0]) == repr(answers[1])


def test_settled_calls_see_what_torch_counts_and_who_shares_memory() -> None:
    executable, (x, w) = Executable(KEEPS), (torch.randn(64), torch.randn(64))
    settled = _settled(executable, [x, w])
    for turn in range(4):
        if turn == 1:
            w.mul_(2)
        elif turn == 2:
            w.data = torch.randn(64)
        elif turn == 3:
            executable.refresh()
        assert (settled([x, w]) is None) == (turn > 0)
        for _ in range(2):
            assert torch.equal(executable.run([x, w])[0], x + (2 * w + 1))
            assert torch.equal(settled([x, w])[0], x + (2 * w + 1))
        assert _native(settled).quick([x, w]) is not None
    updating = _settled(Executable(counter()), _tensors(PROGRAMS["one update"][1]))
    memory = torch.zeros(16)
    assert _native(updating).quick([memory[:4], memory[4:8]]) is not None
    for state, step in ((memory[:4], memory[3:7]), (memory[4:8], memory[1:5])):
        with pytest.raises(MutationError, match="share memory"):
            updating([state, step])
    assert not memory.any()


def test_what_was_kept_is_let_go_of_at_once() -> None:
    executable, (x, w) = Executable(KEEPS), (torch.randn(64), torch.randn(64))
    settled = _settled(executable, [x, w])
    assert executable._kept is not None
    record = executable._kept.record
    assert record is not None
    held = weakref.ref(record.kept[0]), weakref.ref(w)
    del record, w
    executable.refresh()
    assert [one() for one in held] == [None, None]
    assert settled([x, torch.randn(64)]) is None


def test_nothing_is_learned_while_nothing_is_kept() -> None:
    executable, given = Executable(KEEPS), [torch.randn(64), torch.randn(64)]
    settled = _settled(executable, given)
    native, (context,) = _native(settled), executable._idle
    native.quick = unsettled
    executable.refresh()  # as another thread may, between the look at what is kept and this
    native.learn(context)
    assert native.quick(given) is None


def test_a_settled_call_that_fails_has_counted_its_writes() -> None:
    state, step = _tensors(PROGRAMS["one update"][1])
    settled = _settled(Executable(_failing()), [state, step])
    for run in (_native(settled).quick, settled):
        before = state._version, step._version
        with pytest.raises(IndexRangeError):
            run([state, step * math.nan])
        assert (state._version, step._version) == (before[0] + 1, before[1])


def _failing() -> Program:
    """Return the Program that adds `step` to `state`, and fails where one is no number."""
    program = counter()
    (old,) = program.kernels
    text = old.text.replace("return 0;", "return s[0] != s[0];")
    return replace(program, kernels=(replace(old, text=text),))


def test_settled_calls_on_several_threads_have_memory_of_their_own() -> None:
    executable, (x, w) = Executable(KEEPS), (torch.randn(64), torch.randn(64))
    settled = _settled(executable, [x, w])
    wrong: list[int] = []

    def work() -> None:
        mine = torch.randn(64)
        expected = mine + (2 * w + 1)
        for turn in range(500):
            if not torch.equal(settled([mine, w])[0], expected):
                wrong.append(turn)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray])
def test_what_is_kept_may_be_made_anew_while_other_threads_call(kind: Callable[..., Any]) -> None:
    executable = Executable(KEEPS)
    x, *weights = (np.random.default_rng(k).normal(size=64).astype(np.float32) for k in range(3))
    given, held = kind(x), [kind(w) for w in weights]
    expected = [x + (2 * w + 1) for w in weights]
    is_torch = kind is torch.from_numpy
    settled = _settled(executable, [given, held[0]]) if is_torch else unsettled
    wrong: list[int] = []

    def work() -> None:
        draw = random.Random(0)
        for turn in range(400):
            k = draw.random() < 0.1
            found = settled([given, held[k]]) or executable(given, held[k])
            if not np.array_equal(np.asarray(found[0]), expected[k]):
                wrong.append(turn)
            if turn % 7 == 0:
                (executable.refresh, executable.release)[turn % 2]()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong


def test_calls_on_tensors_leave_nothing_behind() -> None:
    executable = Executable(KEEPS)
    x, w = torch.randn(64), torch.randn(64)
    settled = _settled(executable, [x, w])
    other, wide = torch.randn(64), torch.randn(65)

    def work() -> None:
        assert settled([x, w]) is not None
        assert settled([x, other]) is None
        assert settled([wide, w]) is None
        assert settled([x]) is None

    check_that_nothing_stays(work, [x, w, other, wide, None])
