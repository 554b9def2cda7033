"""What the tests of the compiler share: a border without memory."""

import pytest
import torch

from tilewright.compiler.fallback import FALLBACKS


@pytest.fixture(autouse=True)
def fallbacks() -> list[str]:
    """Forget what earlier tests compiled, and the graphs they left to eager; return the list."""
    torch._dynamo.reset()
    FALLBACKS.clear()
    return FALLBACKS
