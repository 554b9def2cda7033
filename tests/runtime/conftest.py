"""Programs that test how threads meet are too small to be worth it: there any parts are enough."""

import pytest

from tilewright.runtime import segments


@pytest.fixture
def any_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MUCH", 1)
