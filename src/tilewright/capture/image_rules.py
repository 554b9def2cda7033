"""Rules for images: resampling, edges, and channels that become pixels.

The idea: ATen tells modes by number and scales one by one; a size that no quotient of small
numbers gives stays a call.
This module does not know the overloads' names.
"""

from typing import Any

from tilewright.capture.call import Call, Made, Rule, reads

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
