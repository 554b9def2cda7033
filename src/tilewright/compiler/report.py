"""The reasons of a compilation in words: one line per value, then the totals.

This module does not decide anything; it writes down what `assemble` decided.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tilewright.base.errors import UNKNOWN, Origin
from tilewright.program import LibraryCall, Program, Segment, flat, parted, steps

if TYPE_CHECKING:
    from tilewright.compiler.built import Built


@dataclass(frozen=True, slots=True)
class Decision:
    """How one value is computed: by "kernel", "library", "view", "copy" or "constant", or by the
    steps of "control" flow, and why.

    nest: the loops of a kernel that is made from formulas, as text.
    """

    value: str
    how: str
    reason: str
    origin: Origin = UNKNOWN
    flops: int = 0
    bytes: int = 0
    nest: str = ""


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
    if built.why().assembled.program != program:
        lines.append(
            "  found among those compiled before; what was measured has changed since, and so have "
            "the reasons below: compile it again"
        )
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
    lines += [f"  {line}" for line in built.why().tuned]
    lines.append(f"  {built.why().assembled.memory}")
    lines += _kept(program)
    times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in built.seconds)
    target = f" for {built.target}" if built.target else ""
    lines.append(f"  compiled{target} in {sum(s for _, s in built.seconds):.2f} s ({times})")
    return "\n".join(lines)


def loops_text(built: "Built") -> str:
    """Return the loops of every kernel that is made from formulas, each once, with what it makes;
    their grammar is that of `kernels/loops.py`."""
    made: dict[tuple[str, str], list[str]] = {}
    for decision in built.decisions:
        if decision.nest:
            made.setdefault((decision.reason, decision.nest), []).append(decision.value)
    texts = []
    for (reason, nest), values in made.items():
        others = f" and {len(values) - 1} more" if len(values) > 1 else ""
        indented = "\n".join(f"  {line}" for line in nest.splitlines())
        texts.append(f"{values[0]}{others}: {reason}\n{indented}\n")
    if not texts:
        return "no loops to print: every kernel is a product, with what follows it, or a call\n"
    return "\n".join(texts)


def _kept(program: Program) -> Iterator[str]:
    if program.prepare:
        first, _ = parted(program)
        kept = [program.buffer(view.buffer) for view in first.outputs]
        yield (
            f"  {len(kept)} values kept from call to call, {sum(b.bytes for b in kept):,} bytes, "
            f"prepared in {len(list(steps(first)))} launches and library calls"
        )
