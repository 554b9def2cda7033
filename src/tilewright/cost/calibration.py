"""What a machine can be fitted to: measurements, names and bounds that mean something.

This module does not know machines, nor how constants are fitted (`fit`).
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from tilewright.base.errors import MachineError

Bounds = tuple[float, float]


def check_measured(
    rows: Sequence[tuple[Any, float]], predict: object, names: Sequence[str]
) -> list[float]:
    """Return the seconds of measured rows; raise MachineError where some cannot be fitted to, or
    `predict` cannot be asked."""
    if not callable(predict):
        raise MachineError(
            "nothing says what a machine would take for a row",
            expected="predict(machine, row) that returns seconds",
            found=repr(predict)[:60],
            mend="write predict=lambda machine, row: ..., or a function",
        )
    if isinstance(names, str) or not names or len(set(names)) < len(names):
        raise MachineError(
            "nothing says which constants are fitted",
            expected="a list of their names, each once",
            found=repr(names)[:60],
            mend='write names=["gemm_fraction", "product_seconds"]',
        )
    wrong = [row for row in rows if not _measured(row)] if isinstance(rows, Sequence) else [rows]
    if wrong:
        raise MachineError(
            "a measurement is no row with its seconds",
            expected="(row, seconds), seconds finite and above 0",
            found=repr(wrong[0])[:60],
        )
    if len(rows) < len(names):
        raise MachineError(
            f"{len(names)} constants cannot be fitted to {len(rows)} measurements",
            expected="as many measurements as constants",
            found=f"{len(rows)} rows for {', '.join(names)}",
        )
    return [float(seconds) for _, seconds in rows]


def check_narrower(within: Mapping[str, Bounds], known: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """Return narrower bounds of constants; raise MachineError unless they lie in those known."""
    if not isinstance(within, Mapping):
        raise MachineError(
            "narrower bounds are of no constants",
            expected="a mapping from names to (low, high)",
            found=repr(within)[:60],
            mend='write within={"gemm_fraction": (0.5, 0.8)}',
        )
    for name, pair in within.items():
        if name not in known:
            raise MachineError(
                f"bounds of {name} have no effect",
                expected=f"bounds of what is fitted: {', '.join(known)}",
                found=repr(name)[:60],
                mend=f"fit {name} too, or leave its bounds out",
            )
        low, high = known[name]
        numbers = isinstance(pair, Sequence) and len(pair) == 2 and all(map(_seconds, pair))
        if not numbers or not low <= pair[0] < pair[1] <= high:
            raise MachineError(
                f"{name} cannot be within {repr(pair)[:60]}",
                expected=f"(low, high) with {low:g} <= low < high <= {high:g}",
                found=repr(pair)[:60],
            )
    return dict(within)


def check_priced(seconds: list[Any]) -> list[float]:
    """Return what a machine is said to take; raise MachineError where that is no time."""
    for one in seconds:
        if not _seconds(one):
            raise MachineError(
                "what the machine is predicted to take is no time",
                expected="predict(machine, row) that returns finite seconds, 0 or more",
                found=repr(one)[:60],
            )
    return seconds


def _measured(row: object) -> bool:
    return isinstance(row, Sequence) and len(row) == 2 and _seconds(row[1]) and row[1] > 0


def _seconds(value: object) -> bool:
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and 0 <= value < math.inf  # type: ignore[operator]
