"""A pair of Programs stands in autograd as the function it computes."""

import pytest
import torch

from tilewright.base.errors import CaptureError
from tilewright.program import Buffer, Input, Launch, LibraryCall, Program, Segment, whole
from tilewright.runtime import Executable
from tilewright.runtime.autograd import Pairing, Run, differentiable

from .programs import f32, i64, kernel

N = 6

FORWARD = kernel(
    "square_scale",
    "  const float *x = (const float *)p[0], *w = (const float *)p[1];\n"
    "  float *y = (float *)p[2], *z = (float *)p[3], *t = (float *)p[4];\n"
    "  long long *sign = (long long *)p[5];\n"
    "  for (int i = 0; i < 6; i++) {\n"
    "    t[i] = w[i] * x[i];\n    y[i] = t[i] * x[i];\n    z[i] = 3 * x[i];\n"
    "    sign[i] = x[i] > 0;\n  }\n  return 0;",
)
BACKWARD = kernel(
    "square_scale_vjp",
    "  const float *x = (const float *)p[0], *w = (const float *)p[1], *t = (const float *)p[2];\n"
    "  const float *dy = (const float *)p[3], *dz = (const float *)p[4];\n"
    "  float *dw = (float *)p[5], *dx = (float *)p[6];\n"
    "  for (int i = 0; i < 6; i++) {\n"
    "    dw[i] = dy[i] * x[i] * x[i];\n    dx[i] = dy[i] * 2 * t[i] + 3 * dz[i];\n  }\n"
    "  return 0;",
)


def square_scale() -> Run:
    """y = w x^2, z = 3 x, sign = x > 0; t = w x is saved."""
    x, w = Buffer("x", f32(N), "input"), Buffer("w", f32(N), "input")
    y, z, t = (Buffer(name, f32(N), "output") for name in "yzt")
    sign = Buffer("sign", i64(N), "output")
    outputs = tuple(whole(b) for b in (y, z, t, sign))
    launch = Launch(FORWARD.name, (whole(x), whole(w)), outputs)
    forward = Program(
        "square_scale", (x, w, y, z, t, sign), (FORWARD,), (Segment((launch,)),),
        (Input("x"), Input("w")), (whole(y), whole(z), whole(sign), whole(t)),
    )  # fmt: skip
    taken = [Buffer(name, f32(N), "input") for name in ("x", "w", "t", "dy", "dz")]
    made = [Buffer(name, f32(N), "output") for name in ("dw", "dx")]
    launch = Launch(BACKWARD.name, tuple(map(whole, taken)), tuple(map(whole, made)))
    backward = Program(
        "square_scale_vjp", (*taken, *made), (BACKWARD,), (Segment((launch,)),),
        tuple(Input(b.name) for b in taken), tuple(map(whole, made)),
    )  # fmt: skip
    depends = (frozenset({0}), frozenset({0, 1}))
    pairing = Pairing(3, saved=(0, 1, 5), tangents=(0, 1), gradients=(1, 0), depends=depends)
    return differentiable(Executable(forward), Executable(backward), pairing)


def test_gradients_are_those_of_the_formula() -> None:
    run = square_scale()
    x = torch.randn(N, requires_grad=True)
    w = torch.nn.Parameter(torch.randn(N))
    y, z, sign = run([x, w])
    assert y.requires_grad
    assert z.requires_grad
    assert not sign.requires_grad
    assert sign.dtype == torch.int64
    dy, dz = torch.randn(N), torch.randn(N)
    found = torch.autograd.grad([y, z], [x, w], [dy, dz])
    a, b = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    expected = torch.autograd.grad([b * a * a, 3 * a], [a, b], [dy, dz])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_not_asked_for_are_not_given() -> None:
    run = square_scale()
    x, w = torch.randn(N, requires_grad=True), torch.randn(N)
    y, _, _ = run([x, w])
    y.sum().backward()
    assert x.grad is not None
    assert w.grad is None
    torch.testing.assert_close(x.grad, 2 * w * x.detach())


