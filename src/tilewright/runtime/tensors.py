"""Running a Program on torch tensors: one context is the memory of one run at a time.

The idea: everything that stays from run to run (the arena, tensors over it, which arguments a
library call takes) is made once, when the context is; a run only puts in what changes: the
addresses of inputs and fresh outputs, and the tensors that library calls return.
This module does not know how contexts are shared among runs (`executable`).
"""

import array
import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilewright.base.errors import (
    IndexRangeError,
    LibraryCallError,
)
from tilewright.base.places import picker
from tilewright.program import (
    ARENA,
    CONSTANT,
    LIBRARY,
    OUTPUT,
    Buffer,
    Instruction,
    LibraryCall,
    Program,
    Stretch,
    View,
    depth,
    flat,
    stretches,
    whole,
)
from tilewright.runtime.admission import Admission, shared
from tilewright.runtime.calls import Types, frame
from tilewright.runtime.control import Step, Truth, bind_steps, last_uses, truth
from tilewright.runtime.library import Operator, bind, bind_gradient, bind_layers, leaves, resolve
from tilewright.runtime.placement import (
    ALIGNMENT,
    CPU,
    Lens,
    MovingLens,
    RememberedLens,
    look,
    maker,
    place,
    place_constants,
    restride,
    torch_dtype,
)
from tilewright.runtime.segments import (
    NONE,
    Call,
    NativeSegment,
    failure,
    is_wide,
    key,
    native_functions,
)
from tilewright.runtime.threads import find_team, thread_count
from tilewright.runtime.trace import Clock

Tensor = torch.Tensor
Run = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]

# Inputs of these roles are the same tensors run after run: views of them are worth keeping.
LASTING = ("parameter", "buffer", "state", "kept")

_data_ptr = Tensor.data_ptr  # of a name that is one look-up: it is asked of every input of a run


class TensorPlan:
    """What all contexts of a Program share: operators found, constants in place."""

    def __init__(self, program: Program, segments: Sequence[NativeSegment]) -> None:
        self.program = program
        self.functions = native_functions(program, segments)
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self.numbers = {buffer.name: i for i, buffer in enumerate(program.buffers)}
        self.operators: dict[int, Operator] = {
            id(item): resolve(item)
            for item in flat(program.instructions)
            if isinstance(item, LibraryCall)
        }
        self.admission = Admission(program)
        self.inputs = self.admission.inputs
        self.lasting = {item.buffer for item in program.inputs if item.role.kind in LASTING}
        self.wide = is_wide(program)
        self.gradients = any(
            isinstance(item, LibraryCall) and (item.vjp is not None or bool(item.through))
            for item in flat(program.instructions)
        )
        with torch.inference_mode(mode=False):
            self.constants, self.constant_offsets = place_constants(program)
        self.kept = {view.buffer for view in program.outputs}


