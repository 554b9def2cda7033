"""A picture of two loss curves."""

from pathlib import Path

import matplotlib.image

from tilewright.report import plot_losses


def test_the_curves_become_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    plot_losses(path, [3.0, 2.0, 1.5], [3.0, 2.0, 1.4], name="eager")
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 300
    assert image.shape[1] > 500
    assert image.std() > 0.01


def test_a_shorter_second_curve_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    plot_losses(path, [3.0, 2.0, 1.5], [], start=10, name="eager")
    assert path.stat().st_size > 1000
