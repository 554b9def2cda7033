"""Judge loop nests: every index defined and in its range, no two iterations in each other's way.

The idea: two iterations of a loop touch the same element only if the element's index does not say
which iteration it is.  `loops_inverse` reads the loop back from the index; where it cannot, a
search among the first iterations finds two that meet, and they are the answer that a person gets.

This module does not change nests.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice, product, takewhile

from tilewright.base import algebra
from tilewright.base.errors import LoopError
from tilewright.base.expr import Call, Const, Expr, Read, Sym, names, substitute
from tilewright.base.sizes import nominal
from tilewright.base.syntax import show as show_expr
from tilewright.kernels.body import is_pointwise, static_extents
from tilewright.kernels.loops import (
    Buffer,
    Do,
    Fetch,
    Fold,
    Item,
    Keep,
    Let,
    Loop,
    LoopNest,
    Merge,
    Sums,
    fits,
    ranges,
    used_names,
    walk,
)
from tilewright.kernels.loops_inverse import Path, grains_of, tells
from tilewright.kernels.reduce import BEST, goes_up
from tilewright.kernels.statement import State

LINE = 64  # bytes that memory is moved by
TRIED = 3  # iterations of each loop among which two that meet are searched for


@dataclass(frozen=True, slots=True)
class Access:
    """One element that a statement touches: where the statement stands, whether it writes it.

    path: the loops around the statement, outermost first, and the definitions among them.
    offset: how far the element is from its tensor's first, row by row.
    """

    path: tuple[Loop | Let, ...]
    place: tuple[int, ...]
    element: Read
    offset: Expr
    writes: bool

    def tells(self, loop: Loop, known: Mapping[str, int]) -> bool:
        """Say whether the element is proved to be of one iteration of a loop around it alone."""
        return tells((*self.element.index, self.offset), loop, self.path, known)


def verify(nest: LoopNest) -> None:
    """Raise LoopError where a nest has no meaning, or one that depends on who runs what when.

    Every index is defined where it is used, and once, and is proved to be never negative, on which
    the other proofs rest; every formula's loop is proved to stay in its range; iterations of
    parallel loops and of lanes write elements of their own and read nothing that another one makes;
    what is reduced is complete before it is read.
    """
    _verify_names(nest.items, frozenset())
    known = ranges(nest.items)
    for path, _, item in placed(nest.items):
        if isinstance(item, Do):
            _verify_range(nest, item, known)
            _verify_streamed(nest, item, path, known)
        _verify_slot(nest, item, path, known)
    _verify_signs(nest.items, known)
    found = accesses(nest)
    for item in walk(nest.items):
        if isinstance(item, Loop) and item.kind != "serial" and (why := meeting(nest, item)):
            raise LoopError(
                f"iterations of {item.name} do not run apart",
                expected="no element that one of them writes and another touches",
                found=why,
            )
    for access in found:
        if not access.writes:
            _verify_complete(access, [one for one in found if one.writes], known)
    for _, place, item in placed(nest.items):
        if isinstance(item, Fold | Merge):
            _verify_folded(item, place, found)
    sums = {item.name: item for item in walk(nest.items) if isinstance(item, Sums)}
    _verify_merged(nest.items, sums)
    _verify_taken(nest, sums)
    _verify_best(nest, sums)


def _verify_names(items: tuple[Item, ...], known: frozenset[str]) -> None:
    for item in items:
        used = used_names(item)
        match item:
            case Loop(name, _, _, inner, _, step):
                _verify_open(used, known, name)
                if name in known or step < 1:
                    raise LoopError(
                        f"loop {name} cannot be run",
                        expected="a name that is not open, and a step of at least 1",
                        found=f"{name} by {step}",
                    )
                _verify_names(inner, known | {name})
            case Let(name) | Sums(name) | Buffer(name):
                _verify_open(used | ({name} & known), known - {name}, name)
                known |= {name}
            case Merge(name, into):
                _verify_open({name, into}, known, name)
            case Do(name, _, memory) | Fold(name, _, memory) | Keep(Read(name), memory):
                _verify_open(used | ({memory} - {""}), known, name)
            case Fetch(Read(name), cache):
                _verify_open(used, known, name)
                if cache not in (1, 2):
                    raise LoopError(
                        f"nothing of {name} can be asked for into cache {cache}",
                        expected="the first cache or the second",
                        found=f"cache {cache}",
                    )


def _verify_open(used: Set[str], known: frozenset[str], where: str) -> None:
    for name in sorted(used - known):
        raise LoopError(
            f"{where} uses {name}, which is not defined there",
            expected="a loop around it, or a `let` before it, and one of each name",
            found=name,
        )


def _verify_range(nest: LoopNest, do: Do, known: Mapping[str, int]) -> None:
    statement = nest.statement(do)
    extents = static_extents(statement.formula)
    for name, expr in statement.bind:
        if not algebra.within(expr, extents[name], known):
            raise LoopError(
                f"loop {name} of {do.formula} is not proved to stay in its range",
                expected=f"from 0 to before {extents[name]}",
                found=show_expr(expr),
            )


def _verify_signs(items: Iterable[Item], known: Mapping[str, int]) -> None:
    for item in walk(items):
        if isinstance(item, Loop | Let) and item.name not in known:
            raise LoopError(
                f"{item.name} is not proved to be never negative",
                expected="from 0 on",
                found=show_expr(item.low if isinstance(item, Loop) else item.value),
            )


def _verify_streamed(nest: LoopNest, do: Do, path: Path, known: Mapping[str, int]) -> None:
    if do.streamed and streamed_from(nest, do, path, known) is None:
        raise LoopError(
            f"{do.formula} cannot be streamed",
            expected="a result that nothing reads again, of which lanes write whole lines",
            found=show_expr(Read(do.formula, do.loops)),
        )


def streamed_from(nest: LoopNest, do: Do, path: Path, known: Mapping[str, int]) -> Expr | None:
    """Return which element of a result an item writes, counted row by row, if it can be streamed.

    Nothing may read the result again; the lanes right around the item write elements that lie one
    after another, the first of them at the beginning of a line.
    """
    again = (item.read.tensor for item in walk(nest.items) if isinstance(item, Keep))
    if not path or do.into or do.formula not in nest.body.outputs or do.formula in again:
        return None
    at = max((at for at, item in enumerate(path) if isinstance(item, Loop)), default=0)
    loop = path[at]
    if not isinstance(loop, Loop) or loop.kind != "lanes":
        return None
    statement = nest.statement(do)
    index = tuple(statement.bound(entry) for entry in statement.formula.index)
    offset = algebra.simplify(_offset(nest, Read(do.formula, index)), known)
    for item in (one for one in reversed(path[at:]) if isinstance(one, Let)):
        offset = substitute(offset, {item.name: item.value})
    steps = algebra.affine(offset := algebra.simplify(offset, known))[1]
    moving = {atom: step for atom, step in steps.items() if loop.name in names(atom)}
    begin = substitute(offset, {loop.name: loop.low})
    first, terms = algebra.affine(algebra.simplify(begin, known))
    grains: dict[Expr, int] = {Sym(name): grain for name, grain in grains_of(path).items()}
    size = nest.body.type(do.formula).dtype.bytes
    apart = (first, *(step * grains.get(atom, 1) for atom, step in terms.items()))
    begins = all(step * size % LINE == 0 for step in apart)
    return offset if begins and moving == {Sym(loop.name): 1} else None


def _verify_folded(item: Fold | Merge, place: tuple[int, ...], found: Sequence[Access]) -> None:
    made = item.formula if isinstance(item, Fold) else item.sums
    for access in found:
        if access.element.tensor == item.sums and access.place > place:
            raise LoopError(
                f"{made} is made before all its terms have come",
                expected=f"it after all that goes into {item.sums}",
                found=show_expr(access.element),
            )


def _verify_taken(nest: LoopNest, sums: Mapping[str, Sums]) -> None:
    merged = [item.sums for item in walk(nest.items) if isinstance(item, Merge)]
    taken = [*merged, *{item.sums for item in walk(nest.items) if isinstance(item, Fold)}]
    for name in sums:
        if taken.count(name) != 1:
            raise LoopError(
                f"what comes into {name} is lost, or comes twice",
                expected="accumulators that are merged into others, or made a result, and not both",
                found=f"{taken.count(name)} of these",
            )


def _verify_best(nest: LoopNest, sums: Mapping[str, Sums]) -> None:
    """Of equal terms of `argmax=` the first is kept: what is made of several accumulators keeps
    the one with the least index.  That each meets its terms in the formula's order is trusted."""
    for item in walk(nest.items):
        if not isinstance(item, Merge | Fold):
            continue
        made = sums[item.sums]
        formula = nest.body.formula(made.formula)
        assert formula is not None, "accumulators are of a formula"
        one_by_one = isinstance(item, Fold) and (item.slot is not None or made.length == 1)
        if formula.op not in BEST or one_by_one:
            continue
        if isinstance(item, Merge) or not goes_up(formula):
            raise LoopError(
                f"the first of the best terms of {item.sums} is not known",
                expected="one accumulator, or several that are folded, with indices that go up",
                found=f"{made.length} accumulators of {formula.op}",
            )


