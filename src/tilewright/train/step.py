"""`train_step`: forward, loss, gradient, clipping and update as one compiled graph.

The idea: the module keeps its parameters, the torch optimizer keeps its settings and its state;
a step only runs a Program over these very tensors.  So `state_dict` and `load_state_dict` of both,
and learning-rate schedules, work at any time, and a loop may go back to eager whenever it likes.

This module does not know how gradients are derived or kernels are made.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from tilewright.base.errors import CheckpointError, OptionError
from tilewright.compiler import Built, Options, begin_usual
from tilewright.compiler.debug import check_against_eager
from tilewright.compiler.pipeline import build_derived
from tilewright.graph.ir import Graph
from tilewright.program import Program
from tilewright.train import optimizers
from tilewright.train.active import Active
from tilewright.train.interrupts import uninterrupted
from tilewright.train.joint import without_updates
from tilewright.train.prepare import Compiler, LossFunction, Objective, prepare

_MOST = 2**63 - 1  # of an int64


def train_step(
    module: torch.nn.Module,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer,
    *example_batch: Any,
    clip_norm: float | None = None,
    scaler: GradScaler | None = None,
    accumulate: int = 1,
    options: Options | None = None,
) -> "TrainStep":
    """Compile one training step of `loss_fn(module(batch[0]), *batch[1:])`.

    The batch is an example: its shapes and dtypes are compiled in, nothing is computed.  clip_norm
    bounds the common norm of all gradients, as `torch.nn.utils.clip_grad_norm_` does.  scaler: a
    `torch.amp.GradScaler` scales the loss and unscales the gradient before it is clipped; a step
    whose gradient overflowed moves nothing; the scale is updated after every step.  accumulate: so
    many equal parts of the batch (along the first dim of its tensors) are taken one after the
    other, and loss and gradient are the means of theirs; memory is that of one part.  Parameters
    and buffers are the module's own, state is the optimizer's own; both are updated in place.
    Raises OptimizerError for an optimizer other than torch's SGD, Adam, AdamW,
    Adagrad, RMSprop and Adadelta, and CaptureError (with
    the user's line) for what cannot be compiled.
    """
    _check_clip(clip_norm)
    _check_parts(accumulate)
    _check_example(example_batch)
    return TrainStep(
        module,
        loss_fn,
        optimizer,
        example_batch,
        clip_norm,
        options or Options(),
        scaler=scaler,
        accumulate=accumulate,
    )


class TrainStep:
    """A compiled training step: call it on a batch; it returns the loss, detached.

    Mutable: it counts steps, and compiles again when the module, what asks for gradients, or the
    optimizer's settings have changed (but for learning rate, momentum and beta1, which are read at
    every call).
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss_fn: LossFunction,
        optimizer: torch.optim.Optimizer,
        batch: Sequence[Any],
        clip_norm: float | None,
        options: Options,
        compiler: Compiler = build_derived,
        scaler: GradScaler | None = None,
        accumulate: int = 1,
    ) -> None:
        """Compile for an example batch.  compiler: what compiles what is derived."""
        options.refuse_frozen()
        self.module = module
        self.optimizer = optimizer
        self.clip_norm = clip_norm
        self.options = options
        self.compiler = compiler
        self.accumulate = accumulate
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._made = np.zeros(1, np.int64)
        self.seed: int | None = None
        self._rule = optimizers.rule_of(optimizer)
        self._objective = Objective(module, loss_fn)
        self._active = self._compile(batch)

    @property
    def count(self) -> int:
        """The steps made."""
        return int(self._made[0])

    @count.setter
    def count(self, count: int) -> None:
        self._made[0] = count

    @property
    def built(self) -> Built:
        """The compiled graph."""
        return self._active.built

    @property
    def graph(self) -> Graph:
        """The graph of the step, before optimization."""
        return self._active.built.source

    @property
    def program(self) -> Program:
        """What runs."""
        return self._active.built.program

    @property
    def seconds(self) -> tuple[tuple[str, float], ...]:
        """Compile time, by part."""
        return self._active.built.seconds

    def explain(self) -> str:
        """Return how every value of the step is computed, and why."""
        return self._active.built.explain()

    def __call__(self, *batch: Any) -> torch.Tensor:
        """Make one step on a batch; return the loss before it.

        Raises ShapeError, DTypeError or OptionError where the batch differs from the example, and
        OptimizerError where a learning rate is no finite number of 0 or more.  A step that refuses
        an index or a divisor has moved nothing; Ctrl-C takes effect once a step is made.
        """
        try:
            self._set_numbers(self._active)
            loss: torch.Tensor | None = self._active.front.call(*batch)
            if loss is not None:
                return loss  # made and counted in C, where nothing interrupts it
            loss = uninterrupted(lambda: self._settled(batch))
            return self._run(batch) if loss is None else loss
        except BaseException:
            self._active.withdraw(self.optimizer)
            raise

    def inputs(self, *batch: Any) -> list[torch.Tensor]:
        """Return the tensors that the next step is run on, in the order of the graph's inputs."""
        active = self._active
        leaves = active.captured.call.flatten(batch, {})
        of_kind = type(self.optimizer) is self._rule.cls
        followed = of_kind and active.follows(self._rule, self.optimizer)
        watch = active.captured.watch
        # A KeyboardInterrupt raised within a guard would be taken for a guard that fails, and lost.
        if not followed or not uninterrupted(lambda: watch.unchanged(batch, {}, grad=True)):
            active = self._compile_again(batch)
        if not active.holds(self.optimizer) and not active.adopt(self._rule, self.optimizer):
            active = self._compile_again(batch)
            adopted = active.adopt(self._rule, self.optimizer)
            assert adopted, "a step compiled for this state fits it"
        self._set_numbers(active)
        return [*active.captured.feed(leaves), *active.inputs]

    def _settled(self, batch: tuple[Any, ...]) -> torch.Tensor | None:
        """Make a step like an earlier one: None, with nothing done, where that is not known."""
        active = self._active
        captured = active.captured
        whole = captured.is_read and len(batch) == len(captured.call.leaves)
        if active.settled is None or not whole:
            return None
        unmoved = active.unmoved.holds()
        if not unmoved:
            active.unmoved.forget()
            active.front.forget()
            if not self._is_unmoved(batch):
                return None
            active.learn_whole(self._rule, self.optimizer, batch, vars(self))
        outputs = active.settled(captured.feed(batch) + active.inputs)
        if unmoved and outputs is not None and self.scaler is None:
            active.learn_front(self._made, len(batch))
        return self._count(outputs)

    def _is_unmoved(self, batch: tuple[Any, ...]) -> bool:
        """Say whether module, loss and optimizer are what they were."""
        active, of_kind = self._active, type(self.optimizer) is self._rule.cls
        if not of_kind or not active.follows(self._rule, self.optimizer):
            return False
        watch, unchanged = active.captured.watch, active.unchanged
        if not unchanged.holds():
            if not watch.reaches(batch, {}, grad=True):
                return False
            unchanged.learn(lambda: watch.facts(batch, grad=True))
        return active.holds(self.optimizer)

    def _run(self, batch: tuple[Any, ...]) -> torch.Tensor:
        """Make a step after all that may have changed was looked at."""
        inputs = self.inputs(*batch)
        active = self._active
        if self.options.check:
            gradients = without_updates(self.graph)
            check_against_eager(replace(active.built, given=lambda: gradients), inputs)
        loss = uninterrupted(lambda: self._count(active.built.run(inputs)))
        assert loss is not None, "a run has outputs"
        if not self.options.check:
            active.learn(inputs)
        return loss

    def _count(self, outputs: Sequence[torch.Tensor] | None) -> torch.Tensor | None:
        """Count a step that was made; return its loss."""
        if outputs is None:
            return None
        active, (loss, *overflow) = self._active, outputs
        moved = not (overflow and overflow[0].item())
        if moved:
            active.advance()
        else:
            active.withdraw(self.optimizer)
        if self.scaler is not None:
            update_scale(self.scaler, overflowed=not moved)
        self._made += 1
        # A schedule looks at this to see that the optimizer goes first.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        return loss

    def _set_numbers(self, active: Active) -> None:
        """Put what is another number at every step where the Program reads it."""
        if active.seed is not None:
            active.seed.fill_(self._next_seed())
        if active.scale is not None and self.scaler is not None:
            active.scale.fill_(self.scaler.get_scale())

    # ---- what a resumed run needs beside the module and the optimizer ----------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps made, and what decides the masks of the next ones."""
        state: dict[str, Any] = {"count": self.count}
        if self.seed is not None:
            state["seed"] = self.seed
        if self._active.draws:
            state["generator"] = torch.get_rng_state()
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken; raise CheckpointError where it does not fit."""
        expected = set(self.state_dict())
        if set(state) != expected:
            raise CheckpointError(
                "the state is that of another training step",
                expected=", ".join(sorted(expected)),
                found=", ".join(sorted(state)) or "nothing",
                mend="load it into a step of the same model and options",
            )
        count = int(state["count"])
        if not 0 <= count <= _MOST:
            raise CheckpointError(
                "the state counts an impossible number of steps",
                expected=f"0 to {_MOST}",
                found=str(count),
                mend="load what `state_dict` gave",
            )
        self.count = count
        if "seed" in state:
            self.seed = int(state["seed"])
        if "generator" in state:
            torch.set_rng_state(state["generator"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])

    def _next_seed(self) -> int:
        assert self.seed is not None, "a graph with masks has drawn a seed when it was compiled"
        return (self.seed + self.count) & _MOST

    def _compile_again(self, batch: Sequence[Any]) -> Active:
        self._rule = optimizers.rule_of(self.optimizer)
        active = self._active = self._compile(batch)
        followed = active.follows(self._rule, self.optimizer)
        assert followed, "a step is compiled for the settings that there are"
        return active

    def _compile(self, batch: Sequence[Any]) -> Active:
        begin_usual(self.options, self._objective)
        made = prepare(
            self._objective,
            self._rule,
            self.optimizer,
            batch,
            clip_norm=self.clip_norm,
            scaled=self.scaler is not None,
            accumulate=self.accumulate,
            options=self.options,
            compiler=self.compiler,
        )
        if made.seed is not None and self.seed is None:
            self.seed = int(torch.empty((), dtype=torch.int64).random_())
        return made


def update_scale(scaler: GradScaler, *, overflowed: bool) -> None:
    """Move a scaler on by one step, as its `update` does after torch's own steps.

    After an overflow the scale backs off; after `growth_interval` steps without one it grows,
    unless that is infinite.
    """
    state = scaler.state_dict()
    if overflowed:
        state["scale"] *= state["backoff_factor"]
        state["_growth_tracker"] = 0
    else:
        state["_growth_tracker"] += 1
        if state["_growth_tracker"] == state["growth_interval"]:
            grown = torch.tensor(state["scale"] * state["growth_factor"], dtype=torch.float32)
            state["scale"] = grown.item() if grown.isfinite() else state["scale"]
            state["_growth_tracker"] = 0
    scaler.load_state_dict(state)


def _check_clip(clip_norm: float | None) -> None:
    if clip_norm is not None and not clip_norm > 0:
        raise OptionError(
            f"clip_norm={clip_norm!r} leaves no gradient",
            expected="a number above 0, or None to leave gradients as they are",
            found=f"clip_norm={clip_norm!r}",
        )


def _check_parts(accumulate: int) -> None:
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise OptionError(
            f"accumulate={accumulate!r} is no number of parts",
            expected="an int of 1 or more",
            found=f"accumulate={accumulate!r}",
        )


def _check_example(batch: Sequence[Any]) -> None:
    if not batch:
        raise OptionError(
            "train_step has no batch to compile for",
            expected="an example: the module's input, then what loss_fn takes beside its result",
            found="train_step(module, loss_fn, optimizer)",
            mend="pass it: train_step(module, loss_fn, optimizer, inputs, targets)",
        )
