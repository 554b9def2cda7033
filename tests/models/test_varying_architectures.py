"""Architectures from transformers with sizes that vary: what they give is what eager gives.

One model is compiled once and called with batches and lengths that follow each other; where torch
or a known limit has it compiled for each size anew, its numbers have to be right as well.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.agreement import disagreements, in_double, outcome
from tests.models.architectures import Inputs
from tests.models.seeing_and_hearing import ALL
from torch import nn

from tilewright.compiler.backend import COMPILED, SPECIALIZED
from tilewright.compiler.fallback import FALLBACKS

pytest.importorskip("transformers")

Sizes = tuple[tuple[int, int], ...]

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers")

# Batches and lengths (or sides of pictures), one call after the other.
TEXT = ((2, 10), (3, 13))
BATCHES = ((2, 16), (3, 16))
SPEECH = ((2, 400), (3, 500))

QUICK = ("bert", "llama")
# Trained with one compilation: those of text, and others.
ONCE_TEXT = (
    "bert", "llama", "t5", "gpt2", "mistral", "qwen2", "gemma2", "gpt_neox", "opt", "distilbert",
    "roberta", "albert", "electra", "bart", "deberta-v2", "marian",
)  # fmt: skip
ONCE: dict[str, Sizes] = dict.fromkeys(ONCE_TEXT, TEXT) | {
    "clip": TEXT,
    "whisper": ((2, 6), (3, 9)),
}
# Torch or a known limit asks for more: loops over a length, convolutions whose positions vary,
# gradients written by hand, graphs that break.
OFTEN: dict[str, Sizes] = {
    **dict.fromkeys(("bloom", "falcon", "mpt", "xlnet", "mamba", "mamba2"), TEXT),
    **dict.fromkeys(("mixtral", "mixtral in batches"), TEXT),
    "vit": BATCHES,
    **dict.fromkeys(("resnet", "convnext"), ((2, 32), (3, 32))),
    "wav2vec2": SPEECH,
}


def _compared(
    name: str, sizes: Sizes, *, train: bool, labels: bool, dynamic: bool | None = True
) -> list[str]:
    """Call one compiled model with inputs of all sizes; return what is not as in eager."""
    torch._dynamo.reset()
    for counts in (FALLBACKS, COMPILED, SPECIALIZED):
        counts.clear()
    eager, _ = replace(ALL[name], sizes=_of_one_layer(ALL[name].sizes)).build()
    ours = copy.deepcopy(eager)
    compiled = torch.compile(ours, backend="tilewright", dynamic=dynamic)
    found = []
    for size in sizes:
        inputs = ALL[name].inputs(*size)
        if not labels:
            inputs.pop("labels", None)
        found += [f"{size}: {line}" for line in _one(compiled, ours, eager, inputs, train=train)]
    return found


def _of_one_layer(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """One layer of a kind is enough here: what layers add up to, the tests of fixed sizes say."""
    return {**sizes, **{key: 1 for key in LAYERS if key in sizes}}


def _one(
    compiled: Any, ours: nn.Module, eager: nn.Module, inputs: Inputs, *, train: bool
) -> list[str]:
    for module in (ours, eager):
        module.zero_grad()
    exact = in_double(eager, inputs, train=train)
    expected = outcome(eager, eager, copy.deepcopy(inputs), train=train)
    found = outcome(compiled, ours, copy.deepcopy(inputs), train=train)
    return disagreements(found, expected, exact)


def _assert_compiled_once() -> None:
    assert FALLBACKS == []
    assert SPECIALIZED == []
    assert len(COMPILED) == 1, COMPILED


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep
@pytest.mark.parametrize("name", QUICK)
def test_a_language_model_is_compiled_once_for_all_lengths(name: str) -> None:
    assert _compared(name, TEXT, train=False, labels=True) == []
    _assert_compiled_once()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("train", [True, False], ids=["train with labels", "eval without"])
@pytest.mark.parametrize("name", ONCE | OFTEN)
def test_an_architecture_of_varying_sizes_is_eager(name: str, train: bool) -> None:
    assert _compared(name, (ONCE | OFTEN)[name], train=train, labels=train) == []
    assert not any("a mistake of Tilewright's own" in reason for reason in FALLBACKS)
    if train and name in ONCE:
        _assert_compiled_once()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_length_of_one_is_a_compilation_of_its_own(name: str) -> None:
    sizes = ((2, 10), (2, 1), (3, 1), (3, 7))
    assert _compared(name, sizes, train=False, labels=False) == []
    assert FALLBACKS == []
    assert len(COMPILED) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_automatic_dynamic_is_eager_at_every_length() -> None:
    sizes = ((2, 10), (3, 13), (4, 7), (5, 21))
    assert _compared("llama", sizes, train=True, labels=True, dynamic=None) == []
    assert FALLBACKS == []
