"""PyTorch's own operator database, each sample run compiled and in eager, and what differs.

The idea: a sample is a function of its tensors, everything else in it compiled in.  Both roads get
copies of the tensors that lie in memory as the sample's do; what they give is compared in all that
a caller can see: types, shapes, strides, aliases, what asks for gradients, values and gradients.
Where values are not the same to the bit, eager in float64 is the judge of both.
This module does not know which samples to run, nor what is done with the verdicts.
"""

import types
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.compiler import backend as border
from tilewright.compiler.fallback import FALLBACKS

from .seen import Case, Seen, Tensor, compare, copies, exact, first_line, run

# The database sets a seed around operators that draw, which Dynamo cannot follow; `run` sets one.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

# What became of a sample: all in our kernels; some of it as library calls; nothing to compute;
# Python between our graphs; the whole left to eager; other than eager; bad indices refused with
# eager's type of exception; outside of what is asked.
OURS, LIBRARY, EMPTY, BROKEN, FALLBACK, WRONG, REFUSED, OUTSIDE = KINDS = (
    "ours", "library", "empty", "broken", "fallback", "wrong", "refused", "outside",
)  # fmt: skip

RUNS = (OURS, LIBRARY)

# So many samples of an operator are compiled as one function while they run: most of the time goes
# into what is done once for a function.
TOGETHER = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one sample, and why."""

    kind: str
    detail: str = ""


@dataclass(slots=True)
class Watch(TorchDispatchMode):
    """Notes what puts a call outside: complex numbers, and shapes that follow from values."""

    found: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        TorchDispatchMode.__init__(self)

    def __torch_dispatch__(
        self, func: Any, _: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tags = set(func.tags)
        dynamic = tags & {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
        # Indices that are numbers say the shape.
        if dynamic and (func is not torch.ops.aten.index.Tensor or _masked(args[1])):
            self.found.add(f"what it gives depends on values ({func})")
        if tags & {torch.Tag.nondeterministic_seeded}:
            self.found.add("random")
        for leaf in pytree.tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor) and (leaf.is_complex() or leaf.layout != torch.strided):
                self.found.add("complex numbers" if leaf.is_complex() else f"{leaf.layout}")
            elif isinstance(leaf, complex | torch.dtype) and leaf in _COMPLEX:
                self.found.add("complex numbers")
        return result


def _masked(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
UNINITIALISED = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
)


# Operators whose derivative is not torch's, and why.
TORCH_IS_WRONG = {
    "as_strided_scatter": "torch's own derivative lets through just what has been written over",
}


def name_of(operator: OpInfo) -> str:
    """Return the operator's name in the database, with its variant."""
    variant = operator.variant_test_name
    return f"{operator.name}.{variant}" if variant else str(operator.name)


def operators(dtype: torch.dtype) -> list[OpInfo]:
    """Return the operators of the database that take this element type on the CPU."""
    return [
        operator
        for operator in common_methods_invocations.op_db
        if dtype in operator.supported_dtypes("cpu")
    ]


def samples(operator: OpInfo, dtype: torch.dtype) -> Iterator[Case]:
    """Yield the operator's samples, with gradients asked for where it has them."""
    asks = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu")
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=asks):
        yield case_of(name_of(operator), operator.op, sample)


def count(dtype: str) -> int:
    """Return how many samples the database has for an element type; one of those it cannot make."""
    chosen = getattr(torch, dtype)
    return sum(_count(operator, chosen) for operator in operators(chosen))


def _count(operator: OpInfo, dtype: torch.dtype) -> int:
    try:
        return sum(1 for _ in samples(operator, dtype))
    except Exception:  # whatever its maker raises: `judge_samples` says that as a verdict
        return 1


