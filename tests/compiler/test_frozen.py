"""Frozen weights: what depends on them alone is computed once, and again when they have changed."""

import copy
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.standalone import run_standalone
from torch import nn

import tilewright as tw
from tilewright.base.errors import FallbackWarning, IndexRangeError, OptionError
from tilewright.compiler.compiled import Compiled
from tilewright.models import convnet, gpt, lstm, mlp, moe
from tilewright.program import parted, steps
from tilewright.runtime import observe, write_standalone

Tensor = torch.Tensor
FROZEN = tw.Options(frozen=True, verify=True)


class Small(nn.Module):
    """A scaled linear layer: `scale * weight` can be prepared, and so can the packed product."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(64, 32))
        self.scale = nn.Parameter(torch.rand(64, 1) + 0.5)
        self.register_buffer("shift", torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = torch.tanh(x @ (self.weight * self.scale).T + self.shift.exp())
        return shifted


def _frozen(model: nn.Module, *inputs: Tensor, **options: Any) -> Compiled:
    with torch.no_grad():
        made = tw.compile(model, *inputs, options=tw.Options(frozen=True, verify=True, **options))
    assert isinstance(made, Compiled)
    return made


def _agrees(compiled: Callable[[Tensor], Any], model: nn.Module, x: Tensor) -> None:
    """Compare with the same model in float64."""
    with torch.no_grad():
        found, expected = compiled(x), copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp": lambda: (mlp.mlp(), torch.randn(32, 64)),
    "gpt": lambda: _with_batch(gpt, gpt.gpt(layers=1, width=32)),
    "lstm": lambda: _with_batch(lstm, lstm.lstm()),
    "moe": lambda: _with_batch(moe, moe.moe()),
    "convnet": lambda: _with_batch(convnet, convnet.convnet()),
}


def _with_batch(module: Any, model: nn.Module) -> tuple[nn.Module, Tensor]:
    return model, module.example_batch(model, 2)[0]


@pytest.mark.parametrize("name", MODELS)
def test_models_give_what_they_give_unfrozen(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.eval()
    frozen = _frozen(model, x)
    assert frozen.program.prepare, "nothing was prepared"
    with torch.no_grad():
        found, expected = frozen(x), model(x)
        again = frozen(x)
    for a, b, c in zip(*(_leaves(tree) for tree in (found, expected, again)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert torch.equal(a, c)


def _leaves(tree: Any) -> tuple[Tensor, ...]:
    return tree if isinstance(tree, tuple) else (tree,)


def test_where_nothing_is_folded_no_bit_changes() -> None:
    model, x = mlp.mlp().eval(), torch.randn(32, 64)
    with torch.no_grad():
        assert torch.equal(_frozen(model, x)(x), tw.compile(model, x)(x))


def _written(model: Small) -> None:
    with torch.no_grad():
        model.weight.mul_(2)
        model.get_buffer("shift").neg_()


def _loaded(model: Small) -> None:
    model.load_state_dict(Small(seed=1).state_dict())


def _assigned(model: Small) -> None:
    model.load_state_dict(Small(seed=1).state_dict(), assign=True)


def _replaced(model: Small) -> None:
    model.weight.data = torch.randn(64, 32)


def _another(model: Small) -> None:
    model.scale = nn.Parameter(torch.rand(64, 1))


def _stepped(model: Small) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()


CHANGES = (_written, _loaded, _assigned, _replaced, _another, _stepped)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_seen(change: Callable[[Small], None]) -> None:
    model, x = Small(), torch.randn(8, 32)
    compiled = _frozen(model, x)
    for _ in range(3):  # so that calls are settled
        _agrees(compiled, model, x)
    change(model)
    for _ in range(3):
        _agrees(compiled, model, x)


def test_writes_through_data_are_seen_after_refresh() -> None:
    model, x = Small(), torch.randn(8, 32)
    compiled = _frozen(model, x)
    _agrees(compiled, model, x)
    model.weight.data.mul_(2)
    compiled.refresh()
    _agrees(compiled, model, x)


def test_a_weight_that_lies_otherwise_is_seen() -> None:
    """Neither the address nor the count of writes tells a tensor from its transpose."""
    weight, x = nn.Parameter(torch.randn(8, 8)), torch.randn(4, 8)
    model = nn.Linear(8, 8, bias=False)
    model.weight = weight
    compiled = _frozen(model, x)
    _agrees(compiled, model, x)
    weight.data = weight.data.t()
    _agrees(compiled, model, x)


def test_two_models_may_share_what_is_compiled() -> None:
    models, x = [Small(seed=k) for k in range(2)], torch.randn(8, 32)
    compiled = _frozen(models[0], x)
    runs = compiled._runs.inference.executable
    names = [item.source for item in compiled.captured.inputs]
    for turn in range(4):
        model = models[turn % 2]
        state = model.state_dict(keep_vars=True)
        inputs = [state.get(name, x) for name in names]
        (found,) = runs.run(inputs)
        with torch.no_grad():
            torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_a_program_with_frozen_weights_holds_none(tmp_path: Path) -> None:
    model, x = Small(), torch.randn(8, 32)
    compiled = _frozen(model, x, library=False)
    assert not any(buffer.data for buffer in compiled.program.buffers)
    compiled.program.save(tmp_path / "small.program")
    texts = sum(len(kernel.text) for kernel in compiled.program.kernels)
    assert (tmp_path / "small.program").stat().st_size < texts + 64 * 32 * 4
    loaded = tw.load(tmp_path / "small.program")
    inputs = [tensor.detach().numpy() for tensor in compiled.captured.feed((x,))]
    with torch.no_grad():
        expected = compiled(x).numpy()
    for _ in range(2):
        assert np.array_equal(loaded(*inputs)[0], expected)


def test_it_runs_without_python(tmp_path: Path) -> None:
    model, x = Small(), torch.randn(8, 32)
    compiled = _frozen(model, x, library=False)
    inputs = [tensor.detach().numpy() for tensor in compiled.captured.feed((x,))]
    write_standalone(compiled.program, observe(compiled.program, inputs), tmp_path)
    assert run_standalone(tmp_path, "sanitize") == ""


def test_what_is_computed_once_is_not_computed_in_a_run() -> None:
    model, x = Small(), torch.randn(8, 32)
    compiled = _frozen(model, x)
    first, main = parted(compiled.program)
    assert {item.role.source for item in first.inputs} == {"weight", "scale", "shift"}
    kept = {view.buffer for view in first.outputs}
    read = {view.buffer for step in steps(main) for view in step.inputs}
    assert kept <= read
    assert not read & {item.buffer for item in first.inputs}, "a run reads what it was made from"
    assert f"{len(kept)} values kept from call to call" in compiled.explain()


def test_only_what_is_no_larger_than_its_weights_is_kept() -> None:
    scale = nn.Parameter(torch.rand(16, 1))

    def outer(x: Tensor) -> Tensor:
        return x + scale @ scale.T

    x = torch.randn(16, 16)
    with torch.no_grad():
        compiled = tw.compile(outer, x, options=FROZEN)
        torch.testing.assert_close(compiled(x), outer(x))
    assert not compiled.program.prepare


def test_updated_buffers_are_not_taken_to_stay() -> None:
    model, x = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8)), torch.randn(4, 8)
    other = copy.deepcopy(model)
    compiled = _frozen(model, x)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), other(x))
    for ours, theirs in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_result_that_depends_on_weights_alone_is_the_callers_own() -> None:
    model = Small()

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = model.weight * model.scale
        return scaled, x @ scaled.T

    x = torch.randn(8, 32)
    with torch.no_grad():
        compiled = tw.compile(both, x, options=FROZEN)
        expected = both(x)
        compiled(x)[0].zero_()
        found = compiled(x)
    torch.testing.assert_close(found, expected)


def test_draws_are_not_kept() -> None:
    weight = nn.Parameter(torch.rand(64))

    def noisy(x: Tensor) -> Tensor:
        return x + nn.functional.dropout(weight, 0.5, training=True)

    x = torch.zeros(64)
    with torch.no_grad():
        compiled = tw.compile(noisy, x, options=FROZEN)
        assert not torch.equal(compiled(x), compiled(x))


def test_weights_of_a_loop_are_packed_once_for_all_calls() -> None:
    model = nn.LSTM(32, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    compiled = _frozen(model, x)
    first, main = parted(compiled.program)
    recurrent = next(i.buffer for i in main.inputs if i.role.kind == "kept")
    assert any(recurrent == view.buffer for step in steps(main) for view in step.inputs)
    assert {item.role.source for item in first.inputs} >= {"weight_hh_l0"}
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)[0], model(x)[0])
        model.weight_hh_l0.mul_(2)
        torch.testing.assert_close(compiled(x)[0], model(x)[0])


@pytest.mark.parametrize(
    ("rows", "columns", "packed"), [(256, 512, True), (16, 512, False), (256, 64, False)]
)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_weights_with_rows_far_apart_are_packed_once_where_many_rows_meet_them(
    batch: tuple[int, ...], rows: int, columns: int, packed: bool
) -> None:
    weight = nn.Parameter(torch.randn(*batch, 192, columns))

    def times(x: Tensor) -> Tensor:
        return x @ weight

    x = torch.randn(*batch, rows, 192)
    with torch.no_grad():
        compiled = tw.compile(times, x, options=FROZEN)
        for _ in range(2):
            expected = x.double() @ weight.double()
            torch.testing.assert_close(compiled(x).double(), expected, rtol=1e-4, atol=1e-4)
            weight.mul_(2)
    assert bool(compiled.program.prepare) == packed
    assert ("packed once" in compiled.explain()) == packed


class Embedded(nn.Module):
    """A recurrent layer over rows of a table, which its first product can be made of once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(20, 16)
        self.layer = nn.GRU(16, 12)

    def forward(self, ids: Tensor) -> Tensor:
        states: Tensor = self.layer(self.tokens(ids))[0]
        return states