def test_absent_tangents_count_as_zero_and_gradients_of_them_alone_are_absent() -> None:
    run = square_scale()
    x, w = torch.randn(N, requires_grad=True), torch.randn(N, requires_grad=True)
    _, z, _ = run([x, w])
    z.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3] * N
    assert w.grad is None


@pytest.mark.parametrize(
    "tangent",
    [
        torch.ones(1).expand(N),
        torch.randn(2 * N)[::2],
        torch.randn(N, 2).t()[0],
        torch._neg_view(torch.randn(N)),
    ],
    ids=["expanded", "strided", "transposed", "negative"],
)
def test_tangents_may_have_any_layout(tangent: torch.Tensor) -> None:
    run = square_scale()
    x, w = torch.randn(N, requires_grad=True), torch.randn(N, requires_grad=True)
    y, _, _ = run([x, w])
    (found,) = torch.autograd.grad(y, [w], tangent)
    torch.testing.assert_close(found, tangent * x.detach() ** 2)


def test_the_backward_may_run_twice_and_gradients_accumulate() -> None:
    run = square_scale()
    x, w = torch.randn(N, requires_grad=True), torch.randn(N, requires_grad=True)
    loss = run([x, w])[0].sum()
    loss.backward(retain_graph=True)
    first = x.grad.clone()  # type: ignore[union-attr]
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_second_derivative_is_refused_and_says_so() -> None:
    run = square_scale()
    x, w = torch.randn(N, requires_grad=True), torch.randn(N, requires_grad=True)
    (first,) = torch.autograd.grad(run([x, w])[0].sum(), [x], create_graph=True)
    torch.testing.assert_close(first.detach(), 2 * w.detach() * x.detach())
    with pytest.raises(CaptureError) as raised:
        first.sum().backward()
    assert str(raised.value) == (
        "the gradient of a compiled function cannot be differentiated again\n"
        "  expected  first derivatives\n"
        "  found     a derivative of the gradient of 'square_scale'\n"
        "  mend      take second derivatives of the function that is not compiled"
    )


def test_inputs_changed_before_the_backward_are_noticed() -> None:
    run = square_scale()
    x, w = torch.randn(N, requires_grad=True), torch.randn(N, requires_grad=True)
    y, _, _ = run([x, w])
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_may_be_changed_in_place() -> None:
    run = square_scale()
    x, w = torch.randn(N, requires_grad=True), torch.randn(N, requires_grad=True)
    y, _, _ = run([x, w])
    y.mul_(2)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 4 * (w * x).detach())


def test_without_gradients_wanted_nothing_is_recorded() -> None:
    run = square_scale()
    x, w = torch.randn(N, requires_grad=True), torch.randn(N, requires_grad=True)
    with torch.no_grad():
        assert not run([x, w])[0].requires_grad
    assert not run([x.detach(), w.detach()])[0].requires_grad


