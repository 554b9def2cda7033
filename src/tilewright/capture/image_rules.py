"""Rules for images: resampling, edges, and channels that become pixels.

The idea: ATen tells modes by number and scales one by one; a size that no quotient of small
numbers gives stays a call.
This module does not know the overloads' names.
"""

from typing import Any

import torch

from tilewright.capture.call import Call, Made, Rule, reads
from tilewright.capture.walk import add_constant

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


def resize(operator: str, *scales: str) -> Rule:
    """upsample_bilinear2d(self, output_size, align_corners, scales_h, scales_w)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        if call.result.dtype.kind != "float":
            return None
        attrs: dict[str, Any] = {
            "output_size": tuple(call["output_size"]),
            "align_corners": call["align_corners"],
            "scales": tuple(call[name] for name in scales),
        }
        return call.emit(operator, call["self"], **attrs)

    return rule


def resize_by(operator: str) -> Rule:
    """upsample_bilinear2d.vec(input, output_size, align_corners, scale_factors)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        if call.result.dtype.kind != "float":
            return None
        size, scales = call.result.shape[2:], call["scale_factors"]
        attrs: dict[str, Any] = {
            "output_size": size,
            "align_corners": call["align_corners"],
            "scales": None if scales is None else tuple(scales),
        }
        return call.emit(operator, call["input"], **attrs)

    return rule


@reads("grid_sample")
def grid_sample(call: Call) -> Made:
    """grid_sampler_2d(input, grid, interpolation_mode, padding_mode, align_corners)."""
    mode = _MODES[call["interpolation_mode"]]
    if mode == "bicubic":
        return None
    attrs = {
        "mode": mode,
        "padding_mode": _PADDINGS[call["padding_mode"]],
        "align_corners": call["align_corners"],
    }
    return call.emit("grid_sample", call["input"], call["grid"], **attrs)


@reads("permute", "matmul", "reshape")
def affine_grid(call: Call) -> Made:
    """affine_grid_generator(theta, size, align_corners): places of the plain grid, moved."""
    theta, size = call["theta"], call["size"]
    rank = len(size) - 2
    plain = torch.eye(rank, rank + 1, dtype=torch.float64)[None]
    places = torch.nn.functional.affine_grid(plain, [1, 1, *size[2:]], call["align_corners"])
    rows = torch.nn.functional.pad(places.reshape(-1, rank), (0, 1), value=1.0)
    typed = rows.to(call.fake("theta").dtype)
    base = add_constant(call.walk, typed, f"{call.node.name}_places", call.origin)
    across = call.emit("permute", theta, wish="across", dims=(0, 2, 1))
    moved = call.emit("matmul", base, across, wish="moved")
    shape: Any = call.result.shape
    return call.emit("reshape", moved, shape=shape)


def edges(operator: str) -> Rule:
    """reflection_pad2d(self, padding)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        return call.emit(operator, call["self"], pad=tuple(call["padding"]))

    return rule


def shuffle(operator: str, ours: str, theirs: str) -> Rule:
    """pixel_shuffle(self, upscale_factor)."""

    @reads(operator)
    def rule(call: Call) -> Made:
        attrs: dict[str, Any] = {ours: call[theirs]}
        return call.emit(operator, call["self"], **attrs)

    return rule