def _verify_merged(items: Sequence[Item], sums: Mapping[str, Sums]) -> None:
    """Each accumulator is merged once: in the items in which it begins, into one of its formula."""
    begun: set[str] = set()
    for item in items:
        match item:
            case Loop():
                _verify_merged(item.items, sums)
            case Sums(name):
                begun.add(name)
            case Merge(name, into):
                one, other = sums.get(name), sums.get(into)
                alike = one and other and (one.formula, one.length) == (other.formula, other.length)
                if name not in begun or name == into or not alike:
                    raise LoopError(
                        f"{name} cannot be merged into {into}",
                        expected="as many accumulators of its formula, once where it begins",
                        found=f"{one} and {other}",
                    )
                begun.remove(name)


def _verify_slot(nest: LoopNest, item: Item, path: Path, known: Mapping[str, int]) -> None:
    """Accumulators are of the formula that is added to them, and as many as are used."""
    match item:
        case Do(formula, _, name, place) if name:
            pass
        case Fold(formula, _, name, (Const() | Sym() | Call() | Read()) as place):
            pass
        case Keep(Read(formula), name, place) if name:
            pass
        case _:
            return
    home = next(
        one for one in walk(nest.items) if isinstance(one, Sums | Buffer) and one.name == name
    )
    if home.formula != formula or not fits(place, home.length, path, known):
        raise LoopError(
            f"{formula} does not fit into {name}",
            expected=f"{home.formula}, from 0 to before {home.length}",
            found=f"{formula} at {show_expr(place)}",
        )


