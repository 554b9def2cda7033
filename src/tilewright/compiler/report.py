"""The reasons of a compilation in words: one line per value, then the totals.

This module does not decide anything; it writes down what `assemble` decided.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from tilewright.program import LibraryCall, Program, Segment, flat, parted, steps

if TYPE_CHECKING:
    from tilewright.compiler.pipeline import Built


class Explainable(Protocol):
    """A Compiled, a training step, anything that has reasons."""

    def explain(self) -> str:
        """Return the reasons."""
        ...


def explain(compiled: Explainable) -> str:
    """Return how every value of something compiled is computed, and why."""
    return compiled.explain()


def explain_built(built: "Built") -> str:
    """Return the explanation of one compiled graph."""
    program = built.program
    lines = [f"{program.name}"]
    width = max((len(decision.value) for decision in built.decisions), default=0)
    for decision in built.decisions:
        origin = f"   {decision.origin}" if str(decision.origin) else ""
        lines.append(f"  {decision.value:<{width}}  {decision.how:<8}  {decision.reason}{origin}")
    calls = Counter(
        item.target for item in flat(program.instructions) if isinstance(item, LibraryCall)
    )
    segments = [item for item in flat(program.instructions) if isinstance(item, Segment)]
    launches = sum(len(segment.launches) for segment in segments)
    lines.append(
        f"  {launches} kernel launches of {len(program.kernels)} kernels in {len(segments)} native "
        f"segments, {sum(calls.values())} library calls"
    )
    lines += [f"    {count:>4} x {target}" for target, count in sorted(calls.items())]
    lines += [f"  {line}" for line in built.tuned]
    lines.append(f"  {built.assembled.memory}")
    lines += _kept(program)
    times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in built.seconds)
    target = f" for {built.target}" if built.target else ""
    lines.append(f"  compiled{target} in {sum(s for _, s in built.seconds):.2f} s ({times})")
    return "\n".join(lines)


def _kept(program: Program) -> Iterator[str]:
    if program.prepare:
        first, _ = parted(program)
        kept = [program.buffer(view.buffer) for view in first.outputs]
        yield (
            f"  {len(kept)} values kept from call to call, {sum(b.bytes for b in kept):,} bytes, "
            f"prepared in {len(list(steps(first)))} launches and library calls"
        )
