"""Settings of the interpreter are held while some thread is inside, and then what they were."""

import ast
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tilewright.base.interpreter import TURN, short_turns, uncollected


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.isenabled()
    yield
    if before:
        gc.enable()
    else:
        gc.disable()


@pytest.mark.parametrize("looks", [True, False])
def test_the_collector_is_as_it_was_found(looks: bool) -> None:
    (gc.enable if looks else gc.disable)()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == looks


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_turns_the_collector_on_again(kind: type[BaseException]) -> None:
    gc.enable()

    @uncollected()
    def refuse() -> None:
        assert not gc.isenabled()
        raise kind("refused")

    for _ in range(2):  # a decorated function is called more than once
        with pytest.raises(kind):
            refuse()
        assert gc.isenabled()


def test_of_threads_at_once_none_leaves_the_collector_off() -> None:
    gc.enable()
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with uncollected():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    with uncollected():
        thread.start()
        assert inside.wait(10)
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_turns_stay_short_until_the_last_thread_has_left() -> None:
    before = sys.getswitchinterval()
    first, second = short_turns(), short_turns()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(TURN)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before


def test_what_somebody_sets_meanwhile_stays() -> None:
    before = sys.getswitchinterval()
    try:
        with short_turns():
            sys.setswitchinterval(0.02)
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("forks", ["another thread", "the thread inside"])
def test_a_forked_child_has_what_there_was_once_nobody_in_it_is_inside(forks: str) -> None:
    gc.enable()
    before = sys.getswitchinterval()
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with uncollected(), short_turns():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    try:
        if forks == "another thread":
            assert _in_child(lambda: (gc.isenabled(), sys.getswitchinterval())) == (True, before)
        else:
            with uncollected():
                assert not _in_child(gc.isenabled)

                def leaves() -> bool:
                    with uncollected():
                        pass
                    return gc.isenabled()

                assert not _in_child(leaves)
    finally:
        leave.set()
        thread.join()
    assert gc.isenabled()
    assert sys.getswitchinterval() == before


def _in_child(ask: Callable[[], Any]) -> Any:
    """Return what a forked child answers."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, repr(ask()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answers:
        answer = ast.literal_eval(answers.read())
    os.waitpid(child, 0)
    return answer
