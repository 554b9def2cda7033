"""Machines and prices: what a device and its links can do, what a model holds and computes."""

from tilewright.cost.fit import LinkFit, fit_all_reduce
from tilewright.cost.machine import Constants, Device, Link, Machine, machine_lines, preset_names
from tilewright.cost.quantity import parse_quantity, show_quantity

__all__ = [
    "Constants",
    "Device",
    "Link",
    "LinkFit",
    "Machine",
    "fit_all_reduce",
    "machine_lines",
    "parse_quantity",
    "preset_names",
    "show_quantity",
]
