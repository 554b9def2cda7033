"""Rows of a product of weights that stay are read, where rows of a table were multiplied."""

import pytest

from tilewright.graph.passes import run
from tilewright.graph.text import parse, show
from tilewright.optimize import SimplifyViews, TabulateProducts, prepared

from .graphs import assert_equal

TABLE, WEIGHT = '%e : f32[7, 4] parameter "e"', '%w : f32[5, 4] parameter "w"'
ROWS = "%x = {y[t<9, d<4] = e[n[t], d]}(%e, %n) : f32[9, 4]"
PRODUCT = "%y = {y[t<9, j<5] += x[t, k<4] * w[j, k]}(%x, %w) : f32[9, 5]"
INPUTS = f"{TABLE}, {WEIGHT}, %n : i64[9]"


def graph(inputs: str, *lines: str, end: str = "return %y") -> str:
    return f"graph g({inputs}) {{ {' '.join(lines)} {end} }}"


def test_a_tables_product_is_prepared_and_its_rows_are_read() -> None:
    before = parse(graph(INPUTS, ROWS, PRODUCT))
    after = run(before, (TabulateProducts(),), verify=True)
    whole = "%y_table = {y[row<7, j<5] += e[row, k<4] * w[j, k]}(%e, %w) : f32[7, 5]"
    rows = "%y = {y[t<9, j<5] = y_table[n[t], j]}(%y_table, %n) : f32[9, 5]"
    assert show(after) == show(parse(graph(INPUTS, whole, rows)))
    assert prepared(after) == {"y_table"}
    assert_equal(before, after, bits=True)