class TensorContext:
    """The memory of one run, and the steps bound to it.  One run at a time may use it.

    clock: what its steps are measured by.
    """

    def __init__(self, plan: TensorPlan, clock: Clock | None = None) -> None:
        with torch.inference_mode(mode=False):
            program = plan.program
            self.plan = plan
            self.clock = clock
            self.admission = plan.admission
            self.slots: list[Any] = [None] * len(program.buffers)
            self.blank = tuple(self.slots)
            self.arena = torch.empty(program.arena_bytes, dtype=torch.uint8, device=CPU)
            # Where each buffer begins, as C reads it.
            self.addresses = array.array("Q", [0] * (len(program.buffers) + 1))
            # Of the loops that are running, outermost first.
            self.index = array.array("l", [0] * (depth(program.instructions) + 1))
            self.call = Call(self.addresses.buffer_info()[0], None, 1, self.index.buffer_info()[0])
            team = find_team()
            if plan.wide and team is not None:
                self.call.team = ctypes.pointer(team)
            self._place_lasting()
            self.fresh = tuple(
                (plan.numbers[b.name], maker(b)) for b in program.buffers if b.kind == OUTPUT
            )
            self.steps = bind_steps(
                program.instructions, self.index, self._leaf, self._truth, self._dropping
            )
            self.results = tuple(self._lens(view, lasting=False) for view in program.outputs)
            self.taken = tuple(wanted.number for wanted in plan.inputs)
            self.updated = tuple(k for k, wanted in enumerate(plan.inputs) if wanted.updated)
            self.written = picker(self.updated)
            self.wide = plan.wide
            # Where each input was last time; how many bytes it has, and whether it is updated.
            self.where = [-1] * len(self.taken)
            self.sizes = np.array(
                [program.buffers[number].bytes for number in self.taken], np.int64
            )
            self.writes = np.array([wanted.updated for wanted in plan.inputs], np.bool_)
            self.straight = self._straight() if clock is None else None
            self.frame: object | None = None  # of `calls.c`, where it runs this

    # ---- a run ----------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs for the inputs, which must be CPU tensors; write the updates."""
        plan = self.plan
        if not plan.operators:
            return self._run(inputs)
        if torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu"):
            # Gradients cannot be taken in inference mode; all else stays as the caller has it.
            inference = torch.is_inference_mode_enabled() and not plan.gradients
            with (
                torch.autocast("cpu", enabled=False),
                torch.inference_mode(mode=inference),
                torch.no_grad(),
            ):
                return self._run(inputs)
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            return self._run(inputs)
        finally:
            torch._C._set_grad_enabled(before)

    def _run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        written_back: list[tuple[Tensor, Tensor]] = []
        if len(inputs) != len(self.taken) or not self.admission.known(*inputs):
            inputs = self.admission.admit(inputs, written_back)
        outputs = self.admitted(inputs)
        for given, tensor in written_back:
            with torch.no_grad():
                given.copy_(tensor)
        return outputs

    def admitted(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs for inputs that are admitted; let autograd know which were written,
        as a run that raises may have too."""
        run = self.straight or self.go
        if not self.updated:
            return run(inputs)
        try:
            return run(inputs)
        finally:
            torch._C._increment_version(self.written(inputs))

    def _straight(self) -> Run | None:
        """Return `go` for a Program that is native from its inputs to fresh outputs: nothing is
        kept there for anybody in between.  None where it is more.

        This is what a call of a small graph costs: each line of it counts.
        """
        match tuple(stretches(self.plan.program.instructions)):
            case ((_, tuple(stretch)),):
                pass
            case _:
                return None
        makers = dict(self.fresh)
        if self.results != tuple((at, None) for at in makers):
            return None
        addresses, call = self.addresses, ctypes.addressof(self.call)
        function, wide = self.plan.functions[key(stretch)], self.wide

        def go(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            where = [*map(_data_ptr, inputs)]
            if where != self.where:
                self._move(where)
            outputs = []
            for at, make in self.fresh:
                output = make()
                addresses[at] = output.data_ptr()
                outputs.append(output)
            if wide:
                self.call.threads = thread_count()
            outcome = function(call)
            if outcome != NONE:
                raise failure(stretch, outcome)
            return tuple(outputs)

        return go

    def make_frame(self, types: Types) -> None:
        """Let C run this, which is native from its inputs to fresh outputs."""
        ((_, stretch),) = stretches(self.plan.program.instructions)
        assert isinstance(stretch, tuple), "a straight run is one stretch"
        taken = {*self.taken}
        self.frame = frame(
            types,
            self.call,
            [0 if at in taken else place for at, place in enumerate(self.addresses)],
            self.plan.functions[key(stretch)],
            self.fresh,
            range(len(self.fresh)),
            thread_count if self.wide else None,
            partial(failure, stretch),
        )

    def go(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs for inputs that are admitted; autograd does not hear of updates."""
        slots, addresses = self.slots, self.addresses
        try:
            for number, tensor in zip(self.taken, inputs):  # noqa: B905 (a check would cost)
                slots[number] = tensor
            where = [tensor.data_ptr() for tensor in inputs]
            if where != self.where:
                self._move(where)
            for number, make in self.fresh:
                slots[number] = tensor = make()
                addresses[number] = tensor.data_ptr()
            if self.wide:
                self.call.threads = self._threads()
            for step in self.steps:
                step()
            return tuple([slots[k] if lens is None else lens(slots[k]) for k, lens in self.results])
        finally:
            slots[:] = self.blank

    def _threads(self) -> int:
        """Return how many threads a run has; a clock counts no more than it was made for."""
        count = thread_count()
        return count if self.clock is None else min(count, self.clock.threads)

    def _move(self, where: list[int]) -> None:
        """Enter where the inputs are now."""
        if self.updated:
            self._keep_apart(np.array(where, np.int64), np.array(self.where, np.int64))
        self.where = [-1] * len(where)  # should this be interrupted
        for number, address in zip(self.taken, where, strict=True):
            self.addresses[number] = address
        self.where = where

    def _keep_apart(self, where: NDArray[np.int64], before: NDArray[np.int64]) -> None:
        """Refuse inputs that share memory with one that is updated; look only at what has moved."""
        moved = np.flatnonzero(where != before)
        ends = where + self.sizes
        for k in moved:
            shares = (where < ends[k]) & (where[k] < ends) & (self.writes | self.writes[k])
            shares[k] = False
            if shares.any():
                named = self.admission.inputs
                raise shared(named[int(shares.argmax())].name, named[int(k)].name)

    # ---- binding --------------------------------------------------------------------------------

    def _place_lasting(self) -> None:
        """Enter the addresses that stay: arena and constants."""
        plan = self.plan
        arena, constants = self.arena.data_ptr(), plan.constants.data_ptr()
        assert arena % ALIGNMENT == 0 and constants % ALIGNMENT == 0, "torch aligns to 64 bytes"
        for number, buffer in enumerate(plan.program.buffers):
            if buffer.kind == ARENA:
                self.addresses[number] = arena + buffer.offset
            elif buffer.kind == CONSTANT:
                self.addresses[number] = constants + plan.constant_offsets[buffer.name]

    def _leaf(self, item: Stretch | LibraryCall) -> Step:
        clock = self.clock
        if isinstance(item, tuple):
            function = self.plan.functions[key(item)]
            timed = function if clock is None else clock.native(item, function, self.call)
            return self._native_step(item, timed)
        step = self._library_step(item, self.plan.operators[id(item)])
        return step if clock is None else clock.library(item, step)

    def _truth(self, view: View) -> Truth:
        return truth(self.addresses, self.plan.numbers[view.buffer], view, self.index)

    def _dropping(self, block: Sequence[Instruction]) -> dict[int, Step]:
        """Return by instruction of a block what drops the results of calls not needed after it."""
        dropped: dict[int, list[int]] = {}
        for name, at in last_uses(block).items():
            if self.plan.buffers[name].kind == LIBRARY and name not in self.plan.kept:
                dropped.setdefault(at, []).append(self.plan.numbers[name])
        return {at: self._drop_step(tuple(numbers)) for at, numbers in dropped.items()}

    def _native_step(self, stretch: Stretch, function: NativeSegment) -> Step:
        address = ctypes.addressof(self.call)

        def step() -> None:
            outcome = function(address)
            if outcome != NONE:
                raise failure(stretch, outcome)

        return step

    def _drop_step(self, dropped: tuple[int, ...]) -> Step:
        slots = self.slots

        def step() -> None:
            for number in dropped:
                slots[number] = None

        return step

    def _library_step(self, call: LibraryCall, operator: Operator) -> Step:
        views = (*call.inputs, *call.outputs) if operator.outs else call.inputs
        written = range(len(call.inputs), len(views))
        operands: list[Tensor | None] = [self._fixed(view) for view in views]
        moving = [
            (place, *self._lens(view, lasting=place not in written))
            for place, view in enumerate(views)
            if operands[place] is None
        ]
        slots = self.slots
        binding = bind_layers if call.through else bind_gradient if call.vjp else bind
        run = binding(operator, call, operands)
        finish = self._finish(call, operator, operands)

        def step() -> None:
            try:
                for place, number, lens in moving:
                    tensor = slots[number]
                    operands[place] = tensor if lens is None else lens(tensor)
                finish(run())
            except LibraryCallError:
                raise
            except IndexError as reason:
                raise IndexRangeError(str(reason), where=call.origin) from reason
            except Exception as reason:
                summary = f"{call.target} failed: {reason}"
                raise LibraryCallError(summary, where=call.origin) from reason
            finally:
                for place, _, _ in moving:
                    operands[place] = None

        return step

    def _fixed(self, view: View) -> Tensor | None:
        """Return the tensor of a view of memory that stays, and does not move; or None."""
        block = self._block(view)
        if block is None or any(view.steps):
            return None
        return place(*block, view)

    def _block(self, view: View) -> tuple[Tensor, Buffer, int] | None:
        """Return the memory that a view lies in, if it stays: block, buffer, where that begins."""
        buffer = self.plan.buffers[view.buffer]
        if buffer.kind == ARENA:
            return self.arena, buffer, buffer.offset
        if buffer.kind == CONSTANT:
            return self.plan.constants, buffer, self.plan.constant_offsets[buffer.name]
        return None

    def _lens(self, view: View, *, lasting: bool) -> tuple[int, Lens | None]:
        """Return the number of the view's buffer, and how its tensor becomes the view's."""
        buffer = self.plan.buffers[view.buffer]
        number = self.plan.numbers[view.buffer]
        if any(view.steps):
            return number, MovingLens(view, self.index, self._block(view))
        if view == whole(buffer):
            return number, None
        if lasting and view.buffer in self.plan.lasting:
            return number, RememberedLens(view, buffer)
        return number, lambda tensor: look(tensor, view)

    def _finish(
        self, call: LibraryCall, operator: Operator, operands: list[Tensor | None]
    ) -> Callable[[Any], None]:
        """Return what puts the results of a call where they belong."""
        if operator.outs:
            return _check_outs(call, operands)
        picks = []
        for i, view in enumerate(call.outputs):
            position = i if call.vjp or call.through else call.results[i]
            buffer = self.plan.buffers[view.buffer]
            picks.append(
                (position, view, buffer, self._fixed(view), *self._lens(view, lasting=False))
            )
        slots, addresses = self.slots, self.addresses

        def finish(result: Any) -> None:
            results = leaves(result)
            for position, view, buffer, fixed, number, lens in picks:
                found = _checked(results, position, view, buffer, call)
                if buffer.kind == LIBRARY:
                    if operator.may_alias and self._is_borrowed(found, call, operands):
                        found = found.clone(memory_format=torch.preserve_format)
                    if found.stride() != view.strides:
                        found = restride(found, view.strides)
                    slots[number] = found
                    addresses[number] = found.data_ptr()
                elif fixed is not None:
                    fixed.copy_(found)
                else:
                    tensor = slots[number]
                    (tensor if lens is None else lens(tensor)).copy_(found)

        return finish

    def _is_borrowed(self, found: Tensor, call: LibraryCall, operands: list[Tensor | None]) -> bool:
        """Say whether a result lies in memory that this run will reuse, or that the caller owns."""
        storage = found.untyped_storage()._cdata
        return any(
            operand is not None
            and self.plan.buffers[view.buffer].kind != LIBRARY
            and operand.untyped_storage()._cdata == storage
            for view, operand in zip(call.inputs, operands, strict=False)
        )


def _check_outs(call: LibraryCall, operands: list[Tensor | None]) -> Callable[[Any], None]:
    """Return what makes sure, once, that a call's outputs were of the right shape."""
    checked = False

    def finish(_: Any) -> None:
        nonlocal checked
        if checked:
            return
        for tensor, view in zip(operands[len(call.inputs) :], call.outputs, strict=True):
            assert tensor is not None and tensor.shape == view.shape, (
                f"{call.target} resized its output to {tensor if tensor is None else tensor.shape}"
            )
        checked = True

    return finish


def _checked(
    results: list[Any], position: int, view: View, buffer: Buffer, call: LibraryCall
) -> Tensor:
    found = results[position] if position < len(results) else None
    if (
        not isinstance(found, Tensor)
        or found.shape != view.shape
        or found.dtype is not torch_dtype(buffer)
    ):
        shown = f"{found.dtype}{list(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise LibraryCallError(
            f"result {position} of {call.target} is not what was compiled for",
            expected=f"{torch_dtype(buffer)}{list(view.shape)}",
            found=shown,
            where=call.origin,
        )
    return found
