"""One compilation for all sizes: values, gradients and counts, against eager."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.graph import scans
from tests.sweep import few
from torch import Tensor, nn

import tilewright as tw
from tilewright.base.dtypes import F32
from tilewright.base.errors import ProgramError, ShapeError, SizesError
from tilewright.base.sizes import Sizes
from tilewright.compiler import Built, Options, build
from tilewright.compiler.backend import COMPILED, SPECIALIZED
from tilewright.compiler.varying import check_other_example
from tilewright.graph.build import Builder
from tilewright.graph.ir import Graph, TensorType
from tilewright.models import gpt as gpts
from tilewright.models import mlp as mlps
from tilewright.ops import TABLE
from tilewright.ops.operator import apply
from tilewright.program import Program, read, show, verify

SIZES = ((5, 24), (7, 9), (33, 17), (2, 3), (3, 31), (16, 2))


@pytest.fixture(autouse=True)
def _counted(fallbacks: list[str]) -> Iterator[None]:
    COMPILED.clear()
    SPECIALIZED.clear()
    yield
    assert fallbacks == []


def _close(ours: Tensor, eager: Tensor, exact: Tensor) -> None:
    """No further from the float64 result than a small multiple of eager's own distance."""
    assert ours.shape == eager.shape
    assert ours.stride() == eager.stride()
    scale = exact.abs().amax().item() if exact.numel() else 0.0
    bound = 4 * (eager - exact).abs().amax().item() + 1e-6 * (1 + scale) if exact.numel() else 0.0
    assert exact.numel() == 0 or (ours - exact).abs().amax().item() <= bound


def _gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("train", few([True, False], True), ids={True: "train", False: "eval"}.get)
@pytest.mark.parametrize("name", few(["mlp", "gpt"], "mlp"))
def test_a_model_is_compiled_once_for_all_sizes(name: str, train: bool) -> None:
    torch.manual_seed(0)
    module: Any = {"mlp": mlps, "gpt": gpts}[name]
    model = mlps.mlp((12, 20, 7)) if name == "mlp" else gpts.gpt(50, 64, 1, 16, 2)
    model.train(train)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = torch.compile(model, backend="tilewright", dynamic=True)
    for batch, length in SIZES:
        x, y = module.example_batch(model, batch, seed=batch)
        if name == "gpt":
            x, y = x[:, :length].contiguous(), y[:, :length].contiguous()
        wide = x.double() if x.is_floating_point() else x
        if train:
            runs = [
                (_gradients(m, loss), loss)
                for m, loss in (
                    (model, module.loss(compiled(x), y)),
                    (eager, module.loss(eager(x), y)),
                    (exact, module.loss(exact(wide), y)),
                )
            ]
            for found in zip(*(gradients for gradients, _ in runs), strict=True):
                _close(*found)
            _close(*(loss.detach() for _, loss in runs))
        else:
            with torch.no_grad():
                _close(compiled(x), eager(x), exact(wide))
    assert len(COMPILED) == 1
    assert SPECIALIZED == []


def test_a_number_that_is_no_size_is_compiled_in() -> None:
    compiled = torch.compile(lambda x, n: x * n, backend="tilewright", dynamic=True)
    for rows, number in ((3, 5), (4, 5), (7, 6), (9, 5), (2, 6), (3, 0)):
        x = torch.randn(rows, 2)
        assert torch.equal(compiled(x, number), x * number)
    assert SPECIALIZED == []
    assert len(COMPILED) == 3


def test_sizes_that_a_graph_hands_out_are_numbers() -> None:
    """What follows a break of the graph gets them: lengths, products of lengths, tests of them."""

    @torch._dynamo.disable
    def leave(x: Tensor, *numbers: float) -> tuple[Tensor, tuple[float, ...]]:
        return x.cos(), numbers

    def turned(x: Tensor) -> Any:
        b, h, w = x.shape
        y, numbers = leave(x.reshape(-1, h) * 2, h, b * w, w * 0.5, b > 2)
        return y.reshape(b, w, h), numbers

    compiled = torch.compile(turned, backend="tilewright", dynamic=True)
    for shape in ((2, 4, 6), (3, 4, 5), (7, 2, 8)):
        x = torch.randn(shape)
        (found, numbers), (expected, known) = compiled(x), turned(x)
        torch.testing.assert_close(found, expected)
        assert numbers == known
        assert list(map(type, numbers)) == [int, int, float, bool]


