"""What is proved of places in loops holds for every iteration, by brute force."""

import operator
import random
from collections.abc import Iterator, Sequence

from tilewright.base.expr import Call, Const, Expr, Sym
from tilewright.kernels.loops import Item, Let, Loop, fits, ranges

FUNCTIONS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "mod": operator.mod,
    "floordiv": operator.floordiv,
    "min": min,
    "max": max,
}


def number(expr: Expr, env: dict[str, int]) -> int:
    match expr:
        case Const(int(value)):
            return value
        case Sym(name):
            return env[name]
        case Call(fn, (a, b)):
            return int(FUNCTIONS[fn](number(a, env), number(b, env)))
    raise AssertionError(f"{expr} is no index")


def any_index(draw: random.Random, names: Sequence[str], depth: int) -> Expr:
    if depth == 0 or draw.random() < 0.25:
        return (
            Sym(draw.choice(names)) if names and draw.random() < 0.75 else Const(draw.randrange(7))
        )
    left = any_index(draw, names, depth - 1)
    fn = draw.choice(["add", "add", "sub", "sub", "mul", "mod", "floordiv", "min", "max"])
    if fn in ("mul", "mod", "floordiv"):
        return Call(fn, (left, Const(draw.choice([2, 3, 4, 8]))))
    return Call(fn, (left, any_index(draw, names, depth - 1)))


def any_path(draw: random.Random) -> list[Loop | Let]:
    """Return loops and definitions in each other, some negative, some that never run."""
    path: list[Loop | Let] = []
    names: list[str] = []
    for name in "abc"[: draw.randrange(1, 4)]:
        if names and draw.random() < 0.25:
            path.append(Let(name, any_index(draw, names, 2)))
        else:
            low = Const(0) if draw.random() < 0.4 else any_index(draw, names, 1)
            high: Expr = Call("add", (low, Const(draw.randrange(1, 7))))
            high = high if draw.random() < 0.5 else any_index(draw, names, 1)
            if draw.random() < 0.4:
                high = Call("min", (high, Const(draw.randrange(1, 12))))
            path.append(Loop(name, low, high, (), step=draw.choice([1, 1, 2, 4])))
        names.append(name)
    return path


def nested(path: Sequence[Loop | Let]) -> tuple[Item, ...]:
    items: tuple[Item, ...] = ()
    for item in reversed(path):
        if isinstance(item, Let):
            items = (item, *items)
        else:
            items = (Loop(item.name, item.low, item.high, items, step=item.step),)
    return items


def iterations(path: Sequence[Loop | Let], env: dict[str, int]) -> Iterator[dict[str, int]]:
    if not path:
        yield env
        return
    first, *rest = path
    if isinstance(first, Let):
        yield from iterations(rest, {**env, first.name: number(first.value, env)})
        return
    for value in range(number(first.low, env), number(first.high, env), first.step):
        yield from iterations(rest, {**env, first.name: value})


def test_ranges_and_places_that_are_proved_hold_in_every_iteration() -> None:
    draw = random.Random(0)
    taken = 0
    for _ in range(6000):
        path = any_path(draw)
        place = any_index(draw, [item.name for item in path], 2)
        envs = list(iterations(path, {}))
        if not envs:
            continue
        known = ranges(nested(path))
        for name, below in known.items():
            assert all(0 <= env[name] < below for env in envs), (path, name)
        values = [number(place, env) for env in envs]
        low, most = min(values), max(values)
        if most > 0:
            assert not fits(place, most, path, known), (path, place)
        right = fits(place, max(most, 0) + 1, path, known)
        assert low >= 0 or not right, (path, place)
        taken += right
    assert taken > 2000, "what is right is mostly proved"


def test_a_name_that_is_negative_in_one_of_its_places_has_no_range() -> None:
    below, above = Loop("a", Const(-2), Const(3), ()), Loop("a", Const(0), Const(5), ())
    assert ranges((above, below)) == ranges((below, above)) == {}
    assert ranges((above,)) == {"a": 5}
