"""What a plan is predicted to cost: seconds by what they go to, bytes by device and category.

The idea: the parts of a step add up to it, for the pipeline rank that is busiest: it computes
longest, and what it waits is lost, whoever ends last.  The bytes are those of each pipeline rank
for itself: stages differ, and the fullest decides whether a plan fits.

This module does not know how anything is priced (`predict`).
"""

import math
from dataclasses import dataclass, fields

from tilewright.base.errors import PlanError
from tilewright.cost import show_quantity
from tilewright.parallel.timetables import Bubble, Simulation

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of a step, as the pipeline rank spends them that computes longest.

    compute: products, attention and what lies between them, with the host's waiting.  recompute:
    forwards run again in the backward, their collectives left out.  tensor: collectives inside
    layers (tensor, context and expert parallelism).  data: gradients and weights among
    data-parallel ranks, as far as no computing hides them.  pipeline: sending to the next stage, as
    far as it keeps a rank waiting.  bubble: waiting for other stages, until the step has ended on
    all.  optimizer: the update.
    """

    compute: float
    recompute: float
    tensor: float
    pipeline: float
    bubble: float
    data: float
    optimizer: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(seconds for _, seconds in self.rows)

    @property
    def rows(self) -> tuple[tuple[str, float], ...]:
        """The parts by name, in order."""
        return tuple((item.name, getattr(self, item.name)) for item in fields(self))


@dataclass(frozen=True, slots=True)
class MemoryBytes:
    """Bytes at the peak on each device of one pipeline rank.

    workspace: what one layer needs while it is computed again, the logits of the loss, and the
    weights that ZeRO-3 has gathered.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    workspace: float

    @property
    def total(self) -> float:
        """All categories."""
        return sum(size for _, size in self.rows)

    @property
    def rows(self) -> tuple[tuple[str, float], ...]:
        """The categories by name, in order."""
        return tuple((item.name, getattr(self, item.name)) for item in fields(self))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step of a plan costs.

    memory_bytes: of a device of each pipeline rank.  memory_limit: bytes that a device has.
    model_flops: operations that the model asks for in a step (a multiplication and an addition are
    two).  hardware_flops: those that are run, recomputed ones too, by the convention of published
    HFU.  peak: FLOP/s of all devices.  notes: what was assumed, one sentence each.
    simulation: the pipeline's step, of its first micro-batches where there are very many.
    """

    breakdown: Breakdown
    memory_bytes: tuple[MemoryBytes, ...]
    memory_limit: float
    model_flops: float
    hardware_flops: float
    peak: float
    tokens: int
    simulation: Simulation
    notes: tuple[str, ...]

    @property
    def step_seconds(self) -> float:
        """Seconds of one step."""
        return self.breakdown.total

    @property
    def bubble(self) -> Bubble:
        """What the pipeline loses in a step, to waiting for other stages and sending to them.

        As published tables have it, (cost - work)/cost is `bubble.of_total` and (cost - work)/work
        `bubble.of_ideal`; the work is that of the busiest rank, the cost its time without what it
        does once in a step (data, optimizer).
        """
        parts = self.breakdown
        work = parts.compute + parts.recompute + parts.tensor
        return Bubble(work + parts.pipeline + parts.bubble, work)

    @property
    def mfu(self) -> float:
        """Model FLOP utilization: what the model asks for, as a share of the peak."""
        return self.model_flops / (self.step_seconds * self.peak)

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilization: what is run, recomputed operations too."""
        return self.hardware_flops / (self.step_seconds * self.peak)

    @property
    def peak_bytes(self) -> float:
        """Bytes on the fullest device."""
        return max(memory.total for memory in self.memory_bytes)

    @property
    def fits(self) -> bool:
        """Whether every device has the memory."""
        return self.peak_bytes <= self.memory_limit

    @property
    def tokens_per_second(self) -> float:
        """Tokens (or examples) trained on in a second, by all devices."""
        return self.tokens / self.step_seconds

    def days(self, tokens: float) -> float:
        """Return the days that training on so many tokens takes."""
        if not isinstance(tokens, int | float) or not 0 <= tokens < math.inf:
            raise PlanError(
                "so many tokens are never seen",
                expected="a finite number, 0 or more",
                found=repr(tokens)[:60],
            )
        return tokens / self.tokens_per_second / 86400

    def explain(self) -> str:
        """Return the prediction as text: where the seconds and bytes go, and what was assumed."""
        total = self.step_seconds
        lines = [f"a step takes {show_seconds(total)}, {self.tokens_per_second:,.0f} tokens/s"]
        lines += [f"  {name:<10} {_share(part, total)}" for name, part in self.breakdown.rows]
        lines.append(
            f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%} of {show_quantity(self.peak, 'FLOP/s')}"
        )
        if len(self.memory_bytes) > 1:
            lines.append(f"the pipeline's bubble: {show_bubble(self.bubble)}")
        verdict = "fits" if self.fits else "DOES NOT FIT"
        lines.append(f"{verdict}: {self.peak_bytes / GIB:.2f} of {self.memory_limit / GIB:.2f} GiB")
        for rank, memory in enumerate(self.memory_bytes):
            parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in memory.rows if size)
            lines.append(f"  rank {rank}: {memory.total / GIB:.2f} GiB ({parts})")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def show_bubble(bubble: Bubble) -> str:
    """Return a bubble in both conventions, by name."""
    return f"{bubble.of_total:.1%} of the total, {bubble.of_ideal:.1%} of the ideal"


def show_seconds(seconds: float) -> str:
    """Return seconds with a unit that suits their size."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _share(part: float, total: float) -> str:
    return f"{show_seconds(part):>10}  {part / total:6.1%}"
