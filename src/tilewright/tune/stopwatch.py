"""Ways to compute the same by the clock, in turns, so that what disturbs one disturbs all.

The idea: each round times every way once, in an order that changes; medians and quartiles stand for
a way.  The clock is an argument: nothing here knows what time it is.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

from tilewright.tune.measured import Timing

Clock = Callable[[], float]
FEWEST, MOST = 5, 41


def compare(
    ways: Mapping[str, Callable[[], object]],
    seconds: float,
    clock: Clock,
    between: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Return the seconds of each way in each round: at least FEWEST rounds, at most MOST, as many
    as fit into `seconds`.  between: called before each, outside of what is timed."""
    for run in ways.values():
        run()
    names = list(ways)
    times: dict[str, list[float]] = {name: [] for name in names}
    begun = clock()
    for round_ in range(MOST):
        if round_ >= FEWEST and clock() - begun >= seconds:
            break
        turn = round_ % len(names)
        for name in (*names[turn:], *names[:turn]):
            between()
            start = clock()
            ways[name]()
            times[name].append(clock() - start)
    return times


def summary(choice: str, times: Sequence[float], predicted: float | None = None) -> Timing:
    """Return what some rounds come to."""
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(choice, middle, low, high, len(times), predicted)
