"""What this machine can do at most: arithmetic in registers, and movement through memory.

The idea: what is measured is held against what was reached beside it, in the same run, and not
against a library's product: on some processors a library does not use their widest vectors.
Does not know kernels nor models.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from bench import machine
from tilewright.runtime import NATIVE, find_toolchain
from tilewright.runtime.toolchain import build

REPEATS, SUMS = 5_000_000, 12  # enough sums at once for the latency of two units
_PEAK = """
#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif
typedef float V __attribute__((vector_size(BYTES)));
__attribute__((visibility("default"))) float peak(long n) {
  V a[SUMS], x = (V){} + 0.999f, y = (V){} + 0.001f;
  for (int i = 0; i < SUMS; i++) a[i] = y;
  for (long k = 0; k < n; k++)
#pragma GCC unroll SUMS
    for (int i = 0; i < SUMS; i++) a[i] = a[i] * x + y;
  for (int i = 1; i < SUMS; i++) a[0] += a[i];
  return a[0][0];
}
"""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What goes as fast as this machine can: a call, and the operations or bytes of it."""

    call: Callable[[], Any]
    work: int


def fma_ceiling(threads: int, target: str = NATIVE, repeats: int = REPEATS) -> Ceiling:
    """Return fused multiply-adds in registers, by so many threads at once."""
    wide = target in (NATIVE, "x86-64-v4") and machine.describe()["vectors"] == "AVX-512"
    lanes = 16 if wide else 8
    source = _PEAK.replace("BYTES", str(4 * lanes)).replace("SUMS", str(SUMS))
    library = build(find_toolchain(target), {"peak": source})
    library.peak.argtypes, library.peak.restype = (ctypes.c_long,), ctypes.c_float
    pool = ThreadPoolExecutor(threads)
    work = threads * repeats * SUMS * lanes * 2
    return Ceiling(lambda: list(pool.map(library.peak, [repeats] * threads)), work)


def copy_ceiling(elements: int) -> Ceiling:
    """Return a large copy."""
    source = torch.randn(elements)
    target = torch.empty_like(source)
    return Ceiling(lambda: target.copy_(source), 2 * source.nbytes)
