"""Expressions: what is found out of one is kept, and is that of no other."""

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from weakref import ref

import pytest

from tilewright.base import expr as expressions
from tilewright.base.algebra import simplify
from tilewright.base.expr import Call, Const, Expr, Read, Sym, call, names, substitute, walk
from tilewright.base.sizes import Size, Sizes
from tilewright.base.syntax import parse, show


def test_numbers_of_different_types_or_signs_are_different() -> None:
    values = (1, 1.0, True, 0, 0.0, -0.0, False, float("nan"), float("inf"))
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            assert (Const(a) == Const(b)) == (i == j)
            assert (call("neg", a) == call("neg", b)) == (i == j)
    assert len({Const(value) for value in (*values, *values)}) == len(values)


def test_what_is_made_alike_is_one_object() -> None:
    text = "a[i, b[j] ?? -0.5] * floor(c) + 3 - nan"
    made = parse(text)
    assert isinstance(made, Call)
    again = (
        parse(text),
        copy.copy(made),
        copy.deepcopy(made),
        pickle.loads(pickle.dumps(made)),
        replace(made, fn=made.fn),
        Call(made.fn, tuple(parse(show(arg)) for arg in made.args)),
    )
    for other in again:
        assert other is made
    assert replace(made, fn="mul") != made
    assert len({Sym("i"), Sym("j"), Read("i", ()), Call("i", ())}) == 4


def test_threads_that_make_the_same_have_the_same() -> None:
    def made(start: int) -> list[Call]:
        return [call("add", Sym(f"same{n % 500}"), start + n) for n in range(20_000)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(made, [0] * 8))
    for other in found[1:]:
        assert all(a is b for a, b in zip(found[0], other, strict=True))


def test_an_expression_is_kept_by_none_but_those_who_have_it() -> None:
    """Also where expressions come and go: what is gone leaves no trace that grows."""
    made = call("add", Sym("nobody_else"), 7)
    seen = ref(made)
    del made
    assert seen() is None
    assert call("add", Sym("nobody_else"), 7) is call("add", Sym("nobody_else"), 7)
    known = expressions._Known()
    for n in range(3 * expressions._SWEPT):
        assert known.add(f"gone{n}", Sym(f"gone{n}")).name == f"gone{n}"
        assert known.get(f"gone{n}") is None
        assert len(known._found) <= expressions._SWEPT


def test_trees_that_come_and_go_leave_no_parts() -> None:
    before = len(expressions._KNOWN._found)
    for n in range(5_000):
        tree: Expr = Sym("i")
        for _ in range(10):
            tree = Call("add", (tree, Const(1_000_000 + n)))
    assert len(expressions._KNOWN._found) < max(before, expressions._SWEPT) + expressions._SWEPT


def test_a_size_that_was_pickled_is_of_the_compilation_beside_it() -> None:
    sizes = Sizes({"n_b": 8})
    kept = Const(sizes.size("n_b"))
    again, found = pickle.loads(pickle.dumps((sizes, kept)))
    assert isinstance(kept.value, Size)
    assert kept.value.sizes is sizes
    assert found.value.sizes is again


def test_an_expression_is_found_again_in_another_process() -> None:
    """Where strings have other hashes."""
    text = "x[i + 3, j] * floor(y[k]) + 0.5"
    script = (
        "import pickle, sys; from tilewright.base.syntax import parse;"
        f"sys.stdout.buffer.write(pickle.dumps(parse({text!r})))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, env=environment
    )
    assert pickle.loads(done.stdout) in {parse(text)}


def test_everything_below_is_walked_outermost_first() -> None:
    expr = parse("a[i, b[j] ?? c] + f")
    assert [show(node) for node in walk(expr)] == [
        "a[i, b[j] ?? c] + f",
        "a[i, b[j] ?? c]",
        "i",
        "b[j] ?? c",
        "j",
        "c",
        "f",
    ]


def test_names_are_replaced_at_once_and_tensors_are_not_names() -> None:
    expr = parse("i[i, j] + j")
    assert names(expr) == {"i", "j"}
    assert substitute(expr, {"i": Sym("j"), "j": Sym("i")}) == parse("i[j, i] + i")
    assert substitute(expr, {"i": Const(1)}) == parse("i[1, j] + j")
    assert substitute(expr, {"k": Const(1)}) is expr


def test_the_same_index_is_another_under_other_extents() -> None:
    index = parse("i // 4 + j % 4")
    assert show(simplify(index, {"i": 4, "j": 4})) == "j"
    assert show(simplify(index, {"i": 8, "j": 4})) == "i // 4 + j"
    assert show(simplify(index, {"i": 4, "j": 8})) == "j % 4"
    assert show(simplify(index, {"i": 4})) == "j % 4"
    assert show(simplify(index, {"i": 1, "j": 1})) == "0"


def _sizes_in(expr: Expr) -> list[Size]:
    return [
        node.value
        for node in walk(expr)
        if isinstance(node, Const) and isinstance(node.value, Size)
    ]


@pytest.mark.parametrize("varying", [False, True])
def test_what_was_found_for_one_compilation_has_no_sizes_of_another(varying: bool) -> None:
    for _ in range(3):
        sizes = Sizes({"n_b": 6})
        n = sizes.size("n_b")
        index = Call("add", (Call("mul", (Sym("i"), Const(n))), Read("x", (Const(n + 1),))))
        index = substitute(index, {"i": Call("mul", (Sym("j"), Const(n)))})
        found = simplify(index, {"i": 4, "j": n if varying else 4})
        assert len(_sizes_in(found)) == 2
        assert all(size.sizes is sizes for size in _sizes_in(found))