class Shared(torch.autograd.Function):
    """x, whose gradient is shared by its rows: a backward that has saved a size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.rows = x.shape[0]
        return x * 1

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        return dy[0] / ctx.rows


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_gradient_written_by_hand_is_compiled_for_each_size() -> None:
    compiled = torch.compile(lambda x: Shared.apply(x).sin(), backend="tilewright", dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 2, requires_grad=True)
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(found, x.detach().cos() / rows)
    assert len(SPECIALIZED) == 2
    assert all("around a custom autograd.Function" in reason for reason in SPECIALIZED)


def test_a_size_of_one_is_torchs_own_case() -> None:
    model = mlps.mlp((6, 5, 4))
    compiled = torch.compile(model, backend="tilewright", dynamic=True)
    for batch in (3, 1, 8, 1, 2):
        x = torch.randn(batch, 6)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(COMPILED) == 2


def test_automatic_dynamic_compiles_for_the_first_size_and_then_for_all() -> None:
    model = mlps.mlp((6, 5, 4))
    compiled = torch.compile(model, backend="tilewright")
    for batch in (3, 4, 8, 5, 2):
        x = torch.randn(batch, 6)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(COMPILED) == 2


def test_only_the_batch_of_a_convolution_varies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3, stride=2)
    )
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="tilewright")
    for batch in (3, 5, 8, 2):
        x = torch.randn(batch, 3, 9, 9)
        torch._dynamo.mark_dynamic(x, 0)
        ours, theirs = compiled(x), eager(x)
        torch.testing.assert_close(ours, theirs)
        pairs = zip(
            _gradients(model, ours.square().sum()),
            _gradients(eager, theirs.square().sum()),
            strict=True,
        )
        for found, expected in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(COMPILED) == 1


@pytest.mark.parametrize("train", few([True, False], True), ids={True: "train", False: "infer"}.get)
@pytest.mark.parametrize("cell", few([nn.LSTM, nn.GRU, nn.RNN], nn.RNN))
@torch._dynamo.config.patch(allow_rnn=True)  # type: ignore[no-untyped-call,untyped-decorator]
def test_a_graph_with_a_scan_is_compiled_for_each_size(cell: Any, train: bool) -> None:
    torch.manual_seed(0)
    model = cell(3, 4)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="tilewright", dynamic=True)
    for steps, batch in ((5, 2), (3, 6)):
        x = torch.randn(steps, batch, 3)
        with torch.set_grad_enabled(train):
            ours, theirs = compiled(x)[0], eager(x)[0]
        torch.testing.assert_close(ours, theirs)
        if train:
            pairs = zip(
                _gradients(model, ours.square().sum()),
                _gradients(eager, theirs.square().sum()),
                strict=True,
            )
            for found, expected in pairs:
                torch.testing.assert_close(found, expected)
    assert len(COMPILED) == 2
    if cell is nn.RNN:  # torch's own trace fixes the sizes of the others
        assert COMPILED == ["one set of sizes"] * 2
        assert all("sizes vary in a graph with a scan" in reason for reason in SPECIALIZED)
        assert len(SPECIALIZED) == 2


def test_a_scan_of_fixed_sizes_beside_sizes_that_vary_is_refused() -> None:
    builder = Builder("beside")
    x = builder.input("x", TensorType((Sizes({"n_b": 37}).size("n_b"), 6), F32))
    inputs = [builder.input(value.name, value.type) for value in scans.doubling().inputs]
    y = apply(builder, TABLE["exp"], x)
    rest = builder.inline(scans.doubling(), inputs)
    with pytest.raises(SizesError, match="sizes vary in a graph with a while"):
        build(builder.finish((*y, *rest)))


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "broadcast": lambda a, b: a * b[0] + a.T.exp().T / (1 + b.abs()),
    "softmax": lambda a, b: torch.softmax(a, 1) * torch.log_softmax(b, 0),
    "matmul": lambda a, b: a @ b.T + 1,
    "mean": lambda a, b: a.mean(0) * b.var(0) + a.sum() / b.numel(),
    "reshape": lambda a, b: (a.reshape(-1) * b.flatten()).reshape(b.shape[1], b.shape[0]),
    "cat": lambda a, b: torch.cat([a, b, a[:, :2]], 1),
    "flip": lambda a, b: a.flip(0) + torch.roll(b, 1, 1),
    "slice": lambda a, b: a[1:, ::2].exp() - b[:-1, : (b.shape[1] + 1) // 2],
    "pad": lambda a, b: F.pad(a, (1, 2)) * F.pad(b, (2, 1)),
    "cumsum": lambda a, b: a.cumsum(1) + b.cumsum(0),
    "amax": lambda a, b: a.amax(1, keepdim=True) - b.amin(0),
    "arange": lambda a, b: a * torch.arange(a.shape[1]) + b * a.shape[0],
    "gather": lambda a, b: a.gather(1, b.argsort(1)) * 2,
    "stack": lambda a, b: torch.stack([a, b], 1).transpose(0, 2).contiguous(),
    "norm": lambda a, b: F.layer_norm(a, a.shape[1:]) + b / b.norm(dim=1, keepdim=True),
    "where": lambda a, b: torch.where(a > b, a, b.tanh()).triu(),
    "outer": lambda a, b: torch.einsum("ij,kj->ik", a, b).relu() @ a,
    "expand": lambda a, b: a[:, None, :].expand(-1, 3, -1) + b[:, None],
    "max": lambda a, b: a.max(1).values[:, None] * b.argmax(1)[:, None],
}

# Functions for which torch itself, or a coincidence of sizes, asks for more than one compilation.
PARTLY = frozenset({"gather", "slice"})

SOME = ((5, 7), (9, 5), (40, 70), (2, 11))


@pytest.mark.parametrize("name", few(FUNCTIONS, "arange", "cat", "matmul", "reshape", "softmax"))
def test_a_function_is_compiled_once_for_all_sizes(name: str) -> None:
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="tilewright", dynamic=True)
    for rows, columns in SOME:
        given = [torch.randn(rows, columns) for _ in range(2)]
        leaves = [[t.to(d) for t in given] for d in (torch.float32, torch.float32, torch.float64)]
        found = []
        for call, inputs in zip((compiled, function, function), leaves, strict=True):
            if call is compiled:
                inputs = given
            for tensor in inputs:
                tensor.grad = None
                tensor.requires_grad_()
            result = call(*inputs)
            (
                result * torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)
            ).sum().backward()
            grads = [t.grad if t.grad is not None else torch.zeros_like(t) for t in inputs]
            found.append([result.detach(), *grads])
        for triple in zip(*found, strict=True):
            _close(*triple)
    if name not in PARTLY:
        assert SPECIALIZED == []
        assert len(COMPILED) == 1


FOLLOWING: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[int], int]]] = {
    "one longer": (lambda x, y: x * y[1:] + y[:-1], lambda n: n + 1),
    "twice as long": (lambda x, y: torch.cat([x, x.exp()]) * y, lambda n: 2 * n),
    "a square": (lambda x, y: (x[:, None] * x).reshape(-1) * y, lambda n: n * n),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_size_that_follows_from_another_is_compiled_once(name: str) -> None:
    function, length = FOLLOWING[name]
    compiled = torch.compile(function, backend="tilewright", dynamic=True)
    for n in (5, 6, 17):
        x, y = (torch.randn(k, requires_grad=True) for k in (n, length(n)))
        ours, theirs = compiled(x, y), function(x, y)
        torch.testing.assert_close(ours, theirs)
        found, expected = (torch.autograd.grad(z.square().sum(), (x, y)) for z in (ours, theirs))
        torch.testing.assert_close(found, expected)
    assert SPECIALIZED == []
    assert len(COMPILED) == 1


def _built() -> tuple[Built, Sizes]:
    """y = softmax(x W' + b) over a batch of any size, its Program and its sizes."""
    sizes = Sizes({"n_b": 37})
    batch = sizes.size("n_b")
    builder = Builder("layer")
    x = builder.input("x", TensorType((batch, 6), F32))
    weight = builder.input("weight", TensorType((5, 6), F32))
    bias = builder.input("bias", TensorType((5,), F32))
    (y,) = apply(builder, TABLE["linear"], x, weight, bias)
    (z,) = apply(builder, TABLE["softmax"], y, dim=-1)
    return build(builder.finish((z,)), Options(verify=True)), sizes


def test_a_value_may_be_called_as_the_buffer_of_sizes_would_be() -> None:
    rows = Sizes({"n_b": 37}).size("n_b")
    builder = Builder("layer")
    x, y = (builder.input(name, TensorType((rows, 6), F32)) for name in ("x", "sizes"))
    graph = builder.finish(apply(builder, TABLE["add"], x, y))
    built = build(graph, Options(verify=True))
    for size in (2, 5, 64):
        a, b = torch.randn(size, 6), torch.randn(size, 6)
        torch.testing.assert_close(built.run([a, b])[0], a + b, rtol=0, atol=0)


def test_a_program_of_varying_sizes_reads_as_it_shows_and_runs_from_a_file(tmp_path: Path) -> None:
    built, _ = _built()
    text = show(built.program)
    assert 'f32[$"n_b", 5]' in text
    assert show(read(text)) == text
    built.program.save(tmp_path / "layer.tw")
    loaded = tw.load(tmp_path / "layer.tw")
    weight, bias = torch.randn(5, 6), torch.randn(5)
    for rows in (2, 3, 64, 1000):
        x = torch.randn(rows, 6)
        expected = torch.softmax(F.linear(x, weight, bias), -1)
        torch.testing.assert_close(loaded(x, weight, bias)[0], expected)
        torch.testing.assert_close(built.run([x, weight, bias])[0], expected)


def test_an_input_that_does_not_fit_the_symbolic_type_is_refused() -> None:
    built, _ = _built()
    with pytest.raises(ShapeError) as caught:
        built.run([torch.randn(3, 7), torch.randn(5, 6), torch.randn(5)])
    assert str(caught.value) == (
        "input x has another shape than compiled for\n"
        "  expected  n_b x 6\n"
        "  found     3 x 7\n"
        "  known     n_b = 3"
    )
    with pytest.raises(ShapeError, match="does not hold for these sizes"):
        built.run([torch.randn(1, 6), torch.randn(5, 6), torch.randn(5)])


def test_buffers_that_may_overlap_for_some_size_are_refused() -> None:
    batch = Sizes({"n_b": 37}).size("n_b")
    builder = Builder("two")
    x = builder.input("x", TensorType((batch, 6), F32))
    weights = [builder.input(name, TensorType((5, 6), F32)) for name in ("v", "w")]
    one, other = (apply(builder, TABLE["linear"], x, weight)[0] for weight in weights)
    (y,) = apply(builder, TABLE["mul"], one, other)
    program = build(builder.finish((y,))).program
    assert any(buffer.above for buffer in program.buffers)
    flat = tuple(replace(buffer, above=()) for buffer in program.buffers)
    with pytest.raises(ProgramError):
        verify(replace(program, buffers=flat))


def test_what_leaks_the_example_is_not_taken_for_a_program_of_all_sizes() -> None:
    built, sizes = _built()

    def leaking(graph: Graph) -> Program:
        return replace(built.program, name=f"layer{len(range(graph.inputs[0].type.shape[0]))}")

    with pytest.raises(SizesError, match="depends on the example"):
        check_other_example(built.source, leaking(built.source), leaking)
    assert sizes.admit({"n_b": 5})


def test_a_row_of_a_text_of_any_length_is_multiplied() -> None:
    """The product's extents are numbers, but the step from row to row is not."""
    weight = torch.randn(64, 32)

    def last(x: Tensor) -> Tensor:
        return x[:, -1, :] @ weight

    compiled = torch.compile(last, backend="tilewright", dynamic=True)
    for length in (5, 7, 9):
        x = torch.randn(4, length, 64)
        torch.testing.assert_close(compiled(x), last(x))
    assert len(COMPILED) == 1
