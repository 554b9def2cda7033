"""Numbers with units: `80GiB`, `800Gb/s`, `312TFLOP/s`, `2.7us`, read and written exactly.

The idea: a prefix only moves the decimal point, so it is moved in decimal: what is printed is read
back as the very same number.  This module does not know what is measured.
"""

import math
import re
from decimal import Decimal

# Unit as written -> the unit it is kept in, and how many of that it is.
UNITS: dict[str, tuple[str, Decimal]] = {
    "s": ("s", Decimal(1)),
    "B": ("B", Decimal(1)),
    "b": ("B", Decimal("0.125")),
    "B/s": ("B/s", Decimal(1)),
    "b/s": ("B/s", Decimal("0.125")),
    "bps": ("B/s", Decimal("0.125")),
    "FLOP/s": ("FLOP/s", Decimal(1)),
    "FLOPS": ("FLOP/s", Decimal(1)),
}
PREFIXES: dict[str, Decimal] = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal("1e3"), "K": Decimal("1e3"), "M": Decimal("1e6"), "G": Decimal("1e9"),
    "T": Decimal("1e12"), "P": Decimal("1e15"), "Ki": Decimal(1 << 10), "Mi": Decimal(1 << 20),
    "Gi": Decimal(1 << 30), "Ti": Decimal(1 << 40),
}  # fmt: skip
QUANTITY = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]{1,4})?)(?P<unit>[A-Za-z][A-Za-z/]*)?"
)
EXAMPLES = {"s": "5us", "B": "80GiB", "B/s": "300GB/s or 800Gb/s", "FLOP/s": "312TFLOP/s"}
_PRINTED = ("n", "u", "m", "", "k", "M", "G", "T", "P")  # from small to large


def parse_quantity(text: str, unit: str) -> float | None:
    """Return `text` as a number of `unit` ("s", "B", "B/s", "FLOP/s", or "" for a plain number).

    None where it is no number that is finite, or one of something else.
    """
    match = QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, written = Decimal(match["number"]), match["unit"] or ""
    if not unit:
        return None if written else _finite(number)
    for name, (kept, factor) in UNITS.items():
        prefix = written.removesuffix(name)
        if kept == unit and written.endswith(name) and prefix in PREFIXES:
            return _finite(number * PREFIXES[prefix] * factor)
    return None


def show_quantity(value: float, unit: str) -> str:
    """Return the shortest text that `parse_quantity` reads as exactly `value`.

    Whole GiB of memory are printed as such.
    """
    if not unit:
        return _plain(Decimal(repr(value)))
    if unit == "B" and value and value % (1 << 30) == 0:
        return f"{int(value) >> 30}GiB"
    number = Decimal(repr(value))
    prefix = ""
    for candidate in _PRINTED if number else ():
        if number >= PREFIXES[candidate]:
            prefix = candidate
    return f"{_plain(number / PREFIXES[prefix])}{prefix}{unit}"


def _finite(number: Decimal) -> float | None:
    return float(number) if math.isfinite(float(number)) else None


def _plain(number: Decimal) -> str:
    text = format(number.normalize(), "f")
    return text if len(text) < 32 else format(number, "e")
