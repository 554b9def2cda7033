"""A message program as a picture of characters: who has what after each round, and from whom.

The idea: a column for each rank, a row for each round, a mark for each chunk.  A dot is nothing, a
star is all that there will be, a number says how many contributions are combined so far.

This module does not know what a program is for.
"""

from tilewright.base.errors import OptionError
from tilewright.cost.collectives.program import COLLECTIVES, Message, MessageProgram
from tilewright.cost.collectives.text import show_numbers, show_program
from tilewright.cost.collectives.verify import progress

MOST_RANKS, MOST_CHUNKS = 16, 64
_SOME = ".123456789abcdefghijklmnopqrstuvwxyz"


def draw_program(program: MessageProgram) -> str:
    """Return the picture of a program; OptionError where it would be too wide.

    `<3 +2` says that chunk 2 came from rank 3 and was combined, `<3 =2` that it was kept.
    """
    if program.ranks > MOST_RANKS or program.chunks > MOST_CHUNKS:
        raise OptionError(
            "the picture of a message program would be too wide",
            expected=f"at most {MOST_RANKS} ranks and {MOST_CHUNKS} chunks",
            found=f"{program.ranks} ranks and {program.chunks} chunks",
            mend="draw it among fewer ranks, or print it as text",
        )
    rows = [["", *(f"rank {rank}" for rank in range(program.ranks))]]
    for number, held in enumerate(progress(program)):
        round_ = program.rounds[number - 1] if number else ()
        came = {message.target: _arrow(message) for message in round_}
        name = f"round {number - 1}" if number else "begin"
        marks = (_marks(program, held[rank]) for rank in range(program.ranks))
        cells = (f"{mark} {came.get(rank, '')}" for rank, mark in enumerate(marks))
        rows.append([name, *(cell.rstrip() for cell in cells)])
    widths = [max(len(row[at]) for row in rows) for at in range(program.ranks + 1)]
    lines = ("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join([show_program(program).split("\n", 1)[0], *lines])


def _marks(program: MessageProgram, held: dict[int, int]) -> str:
    full = program.ranks if COLLECTIVES[program.collective].reduces else 1
    counts = (held.get(chunk, 0).bit_count() for chunk in range(program.chunks))
    return "".join("*" if count == full else _SOME[count] for count in counts)


def _arrow(message: Message) -> str:
    verb = "+" if message.reduce else "="
    return f"<{message.source} {verb}{show_numbers(message.chunks).replace(' ', '')}"
