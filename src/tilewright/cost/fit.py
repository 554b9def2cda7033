"""Constants fitted to measurements: bounded least squares of relative errors.

The idea: what matters of a prediction is its relative error, so that is what is squared; and a
constant outside of what physics allows explains nothing, so each has bounds.
This module does not know machines: constants are a vector here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import qmc

STARTS = 6  # beside the given one


@dataclass(frozen=True, slots=True)
class LinkFit:
    """All-reduces of one group of devices as `seconds = latency + traffic / bandwidth`.

    traffic: 2 (n - 1) / n times the bytes, what each device sends.  latency: seconds of the whole
    collective.  bandwidth: B/s ("bus bandwidth").  mean_error, max_error: relative.
    """

    latency: float
    bandwidth: float
    mean_error: float
    max_error: float


def fit(
    predict: Callable[[Sequence[float]], Sequence[float]],
    measured: Sequence[float],
    start: Sequence[float],
    bounds: Sequence[tuple[float, float]],
) -> list[float]:
    """Return the values, within their bounds, whose predictions have the least relative squares.

    Deterministic.  Values are searched as places between their bounds, so that seconds and shares
    count alike, from the start and from places spread between the bounds (Halton 1960): a floor
    that nothing touches at the start has no slope to follow.
    """
    low = np.array([pair[0] for pair in bounds])
    span = np.array([pair[1] for pair in bounds]) - low
    truth = np.asarray(measured)

    def errors(places: np.ndarray) -> np.ndarray:
        values = [float(value) for value in low + np.clip(places, 0.0, 1.0) * span]
        return np.asarray(np.asarray(predict(values)) / truth - 1.0)

    spread = qmc.Halton(len(bounds), scramble=False).random(STARTS + 1)[1:]
    found = [
        least_squares(errors, begin, bounds=(0.0, 1.0), x_scale="jac", xtol=1e-12, ftol=1e-12)
        for begin in np.clip([(np.asarray(start) - low) / span, *spread], 1e-3, 1.0 - 1e-3)
    ]
    best = min(found, key=lambda result: result.cost)
    return [float(value) for value in low + np.clip(best.x, 0.0, 1.0) * span]


def fit_all_reduce(devices: int, rows: Sequence[tuple[float, float]]) -> LinkFit:
    """Fit latency and bandwidth to all-reduces among `devices` devices.

    rows: (bytes, seconds).  Linear least squares of relative errors, in closed form.
    """
    assert len(rows) >= 2 and devices >= 2, "a line needs two points, a collective two devices"
    sizes, seconds = np.array(rows).T
    traffic = 2 * (devices - 1) / devices * sizes
    matrix = np.stack([1 / seconds, traffic / seconds], axis=1)
    (latency, price), *_ = np.linalg.lstsq(matrix, np.ones(len(rows)), rcond=None)
    errors = np.abs((latency + traffic * price) / seconds - 1)
    return LinkFit(float(latency), float(1 / price), float(errors.mean()), float(errors.max()))
