"""Reverse mode of single formulas: against finite differences, on formulas of any shape."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.graph.formulas import DIFFERENTIABLE, draw
from tests.sweep import few

from tilewright.autodiff import differentiable, other_terms, reverse_formula, tie_count
from tilewright.base.dtypes import F64, I64
from tilewright.base.expr import Const, reads
from tilewright.graph.evaluate import evaluate_formula
from tilewright.graph.ir import Formula, TensorType
from tilewright.graph.notation import declare, instantiate, operand_order, read, show

Array = np.ndarray


def value_of(formula: Formula, arrays: Mapping[str, Array]) -> Array:
    return evaluate_formula(formula, [arrays[name] for name in formula.operands])


def writes_twice(formula: Formula, drawn: Sequence[Array]) -> bool:
    """Say whether two terms of an `=` land on one element: which of them stays has no slope."""
    if formula.op != "=":
        return False
    ones = replace(formula, op="+=", value=Const(1.0), fill=Const(0), operands=(), where=None)
    ones = replace(ones, operands=operand_order(ones))
    operands = [drawn[formula.operands.index(name)] for name in ones.operands]
    return bool((evaluate_formula(ones, operands) > 1).any())


def gradients(formula: Formula, arrays: Mapping[str, Array], dy: Array) -> dict[str, Array]:
    """Sum the terms that reverse mode gives, per operand."""
    types = [_type(arrays[name]) for name in formula.operands]
    known = {**arrays, "dy": dy, "y": value_of(formula, arrays)}
    for name, made in (("count", tie_count(formula)), ("others", other_terms(formula))):
        if made is not None:
            known[name] = value_of(made, known)
    found = {n: np.zeros(a.shape) for n, a in arrays.items() if a.dtype == np.float64}
    for term in reverse_formula(formula, types, [True] * len(types)):
        operands = {name: known[name] for name in term.formula.operands}
        found[term.operand] += value_of(term.formula, operands)
    return found


def _type(array: Array) -> TensorType:
    return TensorType(array.shape, F64 if array.dtype == np.float64 else I64)


def slope(
    formula: Formula, arrays: Mapping[str, Array], dy: Array, along: Array, name: str
) -> float:
    """The derivative of sum(y * dy) along a direction of one operand, by central differences."""
    step = 1e-6

    def value(sign: float) -> float:
        moved = {**arrays, name: arrays[name] + sign * step * along}
        return float((value_of(formula, moved) * dy).sum())

    return (value(1.0) - value(-1.0)) / (2 * step)


@pytest.mark.parametrize("block", few(range(10), 0, 1))
def test_gradient_of_a_random_formula_is_its_slope(block: int) -> None:
    rng = np.random.default_rng(block)
    checked = 0
    for seed in range(60 * block, 60 * block + 60):
        formula, drawn = draw(seed, DIFFERENTIABLE)
        arrays = dict(zip(formula.operands, drawn, strict=True))
        if not differentiable(formula) or writes_twice(formula, drawn):
            continue
        with np.errstate(all="ignore"):
            y = value_of(formula, arrays)
            dy = rng.normal(size=y.shape)
            found = gradients(formula, arrays, dy)
            deciding = {} if formula.where is None else {r.tensor for r in reads(formula.where)}
            for name, gradient in found.items():
                if name in deciding:  # a guard on values is a kink
                    continue
                along = rng.normal(size=gradient.shape)
                expected = slope(formula, arrays, dy, along, name)
                actual = float((gradient * along).sum())
                if not np.isfinite(expected):
                    continue
                scale = max(1.0, abs(expected), float(np.abs(gradient * along).sum()))
                assert abs(actual - expected) <= 1e-5 * scale, (
                    f"seed {seed}, d{name}: {show(formula)}"
                )
                checked += 1
    assert checked > 40


@pytest.mark.parametrize("seed", range(0, 400, 8))
def test_gradient_formulas_are_of_the_notation(seed: int) -> None:
    formula, drawn = draw(seed, DIFFERENTIABLE)
    arrays = dict(zip(formula.operands, drawn, strict=True))
    types = [_type(arrays[name]) for name in formula.operands]
    if not differentiable(formula):
        return
    for term in reverse_formula(formula, types, [True] * len(types)):
        assert read(show(term.formula), term.formula.type) == term.formula


CASES = {
    "matmul": (
        "matmul(a, b)  y[..., m, n] += a[..., m, k] * b[..., k, n]",
        ((5, 3, 4), (4, 6)),
        (
            "a: y[i<5, m<3, k<4] += dy[i, m, n<6] * b[k, n]",
            "b: y[k<4, n<6] += dy[i<5, m<3, n] * a[i, m, k]",
        ),
    ),
    "remainders, summed over turns": (
        "s(x)  y[i<12] = x[i%3]",
        ((3,),),
        ("x: y[t0<3] += dy[turn*3+t0] for turn<4",),
    ),
    "remainders of a loop that no turn divides": (
        "s(x)  y[i<7] = x[i%3]",
        ((3,),),
        ("x: y[t0<3] += dy[turn*3+t0] for turn<3",),
    ),
    "rolled back": (
        "r(x)  y[i<5, j<4] = x[(i+3)%5, (j-9)%4]",
        ((5, 4),),
        ("x: y[i_<5, j_<4] = dy[(i_+2)%5, (j_+1)%4]",),
    ),
    "strided slice, written through": (
        "s(x)  y[i<3] = x[i*3+1]",
        ((9,),),
        ("x: y[i*3+1] = dy[i<3]",),
    ),
    "reshape, solved by digits": (
        "r(x)  y[i<12] = x[i//4, i%4]",
        ((3, 4),),
        ("x: y[t0<3, t1<4] = dy[t0*4+t1]",),
    ),
    "diagonal": (
        "d(x)  y[i] = x[i, i]",
        ((4, 4),),
        ("x: y[i<4, t1<4] = dy[i] where i == t1",),
    ),
    "relu guards the branch not taken": (
        "relu(x)  y[...] = x[...] if x[...] > 0 else 0",
        ((3,),),
        ("x: y[i<3] = dy[i] if x[i] > 0 else 0",),
    ),
    "relu is told by its result": (
        "relu(x)  y[...] = 0 if x[...] <= 0 else x[...]",
        ((3,),),
        ("x: y[i<3] = 0 if y[i] <= 0 else dy[i]",),
    ),
    "another bound is not told by the result": (
        "t(x)  y[...] = 0 if x[...] <= 1 else x[...]",
        ((3,),),
        ("x: y[i<3] = 0 if x[i] <= 1 else dy[i]",),
    ),
    "nor is the bound of another value": (
        "t(x, z)  y[...] = 0 if x[...] <= 0 else z[...]",
        ((3,), (3,)),
        ("z: y[i<3] = 0 if x[i] <= 0 else dy[i]",),
    ),
    "nor one inside a value": (
        "t(x)  y[...] = exp(0 if x[...] <= 0 else x[...])",
        ((3,),),
        ("x: y[i<3] = 0 if x[i] <= 0 else dy[i] * y[i]",),
    ),
    "window, solved for the result's loop": (
        "c(x, k)  y[h<4] += x[h*2+i-1] * k[i]",
        ((7,), (3,)),
        (
            "x: y[t0<7] += dy[(t0-i+1)/2] * k[i<3]",
            "k: y[i<3] += dy[h<4] * x[h*2+i-1]",
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_read_as_a_person_would_write_them(case: str) -> None:
    text, shapes, expected = CASES[case]
    types = [TensorType(shape, F64) for shape in shapes]
    formula = instantiate(declare(text), types)
    terms = reverse_formula(formula, types, [True] * len(types))
    assert tuple(f"{term.operand}: {show(term.formula)}" for term in terms) == expected


@pytest.mark.parametrize("length", [1, 2, 5])
def test_what_is_rolled_is_rolled_back_and_what_turns_on_is_summed(length: int) -> None:
    x = np.random.default_rng(length).normal(size=length)
    for turns, by in ((turns, by) for turns in range(1, 2 * length + 2) for by in range(-7, 8)):
        text = f"r(x)  y[i<{turns}] = x[(i+{by})%{length}]"
        formula = instantiate(declare(text), [_type(x)])
        dy = np.random.default_rng(turns).normal(size=turns)
        exact = np.zeros(length)
        np.add.at(exact, (np.arange(turns) + by) % length, dy)
        np.testing.assert_allclose(gradients(formula, {"x": x}, dy)["x"], exact, atol=1e-14)
