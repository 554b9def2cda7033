"""What a command is about: a model by its name, its loss, and batches that fit it.

The idea: a factory stands in a module beside `example_batch(model, batch, seed=...)` and
`loss(output, target)`; that is all a training needs.  A byte-level GPT reads real text instead.
What only runs forward needs inputs: `example_inputs(model, batch, seed=...)`, the first of
`example_batch`, or what the command line says of each.

This module does not know what is done with a model.
"""

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tilewright.base.errors import OptionError
from tilewright.models import FACTORIES
from tilewright.models.gpt import Gpt
from tilewright.models.text import VOCAB, TextBatches, evaluation_batches, standard_library
from tilewright.train import Batches

HELD_OUT_BATCHES = 8


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and the module it was found in, which may say how to train it and on what."""

    name: str
    model: torch.nn.Module
    place: ModuleType

    @property
    def loss(self) -> Callable[..., torch.Tensor]:
        """Its `loss(output, target)`; raises OptionError where there is none."""
        return _attribute(self.place, "loss", "loss(output, target)")

    @property
    def example(self) -> Callable[..., tuple[Any, ...]]:
        """Its `example_batch`; raises OptionError where there is none."""
        return _attribute(self.place, "example_batch", "example_batch(model, batch, seed=0)")

    def has(self, name: str) -> bool:
        """Say whether the module defines something of that name."""
        return hasattr(self.place, name)


@dataclass(frozen=True, slots=True)
class Data:
    """Batches to train on, others to judge by.  per_step: how many units a step sees.

    fingerprint: tells two data sets apart.  context: how much text the model sees at once; 0 where
    it is not about text.
    """

    batches: Batches
    held_out: tuple[tuple[Any, ...], ...]
    per_step: int
    unit: str
    fingerprint: str
    context: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """Batches drawn by a module's own `example_batch`, one seed for each step."""

    model: torch.nn.Module
    example: Callable[..., tuple[Any, ...]]
    batch: int
    seed: int

    def at(self, step: int) -> tuple[Any, ...]:
        """Return the batch of a step."""
        return self.example(self.model, self.batch, seed=self.seed + step)


def find_subject(name: str, seed: int = 0, **settings: Any) -> Subject:
    """Make the model that a name stands for; raise OptionError where there is none."""
    known = dict(FACTORIES)
    module_name, colon, factory_name = known.get(name, name).partition(":")
    if not colon:
        raise OptionError(
            f"there is no model {name!r}",
            expected=f"{', '.join(known)}, or package.module:factory",
            found=name,
            mend="name a function that makes a module: my_package.my_models:transformer",
        )
    place = _import(module_name, name)
    torch.manual_seed(seed)
    model = _attribute(place, factory_name, "the factory of the model")(**settings)
    if not isinstance(model, torch.nn.Module):
        raise OptionError(
            f"{name} does not make a model",
            expected="a function that returns a torch.nn.Module",
            found=type(model).__name__,
        )
    return Subject(name, model, place)


def data_for(subject: Subject, batch: int, seed: int) -> Data:
    """Return real text for a byte-level GPT, else batches drawn by the model's own module."""
    model = subject.model
    if isinstance(model, Gpt) and model.config.vocab == VOCAB:
        corpus, length = standard_library(), model.config.length
        return Data(
            TextBatches(corpus.train, batch, length, seed),
            evaluation_batches(corpus.held_out, batch, length, HELD_OUT_BATCHES),
            batch * length,
            "tokens",
            hashlib.sha256(corpus.train.numpy().data).hexdigest(),
            length,
        )
    drawn = Drawn(subject.model, subject.example, batch, seed)
    held_out = tuple(drawn.at(-1 - k) for k in range(HELD_OUT_BATCHES))
    return Data(drawn, held_out, batch, "examples", f"example_batch of {subject.name}")


def inputs_for(subject: Subject, batch: int) -> tuple[Any, ...]:
    """Return what to call a model with, as its module says; raise OptionError if it does not."""
    if subject.has("example_inputs"):
        what = "example_inputs(model, batch, seed=0)"
        made = _attribute(subject.place, "example_inputs", what)(subject.model, batch, seed=0)
        return tuple(made) if isinstance(made, tuple | list) else (made,)
    if subject.has("example_batch"):
        return (data_for(subject, batch, 0).batches.at(0)[0],)
    raise OptionError(
        f"{subject.name} does not say what its inputs are",
        expected=f"example_inputs(model, batch, seed=0) or example_batch in "
        f"{subject.place.__name__}, or an --input for each",
        found="none of them",
        mend=f"say the shape and type of each: --input {batch}x64:float32",
    )


def _import(module: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as reason:
        if reason.name is None or not f"{module}.".startswith(f"{reason.name}."):
            raise  # the module is there; what it imports is not
        raise OptionError(
            f"there is no module {reason.name!r}",
            expected="a module that can be imported from here",
            found=name,
            mend="run in the folder that holds it, or install it",
        ) from None


def _attribute(place: ModuleType, name: str, what: str) -> Callable[..., Any]:
    found = getattr(place, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    raise OptionError(
        f"{place.__name__} has no function {name!r}",
        expected=what,
        found=f"no {name!r}" if found is None else f"{name} = {found!r}",
        mend=f"define {name} in {place.__name__}, beside the factory",
    )
