"""What `tilewright collective` and `tilewright messages` answer to their words.

This module does not know what a collective costs.
"""

from pathlib import Path

from tilewright.base.errors import OptionError
from tilewright.cost import (
    Machine,
    Question,
    choice_of,
    collective_page,
    draw_program,
    fit_lines,
    fit_times,
    parse_program,
    parse_quantity,
    program_of,
    program_page,
    read_times,
    show_program,
    verify,
)

MOST_RANKS = 512  # among which messages are drawn or printed


def collective_lines(asked: Question, draw: str, text: str, out: Path | None) -> list[str]:
    """Return the page of a collective; or one algorithm's picture, or its text.

    draw, text: an algorithm's name, or "".  out: where the picture goes, if not among the lines.
    """
    if (draw and text) or (out and not draw):
        both = f"--draw {draw} --text {text}" if draw else f"--out {out} without --draw"
        raise OptionError(
            "these options do not go together",
            expected="--draw, --draw with --out, or --text",
            found=both,
        )
    if not draw and not text:
        return collective_page(asked)
    if asked.ranks > MOST_RANKS:
        raise OptionError(
            "messages among so many ranks are not written out",
            expected=f"at most {MOST_RANKS} ranks",
            found=str(asked.ranks),
            mend="draw or print it among fewer",
        )
    program = program_of(choice_of(asked, draw or text), asked.network, root=asked.root)
    verify(program)
    if text:
        return [show_program(program).rstrip("\n")]
    if out is None:
        return [draw_program(program)]
    from tilewright.report import plot_messages

    plot_messages(out, program)
    return [f"drawn in {out}"]


def own_lines(path: Path, machine: str, size: str, stride: int) -> list[str]:
    """Return what there is to say about a program in a file; OptionError where it is not there."""
    mend = "`tilewright collective all-reduce --ranks 4 --text ring` prints one"
    program = parse_program(_read(path, "the message program", mend))
    return program_page(program, Machine.parse(machine), _bytes(size), stride)


def fitted_lines(name: str, ranks: int, path: Path) -> list[str]:
    """Return the latency and bandwidth that a table of measured times comes to."""
    samples = read_times(_read(path, "the table of times", ""), path.name)
    return fit_lines(fit_times(name, ranks, samples), samples)


def _read(path: Path, what: str, mend: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"{what} {path} cannot be read", expected="a text file", found=str(error), mend=mend
        ) from error


def question(name: str, machine: str, ranks: int, size: str, *, stride: int, root: int) -> Question:
    """Return what is asked for; OptionError where the size is none."""
    return Question(name, ranks, _bytes(size), Machine.parse(machine), stride, root)


def _bytes(size: str) -> float:
    number = parse_quantity(size, "B")
    if number is None:
        raise OptionError(
            "--bytes is no size",
            expected="a number such as 64MiB, 1.5GB or 4096B",
            found=repr(size),
        )
    return number
