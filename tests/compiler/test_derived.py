"""A gradient is derived again only where something that it follows from has changed.

Each variation changes one thing: its Programs are not found under what the others were made from,
and, found again, they are run without deriving anything, to the same bits.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.sweep import few
from torch import Tensor, nn

import tilewright as tw
from tilewright.base.errors import CaptureError
from tilewright.compiler import compiled, pipeline, remembered
from tilewright.graph.ir import Graph
from tilewright.train import joint


@pytest.fixture(autouse=True)
def derived(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Remember in a folder of the test's own; the names of the graphs that were differentiated."""
    monkeypatch.setattr(pipeline, "key_of", remembered.key_of)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    names: list[str] = []
    for module in (joint, compiled):
        original = module.reverse

        def noting(graph: Graph, *rest: Any, _of: Any = original, **named: Any) -> Any:
            names.append(graph.name)
            return _of(graph, *rest, **named)

        monkeypatch.setattr(module, "reverse", noting)
    return names


class _Scaled(torch.autograd.Function):
    """The identity, with a gradient of its own."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return dy * 2.0


class _Halved(_Scaled):
    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return dy * 0.5


class Net(nn.Module):
    """Convolution, batch norm with statistics, dropout, and two layers that may share a weight."""

    def __init__(
        self,
        *,
        drop: float = 0.25,
        momentum: float = 0.1,
        custom: type[torch.autograd.Function] = _Scaled,
        stop: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, momentum=momentum)
        self.drop = nn.Dropout(drop)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.custom, self.stop = custom, stop

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.norm(self.conv(x)).relu().mean((2, 3)))
        h = self.custom.apply(self.first(h))
        out: Tensor = self.second(h.detach() if self.stop else h)
        return out


class Made:
    """What a step is made from; a variation changes one thing."""

    def __init__(self) -> None:
        self.model: Callable[[], nn.Module] = Net
        self.change: Callable[[Any], object] = lambda _: None
        self.optimizer: Callable[[Any], torch.optim.Optimizer] = lambda model: torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9
        )
        self.prepare: Callable[[torch.optim.Optimizer], object] = lambda _: None
        self.loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
        self.batch = 4
        self.dtype = torch.float32
        self.lies: torch.memory_format = torch.contiguous_format
        self.named: dict[str, Any] = {}
        self.scales = False
        self.rate: float | None = None

    def run(self) -> list[Tensor]:
        """Make three steps; return the losses and all that was moved."""
        torch.manual_seed(0)
        model = self.model().to(self.dtype)
        self.change(model)
        optimizer = self.optimizer(model)
        self.prepare(optimizer)
        x = torch.randn(self.batch, 2, 5, 5, dtype=self.dtype).to(memory_format=self.lies)
        y = torch.randint(4, (self.batch,))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if self.scales else None
        step = tw.train_step(model, self.loss, optimizer, x, y, scaler=scaler, **self.named)
        if self.rate is not None:
            optimizer.param_groups[0]["lr"] = self.rate
        losses = [step(x, y) for _ in range(3)]
        state = [v for entry in optimizer.state.values() for v in entry.values()]
        moved = [*model.parameters(), *model.buffers(), *filter(torch.is_tensor, state)]
        return [value.detach().clone() for value in (*losses, *moved)]


def _with(**changes: Any) -> Made:
    made = Made()
    for name, value in changes.items():
        assert hasattr(made, name), f"nothing is made from {name}"
        setattr(made, name, value)
    return made


def _sgd(**settings: Any) -> Made:
    given = {"lr": 0.1, "momentum": 0.9} | settings
    return _with(optimizer=lambda model: torch.optim.SGD(model.parameters(), **given))


def _adam(cls: Any = torch.optim.AdamW, **settings: Any) -> Made:
    return _with(optimizer=lambda model: cls(model.parameters(), **settings))


def _two_groups(model: Any) -> torch.optim.Optimizer:
    early = [*model.conv.parameters(), *model.norm.parameters()]
    late = [*model.first.parameters(), *model.second.parameters()]
    groups = [{"params": early, "weight_decay": 0.1}, {"params": late}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def _other_groups(model: Any) -> torch.optim.Optimizer:
    optimizer = _two_groups(model)
    first, second = optimizer.param_groups
    first["params"], second["params"] = second["params"], first["params"]
    return optimizer


def _tie(model: Any) -> None:
    model.second.weight = model.first.weight


def _one_ahead(optimizer: torch.optim.Optimizer) -> None:
    """One parameter has made a step that the others have not."""
    parameter = optimizer.param_groups[0]["params"][0]
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    parameter.grad = None


VARIATIONS: dict[str, Made] = {
    "as it is": Made(),
    "no momentum": _sgd(momentum=0.0),
    "dampening": _sgd(dampening=0.5),
    "nesterov": _sgd(nesterov=True),
    "weight decay": _sgd(weight_decay=0.1),
    "another weight decay": _sgd(weight_decay=0.2),
    "maximize": _sgd(maximize=True),
    "two groups": _with(optimizer=_two_groups),
    "the groups exchanged": _with(optimizer=_other_groups),
    "adamw": _adam(),
    "adam": _adam(torch.optim.Adam),
    "adam that decays": _adam(torch.optim.Adam, weight_decay=0.01),
    "eps": _adam(eps=1e-3),
    "beta2": _adam(betas=(0.9, 0.9)),
    "amsgrad": _adam(amsgrad=True),
    "clocks apart": _with(
        optimizer=lambda model: torch.optim.AdamW(model.parameters()), prepare=_one_ahead
    ),
    "clipped": _with(named={"clip_norm": 0.5}),
    "clipped elsewhere": _with(named={"clip_norm": 0.50001}),
    "scaled": _with(scales=True),
    "two parts": _with(named={"accumulate": 2}),
    "four parts": _with(named={"accumulate": 4}),
    "torch's masks": _with(named={"options": tw.Options(random="torch")}),
    "not fused": _with(named={"options": tw.Options(fuse=False)}),
    "no library": _with(named={"options": tw.Options(library=False)}),
    "another dropout": _with(model=lambda: Net(drop=0.5)),
    "evaluated": _with(change=lambda model: model.eval()),
    "other statistics": _with(model=lambda: Net(momentum=0.2)),
    "another gradient of its own": _with(model=lambda: Net(custom=_Halved)),
    "stopped": _with(model=lambda: Net(stop=True)),
    "tied": _with(change=_tie),
    "frozen": _with(change=lambda model: model.conv.requires_grad_(False)),
    "a bias frozen": _with(change=lambda model: model.first.bias.requires_grad_(False)),
    "another loss": _with(loss=lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1)),
    "another batch": _with(batch=8),
    "in double": _with(dtype=torch.float64),
    "channels last": _with(lies=torch.channels_last),
    "weights channels last": _with(
        change=lambda model: model.conv.to(memory_format=torch.channels_last)
    ),
}

USUAL = (
    "as it is",
    "weight decay",
    "clipped",
    "scaled",
    "two parts",
    "another gradient of its own",
    "frozen",
    "channels last",
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all variations, so that any could be found in the place of another."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize("name", few(list(VARIATIONS), *USUAL))
def test_a_step_is_found_again_by_all_that_it_follows_from(
    derived: list[str], monkeypatch: pytest.MonkeyPatch, kept: Path, name: str
) -> None:
    made = VARIATIONS[name]
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(kept))
    cold = made.run()
    assert derived, "nothing that was made before is this"
    derived.clear()
    warm = made.run()
    assert not derived
    _same_bits(warm, cold)
    with monkeypatch.context() as anew:
        anew.setattr(pipeline, "key_of", lambda *_: None)
        _same_bits(made.run(), cold)


def test_what_a_schedule_moves_is_no_other_step(derived: list[str]) -> None:
    _with().run()
    derived.clear()
    moved = _with(rate=0.02).run()
    _same_bits(moved, _sgd(lr=0.02).run())
    assert not derived


def test_a_step_that_was_found_explains_itself_by_deriving_it(derived: list[str]) -> None:
    torch.manual_seed(0)
    model = Net()
    batch = torch.randn(4, 2, 5, 5), torch.randint(4, (4,))

    def made() -> Any:
        ours = copy.deepcopy(model)
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
        return tw.train_step(ours, F.cross_entropy, optimizer, *batch)

    first, again = made(), made()
    assert len(derived) == 1
    assert again.program == first.program
    assert again.graph == first.graph
    assert len(derived) == 2
    lines = [step.explain().splitlines()[:-1] for step in (first, again)]
    assert lines[0] == lines[1]
    assert len(derived) == 2


def test_hooks_are_refused_where_a_step_is_found_too(derived: list[str]) -> None:
    _with().run()
    hooked = _with(change=lambda model: model.first.weight.register_hook(lambda grad: grad * 2))
    derived.clear()
    with pytest.raises(CaptureError, match="gradient hooks"):
        hooked.run()


def test_a_step_compared_with_eager_is_derived_and_compared(derived: list[str]) -> None:
    checked = _with(named={"options": tw.Options(check="eager", random="torch")})
    checked.run()
    derived.clear()
    checked.run()
    assert derived


# --------------------------------------------------------------------- forward and backward, apart


def _cubed(w: Tensor, x: Tensor) -> Tensor:
    return _Scaled.apply(x @ w).tanh().sum()  # type: ignore[no-any-return, no-untyped-call]


def _halved(w: Tensor, x: Tensor) -> Tensor:
    return _Halved.apply(x @ w).tanh().sum()  # type: ignore[no-any-return, no-untyped-call]


def _stopped(w: Tensor, x: Tensor) -> Tensor:
    return ((x @ w).tanh().detach() * (x @ w)).sum()


def _not_stopped(w: Tensor, x: Tensor) -> Tensor:
    return ((x @ w).tanh() * (x @ w)).sum()


def _constant(w: Tensor, x: Tensor) -> Tensor:
    return ((x @ w).tanh() * (x @ w).detach()).sum()


FUNCTIONS = (_cubed, _halved, _stopped, _not_stopped, _constant)
ASKING = ((True, False), (False, True), (True, True))


def _gradients(fn: Callable[..., Tensor], asking: tuple[bool, bool], turned: bool) -> list[Tensor]:
    torch.manual_seed(0)
    w, x = torch.randn(4, 3), torch.randn(5, 4)
    if turned:
        x = x.t().contiguous().t()
    for tensor, asks in zip((w, x), asking, strict=True):
        tensor.requires_grad_(asks)
    call = tw.compile(fn, w, x)
    result = call(w, x)
    result.backward()
    return [result.detach(), *(t.grad for t in (w, x) if t.grad is not None)]


@pytest.mark.parametrize("turned", few([False, True], False))
@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("fn", few(FUNCTIONS, _cubed, _halved, _stopped))
def test_forward_and_backward_are_found_again_by_all_that_they_follow_from(
    derived: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kept: Path,
    fn: Callable[..., Tensor],
    asking: tuple[bool, bool],
    turned: bool,
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(kept))
    cold = _gradients(fn, asking, turned)
    assert derived
    derived.clear()
    warm = _gradients(fn, asking, turned)
    assert not derived
    _same_bits(warm, cold)
    torch.manual_seed(0)
    w, x = torch.randn(4, 3).requires_grad_(asking[0]), torch.randn(5, 4).requires_grad_(asking[1])
    expected = fn(w, x)
    expected.backward()
    for ours, theirs in zip(warm[1:], (t.grad for t in (w, x) if t.grad is not None), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_dynamo_s_forward_and_backward_are_found_again(derived: list[str]) -> None:
    def trained() -> list[Tensor]:
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh())
        call = torch.compile(model, backend="tilewright")
        for _ in range(2):
            call(torch.randn(4, 2, 5, 5)).square().sum().backward()
        return [value.grad for value in model.parameters() if value.grad is not None] + [
            value.clone() for value in model.buffers()
        ]

    cold = trained()
    assert derived
    derived.clear()
    _same_bits(trained(), cold)
    assert not derived


def _same_bits(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
