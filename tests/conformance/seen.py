"""What a caller sees of a call, compiled and in eager, and what differs between the two.

The idea: both roads get copies of the tensors that lie in memory as the originals do; what they
give is compared in all that can be seen: types, shapes, strides, aliases, what asks for gradients,
values and gradients.  Where values are not the same to the bit, eager in float64 judges both.
This module does not know what is called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

Tensor = torch.Tensor

# How far two right orders of rounding come apart: in units of the last place of the type, at the
# size of the tensor's largest element, beside twice eager's own distance from float64.
ULPS = 32


@dataclass(frozen=True, slots=True)
class Case:
    """A function of tensors, and the tensors with all that makes them special.

    weigh: takes the part of the result that is differentiated.
    """

    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    weigh: Callable[[Any], Any] = lambda made: made
    name: str = ""


@dataclass(slots=True)
class Seen:
    """What a caller sees of one call."""

    results: list[Tensor]
    plain: list[Any]
    spec: Any
    inputs: list[Tensor]
    gradients: list[Tensor | None] | None = None
    error: Exception | None = None
    backward: Exception | None = None


def run(function: Callable[..., Any], case: Case, *, gradients: bool = True) -> Seen:
    """Call a function on copies of the case's tensors; differentiate what asks for it."""
    torch.default_generator.manual_seed(0)  # the CPU's alone: the other devices' seeds take time
    inputs = copies(case.tensors)
    # Not leaves, so that a sample may write into them.
    given = [t.requires_grad_() if was.requires_grad else t
             for t, was in zip(inputs, case.tensors, strict=True)]  # fmt: skip
    try:
        made = function(*given)
    except Exception as error:
        return Seen([], [], None, inputs, error=error)
    leaves, spec = pytree.tree_flatten(made)
    results = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    plain = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    seen = Seen(results, plain, spec, inputs)
    if gradients:
        try:
            seen.gradients = _gradients(case.weigh(made), inputs)
        except Exception as error:
            seen.backward = error
    return seen


def _gradients(made: Any, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    asked = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]
    asked = [leaf for leaf in asked if leaf.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if not asked or not wanted:
        return []
    generator = torch.Generator().manual_seed(1)
    tangents = [
        torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype)
        for leaf in asked
    ]
    return list(torch.autograd.grad(asked, wanted, tangents, allow_unused=True))


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors with their memory: strides, offsets and what they share stay as they are."""
    storages: dict[int, torch.UntypedStorage] = {}
    made: dict[int, Tensor] = {}
    found = []
    for tensor in tensors:
        if id(tensor) not in made:
            made[id(tensor)] = _copy(tensor, storages)
        found.append(made[id(tensor)])
    return found


def _copy(tensor: Tensor, storages: dict[int, torch.UntypedStorage]) -> Tensor:
    plain = tensor.detach()
    if plain.layout != torch.strided or plain.is_neg() or plain.is_conj():
        return plain.clone()
    storage = plain.untyped_storage()
    key = int(storage._cdata)
    if key not in storages:
        storages[key] = storage.clone()
    made = torch.empty(0, dtype=plain.dtype)
    return made.set_(storages[key], plain.storage_offset(), plain.shape, plain.stride())


def exact(case: Case, eager: Seen) -> Seen | None:
    """Return eager's results in float64, or None where it has none of the same make."""
    wide = tuple(_widened(tensor) for tensor in case.tensors)
    found = run(case.function, Case(case.function, wide, case.weigh, case.name))
    if found.error is not None or (found.backward is not None and eager.backward is None):
        return None
    if [t.shape for t in found.results] != [t.shape for t in eager.results]:
        return None
    return found


