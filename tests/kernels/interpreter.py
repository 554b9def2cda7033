"""Run a loop nest item by item, in float64: what its text says, slowly.

The idea: nothing is shared with the emitter but the formulas.  Iterations of parallel loops and of
lanes run in a random order; a reduction is read as it stands at that moment, so that a nest that
reads it too early gives other numbers.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.graph.evaluate_scalar import Number, apply, integers, literal
from tilewright.graph.ir import Formula
from tilewright.kernels.body import is_pointwise
from tilewright.kernels.loops import (
    Buffer,
    Do,
    Fold,
    Item,
    Keep,
    Let,
    Loop,
    LoopNest,
    Merge,
    Sums,
    walk,
)

Array = np.ndarray
BEST = ("argmax=", "argmin=")


class Absent(Exception):
    """A term that is not there: a read outside of its tensor, or a `where` that does not hold."""


class Interpreter:
    """The state of one run: what each result holds so far; final."""

    def __init__(self, nest: LoopNest, arrays: Sequence[Array], seed: int) -> None:
        self.nest = nest
        self.random = random.Random(seed)
        inputs = [tensor.name for tensor in nest.body.inputs]
        self.memory: dict[str, Array] = dict(zip(inputs, arrays, strict=True))
        self.made: dict[str, dict[tuple[int, ...], Any]] = {}
        self.sums: dict[str, list[Any]] = {}
        self.formulas: dict[str, str] = {}  # of sums, what they are of
        self.buffers: dict[str, dict[int, Number]] = {}
        self.kept: dict[tuple[str, tuple[int, ...]], tuple[str, int]] = {}
        self.times: dict[tuple[str, tuple[int, ...]], int] = {}  # each term is met once

    def run(self) -> dict[str, Array]:
        """Return the results, and check that every term that is there was computed once."""
        self.items(self.nest.items, {})
        for name in {item.formula for item in walk(self.nest.items) if isinstance(item, Do)}:
            formula = self.formula(name)
            for loops in product(*(range(int(str(loop.extent))) for loop in formula.loops)):
                if (name, loops) not in self.times:
                    assert self.is_absent(formula, loops), f"{name} lacks the term at {loops}"
        assert set(self.times.values()) <= {1}, "a term was computed twice"
        return {name: self.result(name) for name in self.nest.body.outputs}

    def is_absent(self, formula: Formula, loops: tuple[int, ...]) -> bool:
        """Say whether a reduction lacks nothing without a term; elements of others are filled."""
        env = {loop.name: at for loop, at in zip(formula.loops, loops, strict=True)}
        try:
            self.term(formula, env)
        except Absent:
            return not is_pointwise(formula)
        return False

    def items(self, items: Sequence[Item], env: dict[str, int]) -> None:  # noqa: C901 - a flat match
        for item in items:
            match item:
                case Let(name, value):
                    env = {**env, name: self.index(value, env)}
                case Do(name, loops, into, slot):
                    at = self.index(slot, env)
                    self.do(name, tuple(self.index(loop, env) for loop in loops), into, at)
                case Sums(name, formula, length, _):
                    self.sums[name] = [None] * length
                    self.formulas[name] = formula
                case Merge():
                    self.merge(item)
                case Fold():
                    self.fold(item, env)
                case Buffer(name):
                    self.buffers[name] = {}
                    self.kept = {at: to for at, to in self.kept.items() if to[0] != name}
                case Keep(read, buffer, place) if buffer:
                    index = tuple(self.index(entry, env) for entry in read.index)
                    at = self.index(place, env)
                    self.buffers[buffer][at] = self.element(read.tensor, index)
                    self.kept[read.tensor, index] = buffer, at
                case Loop(name, low, high, inner, kind, step):
                    values = list(range(self.index(low, env), self.index(high, env), step))
                    if kind != "serial":
                        self.random.shuffle(values)
                    for value in values:
                        self.items(inner, {**env, name: value})

    def formula(self, name: str) -> Formula:
        formula = self.nest.body.formula(name)
        assert formula is not None, name
        return formula

    def fold(self, fold: Fold, env: dict[str, int]) -> None:
        place = tuple(self.index(entry, env) for entry in fold.index)
        sums = self.sums[fold.sums]
        chosen = sums if fold.slot is None else [sums[self.index(fold.slot, env)]]
        made = self.made.setdefault(fold.formula, {})
        assert place not in made, f"{fold.formula} is made twice at {place}"
        for term in chosen:
            if term is not None:
                op = self.formula(fold.formula).op
                made[place] = term if place not in made else _combined(op, made[place], term)

    def merge(self, merge: Merge) -> None:
        into, op = self.sums[merge.into], self.formula(self.formulas[merge.sums]).op
        for at, term in enumerate(self.sums[merge.sums]):
            if term is not None:
                into[at] = term if into[at] is None else _combined(op, into[at], term)

    def do(self, name: str, loops: tuple[int, ...], into: str, slot: int) -> None:
        formula = self.formula(name)
        self.times[name, loops] = self.times.get((name, loops), 0) + 1
        env = {loop.name: at for loop, at in zip(formula.loops, loops, strict=True)}
        place = tuple(self.index(entry, env) for entry in formula.index)
        made = self.made.setdefault(name, {})
        try:
            term = self.term(formula, env)
        except Absent:
            return
        if into:
            before = self.sums[into][slot]
            self.sums[into][slot] = term if before is None else _combined(formula.op, before, term)
        else:
            made[place] = term if place not in made else _combined(formula.op, made[place], term)

    def term(self, formula: Formula, env: Mapping[str, int]) -> Any:
        if formula.where is not None and not self.value(formula.where, env).data:
            raise Absent
        value = self.value(formula.value, env)
        if formula.op in BEST:
            assert formula.at is not None
            return float(value.data), int(self.value(formula.at, env).data)
        return value

    def result(self, name: str) -> Array:
        formula, made = self.formula(name), self.made.get(name, {})
        self.kept.clear()  # a buffer holds what the last iteration kept
        type_ = formula.type
        shape = tuple(int(str(dim)) for dim in type_.shape)
        found = np.empty(shape, np.float64 if type_.dtype.kind == "float" else type_.dtype.numpy)
        for place in np.ndindex(shape):
            stored = is_pointwise(formula) and place in made
            value = self.rounded(made[place], formula) if stored else self.element(name, place)
            found[place] = value.data
        return found

    def element(self, name: str, place: tuple[int, ...]) -> Number:
        """Return an element of an input, or of what a formula has made so far."""
        if name in self.memory and (name, place) not in self.kept:
            data, dtype = self.memory[name][place], self.nest.body.type(name).dtype
            wide = np.float64(data) if dtype.kind == "float" else np.asarray(data)
            return Number(np.asarray(wide), dtype.compute)
        if (name, place) in self.kept:
            buffer, at = self.kept[name, place]
            return self.buffers[buffer][at]
        formula = self.formula(name)
        env = {e.name: at for e, at in zip(formula.index, place, strict=True) if isinstance(e, Sym)}
        fill = formula.fill
        if isinstance(fill, Read):
            before = self.element(fill.tensor, place)
        else:
            before = self.value(fill, {})
        if is_pointwise(formula):
            try:
                made = self.value_of_pointwise(formula, env)
            except Absent:
                made = before
        else:
            made = self.made.get(name, {}).get(place, before)
            if formula.op in BEST and made is not before:
                made = integers(np.asarray(made[1]))
            elif isinstance(fill, Read) and made is not before:
                made = _combined(formula.op, before, made)
        return self.rounded(made, formula)

    def rounded(self, made: Number, formula: Formula) -> Number:
        return apply(formula.type.dtype.compute.name, [made], wide=True)

    def value_of_pointwise(self, formula: Formula, env: Mapping[str, int]) -> Number:
        found = self.term(formula, env)
        assert isinstance(found, Number)
        return found

    def value(self, expr: Expr, env: Mapping[str, int]) -> Number:
        match expr:
            case Const(value):
                return literal(value)
            case Sym(name):
                return integers(np.asarray(env[name]))
            case Read(tensor, index, default):
                place = tuple(int(self.value(entry, env).data) for entry in index)
                shape = self.nest.body.type(tensor).shape
                if all(0 <= at < int(str(n)) for at, n in zip(place, shape, strict=True)):
                    return self.element(tensor, place)
                if default is None:
                    raise Absent
                return self.value(default, env)
            case Call("select", (cond, yes, no)):
                chosen = self.value(yes if self.value(cond, env).data else no, env)
                kind = self.kind(expr, env)
                return chosen if kind is None else apply(kind, [chosen], wide=True)
            case Call("exactdiv", args):
                a, b = (int(self.value(arg, env).data) for arg in args)
                if a % b:
                    raise Absent
                return integers(np.asarray(a // b))
            case Call(fn, args):
                with np.errstate(all="ignore"):
                    return apply(fn, [self.value(arg, env) for arg in args], wide=True)

    def kind(self, select: Call, env: Mapping[str, int]) -> str | None:
        """Return the type that both sides of a choice meet in, if both are there."""
        try:
            both = [self.value(arg, env) for arg in select.args]
        except Absent:
            return None
        made = apply("select", both, wide=True)
        return None if made.weak else made.dtype.name

    def index(self, expr: Expr, env: Mapping[str, int]) -> int:
        return int(self.value(expr, env).data)


def _combined(op: str, before: Any, term: Any) -> Any:
    if op in BEST:
        better = term[0] > before[0] if op == "argmax=" else term[0] < before[0]
        tie = term[0] == before[0] and term[1] < before[1]
        return term if better or tie else before
    names = {"+=": "add", "*=": "mul", "max=": "max", "min=": "min", "any=": "or", "all=": "and"}
    return apply(names[op], [before, term], wide=True)
