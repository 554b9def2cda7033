"""The page of an operator: derived for every row of the table, and beautiful for matmul."""

from collections.abc import Callable

import pytest
import torch
from tests.sweep import few

from tilewright.base.errors import OptionError
from tilewright.capture.replay import uniform
from tilewright.graph.ir import Value
from tilewright.ops import PAGES, TABLE
from tilewright.report import coverage, operator_page, textbook
from tilewright.report.instance import instance_of

Golden = Callable[[str, str], None]


def text_of(name: str) -> str:
    return "\n".join(line.plain for line in operator_page(name))


def above_the_kernel(name: str) -> str:
    return text_of(name).split("\nkernel ")[0]


SHOWN = [
    "matmul", "silu", "conv2d", "embedding", "cumsum", "softmax", "attention", "all_reduce",
]  # fmt: skip


# The first operators of each page of the table.
OFTEN = [row.name for _, page in PAGES for row in page[:2]]
EAGER = [name for name in OFTEN if TABLE[name].eager]


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_says_all_that_follows_from_the_line(name: str, golden: Golden) -> None:
    golden(f"{name}.txt", above_the_kernel(name))


def test_the_kernel_stands_last() -> None:
    kernel = text_of("matmul").split("\nkernel ")[1]
    assert "(char **p, long part, long end, long parts)" in kernel
    assert kernel.rstrip().endswith("}")


@pytest.mark.parametrize("name", few(TABLE, *OFTEN))
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


@pytest.mark.parametrize("name", few((name for name, row in TABLE.items() if row.eager), *EAGER))
def test_the_line_of_torch_runs_as_it_stands(name: str) -> None:
    """What it computes is compared in tests/conformance; here, that a reader can paste it."""
    instance = instance_of(name)
    assert instance is not None, f"{name} has an example"
    lines = text_of(name).splitlines()
    text = lines[next(at for at, line in enumerate(lines) if line.startswith("torch ")) + 1]
    operands = {
        value.name: torch.ones(sizes(value), dtype=getattr(torch, value.type.dtype.torch_name))
        for value in instance.node.inputs
    }
    made = eval(text.strip(), {"torch": torch, "uniform": uniform, **operands})
    results = (made,) if isinstance(made, torch.Tensor) else made
    for value, result in zip(instance.node.outputs, results, strict=False):
        assert tuple(result.shape) == sizes(value)
        assert str(result.dtype) == f"torch.{value.type.dtype.torch_name}"


def sizes(value: Value) -> tuple[int, ...]:
    return tuple(size for size in value.type.shape if isinstance(size, int))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("add", "  d_a = d_y"),
        ("clone", "  d_x = d_y"),
        ("sgd", "  d_p = d_y"),
        ("floor_divide", "  d_b = d_a"),
        ("rms_norm", "  d_x[i0, i1, i2] = d_x_2[i0, i1, i2] + d_x_1[i0, i1, i2]"),
        ("softmax", "  from above: top, powers, total, y"),
    ],
)
def test_every_gradient_is_named_once(name: str, line: str) -> None:
    assert line in text_of(name).splitlines()


@pytest.mark.parametrize("name", ["clone", "arange"])
def test_what_costs_no_kernel_says_so(name: str) -> None:
    assert "kernel   none: the result is an operand, or a constant" in text_of(name)


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