def judge_samples(
    operator: OpInfo, dtype: torch.dtype, most: int = 0, done: Collection[int] = ()
) -> Iterator[tuple[int, Verdict]]:
    """Judge the operator's samples, or `most` of them from all over the list, but those `done`.

    Behind the last sample come those of `astray`.
    """
    uninitialised = operator.name in UNINITIALISED
    try:
        cases = list(samples(operator, dtype))
    except Exception as error:
        yield 0, Verdict(OUTSIDE, f"the database has no samples: {first_line(error)}")
        return
    moved = [] if operator.name in UNCHECKED else astray(cases)
    for at, case in enumerate(moved, len(cases)):
        if at not in done:
            yield at, judge_astray(case)
    waiting = [at for at in _spread(len(cases), most) if at not in done]
    size = TOGETHER
    while waiting:
        part, waiting = waiting[:size], waiting[size:]
        verdicts = judge_all([cases[at] for at in part], uninitialised=uninitialised)
        yield from zip(part, verdicts, strict=True)
        size = TOGETHER if all(verdict.kind in RUNS for verdict in verdicts) else 1


# Eager does not look at these indices, and ends the process.
UNCHECKED = frozenset({"_segment_reduce"})

# How many samples of an operator are asked with indices that lead nowhere, each with two sorts.
ASTRAY = 2
FAR = 10_000


def astray(cases: Sequence[Case]) -> list[Case]:
    """Return the first cases of integers whose values eager refuses once they are far too large,
    or far below zero: indices."""
    found: list[Case] = []
    for case in cases:
        if len(found) >= 2 * ASTRAY:
            break
        if any(_leads(tensor) for tensor in case.tensors):
            for way in (FAR, -FAR):
                moved = tuple(t + way if _leads(t) else t for t in copies(case.tensors))
                made = Case(case.function, moved, case.weigh, case.name)
                if isinstance(run(made.function, made).error, IndexError | RuntimeError):
                    found.append(made)
    return found


def _leads(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int32, torch.int64) and tensor.layout == torch.strided


def judge_astray(case: Case) -> Verdict:
    """Say whether a call that eager refuses is refused with the same type of exception."""
    eager, compiled = run(case.function, case), Compiled(case.function)
    differs = compare(run(compiled.call, case), eager, None)
    return Verdict(WRONG, f"bad indices: {differs}") if differs else Verdict(REFUSED)


def _spread(count: int, most: int) -> list[int]:
    if not most or count <= most:
        return list(range(count))
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})


def case_of(name: str, function: Callable[..., Any], sample: SampleInput) -> Case:
    """Return the call of a sample as a function of its tensors.

    It is made from text, so that Dynamo has nothing to follow but the call itself.
    """
    tensors: list[Tensor] = []
    scope: dict[str, Any] = {"function": function}
    args = [_spelled(value, tensors, scope) for value in (sample.input, *sample.args)]
    args += [f"{key}={_spelled(value, tensors, scope)}" for key, value in sample.kwargs.items()]
    call = f"function({', '.join(args)})"
    made = _function(call, len(tensors), scope)
    return Case(made, tuple(tensors), sample.output_process_fn_grad, name)


def _function(text: str, count: int, scope: dict[str, Any]) -> Callable[..., Any]:
    """Return the function of so many tensors that the text gives."""
    names = ", ".join(f"t{at}" for at in range(count))
    exec(f"def sample({names}):\n    return {text}", scope)
    made: Callable[..., Any] = scope["sample"]
    return made


def _spelled(value: Any, tensors: list[Tensor], scope: dict[str, Any]) -> str:
    """Return the text of an argument; tensors become parameters, odd constants globals."""
    match value:
        case Tensor():
            tensors.append(value)
            return f"t{len(tensors) - 1}"
        case None | bool() | int() | str():
            return repr(value)
        case tuple() if type(value) is tuple:
            return f"({''.join(_spelled(item, tensors, scope) + ', ' for item in value)})"
        case list():
            return f"[{', '.join(_spelled(item, tensors, scope) for item in value)}]"
        case dict():
            items = value.items()
            return f"{{{', '.join(f'{k!r}: {_spelled(v, tensors, scope)}' for k, v in items)}}}"
    name = f"c{len(scope)}"
    scope[name] = value
    return name


# ---------------------------------------------------------------------------- two roads


def judge_all(cases: Sequence[Case], *, uninitialised: bool = False) -> list[Verdict]:
    """Judge cases: as one function where that says that each is right, else each alone."""
    if len(cases) > 1:
        verdict = _judge_together(cases, uninitialised=uninitialised)
        if verdict is not None:
            return [verdict] * len(cases)
    return [judge(case, uninitialised=uninitialised) for case in cases]


