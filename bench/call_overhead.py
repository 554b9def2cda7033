"""What one call of a compiled graph costs before any arithmetic matters.

Run `python -m bench.call_overhead`.  The idea: a graph of three operators on four float32 inputs
of 64 elements is nothing but its call; the median over alternating blocks is in microseconds of the
calling thread's processor time, so that it does not count when others run, and in eager's time in
the same round of blocks.
Writes `bench/results/call_overhead.json`.  Does not measure kernels.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench import machine
from bench.intervals import median_interval

OUT = Path(__file__).resolve().parent / "results" / "call_overhead.json"
ELEMENTS = 64

Call = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def graph(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Three operators."""
    return (a * b + c) * d


def main() -> int:
    """Measure every contender; 1 if ours is absent."""
    parser = argparse.ArgumentParser(description="microseconds for one call of a small graph")
    parser.add_argument("--blocks", type=int, default=31)
    parser.add_argument("--calls", type=int, default=2000, help="calls in a block")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    source = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(ELEMENTS, generator=source) for _ in range(4))
    calls, absent = _contenders(inputs)
    samples = _alternate(calls, inputs, options.blocks, options.calls)
    eager = samples["eager"]
    results: dict[str, Any] = {name: _summary(of, eager) for name, of in samples.items()}
    results |= {name: {"error": reason} for name, reason in absent.items()}
    _write(options.out, results)
    for name, result in results.items():
        print(f"{name:<14}", result.get("error") or _line(result))
    return int(bool(absent))


def _contenders(inputs: tuple[Tensor, ...]) -> tuple[dict[str, Call], dict[str, str]]:
    """Ready callables whose results equal eager's, and why the others are absent."""
    calls: dict[str, Call] = {"eager": graph, "torch.compile": torch.compile(graph)}
    absent = {}
    try:
        calls["tilewright"] = importlib.import_module("tilewright").compile(graph, *inputs)
    except Exception as error:  # the others are still worth measuring
        absent["tilewright"] = f"{type(error).__name__}: {error}"
    for call in calls.values():
        torch.testing.assert_close(call(*inputs), graph(*inputs))
    return calls, absent


def _alternate(
    calls: dict[str, Call], inputs: tuple[Tensor, ...], blocks: int, count: int
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(blocks):
        for name, call in calls.items():
            _microseconds(call, inputs, count // 10)  # warm again after the others
            samples[name].append(_microseconds(call, inputs, count))
    return samples


def _microseconds(call: Call, inputs: tuple[Tensor, ...], count: int) -> float:
    a, b, c, d = inputs
    begin = time.thread_time()
    for _ in range(count):
        call(a, b, c, d)
    return 1e6 * (time.thread_time() - begin) / count


def _summary(samples: list[float], eager: list[float]) -> dict[str, Any]:
    ratios = [ours / theirs for ours, theirs in zip(samples, eager, strict=True)]
    told = asdict(median_interval(samples)) | {"best": min(samples), "samples": samples}
    return told | {"of_eager": asdict(median_interval(ratios))}


def _line(result: dict[str, Any]) -> str:
    ratio = result["of_eager"]
    interval = f"({ratio['low']:.2f} to {ratio['high']:.2f})"
    return f"{result['median']:6.2f} us, {ratio['median']:.2f} {interval} of eager"


def _write(path: Path, results: dict[str, Any]) -> None:
    content = {
        "machine": machine.describe() | {"threads": torch.get_num_threads()},
        "date": machine.today(),
        "versions": {"torch": torch.__version__},
        "unit": "microseconds of the calling thread per call",
        "contenders": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