def test_a_result_that_is_an_input_or_twice_the_same_is_a_tensor_of_its_own() -> None:
    x = Buffer("x", f32(3), "input")
    y = Buffer("y", f32(3), "library")
    call = LibraryCall("aten.exp.default", (("%", 0),), (), (whole(x),), (whole(y),))
    forward = Program("exp", (x, y), (), (call,), (Input("x"),), (whole(x), whole(y), whole(y)))
    dx = Buffer("dx", f32(3), "library")
    t1, t2, t3 = (Buffer(f"t{i}", f32(3), "input") for i in range(3))
    s = Buffer("s", f32(3), "input")
    u = Buffer("u", f32(3), "library")
    v = Buffer("v", f32(3), "library")
    calls = (
        LibraryCall(
            "aten.add.Tensor", (("%", 0), ("%", 1)), (), (whole(t2), whole(t3)), (whole(u),)
        ),
        LibraryCall("aten.mul.Tensor", (("%", 0), ("%", 1)), (), (whole(u), whole(s)), (whole(v),)),
        LibraryCall(
            "aten.add.Tensor", (("%", 0), ("%", 1)), (), (whole(v), whole(t1)), (whole(dx),)
        ),
    )
    backward = Program(
        "exp_vjp", (s, t1, t2, t3, u, v, dx), (), calls,
        tuple(Input(b.name) for b in (s, t1, t2, t3)), (whole(dx),),
    )  # fmt: skip
    pairing = Pairing(3, (2,), (0, 1, 2), gradients=(0,), depends=(frozenset({0, 1, 2}),))
    run = differentiable(Executable(forward), Executable(backward), pairing)
    value = torch.randn(3, requires_grad=True)
    same, once, twice = run([value])
    assert same.data_ptr() != value.data_ptr()
    assert once.data_ptr() != twice.data_ptr()
    (2 * same + 3 * once + 4 * twice).sum().backward()
    torch.testing.assert_close(value.grad, 2 + 7 * value.detach().exp())


def test_an_updated_input_is_saved_as_it_was() -> None:
    """y = x * state, then state += 1: the gradient of x is the old state."""
    x, state, y = (
        Buffer(n, f32(N), k) for n, k in (("x", "input"), ("s", "input"), ("y", "output"))
    )
    step = kernel(
        "step",
        "  const float *x = (const float *)p[0];\n  float *s = (float *)p[2], *y = (float *)p[3];\n"
        "  for (int i = 0; i < 6; i++) { y[i] = x[i] * s[i]; s[i] += 1; }\n  return 0;",
    )
    launch = Launch("step", (whole(x), whole(state)), (whole(state), whole(y)))
    forward = Program(
        "step", (x, state, y), (step,), (Segment((launch,)),), (Input("x"), Input("s")),
        (whole(y),), ("s",),
    )  # fmt: skip
    dy, dx = Buffer("dy", f32(N), "input"), Buffer("dx", f32(N), "library")
    product = LibraryCall(
        "aten.mul.Tensor", (("%", 0), ("%", 1)), (), (whole(state), whole(dy)), (whole(dx),)
    )
    backward = Program(
        "step_vjp", (state, dy, dx), (), (product,), (Input("s"), Input("dy")), (whole(dx),)
    )
    pairing = Pairing(1, saved=(1,), tangents=(0,), gradients=(0,), depends=(frozenset({0}),))
    run = differentiable(Executable(forward), Executable(backward), pairing)
    value, running = torch.randn(N, requires_grad=True), torch.full((N,), 5.0)
    (first,) = run([value, running])
    (second,) = run([value, running])
    assert running.tolist() == [7] * N
    (first.sum() + 10 * second.sum()).backward()
    assert value.grad is not None
    assert value.grad.tolist() == [65] * N


def test_pairs_that_do_not_fit_are_our_own_mistake() -> None:
    x = Buffer("x", f32(3), "input")
    same = Executable(Program("same", (x,), (), (), (Input("x"),), (whole(x),)))
    on = (frozenset({0}),)
    for pairing in (
        Pairing(2, (), (0,), (0,), on),
        Pairing(1, (5,), (), (0,), on),
        Pairing(1, (), (1,), (0,), on),
        Pairing(1, (), (0,), (1,), on),
        Pairing(1, (0,), (0,), (0,), on),
        Pairing(1, (), (0,), (), ()),
        Pairing(1, (), (0,), (0,), ()),
    ):
        with pytest.raises(AssertionError):
            differentiable(same, same, pairing)


def test_a_model_may_ask_for_gradients_between_two_pieces() -> None:
    """The first piece's backward runs while Dynamo looks on, which would trace what we run."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(net(x).sum(), x)
        return x - 0.1 * g

    x = torch.randn(5, 3)
    found = torch.compile(step, backend="tilewright")(x)
    torch.testing.assert_close(found, step(x))
