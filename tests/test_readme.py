"""The README runs: its snippets, in order, as a reader would paste them."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

README = Path(__file__).parent.parent / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.sweep
def test_the_snippets_train_a_model_and_compile_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(SNIPPETS[0], names)
    losses = [float(line) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 10
    assert losses[-1] < losses[0]

    for snippet in SNIPPETS[1:]:
        exec(snippet, names)
    with torch.no_grad():
        expected = names["model"](names["inputs"])
        torch.testing.assert_close(names["compiled"](names["inputs"]), expected)
        torch.testing.assert_close(names["fast"](names["inputs"]), expected)
