"""Measurements as text that nothing hostile comes through, and what follows from them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tilewright.tune import Measured, Processor, Timing, judge

REASONS = (
    "that is none|that are none|not a record of|of format|no list|between its quartiles|"
    "longer than|nested too deeply|Expecting|Unterminated|Exceeds the limit"
)
HERE = Processor("a processor", 32, 1 << 15, 1 << 19, 1 << 25, 2)


def timed(choice: str, seconds: float, spread: float = 0.01) -> Timing:
    return Timing(choice, seconds, seconds * (1 - spread), seconds * (1 + spread), 9, seconds / 2)


def measured(*timings: Timing) -> Measured:
    return Measured(HERE, "product f32", 1, 1000, timings)


def test_a_measurement_is_what_its_text_says() -> None:
    one = measured(timed("library", 0.1), replace(timed("own", 0.2), predicted=None))
    assert Measured.parse(str(one)) == one


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        for step in path[:-1]:
            found = found[step]
        found[path[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("format", to=2),
        _set("kernel", to=3),
        _set("kernel", to="a\n\x1b[31m"),
        _set("recipe", to=True),
        _set("flops", to=-1),
        _set("flops", to=2**64),
        _set("timings", to={}),
        _set("timings", to=[{}] * 1001),
        _set("timings", 0, to="library"),
        _set("timings", 0, "seconds", to=float("nan")),
        _set("timings", 0, "seconds", to=float("inf")),
        _set("timings", 0, "seconds", to=0),
        _set("timings", 0, "seconds", to=True),
        _set("timings", 0, "low", to=1.0),
        _set("timings", 0, "more", to=1),
        _set("processor", "threads", to="2"),
        _set("processor", to=None),
        _set("more", to=None),
    ],
)
def test_what_is_no_measurement_is_refused(change: Callable[[Any], None]) -> None:
    found = json.loads(str(measured(timed("library", 0.1))))
    change(found)
    with pytest.raises(ValueError, match=REASONS):
        Measured.parse(json.dumps(found))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "1" * 5000, "[" * 100_000, "\0", " " * (1 << 21)]
)
def test_what_is_no_text_of_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=REASONS):
        Measured.parse(text)


def test_a_cut_text_is_refused() -> None:
    text = str(measured(timed("library", 0.1)))
    for end in range(len(text)):
        with pytest.raises(ValueError, match=REASONS):
            Measured.parse(text[:end])


def test_the_fastest_way_is_taken() -> None:
    verdict = judge(measured(timed("own", 0.2), timed("library", 0.3), timed("knobs", 0.1)), "own")
    assert verdict.choice == "knobs"
    assert verdict.reason == "tuned: 2.00x over default, library 0.67x"


def test_the_library_may_be_the_fastest_way() -> None:
    verdict = judge(measured(timed("own", 0.3), timed("library", 0.2)), "own")
    assert (verdict.choice, verdict.reason) == ("library", "tuned: 1.50x over default")


def test_what_is_forbidden_is_not_taken() -> None:
    found = measured(timed("own", 0.3), timed("library", 0.1), timed("knobs", 0.2))
    assert judge(found, "own", lambda way: way != "library").choice == "knobs"


def test_the_usual_way_stays_unless_another_is_clearly_faster() -> None:
    near = measured(timed("own", 0.100), timed("knobs", 0.098, 0.0001))
    unsteady = measured(timed("own", 0.100, 0.3), timed("knobs", 0.080, 0.3))
    for found in (near, unsteady):
        verdict = judge(found, "own")
        assert (verdict.choice, verdict.gain) == ("own", 1.0)
    assert judge(near, "own").reason == "tuned: the default is best"


def test_nothing_follows_where_the_usual_way_was_not_measured() -> None:
    verdict = judge(measured(timed("library", 0.1)), "own")
    assert (verdict.choice, verdict.reason) == ("own", "")
