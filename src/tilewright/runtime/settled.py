"""Calls that are in all that counts like an earlier one: what was found out is not asked again.

The idea: one call into C compares all inputs at once, as Dynamo's guards do; where they are as they
were, a run is its steps and nothing else.  From the second on, C makes such calls as wholes
(`calls.c`), and leaves those that it does not know.  This module does not know what is run.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from weakref import ref

import torch
from torch.autograd import forward_ad

from tilewright.program import Program
from tilewright.runtime.admission import alike
from tilewright.runtime.calls import Quick, Wanted, is_made_of, types, unquickened, unsettled
from tilewright.runtime.kept import Kept, Record
from tilewright.runtime.tensors import TensorContext, TensorPlan

Tensor = torch.Tensor
Settled = Callable[[Sequence[Tensor]], tuple[Tensor, ...] | None]

_data_ptr, _count_writes = Tensor.data_ptr, torch._C._increment_version


def settle(
    program: Program,
    plan: TensorPlan,
    idle: list[TensorContext],
    given: Sequence[Tensor],
    kept: Kept | None,
) -> Settled | None:
    """Return a run in one of the idle contexts for as many inputs, which gives None unless they and
    torch's modes are as they are now.

    program: all of it; `plan` is of what is left once something is kept.  None where these inputs
    are not taken as they are, or where a run is more than its steps.
    """
    if plan.operators:
        return None
    passed = None if kept is None else kept.current(given)
    inputs = given if passed is None else passed(given)
    if not inputs or not plan.admission.takes(inputs):
        return None
    same, gradients, count = alike(given), torch.is_grad_enabled(), len(given)
    is_grad_enabled = torch.is_grad_enabled
    ways = same, _data_ptr, is_grad_enabled, gradients, vars(forward_ad), _count_writes
    native = _Native(program, plan, idle, kept, given, ways)

    def settled(inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        outputs = native.quick(inputs)
        return run(inputs) if outputs is None else outputs

    settled.native = native  # type: ignore[attr-defined]  # for `quick_of`

    def run(inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        # Of forward mode `alike` sees nothing: a dual tensor looks as any.
        if is_grad_enabled() is not gradients or forward_ad._current_level >= 0:
            return None
        if len(inputs) != count or not same(*inputs):
            return None
        if passed is not None:
            found = passed(inputs)
            if found is None:
                return None
            inputs = found
        try:
            context = idle.pop()
        except IndexError:
            context = TensorContext(plan)
        try:
            native.learn(context)
            return context.admitted(inputs)
        finally:
            idle.append(context)

    return settled


def quick_of(settled: Callable[..., object]) -> Quick | None:
    """Return how C makes the calls of a settled run now; None where Python makes what runs."""
    native = getattr(settled, "native", None)
    return None if native is None else native.quick


class _Native:
    """Calls as C makes them: `quick` gives None for those that it does not make.

    Mutable only in `quick`, which is made anew with what is kept.  It holds no inputs, and nothing
    that is kept.
    """

    def __init__(
        self,
        program: Program,
        plan: TensorPlan,
        idle: list[TensorContext],
        kept: Kept | None,
        given: Sequence[Tensor],
        ways: tuple[object, ...],
    ) -> None:
        """ways: how C asks for the modes and of the inputs."""
        self.quick: Quick = unsettled
        self._of = program, plan
        self._idle = idle
        self._kept = kept
        self._form = [] if kept is None else kept.form(given)
        self._ways = ways

    def learn(self, context: TensorContext) -> None:
        """Let C make the next calls: in this context, with what is kept now."""
        if self.quick is unquickened:
            return
        found = types()
        if found is None or context.straight is None:
            self.quick = unquickened
            return
        if context.frame is None:
            context.make_frame(found)
        record = None if self._kept is None else self._kept.record
        if is_made_of(self.quick, record):
            return
        # Another thread may have let go of what is kept, or made it from what lies otherwise.
        if self._kept is None or (record is not None and record.form == self._form):
            rows, places = _table(*self._of, self._kept, record)
            made = None if record is None else ref(record)
            self.quick = found.quick(self._idle, self._kept, made, rows, places, self._ways)


def _table(
    program: Program, plan: TensorPlan, kept: Kept | None, record: Record | None
) -> tuple[tuple[Wanted, ...], tuple[int, ...]]:
    """Return what C looks at: what each input must be, and where what is kept lies."""
    own = dict(zip([item.buffer for item in plan.program.inputs], plan.inputs, strict=True))
    staying = {} if kept is None or record is None else kept.places(record)
    rows = []
    for place, item in enumerate(program.inputs):
        stays, taken = staying.get(place), own.get(item.buffer)
        same, _, address, version = stays or (None, None, 0, 0)
        number, updated = (-1, False) if taken is None else (taken.number, taken.updated)
        high = 0 if taken is None else plan.buffers[item.buffer].bytes
        rows.append(Wanted(same, number, updated, 0, high, address=address, version=version))
    lasting = () if record is None else record.kept
    numbers = [wanted.number for wanted in plan.inputs[len(plan.inputs) - len(lasting) :]]
    places = [(at, value.data_ptr()) for at, value in zip(numbers, lasting, strict=True)]
    return tuple(rows), (*chain(*places),)
