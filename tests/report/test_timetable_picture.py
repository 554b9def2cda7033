"""Pictures of timetables, and the drawing for the terminal."""

from pathlib import Path

import matplotlib.image
import pytest

from tilewright.base.errors import OptionError
from tilewright.parallel import draw_timetable, even_times, make_timetable, simulate
from tilewright.report import plot_timetable


@pytest.mark.parametrize("name", ["zb-h1", "dualpipe", "pipedream"])
def test_a_timetable_becomes_an_image(name: str, tmp_path: Path) -> None:
    path = tmp_path / "table.png"
    plot_timetable(path, simulate(make_timetable(name, 4, 8), even_times(4)))
    image = matplotlib.image.imread(path)
    assert image.shape[1] > 1000
    assert image.std() > 0.05


def test_the_same_timetable_gives_the_same_bytes(tmp_path: Path) -> None:
    made = simulate(make_timetable("zb-v", 4, 8), even_times(8))
    for name in ("a.svg", "b.svg"):
        plot_timetable(tmp_path / name, made)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert "rank 3" in text


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    made = simulate(make_timetable("1f1b", 2, 2), even_times(2))
    with pytest.raises(OptionError, match=r"cannot be drawn as \.gif"):
        plot_timetable(tmp_path / "a.gif", made)
    with pytest.raises(OptionError, match="cannot be drawn"):
        plot_timetable(tmp_path / "nothing", made)


@pytest.mark.parametrize("name", ["gpipe", "zb-h2", "dualpipe", "pipemare"])
@pytest.mark.parametrize("width", [20, 60, 200])
def test_a_drawing_has_a_line_for_each_rank_as_busy_as_it_is(name: str, width: int) -> None:
    made = simulate(make_timetable(name, 4, 6), even_times(4))
    lines = draw_timetable(made, width).splitlines()
    assert [line[:6] for line in lines] == [f"rank {rank}" for rank in range(4)]
    assert len({len(line) for line in lines}) == 1
    for line, busy in zip(lines, made.busy, strict=True):
        cells = line[8:]
        drawn = sum(cell != "." for cell in cells) / len(cells)
        # Every begin and every end is rounded to a cell.
        assert drawn == pytest.approx(busy / made.makespan, abs=18 / len(cells))