def _verify_complete(read: Access, written: Sequence[Access], known: Mapping[str, int]) -> None:
    """What is reduced is read after all of its terms: after all loops that it does not name."""
    for write in written:
        if write.element.tensor != read.element.tensor or write.place == read.place:
            continue
        common = [a for a, b in zip(write.path, read.path, strict=False) if a is b]
        open_ = [
            loop.name for loop in common if isinstance(loop, Loop) and not write.tells(loop, known)
        ]
        if open_ or write.place > read.place or write.element.index != read.element.index:
            raise LoopError(
                f"{read.element.tensor} is read before it is complete",
                expected="the reading after all loops that it is reduced over, of the same element",
                found=f"inside of {open_[0]}" if open_ else show_expr(read.element),
            )


# ---------------------------------------------------------------------------------------- accesses


def accesses(nest: LoopNest, within: Loop | None = None) -> list[Access]:
    """Return what is written in a nest, or within a loop of it, and what is read of the reductions
    that are made there.

    Other values are computed where they are read: nobody waits for them.
    """
    state = State(nest.body)
    state.extents = ranges(nest.items)
    places = list(placed(nest.items))
    done = [item for _, _, item in places if isinstance(item, Do)]
    state.statements = {do.formula: nest.statement(do) for do in done}
    if within is not None:
        places = [place for place in places if any(item is within for item in place[0])]
    reading = _reading(nest, (item for _, _, item in places))
    found: list[Access] = []
    for path, place, item in places:
        touched = [(element, True) for element in _written(nest, item, state)]
        if isinstance(item, Do) and (made := reading.get(item.formula)):
            reads = state.reads(nest.statement(item))
            touched = [*((read, False) for read in reads if read.tensor in made), *touched]
        for element, writes in touched:
            offset = state.simplify(_offset(nest, element))
            found.append(Access(path, place, element, offset, writes))
    return found


def _reading(nest: LoopNest, items: Iterable[Item]) -> dict[str, frozenset[str]]:
    """Return for each formula which of the reductions that the items make it is computed from."""
    made = {item.formula for item in items if isinstance(item, Do | Fold)}
    made = {name for name in made if not is_pointwise(dict(nest.body.formulas)[name])}
    found: dict[str, frozenset[str]] = {}
    for name, formula in nest.body.formulas if made else ():
        found[name] = frozenset().union(
            made.intersection(formula.operands),
            *(found.get(other, ()) for other in formula.operands if other not in made),
        )
    return found


