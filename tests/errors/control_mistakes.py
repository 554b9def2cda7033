"""Functions with one mistake each in their control flow: what the golden messages point at."""

from typing import Any

import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

Tensor = torch.Tensor


def branches_of_other_shapes(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x[:1].cos(), (x,))


def branches_of_other_ranks(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x[0].cos(), (x,))


def branches_of_other_dtypes(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.double(), (x,))


def branches_of_other_counts(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x.sin(), x.cos()), lambda x: x.exp(), (x,))


def branches_of_numbers(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x.sin(), 1), lambda x: (x.cos(), 2), (x,))


def branch_returns_its_operand(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x, lambda x: x.cos(), (x,))


def branch_writes(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.add_(1).sin(), lambda x: x.cos(), (x,))


def branch_writes_without_gradients(x: Tensor) -> Any:
    with torch.no_grad():
        return torch.cond(x.sum() > 0, lambda x: x.add_(1).sin(), lambda x: x.cos(), (x * 1,))


def scan_carry_grows(x: Tensor) -> Any:
    return scan(lambda c, row: (torch.cat([c, c]), row.sin()), x[0].clone(), x)


def scan_carry_changes_dtype(x: Tensor) -> Any:
    return scan(lambda c, row: ((c + row).double(), row.sin()), x[0].clone(), x)


def scan_carry_changes_layout(x: Tensor) -> Any:
    return scan(lambda c, row: (c.contiguous().sin(), row.sin()), x.t().clone(), x)


def scan_with_more_carries(x: Tensor) -> Any:
    return scan(lambda c, row: ((c.sin(), c + 1), row.sin()), x[0].clone(), x)


def while_carry_changes_dtype(x: Tensor) -> Any:
    return while_loop(lambda c: c.sum() < 9, lambda c: (c.double(),), (x,))


def while_carry_is_a_number(x: Tensor) -> Any:
    return while_loop(lambda _, n: n < 9, lambda c, n: (c + 1, n + 1), (x, 0))


def while_test_of_many(x: Tensor) -> Any:
    return while_loop(lambda c: c < 9, lambda c: (c + 1,), (x,))


def while_in_reverse(x: Tensor) -> Any:
    return while_loop(lambda c: c.sum() < 99, lambda c: (c * 2,), (x,))


def branch_differentiated_inside(x: Tensor) -> Any:
    def chosen(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin().sum(), lambda x: x.cos().sum(), (x,))

    return torch.func.grad(chosen)(x)


def scan_of_an_integer_in_reverse(x: Tensor) -> Any:
    zero = torch.zeros((), dtype=torch.int64)
    return scan(lambda n, row: (n + 1, row * n), zero, x)[1].sum()


def scan_in_a_scan_in_reverse(x: Tensor) -> Any:
    def inner(c: Tensor, y: Tensor) -> Any:
        d = torch.tanh(c + y)
        return d, d * 2

    def step(c: Tensor, row: Tensor) -> Any:
        return scan(inner, c, row.expand(3, -1))

    return scan(step, torch.ones(4), x)[1].sum()