TABULATED = {
    "rows behind views, the weight too": (
        f"{TABLE}, {WEIGHT}, %n : i64[3, 2]",
        """%x = {y[b<3, t<2, d<4] = e[n[b, t], d]}(%e, %n) : f32[3, 2, 4]
        %z = {y[t<2, b<3, d<4] = x[b, t, d]}(%x) : f32[2, 3, 4]
        %u = {y[k<4, j<5] = w[j, k]}(%w) : f32[4, 5]
        %y = {y[t<2, b<3, j<5] += z[t, b, k<4] * u[k, j]}(%z, %u) : f32[2, 3, 5]""",
    ),
    "rows that are read besides": (
        INPUTS,
        f"""{ROWS} %z = {{y[t<9, j<5] += x[t, k<4] * w[j, k]}}(%x, %w) : f32[9, 5]
        %y = {{y[t<9, j<4] = z[t, j] + x[t, j]}}(%z, %x) : f32[9, 4]""",
    ),
    "the weight first, scaled": (
        INPUTS,
        f"{ROWS} %y = {{y[j<5, t<9] += 0.5 * w[j, k<4] * x[t, k]}}(%w, %x) : f32[5, 9]",
    ),
    "several sums, and the row in between": (
        '%e : f32[3, 7, 2] parameter "e", %w : f32[3, 5, 2] buffer "w", %n : i64[9]',
        """%x = {y[t<9, p<3, d<2] = e[p, n[t], d]}(%e, %n) : f32[9, 3, 2]
        %y = {y[t<9, j<5] += x[t, p<3, k<2] * w[p, j, k]}(%x, %w) : f32[9, 5]""",
    ),
    "four times as large as table and weight": (
        '%e : f32[16, 2] parameter "e", %w : f32[16, 2] parameter "w", %n : i64[9]',
        """%x = {y[t<9, d<2] = e[n[t], d]}(%e, %n) : f32[9, 2]
        %y = {y[t<9, j<16] += x[t, k<2] * w[j, k]}(%x, %w) : f32[9, 16]""",
    ),
    "the table itself, four times as high as wide": (
        '%e : f32[16, 4] parameter "e", %n : i64[9]',
        f"{ROWS} %y = {{y[t<9, j<16] += x[t, k<4] * e[j, k]}}(%x, %e) : f32[9, 16]",
    ),
    "columns of the table that are not summed": (
        '%e : f32[7, 3, 4] parameter "e", %w : f32[5, 4] parameter "w", %n : i64[9]',
        """%x = {y[t<9, p<3, d<4] = e[n[t], p, d]}(%e, %n) : f32[9, 3, 4]
        %y = {y[t<9, p<3, j<5] += x[t, p, k<4] * w[j, k]}(%x, %w) : f32[9, 3, 5]""",
    ),
    "a bias that the sums are added to": (
        f'{INPUTS}, %b : f32[5] buffer "b"',
        f"""{ROWS} %z = {{y[t<9, j<5] = b[j]}}(%b) : f32[9, 5]
        %y = {{y[t<9, j<5] += x[t, k<4] * w[j, k] from z}}(%x, %w, %z) : f32[9, 5]""",
    ),
    "one number that the sums are added to": (
        f'{INPUTS}, %b : f32[1] buffer "b"',
        f"""{ROWS} %z = {{y[j<5, t<9] = b[0]}}(%b) : f32[5, 9]
        %y = {{y[j<5, t<9] += w[j, k<4] * x[t, k] from z}}(%w, %x, %z) : f32[5, 9]""",
    ),
}
LEFT = {
    "a table that changes": (f"%e : f32[7, 4], {WEIGHT}, %n : i64[9]", f"{ROWS} {PRODUCT}"),
    "a weight that changes": (f"{TABLE}, %w : f32[5, 4], %n : i64[9]", f"{ROWS} {PRODUCT}"),
    "rows that are not alone in the product": (
        INPUTS,
        f"{ROWS} %y = {{y[t<9, j<5] += x[t, k<4] * w[j, k] + 1}}(%x, %w) : f32[9, 5]",
    ),
    "rows that are computed with": (
        INPUTS,
        f"""{ROWS} %z = {{y[t<9, d<4] = x[t, d] * 2}}(%x) : f32[9, 4]
        %y = {{y[t<9, j<5] += z[t, k<4] * w[j, k]}}(%z, %w) : f32[9, 5]""",
    ),
    "a weight of each row's own": (
        '%e : f32[7, 4] parameter "e", %w : f32[9, 5, 4] parameter "w", %n : i64[9]',
        f"{ROWS} %y = {{y[t<9, j<5] += x[t, k<4] * w[t, j, k]}}(%x, %w) : f32[9, 5]",
    ),
    "two indices": (
        f'%e : f32[7, 3, 4] parameter "e", {WEIGHT}, %n : i64[9]',
        """%x = {y[t<9, d<4] = e[n[t], n[t] % 3, d]}(%e, %n) : f32[9, 4] """ + PRODUCT,
    ),
    "an index that is summed": (
        f'%e : f32[7, 4] parameter "e", {WEIGHT}, %n : i64[4]',
        """%x = {y[t<9, d<4] = e[n[d], d]}(%e, %n) : f32[9, 4] """ + PRODUCT,
    ),
    "an index of the weight": (
        f'%e : f32[9, 4] parameter "e", {WEIGHT}, %n : i64[5]',
        """%x = {y[j<5, d<4] = w[n[j], d]}(%w, %n) : f32[5, 4]
        %y = {y[t<9, j<5] += e[n[j], k<4] * x[j, k]}(%e, %n, %x) : f32[9, 5]""",
    ),
    "a sum that neither table nor weight knows": (
        INPUTS,
        f"{ROWS} %y = {{y[t<9, j<5] += x[t, k<4] * w[j, k] for s<3}}(%x, %w) : f32[9, 5]",
    ),
    "a sum of rows": (
        f"{TABLE}, {WEIGHT}, %n : i64[9, 3]",
        """%x = {y[t<9, s<3, d<4] = e[n[t, s], d]}(%e, %n) : f32[9, 3, 4]
        %y = {y[t<9, j<5] += x[t, s<3, k<4] * w[j, k]}(%x, %w) : f32[9, 5]""",
    ),
    "a sum of rows, each with a weight of its own": (
        f'{TABLE}, %w : f32[5, 3, 4] parameter "w", %n : i64[9, 3]',
        """%x = {y[t<9, s<3, d<4] = e[n[t, s], d]}(%e, %n) : f32[9, 3, 4]
        %y = {y[t<9, j<5] += x[t, s<3, k<4] * w[j, s, k]}(%x, %w) : f32[9, 5]""",
    ),
    "a sum over the table alone": (
        '%e : f32[7, 2, 4] parameter "e", %w : f32[5, 4] parameter "w", %n : i64[9]',
        """%x = {y[t<9, s<2, d<4] = e[n[t], s, d]}(%e, %n) : f32[9, 2, 4]
        %y = {y[t<9, j<5] += x[t, s<2, k<4] * w[j, k]}(%x, %w) : f32[9, 5]""",
    ),
    "what is added to something": (
        f"{INPUTS}, %z : f32[9, 5]",
        f"{ROWS} %y = {{y[t<9, j<5] += x[t, k<4] * w[j, k] from z}}(%x, %w, %z) : f32[9, 5]",
    ),
    "an addend of each row's own": (
        f'{INPUTS}, %b : f32[9] buffer "b"',
        f"""{ROWS} %z = {{y[t<9, j<5] = b[t]}}(%b) : f32[9, 5]
        %y = {{y[t<9, j<5] += x[t, k<4] * w[j, k] from z}}(%x, %w, %z) : f32[9, 5]""",
    ),
    "a bias that changes": (
        f"{INPUTS}, %b : f32[5]",
        f"""{ROWS} %z = {{y[t<9, j<5] = b[j]}}(%b) : f32[9, 5]
        %y = {{y[t<9, j<5] += x[t, k<4] * w[j, k] from z}}(%x, %w, %z) : f32[9, 5]""",
    ),
    "the table itself, more than four times as high as wide": (
        '%e : f32[17, 4] parameter "e", %n : i64[9]',
        f"{ROWS} %y = {{y[t<9, j<17] += x[t, k<4] * e[j, k]}}(%x, %e) : f32[9, 17]",
    ),
    "no sum": (
        INPUTS,
        f"{ROWS} %y = {{y[t<9, j<5, k<4] = x[t, k] * w[j, k]}}(%x, %w) : f32[9, 5, 4]",
    ),
    "more than four times as large as table and weight": (
        '%e : f32[17, 2] parameter "e", %w : f32[16, 2] parameter "w", %n : i64[9]',
        """%x = {y[t<9, d<2] = e[n[t], d]}(%e, %n) : f32[9, 2]
        %y = {y[t<9, j<16] += x[t, k<2] * w[j, k]}(%x, %w) : f32[9, 16]""",
    ),
    "more than is kept": (
        '%e : f32[70000, 64] parameter "e", %w : f32[256, 64] parameter "w", %n : i64[9]',
        """%x = {y[t<9, d<64] = e[n[t], d]}(%e, %n) : f32[9, 64]
        %y = {y[t<9, j<256] += x[t, k<64] * w[j, k]}(%x, %w) : f32[9, 256]""",
    ),
}