def _judge_together(cases: Sequence[Case], *, uninitialised: bool) -> Verdict | None:
    """Judge cases as one function; None where an answer for one of them would hide the others'."""
    case = together(cases)
    eager = run(case.function, case)
    if eager.error is not None or eager.backward is not None:
        return None
    try:
        verdict = judge(case, uninitialised=uninitialised, truth=_certain)
    except _ApartError:
        return None
    return verdict if verdict.kind in RUNS else None


class _ApartError(Exception):
    """Eager in float64 judges some of the cases, but not all."""


def _certain(case: Case, eager: Seen) -> Seen:
    found = exact(case, eager)
    if found is None:
        raise _ApartError
    return found


def together(cases: Sequence[Case]) -> Case:
    """Return cases as one function of the tensors of all, none of which share memory."""
    scope: dict[str, Any] = {f"s{at}": case.function for at, case in enumerate(cases)}
    tensors: list[Tensor] = []
    calls = []
    for at, case in enumerate(cases):
        names = [f"t{len(tensors) + k}" for k in range(len(case.tensors))]
        calls.append(f"s{at}({', '.join(names)})")
        tensors += [
            made.requires_grad_(tensor.requires_grad)
            for made, tensor in zip(copies(case.tensors), case.tensors, strict=True)
        ]
    weighs = [case.weigh for case in cases]

    def weigh(made: Any) -> list[Any]:
        return [weigh(part) for weigh, part in zip(weighs, made, strict=True)]

    made = _function(f"({', '.join(calls)},)", len(tensors), scope)
    return Case(made, tuple(tensors), weigh, cases[0].name)


def judge(
    case: Case,
    *,
    uninitialised: bool = False,
    truth: Callable[[Case, Seen], Seen | None] = exact,
) -> Verdict:
    """Run a case compiled and in eager, and say what became of it."""
    watch = Watch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watch:
            eager = run(case.function, case, gradients=False)
        if eager.error is not None:
            return Verdict(OUTSIDE, f"eager refuses: {first_line(eager.error)}")
        outside = sorted(watch.found - {"random"})
        if outside:
            return Verdict(OUTSIDE, outside[0])
        eager = run(case.function, case)
        compiled = Compiled(case.function)
        ours = run(compiled.call, case)
    valueless = uninitialised or "random" in watch.found
    if case.name in TORCH_IS_WRONG:
        ours.gradients = eager.gradients = None
    differs = compare(ours, eager, None if valueless else lambda: truth(case, eager))
    if differs:
        return Verdict(WRONG, f"{differs}{compiled.told()}")
    return compiled.verdict()


class Compiled:
    """A function compiled by this backend, and what became of its graphs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.graphs: list[border.DynamoGraph] = []
        self.before = len(FALLBACKS)
        # A code object of its own: Dynamo allows eight versions of one.
        code = function.__code__.replace()
        fresh = types.FunctionType(
            code, function.__globals__, "sample", function.__defaults__, function.__closure__
        )
        self.call = torch.compile(fresh, backend=self._backend, dynamic=False)

    def _backend(self, module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        graph = border.DynamoGraph(module, border.Options())
        graph.prepare(examples)
        self.graphs.append(graph)
        return graph.call

    def told(self) -> str:
        """Return why graphs were left to eager."""
        reasons = FALLBACKS[self.before :]
        return f" (left to eager: {reasons[0]})" if reasons else ""

    def verdict(self) -> Verdict:
        """Say who computed what."""
        reasons = FALLBACKS[self.before :]
        if reasons:
            return Verdict(FALLBACK, reasons[0])
        if not self.graphs:
            return Verdict(EMPTY, "torch itself does not trace it: Dynamo finds no graph")
        if len(self.graphs) > 1:
            return Verdict(BROKEN, f"Dynamo cuts it into {len(self.graphs)} graphs")
        calls = sorted({name for graph in self.graphs for name in _library_calls(graph)})
        return Verdict(LIBRARY, ", ".join(calls)) if calls else Verdict(OURS)


def _library_calls(graph: border.DynamoGraph) -> Iterator[str]:
    variant = getattr(graph.only, "__self__", None)
    if isinstance(variant, border.Variant):
        for node in variant.runs.graph.nodes:
            if node.op == "library":
                yield str(node.attr("target"))
