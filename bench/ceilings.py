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
from torch import Tensor

from bench import machine
from tilewright.cost import best_seconds
from tilewright.runtime import NATIVE, find_toolchain
from tilewright.runtime.toolchain import build

BLOCK = 64  # floats that are copied at once
VECTORS = {"AVX-512": 512, "AVX2": 256}  # bits of the widest stores past the caches
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


_COPY = """
typedef float V __attribute__((vector_size(BYTES)));
#if defined(__clang__)
#define store(to, v) __builtin_nontemporal_store(v, (V *)(to))
#else
#define store(to, v) __builtin_ia32_movntpsBITS(to, v)
#endif
__attribute__((visibility("default"))) void copy(float *to, const float *from, long n) {
  for (long k = 0; k < n; k += BYTES / 4) store(to + k, *(const V *)(from + k));
  __builtin_ia32_sfence();
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


def copy_ceiling(elements: int, threads: int) -> Ceiling:
    """Return the faster of two large copies: torch's, and one past the caches."""
    source = torch.randn(elements)
    copied = torch.zeros_like(source)
    copies = [lambda: copied.copy_(source)]
    if machine.describe()["vectors"] in VECTORS:
        copies.append(copy_past_caches(source, copied, threads))
    return Ceiling(min(copies, key=best_seconds), 2 * source.nbytes)


def copy_past_caches(source: Tensor, copied: Tensor, threads: int) -> Callable[[], Any]:
    """Return a copy between contiguous tensors of float32 by stores that leave nothing in caches;
    what fills no block at the end is left out."""
    bits = VECTORS[machine.describe()["vectors"]]
    text = _COPY.replace("BYTES", str(bits // 8)).replace("BITS", str(bits))
    library = build(find_toolchain(NATIVE), {"copy": text})
    library.copy.argtypes, library.copy.restype = (ctypes.c_void_p,) * 2 + (ctypes.c_long,), None
    assert source.data_ptr() % 64 == copied.data_ptr() % 64 == 0, "torch aligns to 64 bytes"
    pool, blocks = ThreadPoolExecutor(threads), source.numel() // BLOCK
    ends = [blocks * part // threads * BLOCK for part in range(threads + 1)]

    def part(begin: int, end: int) -> None:
        library.copy(copied.data_ptr() + 4 * begin, source.data_ptr() + 4 * begin, end - begin)

    return lambda: list(pool.map(part, ends[:-1], ends[1:]))
