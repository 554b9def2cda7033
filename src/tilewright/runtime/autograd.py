"""A pair of Programs, forward and backward, as one function that torch's autograd can go through.

The idea: what torch may ask of a function (part of the gradients, tangents that are absent or laid
out oddly, the same backward twice, a second derivative) is answered here, so that the two Programs
are plain functions from tensors to tensors.  This module does not know what they compute.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo import eval_frame

from tilewright.base.errors import CaptureError, MutationError
from tilewright.program import INPUT
from tilewright.runtime.executable import Executable

Tensor = torch.Tensor
Run = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Pairing:
    """How a forward and a backward Program fit together.

    results: how many of the forward's outputs, from the first, the caller gets; the rest is only
    saved.  saved: what the backward takes first: positions among the forward's inputs, then its
    outputs (input i is i, output j is the number of inputs + j).  tangents: positions among the
    results, one for each tangent that the backward takes last.  gradients: positions among the
    forward's inputs, one for each output of the backward.  depends: for each gradient, which of
    the tangents (by their order) it depends on; where these are all absent, so is the gradient.
    written: positions among the forward's inputs that get a value which gradients flow from; they
    count as results, after the others.
    """

    results: int
    saved: tuple[int, ...]
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    depends: tuple[frozenset[int], ...]
    written: tuple[int, ...] = ()


def differentiable(forward: Executable, backward: Executable, pairing: Pairing) -> Run:
    """Return a function of the forward's inputs that gives its results, with gradients.

    Inputs that the pairing has no gradient for get none; neither do results without a tangent.
    Inputs that are written become results of this function, as by torch's own in-place operators.
    A second derivative raises `CaptureError`; a written input that is a view, `MutationError`.
    """
    _check(forward, backward, pairing)
    count = len(forward.program.inputs)
    copied = _copied(forward, pairing)
    overwritten = _overwritten(forward, pairing)
    once = _once(backward, forward.program.name)
    silent = [k for k in range(pairing.results) if k not in pairing.tangents]

    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
            old = {k: inputs[k].clone() for k in overwritten}
            outputs = forward_run(inputs)
            if copied:
                outputs = tuple(t.clone() if k in copied else t for k, t in enumerate(outputs))
            values = (*inputs, *outputs)
            ctx.save_for_backward(*[old.get(k, values[k]) for k in pairing.saved])
            ctx.set_materialize_grads(False)
            results = (*outputs[: pairing.results], *(inputs[k] for k in pairing.written))
            ctx.mark_dirty(*results[pairing.results :])
            ctx.types = [(results[k].shape, results[k].dtype) for k in pairing.tangents]
            if silent:
                ctx.mark_non_differentiable(*[results[k] for k in silent])
            return results

        @staticmethod
        def backward(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
            given: list[Tensor | None] = [None] * count
            asked = [tangents[k] for k in pairing.tangents]
            if all(tangent is None for tangent in asked):
                return tuple(given)
            present = {k for k, tangent in enumerate(asked) if tangent is not None}
            full = [_tangent(t, *kind) for t, kind in zip(asked, ctx.types, strict=True)]
            values = (*ctx.saved_tensors, *full)
            # With gradients on (create_graph=True) somebody may want to go through this again.
            found = once(values) if torch.is_grad_enabled() else backward_run(values)
            for k, gradient, depends in zip(pairing.gradients, found, pairing.depends, strict=True):
                if ctx.needs_input_grad[k] and depends & present:
                    given[k] = gradient
            return tuple(given)

    _leave_alone(Pair.backward)

    def apply(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        _refuse_views([inputs[k] for k in pairing.written])
        found: tuple[Tensor, ...] = Pair.apply(*inputs)  # type: ignore[no-untyped-call]
        return found

    forward_run, backward_run = forward.run, backward.run
    return apply


def _leave_alone(function: Callable[..., Any]) -> None:
    """Let Dynamo trace neither the function nor what it calls.

    A model that asks for gradients between two pieces that were compiled runs the first one's
    backward while Dynamo looks at whatever is called.
    """
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)


def _refuse_views(written: Sequence[Tensor]) -> None:
    for tensor in written:
        if tensor._base is not None:
            raise MutationError(
                "a view is changed in place to a value that gradients flow from",
                expected="a tensor that is no view of another one",
                found=f"a view of shape {tuple(tensor.shape)} into {tuple(tensor._base.shape)}",
                mend="pass a copy, x.clone(), or return the new value in place of writing it",
            )


def attached(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors that ask for gradients: these, or others over the same memory."""
    return [t if t.requires_grad else t.detach().requires_grad_() for t in tensors]


