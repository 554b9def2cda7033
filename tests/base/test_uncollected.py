"""The collector is off while `uncollected` holds, and afterwards as it was."""

import gc
import threading
from collections.abc import Iterator

import pytest

from tilewright.base.uncollected import uncollected


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
