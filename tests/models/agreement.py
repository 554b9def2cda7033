"""Run a model compiled and in eager, and say where the two are not the same.

The idea: eager in float64 is the judge: ours may be at most twice as far from it, in norm, as eager
in float32 is, for this tensor or for half of those like it (plus rounding at the tensor's size);
where a model cannot run in float64, ours has to be close to eager itself.  Dtypes, shapes, strides,
which gradients are absent, and what happens to buffers have to be the same exactly.
This module does not know any model.
"""

import copy
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import nn

# Rounding, relative to the largest element: of one tensor, and of all gradients together.
EPSILON = 2e-6
WHOLE = 5e-8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave: the results by where they are in the output, gradients, buffers.

    asking: the results that require gradients.
    """

    results: dict[str, torch.Tensor]
    asking: frozenset[str] = frozenset()
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)


def outcome(
    call: Callable[..., Any], module: nn.Module, inputs: Mapping[str, Any], *, train: bool
) -> Outcome:
    """Run `call`, the module or what was compiled from it; in training also backward."""
    module.train(train)
    torch.manual_seed(3)
    with torch.set_grad_enabled(train):
        results = dict(tensors_in(call(**inputs)))
    if train:
        total = scalar(results)
        if total is not None:
            total.backward()
    return Outcome(
        {key: value.detach() for key, value in results.items()},
        frozenset(key for key, value in results.items() if value.requires_grad),
        {key: p.grad for key, p in module.named_parameters()} if train else {},
        {key: value.detach().clone() for key, value in module.named_buffers()},
    )


def scalar(results: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Weigh every element of every differentiable result with a number of its own, and add up."""
    generator = torch.Generator()
    total: torch.Tensor | None = None
    for at, value in enumerate(results.values()):
        if not value.is_floating_point() or not value.requires_grad:
            continue
        generator.manual_seed(4 + at)
        weights = torch.rand(value.shape, generator=generator, dtype=torch.float64)
        term = (torch.nan_to_num(value) * weights.to(value.dtype)).sum().double()
        total = term if total is None else total + term
    return total


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Find the tensors in an output, whatever it is made of."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from tensors_in(item, f"{path}[{at}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from tensors_in(getattr(value, item.name), f"{path}.{item.name}")
    elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
        yield from tensors_in(vars(value), path)


def disagreements(
    ours: Outcome, eager: Outcome, exact: Outcome | None, *, rounding: float = EPSILON
) -> list[str]:
    """Return what differs from eager, one line each; none where all is as it has to be.

    rounding: of the least exact type that values go through, relative to the largest element.
    """
    found = []
    if ours.asking != eager.asking:
        found.append(f"{sorted(ours.asking ^ eager.asking)} ask for gradients, or do not")
    for what in ("results", "gradients", "buffers"):
        mine, theirs = getattr(ours, what), getattr(eager, what)
        judge = getattr(exact, what) if exact is not None else {}
        if list(mine) != list(theirs):
            found.append(f"{what}: {list(mine)} in place of {list(theirs)}")
            continue
        whole = max((_largest(value) for value in theirs.values()), default=0.0)
        bounds = Bounds(rounding, WHOLE * whole, _typical(theirs, judge))
        for key, expected in theirs.items():
            line = _difference(mine[key], expected, judge.get(key), bounds)
            if line:
                found.append(f"{what} {key}: {line}")
    return found


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far tensors of one kind may be off: by rounding relative to their largest element, by a
    part of the largest of all, and by what is typical of eager (relative, in norm)."""

    rounding: float
    whole: float
    typical: float


def _typical(
    eager: Mapping[str, torch.Tensor | None], exact: Mapping[str, torch.Tensor | None]
) -> float:
    """Return the median of eager's relative distances from float64."""
    found = []
    for key, value in eager.items():
        true = exact.get(key)
        if value is not None and true is not None and _judges(true):
            size = float(true.norm())
            distance = float((value.double() - true).norm())
            if size > 0 and math.isfinite(distance):
                found.append(distance / size)
    return statistics.median(found) if found else 0.0


def _judges(exact: torch.Tensor) -> bool:
    return exact.dtype == torch.float64


def _largest(value: torch.Tensor | None) -> float:
    if value is None or not value.numel() or not value.is_floating_point():
        return 0.0
    return float(torch.nan_to_num(value.double(), 0.0, 0.0, 0.0).abs().max())


def _difference(
    ours: torch.Tensor | None,
    eager: torch.Tensor | None,
    exact: torch.Tensor | None,
    bounds: "Bounds",
) -> str:
    if ours is None or eager is None:
        return "" if ours is eager else f"{_kind(ours)} in place of {_kind(eager)}"
    if _kind(ours) != _kind(eager):
        return f"{_kind(ours)} in place of {_kind(eager)}"
    if seen_strides(ours) != seen_strides(eager):
        return f"strides {ours.stride()} in place of {eager.stride()}"
    if not eager.is_floating_point():
        return "" if torch.equal(ours, eager) else "other values"
    return _distance(ours.double(), eager.double(), exact, bounds)


def _distance(
    ours: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor | None,
    bounds: "Bounds",
) -> str:
    finite = eager.isfinite()
    special = (ours == eager) | (ours.isnan() & eager.isnan())
    if not bool((finite | special).all()) or not bool(ours[finite].isfinite().all()):
        return "NaN or infinity where eager has none, or the other way round"
    if not bool(finite.any()):
        return ""
    count = int(finite.sum()) ** 0.5
    small = (bounds.rounding * float(eager[finite].abs().max()) + bounds.whole + 1e-12) * count
    if exact is None or not _judges(exact) or not bool(exact[finite].isfinite().all()):
        gap = float((ours - eager)[finite].norm())
        allowed = 1e-4 * float(eager[finite].norm()) + small
        return "" if gap <= allowed else f"{gap:.2e} from eager, allowed {allowed:.2e}"
    gap = float((ours - exact)[finite].norm())
    usual = max(float((eager - exact)[finite].norm()), bounds.typical * float(exact[finite].norm()))
    allowed = 2 * usual + small
    return "" if gap <= allowed else f"{gap:.2e} from float64, allowed {allowed:.2e}"


def _kind(value: torch.Tensor | None) -> str:
    return "no gradient" if value is None else f"{value.dtype}{list(value.shape)}"


def seen_strides(value: torch.Tensor) -> tuple[int, ...]:
    """The strides that mean something: those of dims with more than one element."""
    if value.numel() < 2:
        return ()
    return tuple(step for size, step in zip(value.shape, value.stride(), strict=True) if size != 1)


def in_double(module: nn.Module, inputs: Mapping[str, Any], *, train: bool) -> Outcome | None:
    """Run the model in float64; None where it cannot be."""
    try:
        return outcome(
            (double := copy.deepcopy(module).double()),
            double,
            {key: _doubled(value) for key, value in inputs.items()},
            train=train,
        )
    except (RuntimeError, TypeError, ValueError):
        return None


def _doubled(value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floating else value
