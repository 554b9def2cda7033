"""The public names: each resolves, lazily, to what its package exports."""

import importlib
import subprocess
import sys

import pytest

import tilewright as tw


@pytest.mark.parametrize("name", tw.PUBLIC)
def test_a_public_name_is_what_its_module_exports(name: str) -> None:
    assert getattr(tw, name) is getattr(importlib.import_module(tw.PUBLIC[name]), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tilewright' has no attribute 'compyle'"):
        _ = tw.compyle


@pytest.mark.sweep
def test_a_function_wins_over_the_package_of_its_name_in_either_order_of_import() -> None:
    code = (
        "import tilewright.capture\n"
        "import tilewright as tw\n"
        "from tilewright.capture import capture\n"
        "assert tw.capture is capture, tw.capture\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_names_are_listed_by_dir() -> None:
    assert set(tw.PUBLIC) <= set(dir(tw))
