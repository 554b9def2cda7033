"""Conditions as bounds of loops: what a condition says of a loop is exactly where it holds."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import Cases, assert_close, body, random_arrays, run

from tilewright.base import algebra
from tilewright.base.errors import LoopError
from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.graph.evaluate_scalar import apply, integers, literal
from tilewright.kernels import emit
from tilewright.kernels.body import canonical
from tilewright.kernels.conditions import Limit, limit_of, proved
from tilewright.kernels.emit import solved_body
from tilewright.kernels.loops import canonical_nest
from tilewright.kernels.narrow import narrow
from tilewright.kernels.plan import make_plan
from tilewright.kernels.schedule import parallel, split

EXTENTS = {"a": 7, "b": 5, "c": 4}


def number_of(expr: Expr, env: dict[str, int]) -> int:
    match expr:
        case Const(value):
            return int(literal(value).data)
        case Sym(name):
            return env[name]
        case Call(fn, args):
            terms = [integers(np.asarray(number_of(arg, env))) for arg in args]
            return int(apply(fn, terms, wide=True).data)
    raise AssertionError("integer arithmetic of loops")


def an_index(r: random.Random) -> Expr:
    """Return a sum of loops with factors, perhaps a quotient of one, perhaps plus another."""
    total: Expr = Const(r.randrange(-9, 9))
    for name in EXTENTS:
        total = Call("add", (total, Call("mul", (Sym(name), Const(r.randrange(-3, 4))))))
    if r.random() < 0.4:
        total = Call("floordiv", (total, Const(r.randrange(1, 5))))
    if r.random() < 0.3:
        other = Call("floordiv", (Sym(r.choice("abc")), Const(2)))
        total = Call(r.choice(("add", "sub")), (total, other))
    return total


def test_a_limit_holds_where_the_condition_does_and_nowhere_else() -> None:
    r = random.Random(0)
    found = 0
    for _ in range(600):
        fn = r.choice(("lt", "le", "gt", "ge"))
        condition = Call(fn, (an_index(r), an_index(r) if r.random() < 0.3 else Const(4)))
        limit = limit_of(condition, "a", EXTENTS)
        if limit is None:
            continue
        found += 1
        for values in itertools.product(*map(range, EXTENTS.values())):
            env = dict(zip(EXTENTS, values, strict=True))
            bound = number_of(limit.bound, env)
            inside = env["a"] >= bound if limit.fn == "max" else env["a"] < bound
            assert inside == bool(number_of(condition, env)), (condition, limit, env)
    assert found > 250


def test_a_condition_that_no_bound_can_say_has_no_limit() -> None:
    a, b = Sym("a"), Sym("b")
    half = Call("floordiv", (a, Const(2)))
    for condition in (
        Call("ge", (b, Const(2))),
        Call("eq", (a, b)),
        Call("ge", (Call("add", (half, Call("floordiv", (a, Const(3))))), Const(2))),
        Call("ge", (Call("mod", (a, Const(3))), Const(1))),
    ):
        assert limit_of(condition, "a", EXTENTS) is None
    ceiling = limit_of(Call("ge", (Call("mul", (a, Const(2))), b)), "a", EXTENTS)
    assert ceiling is not None
    assert ceiling.fn == "max"
    assert algebra.simplify(ceiling.bound, EXTENTS) == ceiling.bound


def test_of_two_opposite_conditions_one_holds() -> None:
    a, c, read = Sym("a"), Sym("c"), Read("x", (Sym("a"),))
    less = Call("lt", (a, Const(3)))
    assert proved(Call("or", (Call("not", (less,)), less)), EXTENTS)
    assert proved(Call("or", (less, Call("ge", (Call("sub", (a, Const(3))), Const(0))))), EXTENTS)
    assert proved(Call("or", (Call("le", (a, c)), Call("gt", (a, c)))), EXTENTS)
    assert not proved(Call("or", (less, Call("ge", (a, Const(4))))), EXTENTS)
    assert not proved(Call("or", (less, Call("gt", (a, Const(3))))), EXTENTS)
    apart = Call("or", (Call("lt", (read, Const(3))), Call("ge", (read, Const(3)))))
    assert not proved(apart, EXTENTS)  # neither holds of a NaN


WINDOW = body(
    {"x": "f32[2, 17, 40]"},
    {"y": "f32[2, 9, 20]: y[c<2, h<9, w<20] max= x[c, h*2+i-1, w*2+j-1] for i<3, j<3"},
)


def test_a_window_asks_nothing_inside_of_its_loops() -> None:
    text = emit(WINDOW, check=True).text
    assert "const float x0 = a0[" in text
    assert "s0_has[r2] = 1;" in text


def test_few_terms_of_a_long_column_are_not_taken_in_blocks() -> None:
    few = body(
        {"x": "f32[99, 600]"},
        {"y": "f32[99, 99]: y[c<99, w<99] += x[c, j<600] where j >= w*6 and j < w*6 + 9"},
    )
    assert "b0" not in emit(few, check=True).text
    half = body({"x": "f32[99, 600]"}, {"y": "f32[99]: y[i<99] += x[i, j<600] where j <= 6*i"})
    assert "b0" in emit(half, check=True).text


def test_a_loop_in_steps_and_one_of_threads_are_refused() -> None:
    plain = solved_body(canonical(WINDOW, {}))
    plan = make_plan(plain)
    assert not isinstance(plan, str)
    nest = canonical_nest(plain, plan.regions[0])
    with pytest.raises(LoopError, match="a loop that may begin anywhere"):
        narrow(split(nest, "r0", 2, "m"), "m")
    with pytest.raises(LoopError, match="a loop that may begin anywhere"):
        narrow(parallel(nest, "r0"), "r0")


def test_limits_are_equal_by_what_they_say() -> None:
    less = Call("lt", (Sym("a"), Call("add", (Sym("b"), Const(1)))))
    most = Call("le", (Sym("a"), Sym("b")))
    assert limit_of(less, "a", EXTENTS) == limit_of(most, "a", EXTENTS)
    assert isinstance(limit_of(most, "a", EXTENTS), Limit)


def test_each_of_two_phases_has_a_result_at_every_place(tmp_path: Path) -> None:
    cases = Cases()
    steps = {
        "y": "f32[20, 1]: y[w<20, c<1] max= x[c-4] * v[c*3-w+1] where j+c*2+4 < -2 else 7 for j<2",
        "u": "f32[20, 1]: y[w<20, c<1] max= q[w, c, j] * y[w, c] where c < c*2-2 else 5 for j<2",
    }
    inputs = {"x": "f32[9]", "v": "f32[50]", "q": "f32[20, 1, 2]"}
    cases.add("two", body(inputs, steps, ("y", "u")))
    library = cases.compile(tmp_path)
    graph, fast, naive, strides = cases.kernels["two"]
    arrays = random_arrays(graph, 0)
    for kernel in (fast, naive):
        code, found = run(library, kernel, graph, arrays, strides)
        assert code == 0
        assert_close(graph, arrays, found, 1)


def test_what_no_term_reaches_is_the_fill(tmp_path: Path) -> None:
    cases, line = Cases(), {"x": "f32[17]"}
    for name, op, where in (
        ("max", "max=", "j < 0"),
        ("min", "min=", "j < 0"),
        ("product", "*=", "j < 0"),
        ("before", "max=", "j < -5"),
        ("beyond", "max=", "j >= 2"),
        ("crossed", "max=", "i >= 9 and i < 5"),
        ("third", "max=", "i < (i+2)//3 - 1"),
    ):
        step = f"f32[]: y[] {op} x[i] where {where} else 7 for i<17, j<2"
        cases.add(name, body(line, {"y": step}))
    cases.add("all", body(line, {"y": "bool[]: y[] all= x[i] < 5 where j<0 else 0 for i<17, j<2"}))
    lane = "f32[40]: y[c<40] max= x[i, c] where i < c//50 else 7 for i<17"
    cases.add("lane", body({"x": "f32[17, 40]"}, {"y": lane}))
    library = cases.compile(tmp_path)
    for graph, fast, naive, strides in cases.kernels.values():
        arrays = random_arrays(graph, 0)
        for kernel in (fast, naive):
            code, found = run(library, kernel, graph, arrays, strides)
            assert code == 0
            assert_close(graph, arrays, found, 0)
