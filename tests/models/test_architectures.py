"""Architectures from transformers through torch.compile: what they give is what eager gives.

What cannot be compiled may be left to eager (counted, with a typed reason); a number that is not
eager's may not be.
"""

import copy

import pytest
import torch
from tests.models.agreement import disagreements, in_double, outcome
from tests.models.architectures import REQUIRED
from tests.models.seeing_and_hearing import ALL
from tests.sweep import few

from tilewright.compiler.fallback import FALLBACKS

pytest.importorskip("transformers")

# Beside the required ones, a few that are unlike them: tried by the sweep, too.
QUICK = ("t5", "distilbert", "convnext")
REST = sorted(set(ALL) - set(REQUIRED) - set(QUICK))


def _disagreements(name: str, *, train: bool) -> list[str]:
    torch._dynamo.reset()
    FALLBACKS.clear()
    model, inputs = ALL[name].build()
    ours, eager = copy.deepcopy(model), copy.deepcopy(model)
    exact = in_double(model, inputs, train=train)
    expected = outcome(eager, eager, copy.deepcopy(inputs), train=train)
    compiled = torch.compile(ours, backend="tilewright")
    found = outcome(compiled, ours, copy.deepcopy(inputs), train=train)
    return disagreements(found, expected, exact)


@pytest.mark.parametrize("train", few([True, False], True), ids={True: "train", False: "eval"}.get)
@pytest.mark.parametrize("name", few(REQUIRED, "llama"))
def test_a_required_architecture_is_eager_and_compiled_whole(name: str, train: bool) -> None:
    assert _disagreements(name, train=train) == []
    assert FALLBACKS == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep
@pytest.mark.parametrize("name", QUICK)
def test_an_architecture_is_eager(name: str) -> None:
    assert _disagreements(name, train=True) == []
    assert FALLBACKS == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", REST)
def test_any_architecture_is_eager_or_left_to_it(name: str, train: bool) -> None:
    assert _disagreements(name, train=train) == []
    assert not any("a mistake of Tilewright's own" in reason for reason in FALLBACKS)
    assert not any("C compiler" in reason for reason in FALLBACKS)
