"""The page of an operator: derived for every row of the table, and beautiful for matmul."""

from collections.abc import Callable

import pytest

from tilewright.base.errors import OptionError
from tilewright.ops import PAGES, TABLE
from tilewright.report import coverage, operator_page, textbook

Golden = Callable[[str, str], None]


def text_of(name: str) -> str:
    return "\n".join(line.plain for line in operator_page(name))


def above_the_kernel(name: str) -> str:
    return text_of(name).split("\nkernel ")[0]


@pytest.mark.parametrize("name", ["matmul", "silu", "conv2d", "embedding", "cumsum", "softmax"])
def test_a_page_says_all_that_follows_from_the_line(name: str, golden: Golden) -> None:
    golden(f"{name}.txt", above_the_kernel(name))


def test_the_kernel_stands_last() -> None:
    kernel = text_of("matmul").split("\nkernel ")[1]
    assert "(char **p, long part, long parts)" in kernel
    assert kernel.rstrip().endswith("}")


@pytest.mark.parametrize("name", TABLE)
def test_every_operator_has_a_page(name: str) -> None:
    operator = TABLE[name]
    text = text_of(name)
    assert text.startswith(f"{name}\n  {operator.doc}\n\n  {operator.line}")
    if operator.samples:
        assert "\nmeaning" in text
        assert "\ncost" in text
        assert "\ngradient" in text
    if operator.kink:
        assert operator.kink in text


def test_the_table_lists_every_operator_once() -> None:
    text = "\n".join(line.plain for line in coverage())
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    assert listed == list(TABLE)
    assert text.endswith(f"{len(TABLE)} operators on {len(PAGES)} pages")


def test_an_unknown_name_is_an_error_that_knows_better_ones(golden: Golden) -> None:
    with pytest.raises(OptionError) as caught:
        operator_page("matmull")
    golden("unknown.txt", str(caught.value))


def test_the_textbook_has_every_line_of_the_table() -> None:
    book = textbook()
    for operator in TABLE.values():
        assert f"### {operator.name}\n\n{operator.doc}\n\n```\n{operator.line[:200]}" in book
    assert "d_a[m, k] += d_y[m, n] * b[k, n]   a matrix product" in book
    assert "d_a = d_y" in book
