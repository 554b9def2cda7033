"""Products in bfloat16 are ours: terms are read in pairs, summed in float32 and rounded once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compiler.threads import assert_threads_change_no_bit
from tests.kernels.harness import runnable
from torch import Tensor, nn

import tilewright as tw
from tilewright.program import LibraryCall, flat
from tilewright.runtime import segments

OWN = tw.Options(library=False)
SHAPES = [(3, 5, 7), (17, 64, 65), (20, 2049, 33), (1, 2049, 33), (1, 64, 65), (70, 130, 1)]


def calls(compiled: Any) -> int:
    """Return how many library calls a compiled function makes, those of a loop counted once."""
    items = flat(compiled.program.instructions)
    return sum(isinstance(item, LibraryCall) for item in items)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def is_rounded_once(found: Tensor, a: Tensor, b: Tensor) -> bool:
    """Say whether a product is its exact value, rounded, but for what sums in float32 lose."""
    exact, sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    half = torch.ldexp(torch.ones_like(exact), exact.frexp().exponent - 9)  # of the last place
    return bool(((found.double() - exact).abs() <= half + sizes * 2.0**-18).all())


ORDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "NN": lambda a, b: a @ b,
    "NT": lambda a, b: a @ b.mT.contiguous().mT,
    "TN": lambda a, b: a.mT.contiguous().mT @ b,
    "every other": lambda a, b: a.repeat_interleave(2, -1)[..., 1::2] @ b,
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_product_is_rounded_once_however_operands_lie(order: str) -> None:
    for rows, terms, columns in SHAPES:
        a, b = numbers(rows, terms), numbers(terms, columns, seed=1)
        compiled = tw.compile(ORDERS[order], a, b, options=OWN)
        found = compiled(a, b)
        assert found.dtype == torch.bfloat16
        assert is_rounded_once(found, a, b), (rows, terms, columns)
    a, b = numbers(3, 9, 21), numbers(3, 21, 18, seed=1)
    assert is_rounded_once(tw.compile(ORDERS[order], a, b, options=OWN)(a, b), a, b)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3", ""])
def test_a_vector_goes_by_rows_of_a_matrix_in_pairs(target: str, *, frozen: bool) -> None:
    """Loops compute what lies otherwise, and all of it where vectors are short."""
    options = tw.Options(library=False, target=runnable(target), frozen=frozen)
    for terms, columns in ((300, 100), (1025, 33)):
        layer = nn.Linear(terms, columns, dtype=torch.bfloat16)
        x, weight, bias = numbers(1, terms), layer.weight.detach(), layer.bias.detach()
        with torch.no_grad():
            for lying in (weight, weight.T.contiguous().T):
                layer.weight.set_(lying)
                compiled = tw.compile(layer, x, options=options)
                along = lying is weight and runnable(target) != "x86-64"
                assert ("contraction" in compiled.explain()) == along
                assert is_sum_rounded_once(compiled(x), x, weight, bias)


def test_a_frozen_matrix_is_copied_for_many_rows_alone() -> None:
    options = tw.Options(library=False, target=runnable("x86-64-v3"), frozen=True)
    layer = nn.Linear(1024, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        for rows, copied in ((1, False), (4, False), (16, False), (32, True)):
            compiled = tw.compile(layer, numbers(rows, 1024), options=options)
            assert ("values kept" in compiled.explain()) == copied


@pytest.mark.parametrize("turned", [False, True])
def test_a_matrix_goes_by_a_vector_as_it_lies_behind_views(*, turned: bool) -> None:
    vector, matrix = numbers(200), numbers(200, 90, seed=1) if turned else numbers(90, 200, seed=1)

    def by(matrix: Tensor, vector: Tensor) -> Tensor:
        return (matrix.T if turned else matrix) @ vector

    compiled = tw.compile(by, matrix, vector, options=OWN)
    assert ("contraction" in compiled.explain()) == (not turned)
    found, rows = compiled(matrix, vector), matrix.T if turned else matrix
    assert is_rounded_once(found[:, None], rows, vector[:, None])


def test_what_follows_a_product_reads_it_rounded() -> None:
    a, b, bias = numbers(24, 64), numbers(64, 48, seed=1), numbers(48, seed=2)

    def layer(a: Tensor, b: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        product = a @ b
        return product, torch.relu(product + bias)

    product, made = tw.compile(layer, a, b, bias, options=OWN)(a, b, bias)
    assert is_rounded_once(product, a, b)
    assert torch.equal(made, torch.relu(product + bias))
    alone = tw.compile(lambda a, b, bias: layer(a, b, bias)[1], a, b, bias, options=OWN)
    assert torch.equal(alone(a, b, bias), made)


def linear(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return nn.functional.linear(x, w, bias)


def added(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, w.mT)


def batched(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias, x[None], w.mT[None])[0]


def is_sum_rounded_once(found: Tensor, x: Tensor, w: Tensor, bias: Tensor) -> bool:
    """Say whether a linear is its exact value, rounded, but for what sums in float32 lose."""
    bits = {torch.bfloat16: 9, torch.float16: 12}[found.dtype]
    exact = x.double() @ w.double().mT + bias.double()
    sizes = x.double().abs() @ w.double().abs().mT + bias.double().abs()
    half = torch.ldexp(torch.ones_like(exact), exact.frexp().exponent - bits)
    return bool(((found.double() - exact).abs() <= half + sizes * 2.0**-18).all())


@pytest.mark.parametrize("options", [OWN, tw.Options()], ids=["own", "library"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [linear, added, batched])
def test_a_bias_joins_the_sum_before_it_is_rounded(
    function: Callable[..., Tensor], dtype: torch.dtype, options: tw.Options
) -> None:
    for at, (rows, terms, columns) in enumerate(((17, 64, 65), (1, 40, 24), (20, 1, 33))):
        x, w = numbers(rows, terms), numbers(columns, terms, seed=1)
        addends = (columns,), (rows, columns), (rows, 1)
        addend = numbers(*addends[0 if function is linear else at], seed=2)
        given = tuple(tensor.to(dtype) for tensor in (x, w, addend))
        found = tw.compile(function, *given, options=options)(*given)
        assert is_sum_rounded_once(found, *given), (rows, terms, columns)

        def relu(*given: Tensor) -> Tensor:
            return torch.relu(function(*given))

        follows = tw.compile(relu, *given, options=options)(*given)
        assert torch.equal(follows, torch.relu(found))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("alpha", "beta"), [(0.7, 0.3), (2.5, 0), (1, 0.5), (-1.3, 1)])
def test_a_sum_is_scaled_before_it_is_rounded(
    alpha: float, beta: float, dtype: torch.dtype
) -> None:

    def scaled(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(bias, a, b, alpha=alpha, beta=beta)

    def in_batches(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.baddbmm(bias, a[None], b[None], alpha=alpha, beta=beta)[0]

    given = tuple(
        numbers(*shape, seed=k).to(dtype) for k, shape in enumerate(((65,), (17, 64), (64, 65)))
    )
    bias, a, b = (tensor.double() for tensor in given)
    for function in (scaled, in_batches):
        found = tw.compile(function, *given)(*given)
        assert found.dtype == dtype
        assert is_sum_rounded_once(found, alpha * a, b.mT, beta * bias)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_a_bias_joins_the_sum_for_any_processor(target: str) -> None:
    given = numbers(30, 500), numbers(70, 500, seed=1), numbers(70, seed=2)
    options = tw.Options(library=False, target=runnable(target))
    found = tw.compile(linear, *given, options=options)(*given)
    assert is_sum_rounded_once(found, *given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_linear_and_its_derivatives_are_as_exact_as_eager_s(dtype: torch.dtype) -> None:
    x, w, bias = (
        numbers(*shape, seed=k).to(dtype) for k, shape in enumerate(((9, 5, 40), (24, 40), (24,)))
    )
    given = tuple(tensor.requires_grad_() for tensor in (x, w, bias))
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in given)
    dy = numbers(9, 5, 24, seed=3).to(dtype)
    ours = torch.autograd.grad(tw.compile(linear, *given)(*given), given, dy)
    theirs = torch.autograd.grad(linear(*given), given, dy)
    exact = torch.autograd.grad(linear(*wide), wide, dy.double())
    for one, other, truth in zip(ours, theirs, exact, strict=True):
        assert (one.double() - truth).norm() <= 1.02 * (other.double() - truth).norm()
    plain = tuple(tensor.detach() for tensor in given)
    _, changed = tw.jvp(linear, plain, tuple(map(torch.ones_like, plain)))
    truth = linear(torch.ones_like(wide[0]), wide[1], torch.ones_like(wide[2]))
    truth = truth + nn.functional.linear(wide[0], torch.ones_like(wide[1]))
    torch.testing.assert_close(changed.double(), truth.detach(), rtol=2e-2, atol=4e-2)
    rows = tw.vmap(linear, in_dims=(0, None, None))(*plain)
    assert torch.equal(rows, tw.compile(linear, *plain)(*plain))


def test_small_products_are_ours_and_equal_eager_s() -> None:
    a, b = numbers(32, 64), numbers(64, 128, seed=1)
    compiled = tw.compile(torch.matmul, a, b)
    assert calls(compiled) == 0
    torch.testing.assert_close(compiled(a, b), a @ b)


def test_an_odd_last_term_meets_nothing_that_lies_behind_it() -> None:
    wide, tall = numbers(20, 40), numbers(40, 36, seed=1)
    wide[:, 33], tall[33] = torch.nan, torch.inf

    def part(wide: Tensor, tall: Tensor) -> Tensor:
        return wide[:, :33] @ tall[:33]

    found = tw.compile(part, wide, tall, options=OWN)(wide, tall)
    assert is_rounded_once(found, wide[:, :33], tall[:33])


def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    a, b = numbers(20, 34), numbers(34, 18, seed=1)
    a[3, 5], b[7, 2] = torch.nan, torch.inf
    found = tw.compile(torch.matmul, a, b, options=OWN)(a, b)
    expected = a.double() @ b.double()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_normal_numbers_have_the_bits_of_any_processor(target: str) -> None:
    a, b = numbers(30, 500), numbers(500, 70, seed=1)
    options = tw.Options(library=False, target=runnable(target))
    found = tw.compile(torch.matmul, a, b, options=options)(a, b)
    assert torch.equal(found, tw.compile(torch.matmul, a, b, options=OWN)(a, b))


@pytest.mark.parametrize("target", ["x86-64-v3", ""])
def test_numbers_below_normal_ones_are_exact_or_0(target: str) -> None:
    """As decision 0035 says: the instruction takes them for 0, and so do the library's products."""
    options = tw.Options(library=False, target=runnable(target))
    for size, other in ((-130, 20), (-133, 0), (-70, -60), (-126, -7)):
        a = torch.full((20, 34), 2.0**size).bfloat16()
        b = torch.full((34, 40), 2.0**other).bfloat16()
        found = tw.compile(torch.matmul, a, b, options=options)(a, b)
        assert torch.equal(found, torch.zeros_like(found)) or is_rounded_once(found, a, b)
        a[:, 5], b[5] = 1.0, 3.0
        found = tw.compile(torch.matmul, a, b, options=options)(a, b)
        assert is_rounded_once(found, a, b)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MUCH", 1)
    for rows in (9, 300):
        a, b = numbers(rows, 1300), numbers(1300, 200, seed=1)
        compiled = tw.compile(torch.matmul, a, b, options=OWN)
        assert segments.is_wide(compiled.program)
        assert_threads_change_no_bit(lambda: [compiled(a, b)])  # noqa: B023


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_calls_no_library_in_its_steps(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    net = kind(32, 32).bfloat16()
    x = numbers(9, 4, 32).requires_grad_()
    compiled = tw.compile(net, x)
    (found, _), (expected, _) = compiled(x), net(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    weights = torch.randn_like(expected)
    wrt = (x, *net.parameters())
    ours = torch.autograd.grad(found, wrt, weights)
    exact = kind(32, 32).double()
    exact.load_state_dict({name: value.double() for name, value in net.state_dict().items()})
    x64 = x.detach().double().requires_grad_()
    theirs = torch.autograd.grad(exact(x64)[0], (x64, *exact.parameters()), weights.double())
    for one, other in zip(ours, theirs, strict=True):
        assert (one.double() - other).norm() <= 0.02 * other.norm()
    with torch.no_grad():
        assert calls(tw.compile(net, x.detach())) == 0
