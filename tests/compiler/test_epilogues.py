"""A product's kernel computes what follows it: the bits of two kernels, and what torch says."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.compiler.threads import assert_threads_change_no_bit
from tests.kernels.harness import runnable
from torch import Tensor

import tilewright as tw
from tilewright.program import Launch, steps
from tilewright.runtime import segments

OURS = tw.Options(library=False)
IN_CACHE = "of blocks in cache"


def given(*shapes: tuple[int, ...]) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=source) for shape in shapes]


def pair(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return y, F.relu(y)


CASES: dict[str, tuple[Callable[..., object], list[Tensor]]] = {
    "bias": (F.linear, given((70, 40), (90, 40), (90,))),
    "relu": (lambda x, w, b: F.relu(F.linear(x, w, b)), given((70, 40), (90, 40), (90,))),
    "tokens": (lambda x, w, b: F.relu(F.linear(x, w, b)), given((3, 50, 40), (90, 40), (90,))),
    "a column": (lambda x, w, r: r * (x @ w), given((70, 300), (300, 129), (70, 1))),
    "two results": (pair, given((70, 40), (90, 40), (90,))),
    "many terms": (lambda x, w: F.relu(x @ w), given((30, 900), (900, 33))),
    "few rows": (lambda x, w, b: F.relu(F.linear(x, w, b)), given((9, 300), (170, 300), (170,))),
    "wide": (lambda x, w: 0.5 * (x @ w) + 1, given((9, 20), (20, 1700))),
    "another type": (lambda x, w: (x @ w).double(), given((70, 600), (600, 33))),
    "batches": (lambda x, y, b: torch.bmm(x, y) + b, given((4, 30, 20), (4, 20, 50), (50,))),
    "scaled": (lambda x, y: F.relu(0.3 * torch.bmm(x, y) - 1), given((4, 30, 20), (4, 20, 50))),
    "convolution": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, stride=2)),
        given((2, 5, 13, 13), (40, 5, 3, 3), (40,)),
    ),
}


def tensors(result: object) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]  # type: ignore[list-item]


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_computes_a_product_and_what_follows(name: str) -> None:
    function, operands = CASES[name]
    compiled = tw.compile(function, *operands, options=OURS)
    assert IN_CACHE in compiled.explain(), compiled.explain()
    made = tensors(compiled(*operands))
    apart = tw.compile(function, *operands, options=tw.Options(library=False, fuse=False))
    assert IN_CACHE not in apart.explain()
    exact = tensors(function(*(x.double() for x in operands)))
    for one, two, right in zip(made, tensors(apart(*operands)), exact, strict=True):
        assert one.dtype == two.dtype
        assert torch.equal(one, two)
        torch.testing.assert_close(one.double(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["tokens", "many terms", "few rows", "batches"])
def test_the_number_of_threads_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MUCH", 1)
    function, operands = CASES[name]
    compiled = tw.compile(function, *operands, options=OURS)
    assert_threads_change_no_bit(lambda: tensors(compiled(*operands)))


def test_a_product_with_few_terms_needs_no_memory() -> None:
    function, operands = CASES["another type"]
    x, w = operands[0][:, :200], operands[1][:200]
    assert "arena 0 bytes" in tw.compile(function, x, w, options=OURS).explain()
    assert "arena 9,2" in tw.compile(function, *operands, options=OURS).explain()


def test_what_reads_in_another_direction_is_a_kernel_of_its_own() -> None:
    x, w, r = given((2, 64, 32), (32, 48), (48, 64))
    compiled = tw.compile(lambda x, w, r: x @ w + r.t(), x, w, r, options=OURS)
    assert IN_CACHE not in compiled.explain()
    expected = x.double() @ w.double() + r.t().double()
    torch.testing.assert_close(compiled(x, w, r).double(), expected, rtol=1e-4, atol=1e-4)


def test_products_that_the_library_computes_are_followed_by_a_kernel() -> None:
    # Too much for one thread, and one block for ours.
    x, w = given((16, 90_000), (90_000, 16))
    options = tw.Options(tuned=False, target=runnable("x86-64-v3"))
    compiled = tw.compile(lambda x, w: F.relu(x @ w), x, w, options=options)
    assert "aten.mm.out" in compiled.explain()
    assert IN_CACHE not in compiled.explain()
    torch.testing.assert_close(compiled(x, w), F.relu(x @ w))


def test_gradients_are_those_of_torch() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(40, 90), torch.nn.ReLU(), torch.nn.Linear(90, 33), torch.nn.ReLU()
    )
    (x,) = given((70, 40))
    compiled = tw.compile(model, x, options=OURS)
    compiled(x).sum().backward()
    made = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model.double()(x.double()).sum().backward()
    expected = [p.grad for p in model.parameters()]
    assert len(made) == len(expected) == 4
    for one, right in zip(made, expected, strict=True):
        assert right is not None
        torch.testing.assert_close(one.double(), right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_relu_is_differentiated_by_its_result_as_eager_does_it(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    kinds = [math.nan, -0.0, 0.0, math.inf, -math.inf, tiny, -tiny, 1.5, -1.5]
    values = torch.tensor(kinds, dtype=dtype)
    ours, eager = (values.clone().requires_grad_() for _ in range(2))
    tangent = torch.arange(1, len(kinds) + 1).to(dtype)
    tw.compile(torch.relu, ours)(ours).backward(tangent)
    torch.relu(eager).backward(tangent)
    torch.testing.assert_close(ours.grad, eager.grad, rtol=0, atol=0, equal_nan=True)


def test_a_relu_between_products_is_computed_with_the_first_of_them() -> None:
    def net(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return torch.relu(x @ w) @ v

    single = [tensor.requires_grad_() for tensor in given((32, 16), (16, 32), (32, 8))]
    double = [tensor.detach().double().requires_grad_() for tensor in single]
    compiled = tw.compile(net, *single, options=OURS)
    compiled(*single).sum().backward()
    net(*double).sum().backward()
    for ours, exact in zip(single, double, strict=True):
        assert ours.grad is not None
        assert exact.grad is not None
        torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)
    ((forward, _),) = compiled._runs.pairs.values()
    launches = [item for item in steps(forward.program) if isinstance(item, Launch)]
    assert len(launches) == 2, "what relu was given is kept nowhere"
