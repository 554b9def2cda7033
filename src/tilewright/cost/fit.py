"""Constants fitted to measurements: bounded, robust least squares of relative errors.

The idea: what matters of a prediction is its relative error, so that is what is squared; and a
constant outside of what physics allows explains nothing, so each has bounds.
This module does not know machines: constants are a vector here.
"""

from collections.abc import Callable, Sequence

import numpy as np

STARTS = 2  # beside the given one
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
TYPICAL = 0.04  # relative error that a good prediction has


def fit(
    predict: Callable[[Sequence[float]], Sequence[float]],
    measured: Sequence[float],
    start: Sequence[float],
    bounds: Sequence[tuple[float, float]],
) -> list[float]:
    """Return the values, within their bounds, whose predictions have the least relative errors.

    Errors count by their squares while they are small, above TYPICAL by their size: measurements
    have outliers that no constant explains.

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

    from scipy.optimize import least_squares  # only who calibrates waits for it

    spread = [[_halton(at, base) for base in PRIMES[: len(bounds)]] for at in range(1, STARTS + 1)]
    found = [
        least_squares(
            errors,
            begin,
            bounds=(0.0, 1.0),
            x_scale="jac",
            loss="soft_l1",
            f_scale=TYPICAL,
            ftol=1e-6,
            xtol=1e-6,
        )
        for begin in np.clip([(np.asarray(start) - low) / span, *spread], 1e-3, 1.0 - 1e-3)
    ]
    best = min(found, key=lambda result: result.cost)
    return [float(value) for value in low + np.clip(best.x, 0.0, 1.0) * span]


def _halton(at: int, base: int) -> float:
    """Return the digits of `at` mirrored at the point: 1, 2, 3 in base 2 are 1/2, 1/4, 3/4."""
    place, unit = 0.0, 1.0
    while at:
        unit /= base
        at, digit = divmod(at, base)
        place += digit * unit
    return place
