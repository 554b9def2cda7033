"""What a user reads when control flow does not fit: each message whole, against its golden."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.errors import control_mistakes

import tilewright as tw
from tilewright.base.errors import TilewrightError

ROOT = Path(__file__).parent.parent.parent
NAMES = [name for name in vars(control_mistakes) if name.startswith(("branch", "scan_", "while_"))]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "while_loop"])
def test_control_flow_that_does_not_fit_is_refused_at_the_users_line(
    name: str, golden: Callable[[str, str], None]
) -> None:
    x = torch.ones(2, 4, requires_grad=name.endswith("_in_reverse"))
    with pytest.raises(TilewrightError) as caught:
        tw.compile(getattr(control_mistakes, name), x)(x)
    text = str(caught.value).replace(f"{ROOT}/", "")
    golden(f"control_{name}.txt", f"{type(caught.value).__name__}: {text}")


def test_a_message_names_the_element_type_that_is_the_default() -> None:
    x = torch.ones(2, 4)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(TilewrightError) as caught:
            tw.compile(control_mistakes.scan_carry_changes_dtype, x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert caught.value.expected == "float32[4]"
    assert caught.value.found == "float64[4]"
