"""Forward mode of single formulas: it is reverse mode turned around, on formulas of any shape."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.autodiff.test_formula import gradients, value_of, writes_twice
from tests.graph.formulas import DIFFERENTIABLE, KINKED, SMOOTH, draw
from tests.sweep import few

from tilewright.autodiff import (
    change_names,
    differentiable,
    forward_formula,
    other_terms,
    tie_count,
)
from tilewright.base.dtypes import F64, I64
from tilewright.base.expr import Read
from tilewright.graph.evaluate import evaluate_formula
from tilewright.graph.ir import Formula, TensorType
from tilewright.graph.notation import declare, instantiate, read, show

Array = np.ndarray
OPS = ("=", "+=", "*=", "max=", "min=")
WANTED = replace(DIFFERENTIABLE, ops=OPS, functions=(*SMOOTH, *KINKED, "div"))


def changed(formula: Formula, arrays: Mapping[str, Array], along: Mapping[str, Array]) -> Array:
    """Return the change of the result when the operands in `along` change so."""
    types = [_type(arrays[name]) for name in formula.operands]
    wanted = [name in along for name in formula.operands]
    names = change_names(formula, wanted)
    y = value_of(formula, arrays)
    known = {**arrays, "y": y, **{names[name]: along[name] for name in along}}
    for name, made in (("count", tie_count(formula)), ("others", other_terms(formula))):
        if made is not None:
            known[name] = evaluate_formula(made, [known[operand] for operand in made.operands])
    total = np.zeros(y.shape)
    for term in forward_formula(formula, types, wanted):
        total = total + evaluate_formula(term, [known[name] for name in term.operands])
    return total


def _type(array: Array) -> TensorType:
    return TensorType(array.shape, F64 if array.dtype == np.float64 else I64)


def fits(formula: Formula, drawn: tuple[Array, ...]) -> bool:
    based = isinstance(formula.fill, Read) and formula.op not in ("=", "+=")
    return differentiable(formula) and not based and not writes_twice(formula, drawn)


@pytest.mark.parametrize("block", few(range(10), 0, 1))
def test_forward_mode_is_reverse_mode_turned_around(block: int) -> None:
    rng = np.random.default_rng(block)
    checked = 0
    for seed in range(60 * block, 60 * block + 60):
        formula, drawn = draw(seed, WANTED)
        arrays = dict(zip(formula.operands, drawn, strict=True))
        if not fits(formula, drawn):
            continue
        with np.errstate(all="ignore"):
            floats = [name for name, array in arrays.items() if array.dtype == np.float64]
            along = {name: rng.normal(size=arrays[name].shape) for name in floats}
            change = changed(formula, arrays, along)
            dy = rng.normal(size=change.shape)
            turned = gradients(formula, arrays, dy)
            parts = [float((turned[name] * along[name]).sum()) for name in floats]
            left, right = float((dy * change).sum()), sum(parts)
        if not np.isfinite(left):
            continue
        scale = max(1.0, sum(abs(part) for part in parts))
        assert abs(left - right) <= 1e-11 * scale, f"seed {seed}: {show(formula)}"
        checked += 1
    assert checked > 10


@pytest.mark.parametrize("block", few(range(10), 0, 1))
def test_the_change_of_a_random_formula_is_its_slope(block: int) -> None:
    rng = np.random.default_rng(block)
    checked, step = 0, 1e-6
    for seed in range(60 * block, 60 * block + 60):
        formula, drawn = draw(seed, replace(WANTED, functions=SMOOTH, guards=False))
        arrays = dict(zip(formula.operands, drawn, strict=True))
        if not fits(formula, drawn):
            continue
        # Drawn numbers are often equal: a step off them, nothing is tied.
        arrays = {
            name: a + 0.01 * rng.normal(size=a.shape) if a.dtype == np.float64 else a
            for name, a in arrays.items()
        }
        floats = [name for name, array in arrays.items() if array.dtype == np.float64]
        along = {name: rng.normal(size=arrays[name].shape) for name in floats}
        ends = []
        for sign in (1.0, -1.0):
            moved = {**arrays, **{n: arrays[n] + sign * step * along[n] for n in floats}}
            ends.append(value_of(formula, moved))
        with np.errstate(all="ignore"):
            found = changed(formula, arrays, along)
            expected = (ends[0] - ends[1]) / (2 * step)
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(found, expected, atol=2e-5 * scale, err_msg=show(formula))
        checked += 1
    assert checked > 20


@pytest.mark.parametrize("seed", range(0, 400, 8))
def test_the_formulas_are_of_the_notation(seed: int) -> None:
    formula, drawn = draw(seed, WANTED)
    arrays = dict(zip(formula.operands, drawn, strict=True))
    if not fits(formula, drawn):
        return
    types = [_type(arrays[name]) for name in formula.operands]
    for term in forward_formula(formula, types, [True] * len(types)):
        assert read(show(term), term.type) == term


CASES = {
    "a product of matrices changes by two": (
        "matmul(a, b)  y[..., m, n] += a[..., m, k] * b[..., k, n]",
        ((5, 3, 4), (4, 6)),
        (
            "y[i<5, m<3, n<6] += da[i, m, k<4] * b[k, n]",
            "y[i<5, m<3, n<6] += db[k<4, n] * a[i, m, k]",
        ),
    ),
    "the result is read again": (
        "tanh(x)  y[...] = tanh(x[...])",
        ((3,),),
        ("y[i<3] = dx[i] * (1 - y[i] * y[i])",),
    ),
    "what lies outside stays outside": (
        "c(x, k)  y[h<4] += x[h*2+i-1] * k[i]",
        ((7,), (3,)),
        ("y[h<4] += dx[h*2+i-1] * k[i<3]", "y[h<4] += dk[i<3] * x[h*2+i-1]"),
    ),
    "a term absent for another operand is absent here": (
        "s(x, w)  y[i<4] = x[i-1] + w[i]",
        ((4,), (4,)),
        ("y[i<4] = dx[i-1] + dw[i]",),
    ),
    "relu guards the branch not taken": (
        "relu(x)  y[...] = x[...] if x[...] > 0 else 0",
        ((3,),),
        ("y[i<3] = dx[i] if x[i] > 0 else 0",),
    ),
    "a base is overwritten": (
        "p(t, v, ids)  y[ids[i]] = v[i] from t",
        ((5,), (2,), (2,)),
        ("y[ids[i<2]] = dv[i] from dt",),
    ),
    "ties share": (
        "amax(x)  y[i] max= x[i, j]",
        ((2, 3),),
        ("y[i<2] += (dx[i, j] if x[i, j<3] == y[i] else 0.0) / count[i]",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_changes_read_as_a_person_would_write_them(case: str) -> None:
    text, shapes, expected = CASES[case]
    declaration = declare(text)
    types = [
        TensorType(shape, I64 if name == "ids" else F64)
        for name, shape in zip(declaration.operands, shapes, strict=True)
    ]
    formula = instantiate(declaration, types)
    terms = forward_formula(formula, types, [type_.dtype == F64 for type_ in types])
    assert tuple(show(term) for term in terms) == expected
