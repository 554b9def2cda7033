"""This host in numbers: products, copies, a call, and messages between two threads.

The idea: each number is the best of a few short repetitions, as what disturbs only ever adds time.
Cores share what the host reaches as a whole.  This module does not know machines.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Progress = Callable[[str], None]
GEMM = 1024  # rows and columns of the products
COPY = 1 << 27  # bytes that are copied
MESSAGE = 1 << 24  # bytes of a long message
PINGS = 200
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Host:
    """For each core: memory in bytes, B/s, the seconds of a call, FLOP/s by element type; the
    latency in seconds and the B/s of messages between two of them."""

    cores: int
    memory_bytes: float
    memory_bandwidth: float
    launch_seconds: float
    peaks: tuple[tuple[str, float], ...]
    link_latency: float
    link_bandwidth: float


def measure_host(progress: Progress) -> Host:
    """Measure this host, in about two seconds."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    progress(f"{cores} cores, {memory / 2**30:.1f} GiB")
    peaks = []
    for dtype in ("float32", "float64"):
        progress(f"a product of {GEMM} x {GEMM} in {dtype}")
        peaks.append((dtype, _gemm_flops(dtype) / cores))
    progress(f"a copy of {COPY >> 20} MiB")
    bandwidth = _copy_bandwidth() / cores
    progress("messages between two threads")
    latency, link = _messages()
    return Host(
        cores, float(memory // cores), _rounded(bandwidth), _rounded(_call_seconds()),
        tuple((dtype, _rounded(flops)) for dtype, flops in peaks),
        _rounded(latency), _rounded(link),
    )  # fmt: skip


def _rounded(value: float) -> float:
    """Four digits: there is no more in a measurement."""
    return float(f"{value:.3e}")


def best_seconds(act: Callable[[], object]) -> float:
    """Return the least of the seconds that an act takes, once it was done before."""
    act()
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    return min(times)


def _gemm_flops(dtype: str) -> float:
    a = np.ones((GEMM, GEMM), dtype)
    out = np.empty_like(a)
    return 2 * GEMM**3 / best_seconds(lambda: np.matmul(a, a, out=out))


def _copy_bandwidth() -> float:
    source = np.ones(COPY, np.uint8)
    target = np.zeros_like(source)
    return 2 * COPY / best_seconds(lambda: np.copyto(target, source))


def _call_seconds() -> float:
    one = np.zeros(1, np.float32)
    return best_seconds(lambda: [np.add(one, one, out=one) for _ in range(1000)]) / 1000


def _messages() -> tuple[float, float]:
    """Return half the time of a short message and its answer, and the B/s of long ones."""
    near, far = socket.socketpair()

    def answer() -> None:
        for _ in range((1 + ROUNDS) * PINGS):
            far.sendall(far.recv(1))
        for _ in range(1 + ROUNDS):
            _receive(far, MESSAGE)
            far.sendall(b".")

    def ping() -> None:
        for _ in range(PINGS):
            near.sendall(b".")
            near.recv(1)

    def send() -> None:
        near.sendall(payload)
        near.recv(1)

    payload = bytes(MESSAGE)
    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with near, far:
        latency = best_seconds(ping) / PINGS / 2
        seconds = best_seconds(send)
        thread.join()
    return latency, MESSAGE / seconds


def _receive(end: socket.socket, count: int) -> None:
    room = memoryview(bytearray(1 << 20))
    while count:
        count -= end.recv_into(room[: min(count, len(room))])
