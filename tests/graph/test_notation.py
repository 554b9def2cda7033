"""The loop notation: what a declaration says, what it becomes on operands, and how it is written.

Meanings are checked against NumPy and torch, by the naive evaluator.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tilewright.base.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, U8, DType
from tilewright.base.errors import NotationError, Origin, ShapeError
from tilewright.base.expr import Call, Const, Read, Sym, reads
from tilewright.base.syntax import parse
from tilewright.graph import notation
from tilewright.graph.evaluate_naive import evaluate_naive
from tilewright.graph.ir import Formula, Loop, TensorType

from .formulas import EVERYTHING, draw

Array = np.ndarray
Attribute = bool | int | float


def f32(*shape: int) -> TensorType:
    return TensorType(shape, F32)


def made(text: str, *types: TensorType, **attributes: Attribute) -> Formula:
    return notation.instantiate(notation.declare(text), types, attributes)


def run(text: str, *arrays: Array, **attributes: Attribute) -> Array:
    kinds = {np.dtype(np.float64): F64, np.dtype(np.int64): I64, np.dtype(np.bool_): BOOL}
    types = [TensorType(array.shape, kinds[array.dtype]) for array in arrays]
    return evaluate_naive(made(text, *types, **attributes), arrays)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)


def torched(function: Callable[..., torch.Tensor], *arrays: Array) -> Array:
    return function(*(torch.tensor(array) for array in arrays)).numpy()


# ---------------------------------------------------------------------------------- declarations


def test_a_declaration_has_a_name_operands_attributes_and_a_body() -> None:
    body = "y[n, o, w<W] += x[n, c, w*s+j-p] * k[o, c, j]"
    declaration = notation.declare(f"conv1d(x, k; s, p, W)  {body}")
    assert declaration.name == "conv1d"
    assert declaration.operands == ("x", "k")
    assert declaration.attributes == ("s", "p", "W")
    assert declaration.body.op == "+="
    assert declaration.body.index == (Sym("n"), Sym("o"), Sym("w"))
    assert declaration.body.limits == (("w", Sym("W")),)
    assert (declaration.body.at, declaration.body.where) == (None, None)
    assert declaration.body.fill == Const(0)


@pytest.mark.parametrize("op", notation.OPS)
def test_every_assignment_is_read(op: str) -> None:
    at = " at j" if op.startswith("arg") else ""
    body = notation.parse_body(f"y[i] {op} x[i, j]{at}")
    assert body.op == op
    assert body.at == (Sym("j") if at else None)


def test_a_comparison_in_the_target_is_no_assignment() -> None:
    body = notation.parse_body("y[i<4] = x[i] == 2")
    assert body.op == "="
    assert body.value == Call("eq", (Read("x", (Sym("i"),)), Const(2)))


def test_the_parts_after_the_value_are_read_in_order() -> None:
    body = notation.parse_body("y[i] max= x[i, j] where j < i else -inf for j<3")
    assert body.where == Call("lt", (Sym("j"), Sym("i")))
    assert body.fill == Const(float("-inf"))
    assert body.limits == (("j", Const(3)),)
    assert notation.parse_body("y[i] += x[i] from z").fill == Read("z", ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("relu x y[...] = x[...]", "cannot read a declaration"),
        ("f(x)  x[i] = x[i]", "expected a target, y[...]"),
        ("f(x)  y[i] x[i]", "no assignment follows the target"),
        ("f(x)  y[i] = x[i] +", "expected a name, found the end of the text"),
        ("f(x)  y[i] = x[i] x[i]", "expected the end of the text, found 'x'"),
        ("f(x)  y[i] = x[i] + z[i]", "f reads 'z', which is no operand"),
        ("f(x)  y[i] += x[i] from z", "f reads 'z', which is no operand"),
        ("f(x)  y[i] = foo(x[i])", "f calls 'foo', which is no function"),
        ("f(x)  y[i] = exp(x[i], 2)", "f gives 'exp' 2 arguments"),
        ("f(x)  y[i] argmax= x[i, j]", "`argmax=` needs `at`"),
        ("f(x)  y[i] += x[i, j] at j", "`+=` takes no `at`"),
        ("f(x)  y[i] = x[i] $ 2", "cannot read"),
    ],
)
def test_what_is_no_declaration_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(NotationError) as caught:
        notation.declare(text)
    assert message in str(caught.value)


def test_hostile_depth_is_refused() -> None:
    with pytest.raises(NotationError, match="nested less deeply"):
        notation.declare(f"f(x)  y[i] = {'(' * 500}x[i]{')' * 500}")


# --------------------------------------------------------------------------------- extents of loops


def test_a_loop_has_the_extent_of_the_dim_that_it_indexes_bare() -> None:
    formula = made("f(a, b)  y[m, n] += a[m, k] * b[k, n]", f32(2, 3), f32(3, 4))
    assert {loop.name: loop.extent for loop in formula.loops} == {"m": 2, "n": 4, "k": 3}
    assert formula.type == f32(2, 4)


def test_a_limit_gives_an_extent_from_numbers_attributes_and_sizes() -> None:
    assert made("f()  y[i<3] = i").type.shape == (3,)
    assert made("f(; n)  y[i<n+1] = i", n=4).type.shape == (5,)
    assert made("f(x)  y[i<2*size(j)] += x[j]", f32(6)).type.shape == (12,)
    assert made("f(x)  y[i] += x[i*2+k] for i<3, k<2", f32(6)).type.shape == (3,)


def test_what_is_limited_may_be_shorter_or_longer_than_the_dim() -> None:
    assert run("f(x)  y[i<2] = x[i]", np.arange(4.0)).tolist() == [0, 1]
    assert run("f(x)  y[i<6] = x[i]", np.arange(4.0)).tolist() == [0, 1, 2, 3, 0, 0]


@pytest.mark.parametrize(
    "body", ["y[i, j] = x[i]", "y[i] += x[i+j]", "y[i] = x[j]", "y[i] = x[i] where j < 3"]
)
def test_a_loop_without_an_extent_is_refused(body: str) -> None:
    with pytest.raises(NotationError, match="has no extent"):
        made(f"f(x)  {body}", f32(4))


def test_a_mismatch_names_the_loop_the_extents_and_the_users_line() -> None:
    declaration = notation.declare("matmul(a, b)  y[m, n] += a[m, k] * b[k, n]")
    with pytest.raises(ShapeError) as caught:
        notation.instantiate(
            declaration, [f32(2, 3), f32(4, 5)], origin=Origin("model.py", 91, "x @ w", "head")
        )
    assert str(caught.value) == (
        "matmul: loop 'k' is 3 in one operand and 4 in another\n"
        "  expected  k = 3, as in a f32[2, 3]\n"
        "  found     k = 4 in b f32[4, 5]\n"
        "  known     matmul(a, b)  y[m, n] += a[m, k] * b[k, n]\n"
        "  where     model.py:91   x @ w   (in head)"
    )


def test_an_operand_of_the_wrong_rank_is_named() -> None:
    with pytest.raises(ShapeError, match="b has the wrong rank"):
        made("f(a, b)  y[m, n] += a[m, k] * b[k, n]", f32(2, 3), f32(3))
    with pytest.raises(ShapeError, match="needs operands of higher rank"):
        made("f(a)  y[..., m, n] = a[..., m, n]", f32(3))


def test_a_target_by_values_needs_a_shape_or_a_base() -> None:
    ids = TensorType((4,), I64)
    with pytest.raises(NotationError, match="cannot be told"):
        made("f(ids)  y[ids[i]] += 1", ids)
    based = made("f(ids, x)  y[ids[i]] += 1 from x", ids, f32(7))
    assert based.type.shape == (7,)
    declaration = notation.declare("f(ids)  y[ids[i]] += 1")
    assert notation.instantiate(declaration, [ids], shape=(9,)).type.shape == (9,)


def test_a_target_at_affine_places_is_as_long_as_its_last_place() -> None:
    assert made("f(x)  y[i*3+1] = x[i]", f32(4)).type.shape == (11,)


# ----------------------------------------------------------------------------------- dims not named


def test_dots_stand_for_the_dims_not_named_aligned_at_the_right() -> None:
    formula = made("f(a, b)  y[...] = a[...] + b[...]", f32(2, 3, 4), f32(4))
    assert formula.type.shape == (2, 3, 4)
    left, right = (read.index for read in reads(formula.value))
    assert (len(left), len(right)) == (3, 1)
    assert left[-1] == right[0]


def test_a_dim_of_one_is_read_at_zero_beside_a_longer_one() -> None:
    a, b = drawn(2, 1, 3), drawn(4, 1)
    found = run("f(a, b)  y[...] = a[...] * b[...]", a, b)
    np.testing.assert_array_equal(found, a * b)


def test_dots_may_stand_between_named_dims() -> None:
    x, b = drawn(2, 3, 4, 5), drawn(3)
    found = run("f(x, b)  y[n, c, ...] = x[n, c, ...] + b[c]", x, b)
    np.testing.assert_array_equal(found, x + b[:, None, None])


def test_dots_that_the_target_does_not_have_are_reduced() -> None:
    x = drawn(2, 3, 4)
    np.testing.assert_allclose(run("f(x)  y[i] += x[..., i]", x), x.sum((0, 1)), rtol=1e-14)


def test_dots_do_not_take_the_name_of_a_named_loop() -> None:
    formula = made("f(a)  y[..., i, j] = a[..., j, i]", f32(2, 3, 4, 5))
    assert len({loop.name for loop in formula.loops}) == 4
    assert formula.type.shape == (2, 3, 5, 4)


def test_dots_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="is 6 in one operand and 4 in another"):
        made("f(a, b)  y[...] = a[...] + b[...]", f32(6), f32(4))


# ------------------------------------------------------------------------------------- mixed radix


def test_a_mixed_radix_index_splits_a_dim_outermost_digit_first() -> None:
    x = np.arange(12.0)
    found = run("f(x)  y[g, c] = x[(g c)] for g<3", x)
    np.testing.assert_array_equal(found, x.reshape(3, 4))
    back = run("f(x)  y[(g c)] = x[g, c]", x.reshape(3, 4))
    np.testing.assert_array_equal(back, x)


def test_a_dim_that_does_not_split_is_refused() -> None:
    with pytest.raises(ShapeError, match="does not split into"):
        made("f(x)  y[g, c] = x[(g c)] for g<4", f32(6))


# ------------------------------------------------------------------------------ absent terms, fills


def test_a_term_that_reads_outside_is_absent_and_not_zero() -> None:
    x = np.arange(3.0)
    assert run("f(x)  y[i<3] += exp(x[i+1])", x).tolist() == [*np.exp(x[1:]), 0]
    assert run("f(x)  y[i<3] = x[i+1] else 9", x).tolist() == [1, 2, 9]
    assert run("f(x)  y[i<3] = exp(x[i+1] ?? 0)", x)[2] == 1


def test_one_absent_read_makes_the_whole_term_absent() -> None:
    x = np.arange(1.0, 5.0)
    assert run("f(x)  y[i<4] = x[i] + x[i-1] else -1", x).tolist() == [-1, 3, 5, 7]


def test_where_and_the_branch_not_taken_guard_reads() -> None:
    x, ids = np.arange(3.0), np.array([0, 99, 2])
    assert run("f(x, ids)  y[i] = x[ids[i]] where ids[i] < 3", x, ids).tolist() == [0, 0, 2]
    assert run("f(x, ids)  y[i] = x[ids[i]] if ids[i] < 3 else -1", x, ids).tolist() == [0, -1, 2]


def test_an_indirect_index_out_of_range_raises() -> None:
    with pytest.raises(IndexError):
        run("f(x, ids)  y[i] = x[ids[i]]", np.arange(3.0), np.array([0, 3]))


def test_from_begins_with_what_an_operand_holds() -> None:
    x, ids, s = np.ones(4), np.array([3, 0, 3]), np.array([1.0, 2.0, 3.0])
    assert run("f(x, ids, s)  y[ids[i]] += s[i] from x", x, ids, s).tolist() == [3, 1, 1, 5]
    assert run("f(x, ids, s)  y[ids[i]] = s[i] from x", x, ids, s)[:3].tolist() == [2, 1, 1]


def test_an_exact_division_is_absent_unless_divisible() -> None:
    x = np.arange(1.0, 4.0)
    assert run("f(x)  y[i<6] = x[i/2]", x).tolist() == [1, 0, 2, 0, 3, 0]
    assert run("f(x)  y[i<6] = x[i//2]", x).tolist() == [1, 1, 2, 2, 3, 3]
    assert run("f(x)  y[i<6] = x[i%3]", x).tolist() == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    ("op", "wanted"),
    [("+=", 6), ("*=", 0), ("max=", 3), ("min=", 0), ("any=", True), ("all=", False)],
)
def test_reductions_combine_terms(op: str, wanted: float) -> None:
    assert run(f"f(x)  y[] {op} x[i]", np.arange(4.0)) == wanted


def test_the_first_index_of_equal_values_wins_and_nan_before_all() -> None:
    x = np.array([[1.0, 3, 3], [np.nan, 5, np.nan], [2, 2, 2]])
    assert run("f(x)  y[i] argmax= x[i, j] at j", x).tolist() == [1, 0, 0]
    assert run("f(x)  y[i] argmin= x[i, j] at j", x).tolist() == [0, 0, 0]


def test_the_first_index_does_not_depend_on_how_loops_are_indexed() -> None:
    """With one place only, `w*2+j` becomes `j`: the rows of the window still come first."""
    x = np.array([[0.0, 2], [2, 0]])
    text = "f(x)  y[h<1, w<1] argmax= x[h*2+i, w*2+j] at (h*2+i)*2 + w*2+j for i<2, j<2"
    assert run(text, x).tolist() == [[1]]


# -------------------------------------------------------------------------- operators of the design


def test_convolution_with_stride_padding_dilation_and_groups() -> None:
    x, k = drawn(2, 4, 7, 8), drawn(6, 2, 3, 2)
    text = (
        "conv2d(x, k; s, p, d, H, W, G)  y[n, (g o), h<H, w<W] += "
        "x[n, (g c), h*s+i*d-p, w*s+j*d-p] * k[(g o), c, i, j] for g<G"
    )
    found = run(text, x, k, s=2, p=1, d=2, H=3, W=4, G=2)
    wanted = torched(lambda a, b: F.conv2d(a, b, None, 2, 1, 2, 2), x, k)
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("y[i, j] = x[i, j] if x[i, j] > 0 else 0", lambda x: np.maximum(x, 0)),
        ("y[i, u<5] += x[i, j] where j <= u", lambda x: np.cumsum(x, 1)),
        ("y[i] max= x[i, j]", lambda x: x.max(1)),
        ("y[i<4, j<2] = x[i, j*2+1]", lambda x: x[:, 1:5:2]),
        ("y[i<6, j<7] = x[i-1, j-2]", lambda x: np.pad(x, ((1, 1), (2, 0)))),
        ("y[i<4, j] = x[3-i, j]", lambda x: x[::-1]),
        ("y[i, j<5] = x[i, (j+3)%5]", lambda x: np.roll(x, 2, 1)),
        ("y[i<4] = x[i, i]", lambda x: x.diagonal()),
        ("y[i<2, j<10] = x[i*2+j//5, j%5]", lambda x: x.reshape(2, 10)),
        ("y[j, i] = x[i, j]", lambda x: x.T),
        ("y[i, j<4, w<2] = x[i, j+w]", lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 1)),
        ("y[i, j<10] = x[i, j] if j < 5 else x[i, j-5]", lambda x: np.concatenate([x, x], 1)),
        ("y[j] += x[i, j] / size(i)", lambda x: x.mean(0)),
    ],
)  # fmt: skip
def test_the_operators_of_the_design_mean_what_numpy_means(
    text: str, wanted: Callable[[Array], Array]
) -> None:
    x = drawn(4, 5)
    np.testing.assert_allclose(run(f"f(x)  {text}", x), wanted(x), rtol=1e-13, atol=1e-15)


def test_gathers_read_at_values() -> None:
    table, ids = drawn(5, 3), np.array([[4, 0], [2, 2]])
    found = run("embedding(table, ids)  y[..., d] = table[ids[...], d]", table, ids)
    np.testing.assert_array_equal(found, table[ids])


def test_pixels_are_shuffled() -> None:
    x = drawn(1, 8, 2, 3)
    found = run("f(x; r, C, H, W)  y[n, c<C, h<H, w<W] = x[n, c*r*r + h%r*r + w%r, h//r, w//r]",
                x, r=2, C=2, H=4, W=6)  # fmt: skip
    np.testing.assert_array_equal(found, torched(lambda a: F.pixel_shuffle(a, 2), x))


# ----------------------------------------------------------------------------------- element types


@pytest.mark.parametrize(
    ("text", "types", "wanted"),
    [
        ("a[i] + b[i]", (F32, F64), F64),
        ("a[i] + b[i]", (I32, F32), F32),
        ("a[i] + b[i]", (U8, I32), I32),
        ("a[i] + b[i]", (BF16, BF16), F32),
        ("a[i] + b[i]", (BF16, F64), F64),
        ("a[i] + 1", (I32, I32), I32),
        ("a[i] + 1.5", (I32, I32), F32),
        ("a[i] + 1.5", (F64, F64), F64),
        ("a[i] * 2", (BOOL, BOOL), I64),
        ("a[i] + b[i]", (BOOL, BOOL), I64),
        ("a[i] / b[i]", (I64, I64), F32),
        ("exp(a[i])", (I64, I64), F32),
        ("exp(a[i])", (F64, F64), F64),
        ("a[i] < b[i]", (F64, F64), BOOL),
        ("not a[i]", (F64, F64), BOOL),
        ("a[i] if b[i] else 0", (F32, BOOL), F32),
        ("a[i] if b[i] else 0.5", (I64, BOOL), F32),
        ("1 if a[i] else 0", (BOOL, BOOL), I64),
        ("i + 1", (F32, F32), I64),
        ("a[i] + i", (F32, F32), F32),
        ("f64(a[i])", (F32, F32), F64),
        ("i64(a[i])", (F32, F32), I64),
        ("a[i] ?? 0", (F16, F16), F32),
        ("uniform(a[i], i)", (I64, I64), F32),
    ],
)
def test_the_type_a_value_is_computed_in(
    text: str, types: tuple[DType, DType], wanted: DType
) -> None:
    assert notation.infer(parse(text), dict(zip("ab", types, strict=True))) == wanted


@pytest.mark.parametrize(
    ("body", "dtype", "wanted"),
    [
        ("y[i] += x[i, j]", BF16, BF16),
        ("y[i] += x[i, j]", F64, F64),
        ("y[i] argmax= x[i, j] at j", F32, I64),
        ("y[i] any= x[i, j]", F32, BOOL),
        ("y[i, j] = x[i, j] > 0", F16, BOOL),
        ("y[i, j] = f32(x[i, j])", F16, F32),
        ("y[i, j] = bf16(x[i, j])", F32, BF16),
    ],
)
def test_the_result_is_stored_as_what_was_read(body: str, dtype: DType, wanted: DType) -> None:
    assert made(f"f(x)  {body}", TensorType((2, 3), dtype)).type.dtype == wanted


def test_a_result_type_may_be_given() -> None:
    declaration = notation.declare("f(x)  y[i] += x[i, j]")
    given = notation.instantiate(declaration, [TensorType((2, 3), BF16)], dtype=F32)
    assert given.type.dtype == F32


# ----------------------------------------------------------------------------------------- its text


def test_a_formula_is_written_with_its_extents_where_loops_first_stand_bare() -> None:
    formula = made("f(a, b)  y[m, n] += a[m, k] * b[k, n]", f32(2, 3), f32(3, 4))
    assert notation.show(formula) == "y[m<2, n<4] += a[m, k<3] * b[k, n]"


@pytest.mark.parametrize(
    "text",
    [
        "y[i<3] = 1 + i",
        "y[] max= x[i<4] else -inf",
        "y[i<3] = x[i-1] ?? 0.5",
        "y[i<3] argmax= x[i, j<4] at j where j != 2",
        "y[ids[i<4], d<2] += s[i, d] from z",
        "y[i<2, j<3] += x[i*2+a-1, j*2+b-1] * k[a<3, b<3]",
        "y[i<6] = x[i/2] where not (x[i] < 0 or i % 2 == 0)",
        "y[i<2] += x[i+j] for j<3",
        "b, a: y[i<2] = a[i] - b[i]",
        "y[i<2] = (a[i] if c[i] else b[i]) * -x[i]",
    ],
)
def test_written_formulas_are_read_back(text: str) -> None:
    formula = notation.read(text, f32(3))
    assert notation.show(formula) == text
    assert notation.read(notation.show(formula), f32(3)) == formula


@pytest.mark.parametrize("seed", range(300))
def test_random_formulas_are_read_back(seed: int) -> None:
    formula, _ = draw(seed, EVERYTHING)
    assert notation.read(notation.show(formula), formula.type) == formula


def test_a_loop_that_the_text_does_not_limit_is_refused() -> None:
    with pytest.raises(NotationError, match="loop 'j' has no extent"):
        notation.read("y[i<3] = x[j]", f32(3))


def test_loops_stand_in_the_order_in_which_text_names_them() -> None:
    jumbled = Formula(
        ("x",), (Loop("b", 3), Loop("a", 2)), (Sym("a"),), "+=",
        Read("x", (Sym("a"), Sym("b"))), f32(2),
    )  # fmt: skip
    assert [loop.name for loop in notation.normal(jumbled).loops] == ["a", "b"]


def test_indices_are_brought_to_their_normal_form() -> None:
    formula = made("f(x; n)  y[i<4, j<6] = x[(i*6+j)//6, (6*i+j)%6 + n - n]", f32(4, 6), n=3)
    assert notation.show(formula) == "y[i<4, j<6] = x[i, j]"