def _widened(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


# ---------------------------------------------------------------------------- what differs


def compare(ours: Seen, eager: Seen, exact: Callable[[], Seen | None] | None) -> str:
    """Return what differs first, in words; nothing where all is as in eager.

    exact: gives the judge in float64, when one is needed; None compares no values.
    """
    if ours.error is not None or eager.error is not None:
        return _compare_errors(ours.error, eager.error)
    if ours.backward is not None or eager.backward is not None:
        line = _compare_errors(ours.backward, eager.backward)
        if line:
            return f"backward: {line}"
    if ours.spec != eager.spec or not _same_plain(ours.plain, eager.plain):
        return f"gives {ours.spec} {ours.plain} in place of {eager.spec} {eager.plain}"
    for at, (mine, theirs) in enumerate(zip(ours.results, eager.results, strict=True)):
        line = _compare_make(mine, theirs)
        if line:
            return f"result {at}: {line}"
    if sharing(ours) != sharing(eager):
        return f"aliases {sharing(ours)} in place of {sharing(eager)}"
    if exact is None:
        return ""
    return _compare_all(ours, eager, _Once(exact))


def _compare_all(ours: Seen, eager: Seen, judge: Callable[[], Seen | None]) -> str:
    groups: tuple[tuple[str, Callable[[Seen], Sequence[Tensor | None]]], ...] = (
        ("result", lambda seen: seen.results),
        ("input", lambda seen: seen.inputs),
        ("gradient", lambda seen: seen.gradients or []),
    )
    for what, pick in groups:
        mine, theirs = pick(ours), pick(eager)
        if len(mine) != len(theirs):
            return f"{len(mine)} {what}s in place of {len(theirs)}"
        for at, (left, right) in enumerate(zip(mine, theirs, strict=True)):
            line = _compare_values(left, right, judge, pick, at)
            if not line and what == "result":
                line = _compare_zeros(left, right)
            if line and not (what == "gradient" and _undefined(left, right)):
                return f"{what} {at}: {line}"
    return ""


def _undefined(ours: Tensor | None, eager: Tensor | None) -> bool:
    """Whether torch's formula gives no gradient, and ours is zero: the norm of order 0, say.

    What a result does not depend on gets none from us either.
    """
    return eager is None and ours is not None and not bool(ours.any())


class _Once:
    """The judge, run when it is first asked for."""

    def __init__(self, make: Callable[[], Seen | None]) -> None:
        self.make = make
        self.made: list[Seen | None] = []

    def __call__(self) -> Seen | None:
        if not self.made:
            self.made.append(self.make())
        return self.made[0]


def _compare_errors(ours: Exception | None, eager: Exception | None) -> str:
    if eager is None:
        return f"raises {type(ours).__name__}: {first_line(ours)}"
    if ours is None:
        return f"raises nothing in place of {type(eager).__name__}"
    kind = type(eager)
    return "" if isinstance(ours, kind) else f"raises {type(ours).__name__} for {kind.__name__}"


def _same_plain(mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    pairs = zip(mine, theirs, strict=True)
    return all(type(a) is type(b) and (a == b or (a != a and b != b)) for a, b in pairs)


def _compare_make(ours: Tensor, eager: Tensor) -> str:
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return f"{ours.dtype}{list(ours.shape)} in place of {eager.dtype}{list(eager.shape)}"
    if _strides(ours) != _strides(eager):
        return f"strides {ours.stride()} in place of {eager.stride()} of {list(eager.shape)}"
    if ours.requires_grad != eager.requires_grad:
        return f"requires_grad {ours.requires_grad} in place of {eager.requires_grad}"
    return ""


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides that mean something: those of dims with more than one element."""
    if tensor.numel() < 2:
        return ()
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(step for size, step in sizes if size != 1)


def sharing(seen: Seen) -> list[str]:
    """Say of each result whose memory it lives in: an input's, an earlier result's, or its own."""
    tensors = [*seen.inputs, *seen.results]
    count = len(seen.inputs)
    found = []
    for at in range(count, len(tensors)):
        for other in range(at):
            if tensors[at] is tensors[other]:
                found.append(f"is {other}")
                break
            if tensors[at].numel() and _memory(tensors[at]) == _memory(tensors[other]):
                gap = tensors[at].storage_offset() - tensors[other].storage_offset()
                found.append(f"in {other} at {gap}")
                break
        else:
            found.append("own")
    return found


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _compare_values(
    ours: Tensor | None,
    eager: Tensor | None,
    judge: Callable[[], Seen | None],
    pick: Callable[[Seen], Sequence[Tensor | None]],
    at: int,
) -> str:
    if ours is None or eager is None:
        some = [tensor for tensor in (ours, eager) if tensor is not None and tensor.numel()]
        return f"{_kind(ours)} in place of {_kind(eager)}" if some else ""
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return f"{_kind(ours)} in place of {_kind(eager)}"
    if torch.equal(ours, eager) or not ours.numel():
        return ""
    if not ours.is_floating_point():
        return f"other values, {_example(ours, eager, ours != eager)}"
    return _distance(ours.detach(), eager.detach(), judge, pick, at)


def _compare_zeros(ours: Tensor | None, eager: Tensor | None) -> str:
    if ours is None or eager is None or not eager.is_floating_point():
        return ""
    other = (ours == 0) & (eager == 0) & (ours.signbit() != eager.signbit())
    return f"zeros of another sign, {_example(ours, eager, other)}" if bool(other.any()) else ""


def _distance(
    ours: Tensor,
    eager: Tensor,
    judge: Callable[[], Seen | None],
    pick: Callable[[Seen], Sequence[Tensor | None]],
    at: int,
) -> str:
    unit = torch.finfo(eager.dtype).eps
    mine, theirs = ours.double(), eager.double()
    special = ~mine.isfinite() | ~theirs.isfinite()
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    if bool((special & ~same).any()):
        return f"other special values, {_example(ours, eager, special & ~same)}"
    gap = torch.where(special, 0.0, mine - theirs).abs()
    scale = torch.where(special, 0.0, theirs).abs()
    if bool((gap <= 4 * unit * scale + 1e-300).all()):
        return ""
    found = judge()
    truth = pick(found)[at] if found is not None else None
    largest = float(scale.max())
    floor = ULPS * unit * max(largest, 1e-30)
    if truth is None or truth.dtype != torch.float64 or not bool(truth[~special].isfinite().all()):
        bad = gap > 64 * floor
        return f"from eager: {_example(ours, eager, bad)}" if bool(bad.any()) else ""
    true = torch.where(special, 0.0, truth.detach())
    error = (torch.where(special, 0.0, mine) - true).abs()
    usual = float((torch.where(special, 0.0, theirs) - true).abs().max())
    bad = error > 2 * usual + floor
    if not bool(bad.any()):
        return ""
    return (
        f"{float(error.max()):.2e} from float64 where eager is {usual:.2e} "
        f"(largest {largest:.2e}), {_example(ours, eager, bad)}"
    )


def _example(ours: Tensor, eager: Tensor, where: Tensor) -> str:
    first = tuple(int(k) for k in where.nonzero()[0])
    mine, theirs = ours[first].item(), eager[first].item()
    return f"at {list(first)} {mine!r} in place of {theirs!r}"


def _kind(value: Tensor | None) -> str:
    return "no gradient" if value is None else f"{value.dtype}{list(value.shape)}"


def first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