def test_the_product_of_a_table_is_computed_once_for_all_calls() -> None:
    model, ids = Embedded().eval(), torch.randint(20, (9, 3))
    compiled = _frozen(model, ids)
    first, main = parted(compiled.program)
    assert {item.role.source for item in first.inputs} >= {"tokens.weight", "layer.weight_ih_l0"}
    assert not {item.role.source for item in main.inputs} & {"tokens.weight", "layer.weight_ih_l0"}
    for change in (model.tokens.weight, model.layer.weight_ih_l0, None):
        for _ in range(3):
            ids = torch.randint(20, (9, 3))
            with torch.no_grad():
                found, expected = compiled(ids), copy.deepcopy(model).double()(ids)
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
        if change is not None:
            with torch.no_grad():
                change.mul_(-2)


@pytest.mark.parametrize("wrong", [20, -1])
def test_an_index_beyond_a_table_whose_product_is_kept_is_an_error(wrong: int) -> None:
    model, ids = Embedded().eval(), torch.randint(20, (9, 3))
    compiled = _frozen(model, ids)
    ids[4, 1] = wrong
    with torch.no_grad(), pytest.raises(IndexRangeError):
        compiled(ids)


class Rows(nn.Module):
    """Something of rows of a table and a weight."""

    def __init__(self, of: Callable[["Rows", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(20, 16, padding_idx=3)
        self.weight = nn.Parameter(torch.randn(12, 16))
        self.of = of

    def forward(self, ids: Tensor) -> Tensor:
        return self.of(self, ids)


def _repeated(model: Rows, ids: Tensor) -> Tensor:
    rows = model.tokens(ids[:, 0])[:, None, :].expand(9, 3, 16)
    return torch.einsum("bsk,jk->bj", rows, model.weight)


TABLES: dict[str, tuple[Callable[[Rows, Tensor], Tensor], bool]] = {
    "rows times a weight": (lambda m, ids: m.tokens(ids) @ m.weight.T, True),
    "indices from the end": (lambda m, ids: m.tokens.weight[ids - 10] @ m.weight.T, True),
    "the table itself": (lambda m, ids: m.tokens(ids) @ m.tokens.weight.T, True),
    "each row several times": (_repeated, False),
    "sums of rows": (lambda m, ids: torch.einsum("bsk,jk->bj", m.tokens(ids), m.weight), False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TABLES)
def test_products_of_rows_are_those_of_eager_whatever_is_kept(
    name: str, dtype: torch.dtype
) -> None:
    of, kept = TABLES[name]
    model, ids = Rows(of).eval().to(dtype), torch.randint(20, (9, 3))
    ids[2, 1] = 3  # the row of padding
    compiled = _frozen(model, ids)
    if dtype == torch.float32:
        sources = {item.role.source for item in parted(compiled.program)[1].inputs}
        assert kept == ("tokens.weight" not in sources)
    with torch.no_grad():
        for given in (ids, ids.flip(0)):
            found, expected = compiled(given), copy.deepcopy(model).double()(given)
            limit = 1e-5 if dtype == torch.float32 else 1e-2
            torch.testing.assert_close(found.double(), expected, rtol=limit, atol=limit * 4)


@pytest.mark.parametrize("channels", [24, 400])
def test_kernels_that_stay_are_transformed_once(channels: int) -> None:
    model = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
    x = torch.randn(8, channels, 4, 4)
    compiled = _frozen(model, x)
    assert "by Winograd's" in compiled.explain()
    assert [item.role.source for item in parted(compiled.program)[0].inputs] == ["weight"]
    _agrees(compiled, model, x)
    with torch.no_grad():
        model.weight.mul_(-2)
    _agrees(compiled, model, x)
    x[:, :, 1, 1] = torch.inf  # what does not come out finite is summed from the kernels themselves
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3, equal_nan=True)


def test_calls_that_ask_for_gradients_are_refused() -> None:
    model, x = Small(), torch.randn(8, 32)
    with pytest.raises(OptionError, match="frozen weights are for calls without gradients"):
        tw.compile(model, x, options=FROZEN)
    compiled = _frozen(model, x)
    for _ in range(3):
        _agrees(compiled, model, x)
    with pytest.raises(OptionError, match="frozen weights are for calls without gradients"):
        compiled(x)
    model.requires_grad_(requires_grad=False)
    torch.testing.assert_close(compiled(x), model(x))


def test_training_is_refused() -> None:
    model, x = Small(), torch.randn(8, 32)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(OptionError, match="frozen weights are for calls without gradients"):
        tw.train_step(model, nn.functional.mse_loss, optimizer, x, model(x), options=FROZEN)


def test_debug_mode_compares_frozen_weights_too() -> None:
    model, x = Small(), torch.randn(8, 32)
    compiled = _frozen(model, x, check="eager")
    _agrees(compiled, model, x)
    _written(model)
    _agrees(compiled, model, x)


def test_buckets_see_changed_weights() -> None:
    model = Small()
    with torch.no_grad():
        compiled = tw.compile(
            model, torch.randn(3, 32), options=tw.Options(frozen=True, buckets=("batch",))
        )
    for batch in (3, 4, 7):
        _agrees(compiled, model, torch.randn(batch, 32))
        _written(model)
        _agrees(compiled, model, torch.randn(batch, 32))
    model.weight.data.mul_(2)
    compiled.refresh()
    _agrees(compiled, model, torch.randn(3, 32))


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_sees_changed_weights(dynamic: bool) -> None:
    torch._dynamo.reset()
    model = Small()
    compiled = torch.compile(model, backend="tilewright", options={"frozen": True}, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for batch in (3, 5, 9):
            for change in (_written, _replaced):
                _agrees(compiled, model, torch.randn(batch, 32))
                change(model)
        _agrees(compiled, model, torch.randn(3, 32))


def test_torch_compile_refuses_gradients() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Small(), backend="tilewright", options={"frozen": True})
    with pytest.raises(Exception, match="frozen weights are for calls without gradients"):
        compiled(torch.randn(3, 32))


def test_threads_see_the_weights_there_are() -> None:
    model, x = Small(), torch.randn(8, 32)
    compiled = _frozen(model, x)
    states = [Small(seed=k).state_dict() for k in range(2)]
    with torch.no_grad():
        expected = []
        for state in states:
            model.load_state_dict(state)
            expected.append(model(x))
    wrong: list[Tensor] = []
    done = threading.Event()

    def call() -> None:
        while not done.is_set():
            with torch.no_grad():
                found = compiled(x)
            if not torch.isfinite(found).all():
                wrong.append(found)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(50):
        model.load_state_dict(states[turn % 2])
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    for state, right in zip(states, expected, strict=True):
        model.load_state_dict(state)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), right, rtol=1e-4, atol=1e-5)