@pytest.mark.parametrize("name", TABULATED)
def test_sums_are_the_same_bit_by_bit(name: str) -> None:
    inputs, lines = TABULATED[name]
    before = parse(graph(inputs, lines))
    after = run(before, (TabulateProducts(),), verify=True)
    assert any(made.endswith("_table") for made in prepared(after))
    assert_equal(before, after, bits=True)


@pytest.mark.parametrize("name", LEFT)
def test_other_products_stay(name: str) -> None:
    inputs, lines = LEFT[name]
    before = parse(graph(inputs, lines))
    assert TabulateProducts()(before) == before


def test_a_weight_that_a_run_updates_is_multiplied_as_before() -> None:
    update = "%v = {y[i<5, j<4] = w[i, j] * 2}(%w) : f32[5, 4]"
    before = parse(graph(INPUTS, ROWS, PRODUCT, update, end="return %y, %v updates %w = 1"))
    assert TabulateProducts()(before) == before


def test_views_looked_through_before_leave_the_same() -> None:
    inputs, lines = TABULATED["rows behind views, the weight too"]
    before = parse(graph(inputs, lines))
    one = run(before, (TabulateProducts(),), verify=True)
    two = run(before, (SimplifyViews(), TabulateProducts()), verify=True)
    assert show(one) == show(two)
