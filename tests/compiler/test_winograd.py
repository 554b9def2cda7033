"""Convolutions of 3 x 3 are computed by Winograd's algorithm where that pays, and are right."""

import threading
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
from tilewright.compiler import winograd
from tilewright.compiler.convolutions import foreseen

HOW = "Winograd's F(2x2, 3x3)"


def ran(x: torch.Tensor, w: torch.Tensor, *, library: bool, **settings: int) -> tuple[str, ...]:
    """Compare with float64; return what the forward pass and the gradients were computed by."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, **settings)

    compiled = tw.compile(function, x, w, options=tw.Options(library=library))
    y = compiled(x, w)
    exact = [t.detach().double().requires_grad_() for t in (x, w)]
    tangent = torch.randn(y.shape)
    expected = function(*exact)
    found = torch.autograd.grad(y, (x, w), tangent)
    theirs = torch.autograd.grad(expected, exact, tangent.double())
    for ours, other in zip((y, *found), (expected, *theirs), strict=True):
        most = 2e-6 * other.abs().max().item()
        torch.testing.assert_close(ours.double(), other, rtol=1e-4, atol=most)
    return tuple(compiled.explain().split("graph.backward"))


def operands(
    images: int, inputs: int, outputs: int, height: int, width: int, taps: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(images, inputs, height, width, requires_grad=True)
    return x, torch.randn(outputs, inputs, taps, taps, requires_grad=True)


@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_the_image_its_gradient_and_that_of_the_kernels_are(padding: int, library: bool) -> None:
    x, w = operands(2, 16, 24, 26, 24)
    forward, backward = ran(x, w, library=library, padding=padding)
    assert (forward.count(HOW), backward.count(HOW)) == (1, 2)


def test_so_are_images_whose_channels_lie_together() -> None:
    x, w = operands(2, 20, 16, 20, 22)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    forward, backward = ran(last, w, library=False, padding=1)
    assert HOW in forward
    assert backward.count(HOW) == 2


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("size", [(21, 24), (20, 25), (21, 23)])
def test_so_are_images_of_odd_sizes(size: tuple[int, int], padding: int) -> None:
    x, w = operands(2, 16, 24, *size)
    forward, backward = ran(x, w, library=False, padding=padding)
    assert (forward.count(HOW), backward.count(HOW)) == (1, 1)


def test_images_of_odd_sizes_may_be_small_and_their_channels_lie_together() -> None:
    x, w = operands(4, 20, 24, 7, 7)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    forward, backward = ran(last, w, library=True, padding=1)
    assert (forward.count(HOW), backward.count(HOW)) == (1, 1)


def test_a_gradient_of_many_kernels_and_few_channels_is_that_of_eager() -> None:
    x, w = operands(2, 35, 70, 16, 16)
    _, backward = ran(x, w, library=False, padding=1)
    assert "gradient of kernels by " + HOW in backward


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((2, 16, 16, 20, 24), {"stride": 2, "padding": 1}),
        ((2, 16, 16, 20, 24), {"dilation": 2, "padding": 2}),
        ((2, 16, 8, 20, 24), {"padding": 1}),  # few channels
        ((16, 16, 16, 5, 5), {"padding": 1}),  # squares would cover much more
        ((1, 16, 16, 8, 14), {"padding": 1}),  # few squares
        ((2, 16, 16, 20, 24, 5), {"padding": 2}),
    ],
    ids=str,
)
def test_others_are_not(sizes: tuple[int, ...], settings: dict[str, int]) -> None:
    x, w = operands(*sizes)
    forward, backward = ran(x, w, library=False, **settings)
    assert HOW not in forward + backward


def test_float64_and_groups_are_not() -> None:
    x, w = operands(2, 32, 32, 20, 24)
    forward, _ = ran(x, w.detach()[:, :16].clone().requires_grad_(), library=False, groups=2)
    assert HOW not in forward
    double = [t.detach().double().requires_grad_() for t in (x, w)]
    forward, _ = ran(*double, library=False)
    assert HOW not in forward


@pytest.mark.parametrize("size", [(20, 24), (21, 25)])
def test_infinities_are_those_of_eager(size: tuple[int, int]) -> None:
    x, w = operands(2, 16, 16, *size)
    x.data[1, 4, -1, -1], x.data[0, 6, -1, 2] = -torch.inf, torch.nan
    x.data[0, 3, 7, 9], x.data[1, 2, 0, 0], w.data[4, 5, 1, 1] = torch.inf, torch.nan, -torch.inf
    w.data[7, 2, 0, 0] = torch.inf  # beside the border, whose zeros it is multiplied by
    with torch.no_grad():
        compiled = tw.compile(lambda x, w: F.conv2d(x, w, padding=1), x, w)
        found, expected = compiled(x, w), F.conv2d(x.double(), w.double(), padding=1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_infinities_in_gradients_of_kernels_are_those_of_eager() -> None:
    x, w = operands(2, 16, 16, 26, 24)
    with torch.no_grad():
        x[0, 3, 7, 9], x[1, 2, 0, 0] = torch.inf, torch.nan
    tangent = torch.randn(2, 16, 24, 22)
    tangent[1, 5, 4, 4] = -torch.inf
    compiled = tw.compile(F.conv2d, x, w)
    (found,) = torch.autograd.grad(compiled(x, w), w, tangent)
    assert "gradient of kernels by " + HOW in compiled.explain()
    exact = [t.detach().double().requires_grad_() for t in (x, w)]
    (expected,) = torch.autograd.grad(F.conv2d(*exact), exact[1], tangent.double())
    assert expected.isfinite().any()
    assert not expected.isfinite().all()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-4, equal_nan=True)


def test_what_would_hold_much_memory_transformed_is_left_to_plain_sums() -> None:
    x, w = operands(16, 64, 64, 64, 64)
    compiled = tw.compile(lambda x, w: F.conv2d(x, w, padding=1), x, w)
    compiled(x, w).sum().backward()
    assert "gradient of kernels by " + HOW not in compiled.explain()


def test_what_kernels_take_transformed_is_bounded_unless_they_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(winograd, "MOST_TRANSFORMED", 16 * 18 * 22 - 1)
    model, x = torch.nn.Conv2d(18, 22, 3, padding=1), torch.randn(2, 18, 20, 24)
    for frozen in (False, True):
        with torch.no_grad():
            compiled = tw.compile(model, x, options=tw.Options(library=False, frozen=frozen))
        assert (HOW in compiled.explain()) == frozen


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "passes", "gradients"),
    [
        (64, 64, 2, 0, 0),
        (64, 64, 4, 1, 1),
        (128, 128, 4, 1, 2),
        (512, 512, 4, 1, 2),
        (16, 16, 8, 1, 1),
        (64, 64, 8, 1, 2),
    ],
)
def test_squares_may_be_few_and_gradients_of_kernels_ask_for_channels_too(
    inputs: int, outputs: int, size: int, passes: int, gradients: int
) -> None:
    x, w = operands(8, inputs, outputs, size, size)
    forward, backward = ran(x, w, library=False, padding=1)
    assert (forward.count(HOW), backward.count(HOW)) == (passes, gradients)


def test_an_option_keeps_what_no_tap_reads_out_of_a_sum() -> None:
    x, w = (t.detach() for t in operands(2, 16, 16, 20, 24))
    w[:, :, 1, 1:] = 0
    w[:, :, 2] = 0  # a mask, as of models that draw one row after the other
    later = x.clone()
    later[:, :, 11:] *= 100
    exact = tw.compile(lambda x, w: F.conv2d(x, w, padding=1), x, w,
                       options=tw.Options(library=False, winograd=False))  # fmt: skip
    assert HOW not in exact.explain()
    assert torch.equal(exact(x, w)[:, :, :11], exact(later, w)[:, :, :11])


def test_a_small_stack_is_enough() -> None:
    x, w = (t.detach() for t in operands(2, 16, 16, 20, 24))
    compiled = tw.compile(lambda x, w: F.conv2d(x, w, padding=1), x, w)
    assert HOW in compiled.explain()
    found = []
    before = threading.stack_size(1 << 20)
    try:
        thread = threading.Thread(target=lambda: found.append(compiled(x, w)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert torch.equal(found[0], compiled(x, w))


@pytest.mark.parametrize(("size", "channels"), [(24, 16), (24, 8), (25, 16)])
def test_what_is_foreseen_is_what_a_training_step_calls(size: int, channels: int) -> None:
    """Nothing where channels are too few; no gradient of kernels where sizes are odd."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(16, channels, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten()
    )
    batch = torch.randn(2, 16, size, size), torch.zeros(2, channels * size**2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    options = tw.Options(library=False)
    step = tw.train_step(net, F.mse_loss, optimizer, *batch, options=options)
    called = {one.name for one in step.program.kernels if one.name.startswith("winograd")}
    seen = foreseen(step.built.source, options)
    assert {one.name for one in seen if one.name.startswith("winograd")} == called
    assert len(called) == (0 if channels < 16 else 2 if size == 24 else 1)
    assert {one.name: one.text for one in seen}.items() <= {
        (one.name, one.text) for one in step.program.kernels
    }
    assert foreseen(step.built.source, replace(options, winograd=False)) == ()


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_foreseen_is_what_a_frozen_net_calls(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that may be transformed once, and are too many for each call."""
    monkeypatch.setattr(winograd, "MOST_TRANSFORMED", 16 * 16 * 16 - 1)
    net = torch.nn.Conv2d(16, 16, 3, padding=1).eval()
    options = tw.Options(library=False, frozen=frozen)
    with torch.no_grad():
        compiled = tw.compile(net, torch.randn(1, 16, 14, 14), options=options)
    called = [one.name for one in compiled.program.kernels if one.name.startswith("winograd")]
    assert len(called) == frozen
    seen = [one.name for one in foreseen(compiled.captured.graph, options)]
    assert [name for name in seen if name.startswith("winograd")] == called
    assert {*seen} <= {one.name for one in compiled.program.kernels}
