"""What a function reaches by itself is read by its paths, each part of them once."""

from typing import Any

import pytest

from tilewright.capture.watch import reader

PLACES = (
    "L['fn']._modules['a']._parameters['weight']",
    "L['fn']._modules['a']._parameters['bias']",
    "L['fn']._modules['b']._parameters['weight']",
    "G['table']['b']",
    "L['values'][1]",
    "L['values']",
)


class _Counted(dict[str, Any]):
    """A dict that counts how often each of its keys was read."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.reads: dict[str, int] = {}

    def __getitem__(self, key: str) -> Any:
        self.reads[key] = self.reads.get(key, 0) + 1
        return super().__getitem__(key)


class _Module:
    def __init__(self, parameters: dict[str, Any], modules: "dict[str, _Module]") -> None:
        self._parameters, self._modules = parameters, _Counted(modules)


def _scope() -> dict[str, Any]:
    a, b = _Module({"weight": 1, "bias": 2}, {}), _Module({"weight": 3}, {})
    return {"fn": _Module({}, {"a": a, "b": b}), "values": ["x", "y"]}


def test_places_are_read_as_python_reads_them() -> None:
    scope, names = _scope(), {"table": {"b": "t"}}
    expected = tuple(eval(place, {"L": scope, "G": names}) for place in PLACES)
    read = reader(PLACES, names)
    assert read(scope) == expected
    names["table"] = {"b": "u"}
    scope["fn"]._modules["a"]._parameters["weight"] = 5
    found = read(scope)
    assert (found[0], found[3]) == (5, "u"), "read anew at every call"


def test_what_lies_on_two_ways_is_read_once() -> None:
    scope = _scope()
    reader(PLACES[:3], {})(scope)
    assert scope["fn"]._modules.reads == {"a": 1, "b": 1}


def test_a_place_that_is_gone_says_so() -> None:
    scope, read = _scope(), reader(PLACES[:2], {})
    del scope["fn"]._modules["a"]._parameters["bias"]
    with pytest.raises(LookupError):
        read(scope)


def test_no_places_are_nothing() -> None:
    assert reader((), {})({}) == ()
