"""Steps that others measured on clusters, with where they were published.

The idea: a row is what a publication says and nothing more; 0 stands for what it does not say.
This module does not know predictions.

Sources: Narayanan et al. 2021 (arXiv 2104.04473), table 1 and the ZeRO-3 rows beside it, on Selene
(DGX A100 80 GB): seconds are operations / (devices x published FLOP/s), with recomputation.
Korthikanti et al. 2022 (arXiv 2205.05198), tables of end-to-end times.  Qi et al. 2023 (arXiv
2401.10241), samples per device and second.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """One step.  micro_batch, chunks: 0 where they are not published.  seconds: of the step."""

    table: str
    name: str
    heads: int
    hidden: int
    layers: int
    tp: int
    pp: int
    devices: int
    batch: int
    micro_batch: int
    chunks: int
    zero: int
    recompute: str
    sequence_parallel: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline of one device a stage, sequences of 1,024.

    measured: (published name, timetable, chunks, samples per device and second).  passes: seconds
    of forward, gradient of the input, and of the weights, of one stage and micro-batch.  The size
    of the vocabulary is not published; GPT-2's stands for it.
    """

    name: str
    layers: int
    heads: int
    hidden: int
    stages: int
    micro_batch: int
    micro_batches: int
    measured: tuple[tuple[str, str, int, float], ...]
    passes: tuple[float, float, float]


def _zero3_seconds(devices: int, teraflops: float, batch: int) -> float:
    """174.6 billion parameters: 96 B s L h^2 (1 + s/6h + V/16Lh) operations."""
    h, layers, s, v = 12288, 96, 2048, 51200
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    return flops / (devices * teraflops * 1e12)


PUBLISHED = (
    Published("SC'21", "1.7B", 24, 2304, 24, 1, 1, 32, 512, 0, 0, 0, "full", False, 3.53),
    Published("SC'21", "7.5B", 32, 4096, 36, 4, 1, 128, 512, 0, 0, 0, "full", False, 3.70),
    Published("SC'21", "39.1B", 64, 8192, 48, 8, 2, 512, 1536, 0, 0, 0, "full", False, 14.45),
    Published("SC'21", "145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 0, 0, 0, "full", False, 24.82),
    Published("Korthikanti", "22B full", 64, 6144, 48, 8, 1, 8, 4, 4, 1, 0, "full", False, 1.42),
    Published(
        "Korthikanti", "22B selective", 64, 6144, 48, 8, 1, 8, 4, 4, 1, 0, "selective", True, 1.10
    ),
    Published(
        "Korthikanti", "175B full", 96, 12288, 96, 8, 8, 64, 64, 1, 3, 0, "full", False, 18.13
    ),
    Published(
        "Korthikanti", "175B selective", 96, 12288, 96, 8, 8, 64, 64, 1, 3, 0, "selective", True,
        13.75,
    ),
    *(
        Published(
            "ZeRO-3", f"174.6B on {devices}", 96, 12288, 96, 1, 1, devices, 1536, size, 1, 3,
            "full", False, _zero3_seconds(devices, rate, 1536),
        )
        for devices, size, rate in ((384, 4, 144.0), (768, 2, 88.0), (1536, 1, 44.0))
    ),
)  # fmt: skip


def _pipeline(
    shape: tuple[str, int, int, int, int, int, int],
    chunks: int,
    samples: tuple[float, ...],
    passes: tuple[float, float, float],
) -> Pipeline:
    ways = (("1F1B", "1f1b", 1), ("1F1B-I", "interleaved", chunks), ("ZB-1p", "zb-h1", 1),
            ("ZB-2p", "zb-h2", 1))  # fmt: skip
    measured = tuple((*way, rate) for way, rate in zip(ways, samples, strict=True))
    name, layers, heads, hidden, stages, size, count = shape
    return Pipeline(name, layers, heads, hidden, stages, size, count, measured, passes)


PIPELINES = (
    _pipeline(
        ("1.5B", 22, 24, 2304, 8, 6, 24),
        3,
        (11.8, 13.1, 12.9, 14.5),
        (18.522e-3, 18.086e-3, 9.337e-3),
    ),
    _pipeline(
        ("1.5B", 22, 24, 2304, 8, 6, 32),
        3,
        (12.5, 13.4, 13.4, 14.8),
        (18.513e-3, 18.086e-3, 9.331e-3),
    ),
    _pipeline(
        ("1.5B", 22, 24, 2304, 8, 6, 64),
        3,
        (13.6, 13.9, 14.2, 14.9),
        (18.546e-3, 18.097e-3, 9.321e-3),
    ),
    _pipeline(
        ("14.6B", 46, 40, 5120, 16, 1, 48),
        3,
        (1.40, 1.54, 1.61, 1.81),
        (11.347e-3, 11.248e-3, 8.132e-3),
    ),
    _pipeline(
        ("14.6B", 46, 40, 5120, 16, 1, 64),
        3,
        (1.49, 1.59, 1.67, 1.83),
        (11.307e-3, 11.254e-3, 8.101e-3),
    ),
    _pipeline(
        ("14.6B", 46, 40, 5120, 16, 1, 128),
        3,
        (1.64, 1.66, 1.76, 1.85),
        (11.325e-3, 11.308e-3, 8.109e-3),
    ),
)

# (preset, file of measured NCCL all-reduces, devices); vTrain, MIT licence.
COLLECTIVES = (
    ("dgx-a100-80g", "allreduce_a100_2gpu.csv", 2),
    ("dgx-a100-80g", "allreduce_a100_4gpu.csv", 4),
    ("dgx-a100-80g", "allreduce_a100_8gpu.csv", 8),
    ("p3.16xlarge", "allreduce_v100_2gpu.csv", 2),
    ("p3.16xlarge", "allreduce_v100_4gpu.csv", 4),
    ("p3.16xlarge", "allreduce_v100_8gpu.csv", 8),
)
