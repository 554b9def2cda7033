"""Calls that are in all that counts like an earlier one: what was found out is not asked again.

The idea: one call into C compares all inputs at once, as Dynamo's guards do; where they are as they
were, a run is its steps and nothing else.  This module does not know what is run.
"""

from collections.abc import Callable, Sequence

import torch
from torch.autograd import forward_ad

from tilewright.runtime.admission import alike
from tilewright.runtime.tensors import TensorContext, TensorPlan

Tensor = torch.Tensor
Settled = Callable[[Sequence[Tensor]], tuple[Tensor, ...] | None]
Passed = Callable[[Sequence[Tensor]], Sequence[Tensor] | None]


def settle(
    plan: TensorPlan, idle: list[TensorContext], given: Sequence[Tensor], passed: Passed | None
) -> Settled | None:
    """Return a run in one of the idle contexts for as many inputs, which gives None unless they and
    torch's modes are as they are now.

    passed: returns what the run takes for what is given, where that is something else; None where
    it does not know.  None where these inputs are not taken as they are, or where a run is more
    than its steps.
    """
    if plan.operators:
        return None
    inputs = given if passed is None else passed(given)
    if not inputs or not plan.admission.takes(inputs):
        return None
    same, gradients, count = alike(given), torch.is_grad_enabled(), len(given)
    is_grad_enabled = torch.is_grad_enabled

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
            return context.admitted(inputs)
        finally:
            idle.append(context)

    return run
