"""What torch.compile gives with this backend is what eager gives, in all that can be seen."""

import copy

import pytest
import torch
from tests.compiler.border import MODULES, Bordering
from tests.models.agreement import EPSILON, disagreements, in_double, outcome
from tests.sweep import few

# Values that go through bfloat16 are rounded after every operator, in another order than eager's.
ROUNDING = {"half": 2.0**-7, "autocast": 2.0**-7}


# Dynamo itself makes an instance of a custom function's class.
# One of each kind of difficulty.
OFTEN = (
    "argument_in_place", "buffers", "checkpointed", "custom_function", "no_grad_region",
    "statistics", "structures", "transposed", "views", "zero_dims",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("train", few([True, False], True), ids={True: "train", False: "eval"}.get)
@pytest.mark.parametrize("name", few(MODULES, *OFTEN))
def test_a_compiled_module_is_eager(name: str, train: bool, fallbacks: list[str]) -> None:
    torch.manual_seed(0)
    model = Bordering(MODULES[name])
    x = torch.randn(3, 4)
    ours, eager = copy.deepcopy(model), copy.deepcopy(model)
    compiled = torch.compile(ours, backend="tilewright")
    for _ in range(2):
        exact = in_double(eager, {"x": x}, train=train)
        expected = outcome(eager, eager, {"x": x.clone()}, train=train)
        found = outcome(compiled, ours, {"x": x.clone()}, train=train)
        rounding = ROUNDING.get(name, EPSILON)
        assert disagreements(found, expected, exact, rounding=rounding) == []
    assert fallbacks == []
