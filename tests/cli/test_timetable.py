"""`tilewright timetable`: what it prints, writes, reads back, searches, and refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.parallel import make_timetable, read_timetable, verify_timetable

Golden = Callable[[str, str], None]
Command = Callable[..., tuple[int, str, str]]


SIZES = ("--stages", "4", "--micro-batches", "8")
TIMES = ("--times", "F=2,B=2:2:2:3,W=1,comm=0.5")
PAGES = {
    "one_f_one_b": ("1f1b", *SIZES),
    "unequal": ("zb-h1", *SIZES, *TIMES),
    "interleaved": ("interleaved", *SIZES, "--chunks", "2"),
    "slices": ("terapipe", "--stages", "3", "--micro-batches", "1", "--slices", "4"),
    "dualpipe": ("dualpipe", *SIZES, "--width", "120"),
    "two_p": ("zb-2p", *SIZES, *TIMES),
    "searched": ("1f1b", *SIZES, *TIMES, "--search", "--cap", "5", "--trials", "50"),
    "pipemare": ("pipemare", "--stages", "2", "--micro-batches", "6"),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_of_a_timetable(name: str, command: Command, golden: Golden) -> None:
    code, out, _ = command("timetable", *PAGES[name])
    assert code == 0
    golden(f"timetable_{name}.txt", out)


def test_what_is_saved_reads_back_and_says_the_same(command: Command) -> None:
    _, first, _ = command("timetable", "zb-h2", *SIZES, *TIMES, "--save", "mine.txt")
    table = read_timetable(Path("mine.txt").read_text(encoding="utf-8"))
    assert table == make_timetable("zb-h2", 4, 8)
    _, again, _ = command("timetable", "--read", "mine.txt", *TIMES)
    assert again == first


def test_a_search_saves_and_draws_what_it_found(command: Command) -> None:
    code, out, err = command(
        "timetable", "zb-h1", *SIZES, *TIMES, "--search", "--prove", "--barrier", "--draw", "a.svg",
        "--save", "a.txt",
    )  # fmt: skip
    assert code == 0, err
    assert "lower bound" in out
    verify_timetable(read_timetable(Path("a.txt").read_text(encoding="utf-8")))
    first = Path("a.svg").read_bytes()
    assert b"</svg>" in first
    command("timetable", "--read", "a.txt", *TIMES, "--draw", "b.svg")
    assert Path("b.svg").read_bytes() == first


REFUSED = {
    "neither": (),
    "both": ("1f1b", "--read", "mine.txt"),
    "unknown": ("gpip",),
    "no_chunks": ("interleaved",),
    "chunks_of_none": ("1f1b", "--chunks", "2"),
    "sizes_of_a_file": ("--read", "mine.txt", "--stages", "4"),
    "no_file": ("--read", "none.txt"),
    "cap_without_search": ("1f1b", "--cap", "3"),
    "trials_of_a_proof": ("1f1b", "--search", "--prove", "--trials", "3"),
    "cap_too_small": ("1f1b", "--search", "--cap", "0"),
    "no_times": ("1f1b", "--times", "F=1,Q=2"),
    "no_picture": ("1f1b", "--draw", "a.pdf"),
    "deadlock": ("--read", "mine.txt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_told(name: str, command: Command, golden: Golden) -> None:
    Path("mine.txt").write_text(
        "timetable mine stages 2 micro-batches 1\nrank 0: 0BW0 0F0\nrank 1: 1F0 1BW0\n",
        encoding="utf-8",
    )
    code, _, err = command("timetable", *REFUSED[name])
    assert code == 2
    golden(f"timetable_refuses_{name}.txt", err)


def test_what_cannot_be_saved_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    from tilewright.base.errors import OptionError
    from tilewright.cli.save import save_text

    with pytest.raises(OptionError, match="the plan cannot be saved"):
        save_text(tmp_path / "nowhere" / "plan", "text", "the plan")
    save_text(tmp_path / "plan", "first", "the plan")
    save_text(tmp_path / "plan", "second", "the plan")
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]
    assert (tmp_path / "plan").read_text(encoding="utf-8") == "second"
