"""A parallel plan as data: how a training step of a model is spread over a machine.

The idea: a plan is a list of named settings, one in each line of its text, so that it can be read,
edited and kept; the text parses back to the same plan, and every word of it has a checked meaning.
What a plan is worth is a `Prediction`, which does not belong to its text.

This module does not know what fits a model or a machine (`plan_check`), nor prices (`predict`).
"""

import difflib
import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tilewright.base.errors import PlanError, expect_text
from tilewright.cost import OPTIMIZERS, RECOMPUTE, Machine, ModelSpec
from tilewright.parallel.prediction import Prediction
from tilewright.parallel.timetables import TIMETABLES

AXES = ("tp", "cp", "dp", "pp")
OVERLAPS = ("none", "data", "all")
PRECISIONS = ("bfloat16", "float16", "float32")
ATTENTIONS = ("fused", "unfused")
SWITCHES = ("no", "yes")
MOST = 1 << 40
Value = int | bool | str | tuple[int, ...] | tuple[str, ...]
Placement = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a plan.

    kind: "text", "count" (from `least`), "word" (one of `choices`), "switch", "axes" or "counts".
    """

    name: str
    kind: str
    meaning: str
    choices: tuple[str, ...] = ()
    least: int = 1


SETTINGS = (
    Setting("model", "text", "the model: a specification, or the name of a graph"),
    Setting("machine", "text", "the machine, and how many devices of it"),
    Setting("batch", "count", "sequences (or examples) in a step"),
    Setting("seq", "count", "tokens of a sequence; 1 for a graph"),
    Setting("tp", "count", "tensor parallelism: ranks that share each layer's matrices"),
    Setting("cp", "count", "context parallelism: ranks that share each sequence"),
    Setting("dp", "count", "data parallelism: ranks with sequences of their own"),
    Setting("pp", "count", "pipeline parallelism: ranks that share the layers"),
    Setting("ep", "count", "expert parallelism: ranks of dp and cp that share the experts"),
    Setting("order", "axes", "axes of the ranks, the fastest first"),
    Setting("zero", "count", "ZeRO: 1 shares the optimizer's state, 2 gradients, 3 weights", (), 0),
    Setting("micro_batch", "count", "sequences that go through the pipeline together"),
    Setting("timetable", "word", "the pipeline's timetable", tuple(row.name for row in TIMETABLES)),
    Setting(
        "chunks",
        "count",
        "parts of the model on each pipeline rank (terapipe: of a sequence; "
        "ampnet: micro-batches under way)",
    ),
    Setting("recompute", "word", "what the backward computes again", RECOMPUTE),
    Setting("sequence_parallel", "switch", "whether tp shares norms and dropout too"),
    Setting("overlap", "word", "what is sent behind computing: nothing, data's, all", OVERLAPS),
    Setting("precision", "word", "the type of weights and activations", PRECISIONS),
    Setting("optimizer", "word", "the optimizer", tuple(name for name, _ in OPTIMIZERS)),
    Setting("attention", "word", "whether scores are kept near, or written out", ATTENTIONS),
    Setting("tied", "switch", "whether the head is the embedding"),
    Setting("stages", "counts", "layers of each stage, the first first"),
)
NAMES = tuple(setting.name for setting in SETTINGS)
_KINDS = {setting.name: setting for setting in SETTINGS}
_MEND = "print a plan with `tilewright plan ... --save FILE`, and edit that"


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """How a step is spread.  The settings are those of `SETTINGS`, where each is explained.

    stages: layers of each of the pp x chunks stages; empty for a graph, whose operators are placed
    one by one: placement has (operator, pipeline rank).  priced: what a plan is predicted to cost,
    no part of its text or of equality.
    """

    model: str
    machine: str
    batch: int
    seq: int
    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    order: tuple[str, ...] = AXES
    zero: int = 0
    micro_batch: int = 1
    timetable: str = "1f1b"
    chunks: int = 1
    recompute: str = "none"
    sequence_parallel: bool = False
    overlap: str = "none"
    precision: str = "bfloat16"
    optimizer: str = "adam"
    attention: str = "fused"
    tied: bool = True
    stages: tuple[int, ...] = ()
    placement: Placement = ()
    priced: Prediction | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            _check(setting, getattr(self, setting.name))
        for name, rank in self.placement:
            if not isinstance(name, str) or type(rank) is not int or rank < 0:
                raise PlanError(
                    "an operator has no place",
                    expected="the name of an operator or module, and a rank, 0 or more",
                    found=f"{name!r}: {rank!r}"[:80],
                )

    @classmethod
    def parse(cls, text: str) -> "ParallelPlan":
        """Return the plan of a text; raise PlanError with the line and column, and nearest names.

        Every setting stands in a line of its own; those with a default may be left out.
        """
        return _parse(expect_text(text, "a plan", PlanError))

    @property
    def degrees(self) -> dict[str, int]:
        """How many ranks each axis has."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def devices(self) -> int:
        """How many devices the degrees ask for."""
        return math.prod(self.degrees.values())

    @property
    def micro_batches(self) -> int:
        """How many micro-batches each pipeline runs in a step."""
        return self.batch // (self.dp * self.micro_batch)

    def verify(self, model: ModelSpec, machine: Machine) -> None:
        """Raise PlanError unless the plan was made for these, and can be run (`check_plan`)."""
        from tilewright.parallel.plan_check import check_plan  # which knows plans

        check_plan(self, model, machine)

    @property
    def predicted(self) -> Prediction:
        """What a step costs.  Raises PlanError for a plan that was read and not yet priced."""
        if self.priced is None:
            raise PlanError(
                "the plan is not priced",
                expected="a plan that tilewright.plan gave",
                found="one that was read or made by hand",
                mend="price it: tilewright.plan(model, machine, fix=plan)",
            )
        return self.priced

    def __str__(self) -> str:
        rows = [f"{setting.name} {show_value(getattr(self, setting.name))}" for setting in SETTINGS]
        if not self.stages:
            rows = rows[:-1]
        rows += [f"place {name} {rank}" for name, rank in self.placement]
        return "\n".join(["plan", *rows]) + "\n"