def pulled(
    results: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """Return the gradients of the inputs, zeros where no result depends on one."""
    pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
    if not pairs:
        return [torch.zeros_like(tensor) for tensor in inputs]
    found = torch.autograd.grad(
        [result for result, _ in pairs],
        list(inputs),
        [cotangent for _, cotangent in pairs],
        retain_graph=True,
        allow_unused=True,
    )
    return [
        torch.zeros_like(tensor) if gradient is None else gradient
        for tensor, gradient in zip(inputs, found, strict=True)
    ]


def _once(backward: Executable, name: str) -> Run:
    """Return the backward as a function that raises when it is differentiated itself."""
    run = backward.run

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, *values: Tensor) -> tuple[Tensor, ...]:
            return run(values)

        @staticmethod
        def backward(_: Any, *__: Tensor) -> None:
            raise CaptureError(
                "the gradient of a compiled function cannot be differentiated again",
                expected="first derivatives",
                found=f"a derivative of the gradient of {name!r}",
                mend="take second derivatives of the function that is not compiled",
            )

    def apply(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = Once.apply(*values)  # type: ignore[no-untyped-call]
        return found

    return apply


def _check(forward: Executable, backward: Executable, pairing: Pairing) -> None:
    """Assert that the positions exist and that the backward takes and gives what they say."""
    inputs, outputs = len(forward.program.inputs), len(forward.program.outputs)
    assert 0 <= pairing.results <= outputs, f"{outputs} outputs cannot hold {pairing}"
    assert all(0 <= k < inputs + outputs for k in pairing.saved), f"{pairing} saves the unknown"
    differentiable = pairing.results + len(pairing.written)
    assert all(0 <= k < differentiable for k in pairing.tangents), f"{pairing}: tangents of what?"
    assert all(0 <= k < inputs for k in pairing.written), f"{pairing} writes the unknown"
    assert all(0 <= k < inputs for k in pairing.gradients), f"{pairing}: gradients of what?"
    taken = len(pairing.saved) + len(pairing.tangents)
    assert taken == len(backward.program.inputs), f"the backward does not take {taken} inputs"
    given = len(pairing.gradients)
    assert given == len(backward.program.outputs), f"the backward does not give {given} gradients"
    assert given == len(pairing.depends), f"{pairing} does not say what each gradient depends on"
    assert not backward.program.updates, "a backward may run twice: it must not update anything"


def _copied(forward: Executable, pairing: Pairing) -> frozenset[int]:
    """Return which outputs to copy: torch takes a returned input for the input itself, and a
    tensor returned twice for one result."""
    kinds = {buffer.name: buffer.kind for buffer in forward.program.buffers}
    names = [view.buffer for view in forward.program.outputs[: pairing.results]]
    return frozenset(k for k, name in enumerate(names) if kinds[name] == INPUT or name in names[:k])


def _overwritten(forward: Executable, pairing: Pairing) -> tuple[int, ...]:
    """Return which inputs the backward wants as they were, but the forward updates."""
    program = forward.program
    updated = {k for k, item in enumerate(program.inputs) if item.buffer in program.updates}
    return tuple(sorted(updated & set(pairing.saved)))


def _tangent(tangent: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    if tangent is None:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    return tangent if tangent.dtype is dtype else tangent.to(dtype)
