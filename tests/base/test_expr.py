"""Expressions: what is found out of one is kept, and is that of no other."""

import os
import pickle
import subprocess
import sys

import pytest

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
