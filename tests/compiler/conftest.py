"""What the tests of the compiler share: an own kernel cache, and a border without memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tilewright.compiler.fallback import FALLBACKS


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def fallbacks() -> list[str]:
    """Forget what earlier tests compiled, and the graphs they left to eager; return the list."""
    torch._dynamo.reset()
    FALLBACKS.clear()
    return FALLBACKS
