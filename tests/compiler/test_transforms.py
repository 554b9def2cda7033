"""Transforms and their compositions equal torch.func's, in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.errors import mistakes
from tests.sweep import few, swept
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tilewright as tw
from tilewright.base.errors import TilewrightError

Tensor = torch.Tensor
ROOT = Path(__file__).parent.parent.parent


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def energy(x: Tensor) -> Tensor:
    return (torch.sin(x) * x).sum() + torch.tanh(x).prod()


def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """A network of one sample: parameters, an input, a target."""
    hidden = F.gelu(x @ w)
    return F.mse_loss(F.softmax(hidden, dim=-1), y)


def rowwise(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1) * torch.sigmoid(x).sum(-1)


def of_both(transform: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Apply one description of a composition to ours and to torch's."""
    return transform(tw), transform(torch.func)


X, W, Y, V = drawn(5), drawn(4, 3, seed=1), drawn(6, 3, seed=2), drawn(5, seed=3)
SAMPLES = drawn(6, 4, seed=4)
COMPOSITIONS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda t: t.grad(energy)(X),
    "grad of grad": lambda t: t.grad(t.grad(lambda x: torch.sin(x) * x**3))(X[0]),
    "grad of grad of grad": lambda t: t.grad(t.grad(t.grad(torch.sigmoid)))(X[0]),
    "jvp of grad": lambda t: t.jvp(t.grad(energy), (X,), (V,)),
    "vjp of grad": lambda t: t.vjp(t.grad(energy), X)[1](V),
    "vmap of grad": lambda t: t.vmap(t.grad(loss), in_dims=(None, 0, 0))(W, SAMPLES, Y),
    "vmap of grad by two": lambda t: t.vmap(t.grad(loss, argnums=(0, 1)), (None, 0, 0))(
        W, SAMPLES, Y
    ),
    "vmap of vmap": lambda t: t.vmap(t.vmap(rowwise, 1), 0, 1)(drawn(2, 3, 4)),
    "jvp of vmap of grad by one": lambda t: t.jvp(
        t.vmap(t.grad(energy)), (SAMPLES,), (drawn(6, 4, seed=5),)
    ),
    "jvp of vmap": lambda t: t.jvp(t.vmap(rowwise), (SAMPLES,), (SAMPLES.cos(),)),
    "vjp of vmap": lambda t: t.vjp(t.vmap(rowwise), SAMPLES)[1](drawn(6, seed=6)),
    "vmap of grad of grad": lambda t: t.vmap(t.grad(t.grad(lambda x: torch.sin(x) * x**3)))(X),
    "jvp of vmap of grad": lambda t: t.jvp(
        t.vmap(t.grad(loss), in_dims=(None, 0, 0)),
        (W, SAMPLES, Y),
        (W.cos(), SAMPLES.sin(), Y * 0),
    ),
    "vjp of vmap of vmap": lambda t: t.vjp(t.vmap(t.vmap(torch.exp)), W)[1](W),
}


@pytest.mark.parametrize("name", few(COMPOSITIONS, "grad", "vmap of grad", "vjp of vmap"))
def test_a_composition_equals_that_of_torch(name: str) -> None:
    same(*of_both(COMPOSITIONS[name]))


# ---------------------------------------------------------------------------- signatures and trees


