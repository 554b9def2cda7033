"""Latency and bandwidth from measured times: those of the published table, and those made up."""

import csv
import math
from pathlib import Path

import pytest

from tilewright.base.errors import OptionError
from tilewright.cost.collectives import Fit, Network, bus_bandwidth, fit_times, price

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "vtrain"

# GPU, ranks, latency (us), bus bandwidth (GB/s), mean and worst relative error (%).
PUBLISHED = (
    ("a100", 2, 46.0, 192.9, 1.6, 16),
    ("a100", 4, 54.0, 218.4, 1.7, 23),
    ("a100", 8, 78.6, 227.3, 1.8, 23),
    ("v100", 2, 23.8, 22.6, 0.05, 5.5),
    ("v100", 4, 45.0, 85.8, 0.6, 18),
    ("v100", 8, 75.9, 136.1, 1.1, 26),
)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the measured all-reduces are not at {DATA}")
@pytest.mark.parametrize(("gpu", "ranks", "latency", "bandwidth", "mean", "worst"), PUBLISHED)
def test_measured_all_reduces_give_the_published_constants(
    gpu: str, ranks: int, latency: float, bandwidth: float, mean: float, worst: float
) -> None:
    with (DATA / f"allreduce_{gpu}_{ranks}gpu.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    samples = [(float(row[0]), float(row[3]) * 1e-9) for row in rows]
    found = fit_times("all-reduce", ranks, samples)
    assert round(found.latency * 1e6, 1) == latency
    assert round(found.bandwidth / 1e9, 1) == bandwidth
    assert 100 * found.mean_error == pytest.approx(mean, abs=0.05)
    assert 100 * found.worst_error == pytest.approx(worst, abs=0.5)
    for (size, seconds), row in zip(samples, rows, strict=True):
        assert bus_bandwidth("all-reduce", ranks, size, seconds) / 1e9 == pytest.approx(
            float(row[4]), abs=0.02 + 0.002 * float(row[4])
        )


# Milliseconds of an all-reduce of MiB among 8 A100s of one node, measured by Galvatron's authors.
ELSEWHERE = ((1, 0.079), (8, 0.183), (64, 0.652), (512, 4.677), (1024, 8.141))


def test_what_was_fitted_to_one_node_predicts_another_laboratorys() -> None:
    fitted = Fit("all-reduce", 8, 78.6e-6, 227.3e9, 0.0, 0.0)
    errors = [abs(fitted.seconds(size * 2**20) / (ms * 1e-3) - 1) for size, ms in ELSEWHERE]
    # It is no further off there than on what it was fitted to.
    assert max(errors) < PUBLISHED[2][5] / 100


@pytest.mark.parametrize(("collective", "share"), [("all-reduce", 1.75), ("broadcast", 1.0)])
def test_times_without_noise_give_their_constants_back(collective: str, share: float) -> None:
    sizes = [2.0**k for k in range(4, 33)]
    samples = [(size, 5e-6 + share * size / 2e11) for size in sizes]
    found = fit_times(collective, 8, samples)
    assert (found.latency, found.bandwidth) == pytest.approx((5e-6, 2e11), rel=1e-9)
    assert found.worst_error < 1e-9
    assert found.seconds(1e6) == pytest.approx(5e-6 + share * 1e6 / 2e11)


def test_no_other_constants_have_less_relative_error() -> None:
    samples = [(1e3, 4e-6), (1e5, 7e-6), (1e6, 9e-6), (1e8, 6e-4)]
    found = fit_times("all-reduce", 4, samples)

    def squares(latency: float, bandwidth: float) -> float:
        times = [(latency + 1.5 * n / bandwidth) / t for n, t in samples]
        return math.fsum((ratio - 1) ** 2 for ratio in times)

    least = squares(found.latency, found.bandwidth)
    for a in (0.98, 1.0, 1.02):
        for b in (0.98, 1.0, 1.02):
            assert squares(a * found.latency, b * found.bandwidth) >= least


def test_a_latency_is_never_negative() -> None:
    found = fit_times("all-reduce", 2, [(1e6, 1e-6), (1e7, 2e-5), (1e8, 4e-4)])
    assert found.latency == 0
    assert found.bandwidth > 0


@pytest.mark.parametrize("variant", ["ring", "rabenseifner", "doubling", "binomial"])
def test_a_variant_on_the_fitted_links_takes_the_fitted_time(variant: str) -> None:
    found = fit_times("all-reduce", 8, [(n, 5e-6 + 1.75 * n / 2e11) for n in (1e3, 1e6, 1e9)])
    network = Network((found.level(variant),))
    for size in (1e3, 1e6, 1e9):
        assert price("all-reduce", variant, network, size).seconds == pytest.approx(
            found.seconds(size), rel=1e-9
        )


@pytest.mark.parametrize(
    "samples", [[], [(1e6, 1e-3)], [(1e6, 1e-3), (1e6, 2e-3)], [(1e6, 0.0), (2e6, 1.0)],
                [(1e3, 1.0), (1e6, 0.9)]],
)  # fmt: skip
def test_times_that_say_nothing_are_refused(samples: list[tuple[float, float]]) -> None:
    with pytest.raises(OptionError):
        fit_times("all-reduce", 4, samples)
