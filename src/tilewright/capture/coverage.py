"""How much of Core ATen is read as operators of our table, and what becomes of the rest.

The idea: PyTorch tags the operators that every other one can be made of; each of them is read by a
rule of `aten`, or stands here with the reason why it is not.

This module does not know how a rule reads a call.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tilewright.capture.aten import RULES
from tilewright.ops import TABLE

# What becomes of an overload.
LOOPS, COMPOSITE, OPAQUE = "loops", "composite", "opaque"
LIBRARY, REFUSED, ABSENT = "library", "refused", "absent"

_VARYING = "the result's size depends on values: an error that names the line"
_COMPLEX = "its result is complex: an error that names the line"
_BACKWARD = "a gradient of torch's own, which no forward graph holds: ours is derived"
_SIZES = "sizes and strides are numbers before the graph is read"
_DRAWN = "drawn from torch's generator in eager's order, so that seeds mean the same"

# Core operators without a rule, and why; the library's derivative is paired with each call.
LEFT: dict[str, tuple[str, str]] = {
    "aten._adaptive_avg_pool2d_backward.default": (ABSENT, _BACKWARD),
    "aten.avg_pool2d_backward.default": (ABSENT, _BACKWARD),
    "aten.convolution_backward.default": (ABSENT, _BACKWARD),
    "aten.embedding_dense_backward.default": (ABSENT, _BACKWARD),
    "aten.max_pool2d_with_indices_backward.default": (ABSENT, _BACKWARD),
    "aten.native_group_norm_backward.default": (ABSENT, _BACKWARD),
    "aten.native_layer_norm_backward.default": (ABSENT, _BACKWARD),
    "aten._fft_c2r.default": (REFUSED, "its operand is complex: an error that names the line"),
    "aten._fft_r2c.default": (REFUSED, _COMPLEX),
    "aten._local_scalar_dense.default": (REFUSED, "it turns a value into a Python number"),
    "aten.nonzero.default": (REFUSED, _VARYING),
    "aten.sym_numel.default": (ABSENT, _SIZES),
    "aten.sym_size.int": (ABSENT, _SIZES),
    "aten.sym_storage_offset.default": (ABSENT, _SIZES),
    "aten.sym_stride.int": (ABSENT, _SIZES),
    "aten.atan2.out": (ABSENT, "a functional graph writes into no operand"),
    "aten.upsample_nearest2d.vec": (ABSENT, "it repeats elements, or reads them by constant rows"),
    "aten._native_batch_norm_legit.default": (ABSENT, "its functional form arrives"),
    "aten._embedding_bag.default": (ABSENT, "`embedding_bag` arrives, whole"),
    "aten.masked_scatter.default": (LIBRARY, "where an element lands depends on those before it"),
    "aten.empty_strided.default": (LIBRARY, "memory whose layout the user asked for"),
    "aten.rand.default": (LIBRARY, _DRAWN),
    "aten.randn.default": (LIBRARY, _DRAWN),
    "aten.randperm.default": (LIBRARY, _DRAWN),
    "aten.native_dropout.default": (LIBRARY, _DRAWN),
}


# Beyond the core set: families of calls that stay torch's, each with torch's own derivative.
BEYOND: tuple[tuple[str, str], ...] = (
    ("lgamma, digamma, polygamma, erfinv, i0, i1, ndtri, zeta, igamma", "series and continued "
     "fractions: special functions that no loop over elements says"),
    ("linalg_* but cross and vector_norm, cholesky, lu, qr, eigh, matrix_exp", "factorisations: "
     "each step depends on the one before"),
    ("lstm with a projected state", "a scan whose state and output differ: not declared yet"),
    ("ctc_loss", "where a row ends depends on values"),
    ("embedding_bag of largest elements", "where bags end depends on values"),
    ("logcumsumexp along more than 64 elements", "the loops are quadratic, torch's are not"),
    ("median, nanmedian of all elements", "an order, and a gradient shared among ties"),
    ("scatter_reduce by products, index_reduce, put", "gradients beside zeros and repetitions"),
    ("cdist and norms of pairs of infinite order", "torch gives each of several the whole "
     "gradient"),
    ("fractional_max_pool, multinomial, normal", _DRAWN),
    ("grid_sample of volumes or by cubic convolution", "not declared yet"),
    ("bitwise shifts, gcd, lcm, nextafter, frexp", "steps of bits or of Euclid's algorithm"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A core overload: what becomes of it, by which operators of the table, and why if not."""

    overload: str
    how: str
    operators: tuple[str, ...] = ()
    reason: str = ""


def core_coverage() -> tuple[Entry, ...]:
    """Return what becomes of every overload that this torch tags as core, by name."""
    return tuple(_entry(name) for name in sorted(_core_overloads()))


def _entry(name: str) -> Entry:
    rule = RULES.get(name)
    if rule is None:
        how, reason = LEFT.get(name, (LIBRARY, "a core operator that this version does not know"))
        return Entry(name, how, reason=reason)
    if rule.opaque:
        return Entry(name, OPAQUE, rule.operators, rule.opaque)
    whole = [operator for operator in rule.operators if TABLE[operator].expand is None]
    how = LOOPS if len(whole) == len(rule.operators) else COMPOSITE
    return Entry(name, how, rule.operators, "" if rule.operators else "the operand itself")


def _core_overloads() -> Iterator[str]:
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        for overload in packet.overloads():
            found = getattr(packet, overload)
            if torch.Tag.core in found.tags:
                yield str(found)