def by_tree(parameters: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    hidden = torch.tanh(x @ parameters["w"] + parameters["b"])
    return hidden.square().mean(), {"hidden": hidden, "unused": x}


TREE = {"w": W, "b": drawn(3, seed=7)}


@pytest.mark.parametrize("argnums", [(0, 1), swept(-1), swept(0), swept(1), swept((1,))])
def test_grad_takes_and_gives_trees(argnums: int | tuple[int, ...]) -> None:
    same(*of_both(lambda t: t.grad(by_tree, argnums, has_aux=True)(TREE, SAMPLES)))


def test_value_and_grad_gives_the_value_first() -> None:
    gradient, value = torch.func.grad_and_value(by_tree, has_aux=True)(TREE, SAMPLES)
    same(tw.value_and_grad(by_tree, has_aux=True)(TREE, SAMPLES), (value, gradient))
    gradient, value = torch.func.grad_and_value(energy)(X)
    same(tw.value_and_grad(energy)(X), (value, gradient))


def test_jvp_and_vjp_take_and_give_trees() -> None:
    change = {"w": W.cos(), "b": TREE["b"].sin()}
    given = (TREE, SAMPLES), (change, SAMPLES.tan())
    same(*of_both(lambda t: t.jvp(by_tree, *given, has_aux=True)))
    value, pullback, aux = tw.vjp(by_tree, TREE, SAMPLES, has_aux=True)
    expected, theirs, theirs_aux = torch.func.vjp(by_tree, TREE, SAMPLES, has_aux=True)
    same((value, aux), (expected, theirs_aux))
    assert not value.requires_grad
    for seed in (X[0], V[0]):  # a pullback may be called again
        same(pullback(seed), theirs(seed))


def test_keyword_arguments_pass_through_and_have_no_batch() -> None:
    def scaled(x: Tensor, *, scale: Tensor, power: int = 2) -> Tensor:
        return (x**power * scale).sum()

    same(*of_both(lambda t: t.grad(scaled)(X, scale=V, power=3)))
    same(*of_both(lambda t: t.vmap(scaled)(drawn(3, 5), scale=V)))


def second_alone(_: Tensor, y: Tensor) -> Tensor:
    return y.sum()


def three(_: Tensor) -> int:
    return 3


def test_what_does_not_depend_on_an_argument_has_a_gradient_of_zeros() -> None:
    same(*of_both(lambda t: t.grad(second_alone, (0, 1))(X, V)))
    same(*of_both(lambda t: t.grad(lambda x: x.detach().sum())(X)))
    same(*of_both(lambda t: t.jvp(lambda x: x.detach() * 2, (X,), (V,))))


def test_one_tensor_for_two_arguments_is_two_arguments() -> None:
    same(*of_both(lambda t: t.grad(lambda x, y: (x**2 * y).sum())(X, X)))


def test_no_grad_inside_of_the_function_stops_the_gradient() -> None:
    def partly(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x * 2
        return (x * scale).sum()

    with torch.no_grad():  # outside of it, it stops nothing
        same(*of_both(lambda t: t.grad(partly)(X)))


def test_a_module_is_a_function_too_and_its_changes_are_seen() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    transformed = tw.vmap(tw.grad(lambda x: net(x).sum()))
    expected = torch.func.vmap(torch.func.grad(lambda x: net(x).sum()))
    same(transformed(SAMPLES), expected(SAMPLES).detach())
    with torch.no_grad():
        net[0].weight.mul_(2)
    same(transformed(SAMPLES), expected(SAMPLES).detach())


def test_a_number_in_a_closure_may_change() -> None:
    scale = 2.0
    ours = tw.grad(lambda x: (x * scale).sum())
    same(ours(X), torch.full_like(X, 2.0))
    scale = 3.0
    same(ours(X), torch.full_like(X, 3.0))


def network(parameters: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    first, scale, second = parameters
    hidden = F.gelu(F.layer_norm(x @ first, (8,), scale))
    return F.cross_entropy((hidden @ second)[None], y[None])


@pytest.mark.sweep
def test_gradients_per_sample_of_a_network() -> None:
    parameters = [drawn(4, 8), drawn(8, seed=1), drawn(8, 3, seed=2)]
    labels = torch.tensor([0, 2, 1, 1, 0, 2])
    same(*of_both(lambda t: t.vmap(t.grad(network), (None, 0, 0))(parameters, SAMPLES, labels)))
    change = [p.cos() for p in parameters]
    given = (parameters, SAMPLES[0], labels[0])
    along = t_of_network(given, change)
    same(along(tw), along(torch.func))


def t_of_network(given: tuple[Any, ...], change: list[Tensor]) -> Callable[[Any], Any]:
    """A Hessian-vector product by forward of reverse."""
    parameters, x, y = given
    return lambda t: t.jvp(t.grad(lambda p: network(p, x, y)), (parameters,), (change,))


def test_the_result_of_a_transform_has_gradients() -> None:
    x = X.clone().requires_grad_()
    found = torch.autograd.grad(tw.grad(energy)(x) @ V, x)
    same(found, torch.autograd.grad(torch.func.grad(energy)(x) @ V, x))


def test_other_shapes_are_compiled_for_and_kept() -> None:
    ours = tw.grad(energy)
    for x in (X, drawn(2, 3), X.float(), drawn(0), X):
        torch.testing.assert_close(ours(x), torch.func.grad(energy)(x))


# ---------------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("in_dims", "out_dims"), [((1, -1), 1), ((None, 0), -1), swept((0, 1), 0), swept((1, None), 0)]
)
def test_the_batch_may_lie_in_any_dim(in_dims: tuple[int | None, ...], out_dims: int) -> None:
    def mixed(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x[:, None] * y[None, :2], 0)

    x = drawn(3, 3) if in_dims[0] is not None else drawn(3)
    y = drawn(3, 3, seed=1) if in_dims[1] is not None else drawn(3, seed=1)
    same(*of_both(lambda t: t.vmap(mixed, in_dims, out_dims)(x, y)))


def test_results_without_a_batch_are_repeated_or_given_once() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(), y * 2

    same(*of_both(lambda t: t.vmap(both, (0, None))(SAMPLES, V)))
    same(*of_both(lambda t: t.vmap(both, (0, None), (0, None))(SAMPLES, V)))
    _, repeated = tw.vmap(both, (0, None), (0, 1))(SAMPLES, V)
    same(repeated, (V * 2)[:, None].expand(5, 6))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_samples_draw_what_torch_says_they_draw(randomness: str) -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand(4, dtype=torch.float64) + torch.rand_like(x)

    drawings = []
    for transforms in (tw, torch.func):
        torch.manual_seed(3)
        drawings.append(transforms.vmap(noisy, randomness=randomness)(SAMPLES))
    same(*drawings)


def test_a_batch_of_one_and_of_none() -> None:
    same(*of_both(lambda t: t.vmap(rowwise)(drawn(1, 4))))
    assert tw.vmap(rowwise)(drawn(0, 4)).shape == (0,)


def sorted_weighted(x: Tensor) -> Tensor:
    """Sorting is a library call: torch's own, derived and batched by torch."""
    values, places = torch.sort(x)
    return (values * torch.arange(len(x), dtype=x.dtype)).sum() + places[0] + x.cumprod(0).sum()


LIBRARY: dict[str, Callable[[Any], Any]] = {
    "grad": lambda t: t.grad(sorted_weighted)(X),
    "jvp": lambda t: t.jvp(sorted_weighted, (X,), (V,)),
    "vmap": lambda t: t.vmap(sorted_weighted)(SAMPLES),
    "vmap of grad": lambda t: t.vmap(t.grad(sorted_weighted))(SAMPLES),
    "jvp of grad": lambda t: t.jvp(t.grad(sorted_weighted), (X,), (V,)),
    "vjp of grad": lambda t: t.vjp(t.grad(sorted_weighted), X)[1](V),
    "jvp of vmap": lambda t: t.jvp(t.vmap(sorted_weighted), (SAMPLES,), (SAMPLES.sin(),)),
    "vjp of vmap of grad": lambda t: t.vjp(t.vmap(t.grad(sorted_weighted)), SAMPLES)[1](
        SAMPLES.sin()
    ),
}


@pytest.mark.parametrize("name", few(LIBRARY, "vmap of grad"))
def test_library_calls_are_derived_and_batched_by_torch(name: str) -> None:
    same(*of_both(LIBRARY[name]))


def test_batches_of_library_calls_are_counted_and_told() -> None:
    told = tw.vmap(sorted_weighted).explain(SAMPLES)  # type: ignore[attr-defined]
    assert "torch finds the order: aten.sort.default (batch by torch)" in told


# ---------------------------------------------------------------------------- what is refused


REFUSED: dict[str, Callable[[], Any]] = {
    "grad_of_a_vector": lambda: tw.grad(torch.sin)(X),
    "grad_of_a_pair": lambda: tw.grad(lambda x: (x.sum(), x))(X),
    "grad_by_a_missing_argument": lambda: tw.grad(energy, 2)(X),
    "grad_by_an_integer": lambda: tw.grad(lambda i: i.sum())(torch.ones(2, dtype=torch.int64)),
    "grad_by_a_number": lambda: tw.grad(lambda x, n: (x * n).sum(), 1)(X, 2),
    "grad_without_auxiliary": lambda: tw.grad(energy, has_aux=True)(X),
    "grad_of_no_function": lambda: tw.grad(X),  # type: ignore[arg-type]
    "grad_that_writes": lambda: tw.grad(mistakes.doubles_in_place)(X.clone()),
    "vmap_in_dims_of_another_shape": lambda: tw.vmap(torch.add, (0, 0, 0))(X, V),
    "vmap_dim_out_of_range": lambda: tw.vmap(torch.sin, 2)(X),
    "vmap_of_sizes_that_differ": lambda: tw.vmap(torch.add)(X, drawn(4)),
    "vmap_of_nothing": lambda: tw.vmap(torch.sin, (None,))(X),
    "vmap_of_a_number": lambda: tw.vmap(torch.add)(X, 2.0),
    "vmap_out_dims_out_of_range": lambda: tw.vmap(torch.sin, 0, 3)(X),
    "vmap_out_dims_of_another_shape": lambda: tw.vmap(torch.sin, 0, (0, 0))(X),
    "vmap_to_no_batch": lambda: tw.vmap(torch.sin, 0, None)(X),
    "vmap_to_a_number": lambda: tw.vmap(three)(X),
    "vmap_that_draws": lambda: tw.vmap(mistakes.draws)(X),
    "vmap_unknown_randomness": lambda: tw.vmap(torch.sin, randomness="often"),
    "jvp_tangent_of_another_shape": lambda: tw.jvp(energy, (X,), (drawn(4),)),
    "jvp_tangent_missing": lambda: tw.jvp(torch.mul, (X, V), (X,)),
    "jvp_of_no_tuple": lambda: tw.jvp(energy, X, V),  # type: ignore[arg-type]
    "vjp_cotangent_of_another_shape": lambda: tw.vjp(torch.sin, X)[1](drawn(4)),
    "vjp_cotangent_of_another_tree": lambda: tw.vjp(torch.sin, X)[1]((X, X)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_transform_does_not_fit_is_refused(
    name: str, golden: Callable[[str, str], None]
) -> None:
    with pytest.raises(TilewrightError) as caught:
        REFUSED[name]()
    text = str(caught.value).replace(f"{ROOT}/", "")
    golden(f"{name}.txt", f"{type(caught.value).__name__}: {text}")


# ---------------------------------------------------------------------------- in captured code


def scaled_energy(x: Tensor, scale: Tensor) -> Tensor:
    """The gradient of a closure over a value that is being captured, and more work with it."""
    return tw.grad(lambda z: (torch.sin(z) * scale).sum())(x * 2) + scale


def attends(x: Tensor) -> Tensor:
    def inner(z: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(z, z, z).square().sum()

    return tw.value_and_grad(inner)(x)[1]


def stops_inside(x: Tensor) -> Tensor:
    def inner(z: Tensor) -> Tensor:
        with torch.no_grad():
            scale = z * 2
        return (z * scale + z.detach() ** 2).sum()

    return tw.grad(inner)(x)


def second(x: Tensor) -> Tensor:
    return tw.grad(lambda y: tw.grad(lambda z: (torch.sin(z) * z**2).sum())(y).square().sum())(x)


def along(x: Tensor, v: Tensor) -> Tensor:
    return tw.jvp(tw.grad(lambda z: (torch.exp(z) * z).sum()), (x,), (v,))[1]


def pulled_back(x: Tensor, v: Tensor) -> Tensor:
    out, pullback = tw.vjp(lambda z: torch.softmax(z, -1), x)
    return out * pullback(v)[0]


def per_sample(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return tw.vmap(tw.grad(loss), in_dims=(None, 0, 0))(w, x, y)


def rows_of_jacobian(x: Tensor) -> Tensor:
    _, pullback = tw.vjp(torch.tanh, x)
    return tw.vmap(lambda seed: pullback(seed)[0])(torch.eye(len(x), dtype=x.dtype))


INSIDE: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "grad of a closure": (scaled_energy, (X, V)),
    "value_and_grad of attention": (attends, (drawn(2, 2, 3, 4),)),
    "no_grad and detach": (stops_inside, (X,)),
    "grad of grad": (second, (X,)),
    "jvp of grad": (along, (X, V)),
    "vjp": (pulled_back, (X, V)),
    "vmap of grad": (per_sample, (W, SAMPLES, Y)),
    "vmap of a pullback": (rows_of_jacobian, (X,)),
}


@pytest.mark.parametrize("name", few(INSIDE, "grad of grad", "no_grad and detach"))
def test_transforms_are_captured_with_what_calls_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, args = INSIDE[name]
    asking = [arg.clone().requires_grad_() for arg in args]
    with sdpa_kernel(SDPBackend.MATH):
        found = tw.compile(fn, *asking)(*asking)
        for ours, word in (("grad", "grad"), ("vmap", "vmap"), ("jvp", "jvp"), ("vjp", "vjp")):
            monkeypatch.setattr(tw, ours, getattr(torch.func, word))
        monkeypatch.setattr(tw, "value_and_grad", swapped)
        expected = fn(*asking)
        same(found, expected)
        if not expected.requires_grad:
            return
        wanted = [torch.autograd.grad((r * r.detach().cos()).sum(), asking, allow_unused=True)
                  for r in (found, expected)]  # fmt: skip
    same(*[[z if g is None else g for g, z in zip(gs, args, strict=True)] for gs in wanted])


def swapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: torch.func.grad_and_value(fn)(*args)[::-1]


def test_a_transform_itself_may_be_compiled() -> None:
    def pair(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x @ w).sum(), x * 2

    calls: tuple[tuple[Any, tuple[Tensor, ...]], ...] = (
        (tw.grad(energy), (X,)),
        (tw.value_and_grad(pair, has_aux=True), (W, SAMPLES)),
        (tw.vmap(tw.grad(lambda w, x: pair(w, x)[0], (0, 1)), (None, 0)), (W, SAMPLES)),
    )
    for transformed, args in calls:
        same(tw.compile(transformed, *args)(*args), transformed(*args))


def test_torch_compile_captures_transforms_too() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(second, backend="tilewright", fullgraph=True)
    x = X.clone()
    same(compiled(x), second(x))


@pytest.mark.sweep
def test_a_transform_of_a_function_that_transforms_is_one_graph() -> None:
    same(*of_both(lambda t: t.vmap(lambda x: t.grad(energy)(x) * 2)(SAMPLES)))
    same(*of_both(lambda t: t.jvp(lambda x: t.grad(energy)(x) * x, (X,), (V,))))
    same(*of_both(lambda t: t.grad(lambda x: t.jvp(energy, (x,), (V,))[1])(X)))
