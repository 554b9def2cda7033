"""How long passes and transfers of a pipeline take.

The idea: seconds by stage, and a transfer by the boundary it crosses; what ranks hide behind what
are two fractions.  Any unit of time will do, as long as it is one.

This module does not know any timetable.
"""

from dataclasses import dataclass

from tilewright.base.errors import OptionError

WORDS = ("F", "B", "W", "comm")


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a pipeline, in one unit throughout.

    forward, input_grad, weight_grad: of one micro-batch on each stage (T_F, T_B, T_W of the
    zero-bubble paper; a whole backward takes T_B + T_W).  transfer: over each boundary, from stage
    s to s + 1 and back, where the two are on different ranks.  slices: the factor by which a slice
    of a sequence takes less than the whole, slice after slice.  overlap: the share of the shorter
    pass of an overlapped pair that is hidden behind the longer.  hidden: the share of a transfer
    behind which the sender computes on; the rest keeps it waiting.
    """

    forward: tuple[float, ...]
    input_grad: tuple[float, ...]
    weight_grad: tuple[float, ...]
    transfer: tuple[float, ...]
    slices: tuple[float, ...] = (1.0,)
    overlap: float = 0.0
    hidden: float = 1.0

    def __post_init__(self) -> None:
        stages = len(self.forward)
        counts = (len(self.input_grad), len(self.weight_grad), len(self.transfer) + 1)
        if stages < 1 or counts != (stages,) * 3:
            raise OptionError(
                "the times of a pipeline are not of one number of stages",
                expected="as many of forward, input_grad and weight_grad, one fewer of transfer",
                found=", ".join(map(str, (stages, *counts[:2], len(self.transfer)))),
            )
        _check_numbers(self)

    @property
    def stages(self) -> int:
        """How many stages there are times for."""
        return len(self.forward)


def even_times(
    stages: int,
    forward: float = 1.0,
    input_grad: float = 1.0,
    weight_grad: float = 1.0,
    transfer: float = 0.0,
    *,
    overlap: float = 0.0,
) -> Times:
    """Return times that are the same for every stage."""
    return Times(
        (forward,) * stages,
        (input_grad,) * stages,
        (weight_grad,) * stages,
        (transfer,) * (stages - 1),
        overlap=overlap,
    )


def read_times(text: str, placement: tuple[int, ...]) -> Times:
    """Read `F=18.5,B=18.1,W=9.3,comm=0.6`: what a rank's share of the model takes.

    A list `F=18:18:19:17` gives each rank its own, one of comm each boundary.  What is left out is
    F = B = W = 1 and comm = 0.  placement: the rank of each stage; stages of one rank take equal
    parts of its F, B and W.  Raises OptionError.
    """
    ranks = max(placement) + 1
    chunks = len(placement) // ranks
    found: dict[str, tuple[float, ...]] = {}
    for word in filter(None, text.split(",")):
        name, _, value = word.partition("=")
        if name not in WORDS or name in found:
            _refuse(text, f"{name!r} is {'said twice' if name in found else 'no time'}")
        found[name] = _numbers(text, value, ranks if name != "comm" else len(placement) - 1)
    parts = [found.get(name, (1.0,) * ranks) for name in WORDS[:3]]
    forward, input_grad, weight_grad = (
        tuple(part[rank] / chunks for rank in placement) for part in parts
    )
    transfer = found.get("comm", (0.0,) * (len(placement) - 1))
    return Times(forward, input_grad, weight_grad, transfer)


def _numbers(text: str, value: str, count: int) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, value.split(":")))
    except ValueError:
        _refuse(text, f"{value!r} is no number")
    if len(numbers) not in (1, count):
        _refuse(text, f"{value!r} has {len(numbers)} numbers where 1 or {count} are wanted")
    return numbers if len(numbers) == count else numbers * count


def _refuse(text: str, what: str) -> None:
    raise OptionError(
        f"the times of a pipeline do not parse: {what}",
        expected="F=..,B=..,W=..,comm=.. with a number each, or one for each rank with `:` between",
        found=repr(text),
        mend="write F=18.5,B=18.1,W=9.3,comm=0.6",
    )


LONGEST = 1e100
"""Of a pass, so that those of any step add up to a number."""


def _check_numbers(times: Times) -> None:
    for name in ("forward", "input_grad", "weight_grad", "transfer", "slices"):
        wrong = [time for time in getattr(times, name) if not 0 <= time < LONGEST]
        if wrong:
            raise OptionError(
                f"a pipeline's {name} time is {wrong[0]}",
                expected=f"a number from 0 to {LONGEST:g}",
                found=str(wrong[0]),
            )
    for name in ("overlap", "hidden"):
        share = getattr(times, name)
        if not 0 <= share <= 1:
            raise OptionError(
                f"{share} is no share of a time", expected=f"{name} from 0 to 1", found=str(share)
            )