def show_value(value: Value) -> str:
    """Return the text of a setting's value."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return SWITCHES[value] if isinstance(value, bool) else str(value)


def read_fix(text: str) -> dict[str, Value]:
    """Read `tp=8,pp=2,order=tp dp pp cp`: settings that are pinned.

    Raises PlanError with the place, and the nearest names for one that is unknown.
    """
    expect_text(text, "what is pinned", PlanError)
    found: dict[str, Value] = {}
    column = 1
    for word in text.split(",") if text.strip() else ():
        name, _, value = word.partition("=")
        place = f"column {column}   {text}"
        setting = _named(name.strip(), place)
        if setting.name in found:
            raise PlanError(f"{setting.name} is pinned twice", where=place, expected="once each")
        found[setting.name] = _value(setting, value.strip(), place)
        column += len(word) + 1
    return found


def check_fix(fix: dict[str, Any]) -> dict[str, Value]:
    """Return pinned settings; raise PlanError for a name or a value that has no meaning."""
    for name, value in fix.items():
        _check(
            _named(expect_text(name, "the name of a setting", PlanError), ""),
            tuple(value) if isinstance(value, list) else value,
        )
    return {n: tuple(v) if isinstance(v, list) else v for n, v in fix.items()}


# --------------------------------------------------------------------------------------- the values


def _named(name: str, where: str) -> Setting:
    if name in _KINDS:
        return _KINDS[name]
    near = difflib.get_close_matches(name, NAMES, n=3)
    raise PlanError(
        f"a plan has no setting {name!r}",
        expected=f"one of {', '.join(NAMES)}",
        found=repr(name),
        known=f"close to it: {', '.join(near)}" if near else "",
        where=where,
    )


def _check(setting: Setting, value: object) -> None:
    """Refuse a value that the setting cannot have."""
    good = {
        "text": isinstance(value, str) and bool(value) and "\n" not in str(value),
        "count": type(value) is int and setting.least <= value <= MOST,
        "word": value in setting.choices,
        "switch": isinstance(value, bool),
        "axes": isinstance(value, tuple) and sorted(map(str, value)) == sorted(AXES),
        "counts": isinstance(value, tuple) and all(type(n) is int and n >= 0 for n in value),
    }[setting.kind] and not (setting.name == "zero" and value not in (0, 1, 2, 3))
    if not good:
        raise _impossible(setting, str(value), "")


def _impossible(setting: Setting, found: str, where: str) -> PlanError:
    near = difflib.get_close_matches(found, setting.choices, n=2)
    expected = {
        "text": "a text of one line",
        "count": f"a whole number, {setting.least} or more",
        "word": f"one of {', '.join(setting.choices)}",
        "switch": "yes or no",
        "axes": f"all of {', '.join(AXES)}, in an order",
        "counts": "whole numbers, a space between",
    }[setting.kind]
    return PlanError(
        f"{setting.name} of a plan cannot be {found!r}",
        expected="0, 1, 2 or 3" if setting.name == "zero" else expected,
        found=repr(found[:60]),
        known=f"{setting.name}: {setting.meaning}"
        + (f"; close to it: {', '.join(near)}" if near else ""),
        where=where,
    )


def _value(setting: Setting, text: str, where: str) -> Value:
    """Return the value of a text."""
    words = text.split()
    made: Value = text
    if setting.kind == "count" and _is_whole(text):
        made = int(text)
    elif setting.kind == "switch" and text in SWITCHES:
        made = text == "yes"
    elif setting.kind == "axes":
        made = tuple(words)
    elif setting.kind == "counts" and all(map(_is_whole, words)):
        made = tuple(map(int, words))
    try:
        _check(setting, made)
    except PlanError:
        raise _impossible(setting, text, where) from None
    return made


def _is_whole(text: str) -> bool:
    """Whether a text is a whole number in the digits 0 to 9, and not too long to be meant."""
    return text.isascii() and text.isdigit() and len(text) < 20


# ----------------------------------------------------------------------------------------- the text


def _parse(text: str) -> ParallelPlan:
    found: dict[str, Any] = {}
    placement: dict[str, int] = {}
    started = False
    for number, line in enumerate(text.split("\n"), 1):
        name, _, value = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        column = len(line) - len(line.lstrip()) + 1
        if not started:
            _expect_head(line.strip(), _place(number, column, line))
            started = True
        elif name == "place":
            _place_operator(placement, value, _place(number, column + 6, line))
        else:
            setting = _named(name, _place(number, column, line))
            if name in found:
                raise _refusal(f"{name} is said twice", "once each", _place(number, column, line))
            there = _place(number, column + len(name) + 1, line)
            found[name] = _value(setting, value.strip(), there)
    missing = [name for name in NAMES[:4] if name not in found]
    if not started or missing:
        what = f"{missing[0]} is missing" if started else "it is empty"
        raise _refusal(what, f"a line `{missing[0]} ...`" if started else "`plan`", "its end")
    return ParallelPlan(**found, placement=tuple(placement.items()))


def _place(line: int, column: int, text: str) -> str:
    return f"line {line}, column {column}   {text.strip()[:100]}"


def _refusal(what: str, expected: str, where: str) -> PlanError:
    return PlanError(
        f"the text of a plan does not parse: {what}", expected=expected, where=where, mend=_MEND
    )


def _expect_head(line: str, where: str) -> None:
    if line != "plan":
        raise _refusal("it does not begin as a plan does", "`plan` in the first line", where)


def _place_operator(placement: dict[str, int], value: str, where: str) -> None:
    name, _, rank = value.strip().rpartition(" ")
    if not name or not _is_whole(rank):
        raise _refusal("an operator has no place", "`place OPERATOR RANK`", where)
    if name.strip() in placement:
        raise _refusal(f"{name.strip()} is placed twice", "one rank for each operator", where)
    placement[name.strip()] = int(rank)


if not TYPE_CHECKING:
    _FIELDS = tuple(item.name for item in fields(ParallelPlan))
    assert _FIELDS[:-2] == NAMES or set(_FIELDS[:-2]) == set(NAMES), "every field is a setting"
