"""What every test shares: fixed seeds, a kernel cache, the golden texts, the GPU tests' skip."""

import difflib
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from tests import sweep

hypothesis.settings.register_profile(
    "tilewright", derandomize=True, deadline=None, max_examples=50, database=None
)
hypothesis.settings.load_profile("tilewright")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="write golden texts instead of comparing"
    )


def pytest_configure(config: pytest.Config) -> None:
    sweep.asked = "not sweep" not in str(config.getoption("markexpr"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep compiled kernels in a folder of this run that its workers share, not in the user's."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def _compiled_anew() -> Iterator[None]:
    """Compile every graph anew: tests put other numbers in the place of those in modules, which is
    nothing that a remembered Program is told by."""
    from tilewright.compiler import pipeline

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "key_of", lambda *_: None)
        yield


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Seed every generator a test may draw from; torch only where the test has imported it."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return `check(name, text)`: `text` must equal the file goldens/`name` beside the test."""
    folder = Path(request.path).parent / "goldens"
    rewrite = request.config.getoption("--rewrite-golden")

    def check(name: str, text: str) -> None:
        path = folder / name
        text = text.rstrip("\n") + "\n"
        if rewrite:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"no golden {path}: review the text, then `make golden`\n{text}"
        kept = path.read_text(encoding="utf-8")
        difference = difflib.unified_diff(
            kept.splitlines(), text.splitlines(), "golden", "found", lineterm=""
        )
        assert text == kept, f"{path} differs:\n" + "\n".join(difference)

    return check
