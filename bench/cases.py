"""What is raced: the models at their sizes, with one optimizer each, and their FLOPs.

The idea: a case is written to a folder (weights, batch, sizes) that every contender reads, in
whatever environment it lives, so that all start from the same numbers and can be checked against
one float64 reference.  Does not know contenders.
"""

import dataclasses
import importlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench import protocol

MODES = ("train", "infer")
CHECKED_STEPS = 3


@dataclass(frozen=True, slots=True)
class Optimizer:
    """SGD with momentum, or AdamW with torch's default betas and epsilon."""

    kind: str
    rate: float
    momentum: float = 0.0
    decay: float = 0.0

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The torch optimizer, in the form that updates all parameters in one call."""
        if self.kind == "sgd":
            return torch.optim.SGD(
                model.parameters(), lr=self.rate, momentum=self.momentum, fused=True
            )
        assert self.kind == "adamw", f"no optimizer {self.kind!r}"
        return torch.optim.AdamW(
            model.parameters(), lr=self.rate, weight_decay=self.decay, fused=True
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A model at one size; `label` is what the table says of it."""

    name: str
    label: str
    module: str
    factory: str
    sizes: dict[str, Any]
    batch: int
    optimizer: Optimizer


_SGD = Optimizer("sgd", rate=0.01, momentum=0.9)
_ADAMW = Optimizer("adamw", rate=3e-4, decay=0.1)
_MODELS = "tilewright.models"

CASES: tuple[Case, ...] = (
    Case("mlp", "mlp 64-128-128-10, batch 32", f"{_MODELS}.mlp", "mlp", {}, 32, _SGD),
    Case(
        "gpt-small",
        "gpt 2 layers, d 64, 2 x 64, vocabulary 512",
        f"{_MODELS}.gpt",
        "gpt",
        {"vocab": 512, "length": 64, "layers": 2, "width": 64},
        2,
        _ADAMW,
    ),
    Case(
        "gpt",
        "gpt 4 layers, d 256, 8 x 128, vocabulary 8192",
        f"{_MODELS}.gpt",
        "gpt",
        {"vocab": 8192, "length": 128, "layers": 4, "width": 256},
        8,
        _ADAMW,
    ),
    Case(
        "lstm",
        "lstm 2 x 256, 8 x 64, vocabulary 1000",
        f"{_MODELS}.lstm",
        "lstm",
        {},
        8,
        _ADAMW,
    ),
    Case("convnet", "ResNet-18 (32x32), batch 8", f"{_MODELS}.convnet", "convnet", {}, 8, _SGD),
    Case("moe", "moe 2 layers, d 128, 8 experts, 8 x 128", f"{_MODELS}.moe", "moe", {}, 8, _ADAMW),
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A case as torch objects: the model with its weights, the batch, the loss."""

    case: Case
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


def build(case: Case, *, seed: int = 0) -> Loaded:
    """The case from nothing."""
    module = importlib.import_module(case.module)
    torch.manual_seed(seed)
    model: nn.Module = getattr(module, case.factory)(**case.sizes)
    inputs, targets = module.example_batch(model, case.batch, seed=seed)
    return Loaded(case, model, inputs, targets, module.loss)


def write(loaded: Loaded, folder: Path) -> None:
    """Write weights and batch (`setup.npz`) and sizes (`case.json`) for the contenders."""
    arrays = {f"state.{k}": v.numpy() for k, v in loaded.model.state_dict().items()}
    arrays |= {"inputs": loaded.inputs.numpy(), "targets": loaded.targets.numpy()}
    np.savez(folder / "setup.npz", **arrays)
    (folder / "case.json").write_text(json.dumps(dataclasses.asdict(loaded.case)))


def read(folder: Path) -> Loaded:
    """The case as `write` left it."""
    fields = json.loads((folder / "case.json").read_text())
    case = Case(**fields | {"optimizer": Optimizer(**fields["optimizer"])})
    loaded = build(case)
    with np.load(folder / "setup.npz") as arrays:
        state = {k: torch.from_numpy(arrays[f"state.{k}"]) for k in loaded.model.state_dict()}
        loaded.model.load_state_dict(state)
        inputs, targets = torch.from_numpy(arrays["inputs"]), torch.from_numpy(arrays["targets"])
    return dataclasses.replace(loaded, inputs=inputs, targets=targets)


def reference(loaded: Loaded, mode: str) -> list[float]:
    """What a contender must observe, computed by eager torch in float64."""
    copy = build(loaded.case)
    copy.model.load_state_dict(loaded.model.state_dict())
    model = copy.model.double()
    inputs = loaded.inputs.double() if loaded.inputs.is_floating_point() else loaded.inputs
    if mode == "infer":
        with torch.no_grad():
            return sample(model.eval()(inputs))
    optimizer = loaded.case.optimizer.build(model)
    losses = []
    for _ in range(CHECKED_STEPS):
        optimizer.zero_grad()
        loss = loaded.loss(model(inputs), loaded.targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sample(output: Tensor | tuple[Tensor, ...]) -> list[float]:
    """A fixed spread of the values of an output, the first where there are several."""
    return protocol.sample((output[0] if isinstance(output, tuple) else output).detach().flatten())


def largest_difference(observed: list[float], expected: list[float]) -> float:
    """The largest difference relative to the largest expected value."""
    a, b = np.asarray(observed), np.asarray(expected)
    if a.shape != b.shape or not np.isfinite(a).all():
        return float("inf")
    return float(np.abs(a - b).max() / np.abs(b).max())


def flops(case: Case, mode: str) -> int:
    """FLOPs of the matrix products and convolutions of one step (attention counted in full)."""
    loaded = build(case)
    # Without fused attention and oneDNN's recurrent layers all is made of products that it counts.
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")  # of flags that only other builds have
        return _counted(loaded, mode)


def _counted(loaded: Loaded, mode: str) -> int:
    counter = FlopCounterMode(display=False)
    with torch.backends.mkldnn.flags(enabled=False), counter:
        if mode == "infer":
            with torch.no_grad():
                loaded.model.eval()(loaded.inputs)
        else:
            loss = loaded.loss(loaded.model(loaded.inputs), loaded.targets)
            loss.backward()
    return int(counter.get_total_flops())
