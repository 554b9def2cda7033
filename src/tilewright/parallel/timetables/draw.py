"""A timetable as text for the terminal: a line for each rank, time from left to right.

The idea: an action is its kind and its micro-batch, drawn out with `-` for as long as it takes;
idle time is dots.  Where there is no room for the number only the kind is left.

This module does not know pixels; `report` draws pictures.
"""

from tilewright.parallel.timetables.simulate import Simulation
from tilewright.parallel.timetables.timetable import UPDATE, Action

NARROWEST = 20
STRETCH = 1.15  # by how much a drawing may be wider, for actions of equal widths


def draw_timetable(simulation: Simulation, width: int = 100) -> str:
    """Return the picture of a simulated timetable, about `width` characters wide."""
    table = simulation.timetable
    names = [f"rank {rank}" for rank in range(len(table.ranks))]
    margin = max(map(len, names)) + 2
    columns = max(NARROWEST, width - margin)
    start = min((row[0] for row in simulation.starts if row), default=0.0)
    scale = _scale(simulation, columns)
    columns = round(simulation.makespan * scale)
    lines = []
    for rank, name in enumerate(names):
        row = ["."] * columns
        times = zip(table.ranks[rank], simulation.starts[rank], simulation.ends[rank], strict=True)
        for action, begin, end in times:
            first, last = round((begin - start) * scale), round((end - start) * scale)
            row[first:last] = _drawn(action, last - first)
        lines.append(f"{name:<{margin}}{''.join(row)}")
    return "\n".join(lines)


def _scale(simulation: Simulation, columns: int) -> float:
    """Return characters for a unit of time: a whole number for the shortest action if that fits."""
    takes = (
        end - start
        for row in zip(simulation.starts, simulation.ends, strict=True)
        for start, end in zip(*row, strict=True)
        if end > start
    )
    shortest = min(takes, default=0.0)
    if not shortest:
        return 0.0
    scale = columns / simulation.makespan
    whole = round(scale * shortest) / shortest
    return whole if 0 < whole <= scale * STRETCH else scale


def _drawn(action: Action, room: int) -> str:
    """Return an action in exactly `room` characters."""
    if action[0].kind == UPDATE or room < 1:
        return "-" * room
    full = "&".join(f"{part.kind}{part.micro_batch}" for part in action)
    # One character is left to tell an action from the next.
    short = "&".join(part.kind for part in action)
    text = next((text for text in (full, short) if len(text) < room), short[:room])
    return text + "-" * (room - len(text))
