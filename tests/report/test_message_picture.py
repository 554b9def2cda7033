"""A picture of a message program."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import pytest

from tilewright.base.errors import OptionError
from tilewright.cost import build_program
from tilewright.report import plot_messages

Golden = Callable[[str, str], None]


def test_a_program_becomes_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "ring.png"
    plot_messages(path, build_program("all-reduce", "ring", 4))
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 300
    assert image.shape[1] > 800
    assert image.std() > 0.01


def test_an_arrow_stands_for_each_message(tmp_path: Path) -> None:
    def arrows(ranks: int) -> int:
        path = tmp_path / "tree.svg"
        plot_messages(path, build_program("broadcast", "binomial", ranks))
        words = path.read_text(encoding="utf-8")
        ElementTree.fromstring(words)
        return words.count("patch_")

    # As many more as there are more messages; each arrow is drawn by as many paths.
    few, some, more = arrows(2), arrows(3), arrows(7)
    assert more - few == 5 * (some - few) > 0


@pytest.mark.parametrize("name", ["ring.gif", "ring"])
def test_other_files_are_refused(name: str, tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(OptionError) as caught:
        plot_messages(tmp_path / name, build_program("all-reduce", "ring", 4))
    golden(f"picture_{name}.txt", str(caught.value))
