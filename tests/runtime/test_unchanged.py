"""C says that facts hold only where each is asked again and answered by the very same object."""

import copy
import gc
import pickle
import subprocess
import sysconfig
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.base.facts import Facts
from tilewright.runtime.unchanged import MOST_LESSONS, SOURCE, Unchanged, unlearned

from .test_calls import check_that_nothing_stays

Held = dict[Any, Any]
NOTHING = Facts((), (), (), ())


def _learned(facts: Facts) -> Unchanged:
    unchanged = Unchanged()
    for _ in range(2):
        unchanged.learn(lambda: facts)
    assert unchanged.holds is not unlearned
    assert unchanged.holds()
    return unchanged


def _all(held: Held) -> Facts:
    parts = tuple(part for pair in held.items() for part in pair)
    return NOTHING._replace(dicts=((held, True, parts),))


def _some(held: Held, *keys: Any) -> Facts:
    parts = tuple(part for key in keys for part in (key, held[key]))
    return NOTHING._replace(dicts=((held, False, parts),))


def _ordered(held: Held) -> None:
    first = next(iter(held))
    held[first] = held.pop(first)


CHANGES: dict[str, Callable[[Held], object]] = {
    "another value": lambda held: held.update(a=object()),
    "an equal value": lambda held: held.update(a=[1]),
    "a key more": lambda held: held.update(more=1),
    "a key less": lambda held: held.pop("a"),
    "another order": _ordered,
    "nothing": lambda held: held.clear(),
}


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_a_dict_is_seen(kind: type, change: str) -> None:
    held = kind(a=[1], b=2, c=3)
    before = kind(held)
    unchanged = _learned(_all(held))
    CHANGES[change](held)
    assert not unchanged.holds()
    held.clear()
    held.update(before)
    assert unchanged.holds()
    assert unchanged.holds()


def test_of_some_keys_others_are_nothing() -> None:
    held: Held = {"a": [1], "b": 2, 3: 4}
    unchanged = _learned(_some(held, "a", 3))
    for _ in range(3):
        held["b"] = object()
        held["c"] = object()
        del held["c"]
        assert unchanged.holds()
    for key in ("a", 3):
        before = held.pop(key)
        assert not unchanged.holds()
        held[key] = object()
        assert not unchanged.holds()
        held[key] = before
        assert unchanged.holds()


def test_types_attributes_and_answers_are_asked_again() -> None:
    class One:
        pass

    class Other:
        pass

    one, held, answers = One(), SimpleNamespace(a=[1]), [None]
    for facts, change, back in (
        (
            NOTHING._replace(types=((one, One),)),
            lambda: setattr(one, "__class__", Other),
            lambda: setattr(one, "__class__", One),
        ),
        (
            NOTHING._replace(attributes=((held, "a", held.a),)),
            lambda: setattr(held, "b", held.__dict__.pop("a")),
            lambda: setattr(held, "a", held.b),
        ),
        (
            NOTHING._replace(answers=((lambda: answers[0], None),)),
            lambda: answers.insert(0, one),
            lambda: answers.remove(one),
        ),
    ):
        unchanged = _learned(facts)
        change()
        assert not unchanged.holds()
        back()
        assert unchanged.holds()


def test_an_error_on_the_way_is_no_fact() -> None:
    answers = [True]

    def fails() -> Any:
        return answers[0]

    unchanged = _learned(NOTHING._replace(answers=((fails, True),)))
    answers.clear()
    assert not unchanged.holds()


def test_what_keeps_changing_is_looked_at_for_so_many_times() -> None:
    unchanged, looked = Unchanged(), []

    def look() -> Facts | None:
        looked.append(None)
        return None

    unchanged.learn(look)
    assert not looked  # the first call may be the only one
    for _ in range(3 * MOST_LESSONS):
        unchanged.learn(look)
    assert len(looked) == MOST_LESSONS
    assert not unchanged.holds()


def test_facts_that_do_not_hold_keep_nothing_alive() -> None:
    class Value:
        pass

    held: Held = {"a": Value()}
    unchanged = _learned(_all(held))
    value = weakref.ref(held["a"])
    held["a"] = 1
    unchanged.learn(lambda: None)
    assert value() is None


def test_copies_have_learned_nothing() -> None:
    unchanged = _learned(_all({"a": 1}))
    assert not copy.deepcopy(unchanged).holds()
    assert not pickle.loads(pickle.dumps(unchanged)).holds()


def test_facts_are_let_go_of_with_who_asks_them() -> None:
    class Owner:
        pass

    owner: Any = Owner()
    owner.unchanged = _learned(NOTHING._replace(types=((owner, Owner),)))
    held = weakref.ref(owner)
    del owner
    gc.collect()
    assert held() is None


def test_asking_leaves_nothing_behind() -> None:
    held: Held = {"a": [1]}
    facts = _all(held)._replace(
        types=((held, dict),), attributes=((held, "__class__", dict),), answers=((dict, 1),)
    )
    wrong = _learned(facts._replace(answers=()))
    other: Any = type(wrong.holds)(*facts)
    with pytest.raises(TypeError):
        other(1)
    with pytest.raises(TypeError):
        type(wrong.holds)((), (), ((1,),), ({},), None)

    def work() -> None:
        assert wrong.holds()
        assert not other()
        _learned(facts._replace(answers=()))

    check_that_nothing_stays(work, [held, held["a"], dict, facts, True, False])


def test_the_text_is_without_warnings(tmp_path: Path) -> None:
    include = sysconfig.get_path("include")
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", f"-I{include}"]
    done = subprocess.run(
        [*command, "-fPIC", "-c", str(SOURCE), "-o", str(tmp_path / "unchanged.o")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
