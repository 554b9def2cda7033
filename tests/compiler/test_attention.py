"""Compiled attention: streamed by kernels of ours, as exact as eager's, in linear memory."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few

import tilewright as tw
from tilewright.program import LibraryCall, flat, steps

Tensor = torch.Tensor
attention: Callable[..., Tensor] = F.scaled_dot_product_attention

# Many rows: where scores are large, only a few that are nearly tied have any gradient.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "of rank 3": ((256, 24, 8), None),
    "of rank 3 with a mask": ((256, 24, 8), (24, 24)),
    "with a mask": ((64, 4, 24, 8), (64, 1, 24, 24)),
}


def _gradients(call: object, operands: list[Tensor], dy: Tensor) -> list[Tensor]:
    leaves = [operand.clone().requires_grad_() for operand in operands]
    assert callable(call)
    return list(torch.autograd.grad(call(*leaves), leaves, dy.to(leaves[0].dtype)))


@pytest.mark.parametrize("size", few([1.0, 300.0], 300.0))
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_as_close_to_float64_as_eagers(
    name: str, size: float, fallbacks: list[str]
) -> None:
    shape, mask = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    q, k, v, dy = (torch.randn(shape, generator=generator) for _ in range(4))
    operands = [q * size, k, v]
    if mask is not None:
        operands.append(torch.randn(mask, generator=generator) * size)
    compiled = torch.compile(lambda *given: attention(*given), backend="tilewright")
    found = _gradients(compiled, operands, dy)
    eager = _gradients(attention, operands, dy)
    exact = _gradients(attention, [operand.double() for operand in operands], dy)
    for ours, theirs, true in zip(found, eager, exact, strict=True):
        assert float((ours - true).norm()) <= 2 * float((theirs - true).norm())
    assert fallbacks == []


# Both sides of the size from which a library's kernel is asked where it may be.
LENGTHS = (17, 96)


@pytest.mark.parametrize("causal", few([False, True], True))
@pytest.mark.parametrize("length", few(LENGTHS, 96))
def test_attention_without_a_library_is_eager_s(length: int, causal: bool) -> None:
    q, k, v, dy = (torch.randn(2, 4, length, 64, dtype=torch.float64) for _ in range(4))

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    leaves = [operand.requires_grad_() for operand in (q, k, v)]
    compiled = tw.compile(f, *leaves, options=tw.Options(library=False))
    y = compiled(*leaves)
    torch.testing.assert_close(y, f(*leaves), rtol=1e-11, atol=1e-12)
    found, expected = (torch.autograd.grad(r, leaves, dy) for r in (y, f(*leaves)))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    program = compiled.program
    assert not any(isinstance(step, LibraryCall) for step in flat(program.instructions))


WHOLE = tw.Options(library=False)
# Shapes of q and of k and v, the mask's and its dtype, whether causal.
KINDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], torch.dtype, bool]] = {
    "plain": ((2, 3, 70, 24), (2, 3, 45, 24), (), torch.float64, False),
    "causal, more queries than keys": ((1, 2, 200, 16), (1, 2, 130, 16), (), torch.float64, True),
    "causal, more keys than queries": ((1, 2, 130, 16), (1, 2, 200, 16), (), torch.float64, True),
    "few heads that share": ((2, 6, 66, 20), (2, 2, 70, 20), (), torch.float64, True),
    "one head, long": ((1, 1, 1100, 8), (1, 1, 1100, 8), (), torch.float64, True),
    "mask of keys": ((2, 3, 33, 12), (2, 3, 50, 12), (2, 1, 1, 50), torch.bool, False),
    "mask of all": ((2, 4, 33, 12), (2, 2, 50, 12), (2, 1, 33, 50), torch.bool, False),
    "mask added": ((2, 4, 33, 12), (2, 4, 50, 12), (4, 33, 50), torch.float64, False),
    "of rank 3, large": ((3, 400, 32), (3, 420, 32), (400, 420), torch.float64, False),
    "of rank 2, large": ((700, 32), (420, 32), (), torch.float64, True),
}


def _operands(kind: str) -> tuple[list[Tensor], bool]:
    """Return q, k, v and the mask if any; q, k and v lie as parts of one projection do."""
    wide, narrow, mask, dtype, causal = KINDS[kind]
    torch.manual_seed(0)
    given = [_projected(wide), _projected(narrow), _projected(narrow)]
    if mask and dtype == torch.bool:
        given.append(torch.rand(mask) < 0.5)
    elif mask:
        given.append(torch.randn(mask, dtype=dtype))
    return given, causal


def _projected(shape: tuple[int, ...]) -> Tensor:
    *batch, rows, width = shape
    heads = batch.pop() if batch else 1
    whole = torch.randn(*batch, rows, 3, heads, width, dtype=torch.float64)
    turned = whole.select(-3, 1).transpose(-2, -3)
    return (turned if len(shape) > 2 else turned[0]).detach()


@pytest.mark.parametrize(
    "kind", few(KINDS, "few heads that share", "one head, long", "mask of all")
)
def test_streamed_attention_and_its_gradients_are_eagers(kind: str) -> None:
    given, causal = _operands(kind)

    def f(*given: Tensor) -> Tensor:
        q, k, v, *mask = given
        shared = q.dim() > 3 and q.shape[1] != k.shape[1]
        return attention(q, k, v, *mask, is_causal=causal, enable_gqa=shared)

    for operand in given[:3]:
        operand.requires_grad_()
    compiled = tw.compile(f, *given, options=WHOLE)
    y, expected = compiled(*given), f(*given)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    dy = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad(result, given[:3], dy) for result in (y, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    assert "attention: " in compiled.explain()


def _explained(length: int, options: tw.Options) -> str:
    leaves = [torch.randn(1, 8, length, 64, requires_grad=True) for _ in range(3)]
    compiled = tw.compile(lambda *x: attention(*x, is_causal=True), *leaves, options=options)
    return str(compiled.explain())


@pytest.mark.parametrize("library", [False, True])
def test_attentions_memory_is_linear_in_the_length(library: bool) -> None:
    tensor = 4 * 8 * 64 * 4096
    text = _explained(4096, tw.Options(library=library))
    arenas = [int(size) for size in re.findall(r"arena (\d+) bytes", text)]
    assert len(arenas) == 2
    assert max(arenas) <= 2 * tensor  # the matrix of one head has 16 times as many bytes
    assert "0 library calls" in text


def test_a_mask_that_wants_a_gradient_and_few_queries_are_left_to_loops() -> None:
    q, k, v, mask = (torch.randn(1, 2, 16, n, requires_grad=True) for n in (8, 8, 8, 16))
    compiled = tw.compile(attention, q, k, v, mask, options=WHOLE)
    forward, backward = compiled.explain().split("graph.backward")
    assert "attention: " in forward
    assert "attention: " not in backward
    few_queries = tw.compile(attention, q[:, :, :7].detach(), k, v, options=WHOLE)
    assert "attention: " not in few_queries.explain()


def test_where_a_length_varies_attention_is_as_it_was(fallbacks: list[str]) -> None:
    compiled = torch.compile(
        lambda *given: attention(*given, is_causal=True), backend="tilewright", dynamic=True
    )
    for length in (40, 56, 72):
        given = [torch.randn(2, 2, length, 16) for _ in range(3)]
        torch.testing.assert_close(compiled(*given), attention(*given, is_causal=True))
    assert fallbacks == []


def test_programs_with_attention_give_the_same_bits_for_any_number_of_threads() -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 3, 200, 40, requires_grad=True) for _ in range(3)]
    compiled = tw.compile(lambda *x: attention(*x, is_causal=True), *given, options=WHOLE)
    found = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y = compiled(*given)
            found.append((y.detach(), *torch.autograd.grad(y, given, torch.ones_like(y))))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("shared", [1, 2])
def test_heads_that_are_slices_of_rows_are_put_beside_each_other_without_a_copy(
    shared: int,
) -> None:
    b, t, heads, width = 2, 24, 4, 8

    def f(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = x.split([heads * width, *[heads // shared * width] * 2], dim=2)
        q, k, v = (part.view(b, t, -1, width).transpose(1, 2) for part in (q, k, v))
        y = attention(q, k, v, is_causal=True, enable_gqa=shared > 1)
        return y.transpose(1, 2).reshape(b, t, heads * width) @ w

    columns = (heads + 2 * heads // shared) * width
    given = [
        torch.randn(*shape, dtype=torch.float64) for shape in ((b, t, columns), (heads * width, 16))
    ]
    compiled = tw.compile(f, *given, options=WHOLE)
    torch.testing.assert_close(compiled(*given), f(*given), rtol=1e-12, atol=1e-12)
    assert len(list(steps(compiled.program))) == 2  # attention, and the product
    leaves = [x.clone().requires_grad_() for x in given]
    y, expected = compiled(*leaves), f(*leaves)
    dy = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad(result, leaves, dy) for result in (y, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_a_result_is_read_in_any_order_and_handed_out_in_eager_s() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = x.view(2, 24, 3, 4, 8).unbind(2)
        made = [attention(*(part.transpose(1, 2) for part in (q, n * k, v))) for n in (1, 2, 3)]
        return made[0], made[1].flatten(), made[2].softmax(1) + made[2].flip(2)

    x = torch.randn(2, 24, 96, dtype=torch.float64)
    found, expected = tw.compile(f, x, options=WHOLE)(x), f(x)
    assert [y.stride() for y in found] == [y.stride() for y in expected]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# Shapes of q and of k and v, the mask's and its dtype, whether causal: in bfloat16.
HALVES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], torch.dtype, bool]] = {
    "of 32": ((2, 3, 70, 32), (2, 3, 45, 32), (), torch.bfloat16, False),
    "of 64, causal": ((2, 4, 129, 64), (2, 4, 129, 64), (), torch.bfloat16, True),
    "of 80, heads that share": ((1, 6, 66, 80), (1, 2, 71, 80), (), torch.bfloat16, True),
    "of 96, more keys than queries": ((1, 2, 33, 96), (1, 2, 200, 96), (), torch.bfloat16, True),
    "of 128, long": ((1, 1, 1031, 128), (1, 1, 1031, 128), (), torch.bfloat16, True),
    "of 33, three keys": ((2, 3, 70, 33), (2, 3, 3, 33), (), torch.bfloat16, False),
    "mask of all": ((2, 4, 33, 24), (2, 2, 51, 24), (2, 1, 33, 51), torch.bool, False),
    "mask added": ((2, 4, 33, 24), (2, 4, 51, 24), (2, 4, 33, 51), torch.bfloat16, False),
}


@pytest.mark.parametrize(
    "kind", few(HALVES, "of 64, causal", "of 80, heads that share", "mask added")
)
def test_in_bfloat16_attention_is_streamed_and_as_close_to_float64_as_eagers(kind: str) -> None:
    wide, narrow, mask, dtype, causal = HALVES[kind]
    torch.manual_seed(0)
    given = [_projected(shape).bfloat16() for shape in (wide, narrow, narrow)]
    masks = [torch.rand(mask) < 0.5 if dtype == torch.bool else torch.randn(mask).to(dtype)]
    dy = torch.randn(wide).bfloat16()

    def f(*given: Tensor) -> Tensor:
        q, k, v, *rest = given
        shared = q.shape[1] != k.shape[1]
        return attention(q, k, v, *rest, is_causal=causal, enable_gqa=shared)

    def all_of(call: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in given]
        rest = [m.to(given[0].dtype) if m.is_floating_point() else m for m in masks if mask]
        y = call(*leaves, *rest)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]

    leaves = [x.detach().requires_grad_() for x in given]
    compiled = tw.compile(f, *leaves, *(masks if mask else ()), options=WHOLE)
    assert str(compiled.explain()).count("attention: ") == 2
    found, eager = all_of(compiled, given), all_of(f, given)
    exact = all_of(f, [x.double() for x in given])
    for ours, theirs, true in zip(found, eager, exact, strict=True):
        assert float((ours - true).norm()) <= 1.02 * float((theirs - true).norm())


def test_in_bfloat16_threads_change_no_bit() -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 3, 401, 40).bfloat16().requires_grad_() for _ in range(3)]
    compiled = tw.compile(lambda *x: attention(*x, is_causal=True), *given, options=WHOLE)
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y = compiled(*given)
            found.append((y.detach(), *torch.autograd.grad(y, given, torch.ones_like(y))))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("shape", "mask"), [((4, 40, 16), ()), ((2, 4, 40, 12), ()), ((2, 4, 40, 16), (4, 40, 40))]
)
def test_where_eager_does_not_round_probabilities_neither_do_we(
    shape: tuple[int, ...], mask: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    q, k = (torch.randn(*shape[:-1], 16).bfloat16() for _ in range(2))
    given = [q, k, torch.randn(shape).bfloat16(), *([torch.randn(mask).bfloat16()] if mask else [])]
    compiled = tw.compile(attention, *given, options=WHOLE)
    assert "attention: " not in compiled.explain()
    exact = attention(*(x.double() for x in given))
    ours, theirs = compiled(*given) - exact, attention(*given) - exact
    assert float(ours.norm()) <= 1.02 * float(theirs.norm())
