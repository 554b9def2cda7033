"""`Options(buckets=("batch",))`: one compilation for all batches up to a power of two.

The idea: a call's batch is padded to the next power of two, and its results are cut; so a function
is compiled once for each power of two that is met.  That it is right follows from the loops: every
operator works row by row (`graph.rows`), and the graph of a batch twice as long is the same one.

This module does not know torch: tensors pass through it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.base.errors import CaptureError, SizesError
from tilewright.capture import (
    Captured,
    Computed,
    Kept,
    Literal,
    SameResult,
    batch_of,
    capture_to_run,
    cut,
    restore,
    with_batch,
)
from tilewright.compiler.compiled import Runs
from tilewright.compiler.fallback import leave_to_eager, under_a_transform
from tilewright.compiler.options import Options
from tilewright.graph.build import draws
from tilewright.graph.ir import Graph
from tilewright.graph.rows import MEND, Rows, follow_rows, same_but_for_rows
from tilewright.optimize import Expand
from tilewright.program import Program, contiguous
from tilewright.runtime.grad_mode import asks_gradients, is_transforming


class Bucketed:
    """A function compiled for powers of two of its batch: call it as the original.

    Mutable only in that Programs are compiled when first needed.  Raises SizesError where padding
    is not proved, when it is compiled and never after a result was wrong.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._fn = fn
        self._options = replace(options, buckets=())
        self._buckets: dict[int, _Bucket] = {}
        self._current = self._bucket(bucket_of(batch_of(args, kwargs)), args, kwargs)

    @property
    def graph(self) -> Graph:
        """The graph of the bucket used last, as captured."""
        return self._current.captured.graph

    @property
    def program(self) -> Program:
        """The Program of the bucket used last."""
        return self._current.runs.inference.program

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches compiled so far."""
        return tuple(sorted(self._buckets))

    def explain(self) -> str:
        """Return how every value is computed, and why, for each bucket."""
        return "\n\n".join(
            f"batches up to {batch}\n{self._buckets[batch].runs.explain()}"
            for batch in self.batches
        )

    def refresh(self) -> None:
        """Let the next call compute anew what `Options(frozen=True)` keeps (`Compiled.refresh`)."""
        for bucket in self._buckets.values():
            bucket.runs.refresh()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function.  Raises CaptureError where the call asks for gradients."""
        if is_transforming():
            leave_to_eager(under_a_transform(), self._options)
            return self._fn(*args, **kwargs)
        count = batch_of(args, kwargs)
        batch = bucket_of(count)
        found = self._current = self._bucket(batch, args, kwargs)
        args, kwargs = with_batch(args, kwargs, batch)
        captured = found.captured
        leaves = captured.call.flatten(args, kwargs)
        inputs = captured.feed(leaves)
        if asks_gradients(inputs):
            raise _no_gradients()
        results = restore(captured.results, inputs, found.runs.run(inputs))
        made: list[Any] = []
        for result, value in zip(captured.results, results, strict=True):
            if isinstance(result, SameResult):
                made.append(made[result.result])
            elif isinstance(result, Computed) and result.output in found.rows and count < batch:
                rows = found.rows[result.output]
                packed = rows.dim > 0 and result.strides == contiguous(result.shape)
                made.append(cut(value, rows.dim, rows.each * count, packed=packed))
            else:
                made.append(value)
        return captured.result.build(made, leaves)

    def _bucket(self, batch: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_Bucket":
        """Return what was compiled for a bucket, compiled anew where what the function reads has
        changed."""
        args, kwargs = with_batch(args, kwargs, batch)
        found = self._buckets.get(batch)
        if found is None or not found.captured.watch.unchanged(args, kwargs):
            captured = capture_to_run(self._fn, *args, **kwargs)
            rows: dict[int, Rows] = {}
            if batch > 2:  # smaller buckets hold one batch each: nothing is padded
                longer, more = with_batch(args, kwargs, 2 * batch)
                rows = _prove(captured, capture_to_run(self._fn, *longer, **more), batch)
            runs = Runs(captured.graph, self._options, captured.inputs, captured.mutations)
            found = self._buckets[batch] = _Bucket(captured, runs, rows)
        return found


@dataclass(frozen=True, slots=True)
class _Bucket:
    """One compilation.  rows: where the batch lies in outputs of the graph, by position."""

    captured: Captured
    runs: Runs
    rows: Mapping[int, Rows]


def bucket_of(batch: int) -> int:
    """Return the smallest power of two that is not less; 0 for an empty batch."""
    return 1 << (batch - 1).bit_length() if batch else 0


def _prove(captured: Captured, longer: Captured, batch: int) -> dict[int, Rows]:
    """Return where the batch lies in the outputs; raise SizesError where it may not be padded."""
    _check_results(captured, longer)
    one, other = (Expand()(each.graph) for each in (captured, longer))
    leaves = captured.call.leaves
    starts = {
        value.name: Rows(0)
        for value, source in zip(one.inputs, captured.sources, strict=True)
        if source >= 0 and leaves[source].dtype is not None and leaves[source].shape
    }
    for node in one.nodes:
        if draws(node):
            raise _refused(f"{node.op} draws random numbers, more for a longer batch", node.origin)
    found = follow_rows(one, starts)
    same_but_for_rows(one, other, found, (batch, 2 * batch))
    rows = {at: found[value.name] for at, value in enumerate(one.outputs) if value.name in found}
    for ours, theirs in zip(captured.results, longer.results, strict=True):
        if isinstance(ours, Computed) and isinstance(theirs, Computed):
            packed = ours.strides == contiguous(ours.shape)
            if ours.strides != theirs.strides and not packed:
                raise _refused("a result's strides depend on it")
    return rows


def _check_results(captured: Captured, longer: Captured) -> None:
    """Results are fresh tensors, and numbers that the batch does not change."""
    if captured.mutations or longer.mutations:
        raise _refused("the function changes tensors in place")
    fresh = all(isinstance(r, Computed | SameResult | Literal) for r in captured.results)
    if not fresh or not all(isinstance(leaf, int | Kept) for leaf in captured.result.leaves):
        raise _refused("a result is an argument, or a view of one")
    kinds = [[type(result) for result in each.results] for each in (captured, longer)]
    literals = [
        [result.value for result in each.results if isinstance(result, Literal)]
        for each in (captured, longer)
    ]
    kept = [
        [leaf.value for leaf in each.result.leaves if isinstance(leaf, Kept)]
        for each in (captured, longer)
    ]
    alike = all(a is b or (type(a) is type(b) and a == b) for a, b in zip(*kept, strict=True))
    if kinds[0] != kinds[1] or literals[0] != literals[1] or not alike:
        raise _refused("a result that is no tensor depends on it")


def _refused(why: str, where: Any = "") -> SizesError:
    return SizesError(
        f"the batch cannot be padded: {why}",
        expected="results that are fresh tensors, computed row by row from the arguments",
        where=where,
        mend=MEND,
    )


def _no_gradients() -> CaptureError:
    return CaptureError(
        "a function compiled for buckets gives no gradients",
        expected="calls under torch.no_grad()",
        found="a tensor that requires gradients, with gradients on",
        mend="call it under torch.no_grad(), or compile without buckets",
    )