def _written(nest: LoopNest, item: Item, state: State) -> Iterator[Read]:
    match item:
        case Do(formula, _, "", _):
            statement = nest.statement(item)
            index = (state.simplify(statement.bound(e)) for e in statement.formula.index)
            yield Read(formula, tuple(index))
        case Do(_, _, into, slot):
            yield Read(into, (slot,))
        case Merge(_, into):
            yield Read(into, (Const(0),))
        case Fold(formula, index):
            yield Read(formula, index)
        case Keep(_, buffer, place) if buffer:
            yield Read(buffer, (place,))


def placed(
    items: tuple[Item, ...], path: tuple[Loop | Let, ...] = (), place: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[Loop | Let, ...], tuple[int, ...], Item]]:
    """Yield all items but loops and definitions, with the path of these and with their place."""
    for at, item in enumerate(items):
        match item:
            case Loop():
                yield from placed(item.items, (*path, item), (*place, at))
            case Let():
                path = (*path, item)
            case _:
                yield path, (*place, at), item


def _offset(nest: LoopNest, element: Read) -> Expr:
    if nest.body.formula(element.tensor) is None:  # accumulators and buffers are numbered
        return element.index[0]
    total: Expr = Const(0)
    strides = nest.body.strides(element.tensor)
    for entry, stride in zip(element.index, strides, strict=True):
        total = Call("add", (total, Call("mul", (entry, Const(stride)))))
    return total


# ---------------------------------------------------------------------------------------- meetings


def meeting(nest: LoopNest, loop: Loop, *, reading: bool = False) -> str:
    """Return two iterations of a loop that touch the same element, one of them writing it; or that
    nobody has proved that there are none; "" where that is proved.

    reading: whether only those count of which one reads what the other makes.
    """
    known = ranges(nest.items)
    own = {item.name for item in walk(loop.items) if isinstance(item, Sums | Buffer)}
    inside = [access for access in accesses(nest, loop) if access.element.tensor not in own]
    written = {access.element.tensor: access for access in inside if access.writes}
    touching = [a for a in inside if a.element.tensor in written and not (reading and a.writes)]
    if all(_keeps_apart(access, loop, written, known) for access in touching):
        return ""
    for access in touching:
        writer = written[access.element.tensor]
        for one, other in product(_first(writer), _first(access)):
            here, there = _place(writer, one), _place(access, other)
            outside = all(one.get(name) == other.get(name) for name in _outside(access, loop))
            if here == there and outside and one[loop.name] != other[loop.name]:
                verb = "writes" if access.writes else "reads"
                element = f"{writer.element.tensor}[{', '.join(map(str, here))}]"
                return f"{_said(one)} writes {element}, and {_said(other)} {verb} it"
    return f"no proof for {', '.join(sorted(written))}"


def _keeps_apart(
    access: Access, loop: Loop, written: Mapping[str, Access], known: Mapping[str, int]
) -> bool:
    same = access.element.index == written[access.element.tensor].element.index
    return same and access.tells(loop, known)


def _outside(access: Access, loop: Loop) -> Iterator[str]:
    return (item.name for item in takewhile(lambda item: item is not loop, access.path))


def _said(env: Mapping[str, int]) -> str:
    return "(" + ", ".join(f"{name}={value}" for name, value in env.items()) + ")"


def _place(access: Access, env: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(_number(entry, env) for entry in access.element.index)


def _first(access: Access) -> Iterator[dict[str, int]]:
    """Yield the first iterations of the loops around a statement."""
    return islice(_iterations(access.path, {}), TRIED**3)


def _iterations(path: Path, env: dict[str, int]) -> Iterator[dict[str, int]]:
    if not path:
        yield env
        return
    first, *rest = path
    if isinstance(first, Let):
        yield from _iterations(rest, {**env, first.name: _number(first.value, env)})
        return
    low, high = _number(first.low, env), _number(first.high, env)
    for value in range(low, high, first.step)[:TRIED]:
        yield from _iterations(rest, {**env, first.name: value})


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}


def _number(expr: Expr, env: Mapping[str, int]) -> int:
    match expr:
        case Const(int(value)):
            return nominal(value)
        case Sym(name):
            return env[name]
        case Call("neg", (a,)):
            return -_number(a, env)
        case Call(fn, (a, b)) if fn in _ARITHMETIC:
            return _ARITHMETIC[fn](_number(a, env), _number(b, env))
    raise AssertionError(f"{show_expr(expr)} is no index of loops")
