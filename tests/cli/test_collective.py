"""Collectives on the command line: pages, pictures, texts, fits, and how a mistake is told."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.cost import Constants, Device, Link, Machine, build_program, parse_program

Golden = Callable[[str, str], None]
Command = Callable[..., tuple[int, str, str]]

TIMES = """size(B),count,type,time(us),busbw(GB/s)
1048576,262144,float,92.79,19.78
16777216,4194304,float,232.4,126.33
134217728,33554432,float,1162,202.1
1073741824,268435456,float,8193,229.3
"""

CLUSTER = str(
    Machine(
        "cluster",
        Device("d", 80 * 2.0**30, 2e12, 5e-6, (("bfloat16", 312e12),)),
        (Link("near", 8, 3e-6, 200e9), Link("far", None, 5e-6, 25e9)),
        16,
        replace(Constants(), memory_fraction=0.75, collective_seconds=40e-6),
    )
)


def test_collective_prints_formulas_prices_and_the_choice(command: Command, golden: Golden) -> None:
    code, out, _ = command("collective", "all-reduce", "--machine", CLUSTER,
                           "--ranks", "16", "--bytes", "64MiB")  # fmt: skip
    assert code == 0
    golden("collective.txt", out)


def test_collective_draws_an_algorithm(command: Command, golden: Golden) -> None:
    code, out, _ = command("collective", "all-gather", "--ranks", "5", "--draw", "bruck")
    assert code == 0
    golden("collective_drawn.txt", out)


def test_collective_draws_an_algorithm_into_a_file(command: Command, tmp_path: Path) -> None:
    words = ("collective", "all-reduce", "--ranks", "4", "--draw", "ring", "--out", "ring.svg")
    code, out, _ = command(*words)
    assert (code, out) == (0, "drawn in ring.svg\n")
    picture = (tmp_path / "ring.svg").read_bytes()
    assert b"<svg" in picture
    command(*words)
    assert (tmp_path / "ring.svg").read_bytes() == picture


def test_what_collective_prints_as_text_is_proved_and_priced(
    command: Command, golden: Golden, tmp_path: Path
) -> None:
    _, out, _ = command("collective", "reduce", "--ranks", "6", "--root", "2", "--text", "binomial")
    assert parse_program(out) == build_program("reduce", "binomial", 6, root=2)
    (tmp_path / "mine.txt").write_text(out)
    code, out, _ = command("messages", "mine.txt", "--bytes", "1MB", "--machine", CLUSTER)
    assert code == 0
    golden("messages.txt", out)


def test_links_fits_a_table_of_times(command: Command, golden: Golden, tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(TIMES)
    code, out, _ = command("links", "times.csv", "--ranks", "8")
    assert code == 0
    golden("links.txt", out)


WRONG_TABLES = {
    "links_of_nothing": "",
    "links_without_a_time": "size(B),busbw(GB/s)\n1024,1\n",
    "links_with_a_word": "size(B),time(us)\n1024,12\n2048,quick\n",
    "links_cut_short": "size(B),time(us)\n1024,12\n2048\n",
    "links_of_one_size": "size(B),time(us)\n1024,12\n1024,13\n",
    "links_that_shrink": "size(B),time(us)\n1024,12\n4096,11\n",
    "links_of_no_time": "size(B),time(us)\n1024,0\n4096,11\n",
}


@pytest.mark.parametrize("name", WRONG_TABLES)
def test_a_table_that_says_nothing_is_refused(
    name: str, command: Command, golden: Golden, tmp_path: Path
) -> None:
    (tmp_path / "times.csv").write_text(WRONG_TABLES[name])
    code, out, err = command("links", "times.csv", "--ranks", "8")
    assert (code, out) == (2, "")
    golden(f"{name}.txt", err)


WRONG_COLLECTIVES = {
    "collective_unknown": ("collective", "all-reduces"),
    "collective_by_none": ("collective", "all-reduce", "--draw", "rings"),
    "collective_of_no_size": ("collective", "all-reduce", "--bytes", "64 apples"),
    "collective_among_too_many": ("collective", "all-reduce", "--ranks", "16"),
    "collective_with_a_root": ("collective", "all-reduce", "--root", "1"),
    "collective_twice": ("collective", "all-reduce", "--draw", "ring", "--text", "ring"),
    "collective_too_wide": ("collective", "all-reduce", "--machine", "dgx-a100-80g x 32",
                            "--ranks", "32", "--draw", "ring"),
    "collective_out_of_nothing": ("collective", "all-reduce", "--out", "ring.svg"),
    "collective_of_too_many_messages": ("collective", "all-to-all", "--ranks", "4096",
                                        "--machine", "dgx-a100-80g x 4096", "--text", "bruck"),
    "messages_missing": ("messages", "nowhere.txt"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_COLLECTIVES)
def test_what_a_collective_cannot_be_is_told(name: str, command: Command, golden: Golden) -> None:
    code, out, err = command(*WRONG_COLLECTIVES[name])
    assert (code, out) == (2, "")
    golden(f"{name}.txt", err)
