"""`tw.compile`: a captured function as a callable that runs Programs, with gradients where asked.

The idea: a call is taken apart, checked and answered by `capture`; between the two lies a run of
one Program, or of a pair that torch's autograd goes through.  Which, is decided per call by what
asks for gradients, and compiled at the first call that needs it.

This module does not know torch: tensors pass through it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from tilewright.autodiff import Split, own_results, resolve, reverse, split
from tilewright.base.errors import UNKNOWN, MutationError, TilewrightError
from tilewright.capture import Captured, Computed, Input, Mutation, capture_to_run
from tilewright.compiler.built import Built
from tilewright.compiler.debug import check_against_eager
from tilewright.compiler.derived import Derived
from tilewright.compiler.fallback import leave_to_eager, under_a_transform
from tilewright.compiler.lying import ROW_BY_ROW, Lying, lying_apart, lying_of
from tilewright.compiler.options import Options
from tilewright.compiler.pipeline import build, build_derived
from tilewright.compiler.varying import check_split
from tilewright.graph.ir import Graph, Value
from tilewright.optimize import RollLoops
from tilewright.program import Program, contiguous
from tilewright.runtime.autograd import Pairing, differentiable
from tilewright.runtime.calls import Front
from tilewright.runtime.grad_mode import asked, asks_gradients, gradients_on, is_transforming
from tilewright.runtime.settled import quick_of
from tilewright.runtime.unchanged import Unchanged

Run = Callable[[Sequence[Any]], Sequence[Any]]

MOST_LESSONS = 16
"""How often `Runs` may learn what calls look like, where they keep looking otherwise."""


def _unsettled(_: Sequence[Any]) -> None:
    """What `Runs.settled` is at first: no call is like an earlier one."""


class Compiled:
    """A compiled function: call it as the original.  `graph`, `program` and `explain()` show it.

    Mutable only in that Programs are compiled when first needed; safe to call from several threads.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.options = options
        self._fn = fn
        self._versions: list[_Version] = []
        self._current = self._capture(args, kwargs)

    def _capture(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_Version":
        captured = capture_to_run(self._fn, *args, **kwargs)
        leaves = len(captured.call.leaves)
        lying = lying_of(captured.graph, captured.inputs, captured.results)
        arity = leaves if not self.options.check and _is_simple(captured, lying) else None
        direct = captured.sources == tuple(range(leaves))
        runs = Runs(captured.graph, self.options, captured.inputs, captured.mutations, lying)
        made = _Version(captured, captured.viewed(), runs, arity, direct)
        self._versions.append(made)
        return made

    def _version(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_Version":
        """Return the compilation for what the function and the call are now: an earlier one if
        they are that again, else a new one, for a call that fits the example."""
        self._versions[0].captured.call.flatten(args, kwargs)
        found = next((v for v in self._versions if v.serves(args, kwargs)), None)
        self._current = found or self._capture(args, kwargs)
        return self._current

    @property
    def captured(self) -> Captured:
        """The capture in use."""
        return self._current.captured

    @property
    def _runs(self) -> "Runs":
        return self._current.runs

    def prepare(self, requires_grad: Sequence[bool]) -> None:
        """Compile what a call needs whose inputs ask for these gradients."""
        self._runs.compiled(asked(requires_grad))

    @property
    def graph(self) -> Graph:
        """The graph as captured."""
        return self.captured.graph

    @property
    def program(self) -> Program:
        """The Program of a call without gradients."""
        return self._runs.inference.program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function.

        Raises ShapeError, DTypeError or OptionError where the call differs from the example.
        """
        version = self._current
        if not kwargs:
            answer = version.front.call(*args)
            if answer is not None:
                return answer
        watch = version.captured.watch
        simple = len(args) == version.arity and not kwargs
        held = unchanged = simple and version.holds()
        if not unchanged and (unchanged := watch.reaches(args, kwargs)) and simple:
            version.unchanged.learn(lambda: watch.facts(args))
        if unchanged and simple:
            settled = version.runs.settled
            outputs = settled(args if version.direct else version.captured.feed(args))
            if outputs is not None:
                if held:
                    version.learn_front(settled)
                return outputs[0]
        unchanged = unchanged and watch.asks(args, kwargs)
        if is_transforming():
            leave_to_eager(under_a_transform(), self.options)
            return self._fn(*args, **kwargs)
        leaves = version.leaves(args, kwargs) if unchanged else None
        if leaves is None:
            version = self._version(args, kwargs)
        try:
            return self._answer(version, args, kwargs, leaves)
        except Unasked:
            return self._answer(self._version(args, kwargs), args, kwargs)

    def _answer(
        self,
        version: "_Version",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any] | None = None,
    ) -> Any:
        """Run one compilation.  leaves: those of the call, where they are known."""
        captured, runs = version.captured, version.runs
        if len(args) == version.arity and not kwargs:
            try:
                return runs.learn(captured.feed(args))[0]
            except (TilewrightError, TypeError, AttributeError):
                captured.call.flatten(args, kwargs)  # says what is wrong in the caller's words
                raise
        if leaves is None:
            leaves = captured.call.flatten(args, kwargs)
        inputs = captured.feed(leaves)
        if self.options.check:
            check_against_eager(runs.inference, inputs)
        outputs = runs.run(inputs)
        return captured.answer(leaves, inputs, outputs, written=True)

    def explain(self) -> str:
        """Return how every value is computed, and why."""
        return self._runs.explain()

    def refresh(self) -> None:
        """Let the next call compute anew what `Options(frozen=True)` keeps: for writes that torch
        does not count, those through `.data`."""
        for version in self._versions:
            version.runs.refresh()


@dataclass(frozen=True, slots=True)
class _Version:
    """One compilation: what the function was, and what runs while it is that.

    viewed: what results are views of (an argument leaf's number, or a tensor), and its strides.
    arity: the number of arguments where a call is simple (`_is_simple`).  direct: whether they are
    the graph's inputs, one by one.  unchanged: for simple calls, whether the function is what it
    was.  front: simple calls as wholes.
    """

    captured: Captured
    viewed: tuple[tuple[Any, tuple[int, ...]], ...]
    runs: "Runs"
    arity: int | None
    direct: bool
    unchanged: Unchanged = field(default_factory=Unchanged)
    front: Front = field(default_factory=Front)

    def holds(self) -> bool:
        """Say whether the function is what it was; else it may not be, and what was learned of it
        is let go of."""
        held = self.unchanged.holds()
        if not held:
            self.front.forget()
        return held

    def learn_front(self, settled: Callable[..., object]) -> None:
        """Let the next calls be like this one, of which the function was what it had been."""
        assert self.arity is not None, "a simple call has so many arguments"
        captured, quick = self.captured, quick_of(settled)
        self.front.learn(self.unchanged.holds, quick, captured.sources, captured.state, self.arity)

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any] | None:
        """Return the leaves of a call; None unless it fits the one that this is of, and arguments,
        and what results are views of, are laid out as they were."""
        call, simple = self.captured.call, len(args) == self.arity and not kwargs
        try:
            leaves = args if simple else call.flatten(args, kwargs)
        except TilewrightError:  # it may fit the example yet, as one tensor twice fits two
            return None
        for place, strides in self.viewed:
            if (leaves[place] if isinstance(place, int) else place).stride() != strides:
                return None
        return leaves if call.lies(leaves) else None

    def serves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Say whether it is right for this call, which fits the example."""
        if not self.captured.watch.unchanged(args, kwargs):
            return False
        leaves = self.leaves(args, kwargs)
        if leaves is None:
            return False
        inputs = self.captured.feed(leaves)
        return self.runs.known.issuperset(asks_gradients(inputs))


class Unasked(Exception):
    """A call asks for a gradient that the example did not: where the two differ, eager's gradients
    may have been cut at other places, so that only another capture can tell."""


def _is_simple(captured: Captured, lying: Lying) -> bool:
    """Say whether a call is tensors in their places, all of which the graph reads, and its result
    one fresh tensor: then the runtime's own check of its inputs will do, and nothing has to be put
    together."""
    if captured.mutations or not captured.is_read or not captured.result.spec.is_leaf():
        return False
    match captured.results, captured.result.leaves:
        case (Computed(output=0, shape=shape, strides=strides),), (0,):
            return strides == contiguous(shape) or lying.outputs == ((0, strides),)
    return False


class Runs:
    """The Programs of one graph: one without gradients, and a pair per set of inputs that asks.

    known: the inputs that asked for gradients when the graph was captured.  flowing: the outputs
    that become the new values of inputs and that gradients flow from.  Final; its cache only grows.
    It holds nothing of the model: a copy of the model may share it, and a pickle compiles anew.
    Where sizes vary, `at` gives the runs for one value of each.  settled: runs the graph for inputs
    that are in all that counts like those of an earlier call without gradients; else gives None.
    """

    def __init__(
        self,
        graph: Graph,
        options: Options,
        inputs: Sequence[Input] | None = None,
        mutations: Sequence[Mutation] = (),
        lying: Lying = ROW_BY_ROW,
    ) -> None:
        """inputs: as captured; None where the graph serves whichever ask for gradients.  lying: how
        inputs and outputs lie in memory."""
        graph = resolve(graph)
        # A check compares node by node, and a loop that is written out has more of them.
        self.graph = graph if options.check else RollLoops()(graph)
        self.inputs = inputs
        self.mutations = mutations
        self.lying = ROW_BY_ROW if options.check else lying
        every = range(len(graph.inputs))
        captured = every if inputs is None else asked([item.requires_grad for item in inputs])
        self.known = frozenset(captured)
        self.flowing = frozenset(item.output for item in mutations if item.differentiable)
        self.options = options
        self.pairs: dict[tuple[int, ...], tuple[Built, Built]] = {}
        self._pairings: dict[tuple[int, ...], Pairing | None] = {}
        self._whole: Runs | None = None
        self._values: Mapping[str, int] = {}
        self._inference: Built | None = None
        self._calls: dict[tuple[int, ...], Run] = {}
        self.settled: Callable[[Sequence[Any]], Sequence[Any] | None] = _unsettled
        self._lessons = 0

    def __deepcopy__(self, _: dict[int, Any]) -> "Runs":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Runs, (self.graph, self.options, self.inputs, self.mutations, self.lying)

    @property
    def inference(self) -> Built:
        """The graph compiled for calls without gradients, when first asked for."""
        if self._inference is None and self._whole is not None:
            self._inference = self._whole.inference.at(self._values)
        if self._inference is None:
            self._inference = build(self.graph, self.options, lying=self.lying)
        return self._inference

    def at(self, values: Mapping[str, int]) -> "Runs":
        """Return the runs for these values of the sizes that vary; they share what is compiled."""
        bound = Runs(self.graph, self.options, self.inputs, self.mutations, self.lying)
        bound._whole, bound._values = self, values
        return bound

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the graph's results; with gradients for the inputs that ask for them."""
        outputs = self.settled(inputs)
        return self.learn(inputs) if outputs is None else outputs

    def learn(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return what `run` does, for inputs that are not like earlier ones; learn what these are
        like."""
        wanted = asks_gradients(inputs)
        outputs = (self._calls.get(wanted) or self.compiled(wanted))(inputs)
        if not wanted and self._lessons < MOST_LESSONS:
            self._lessons += 1
            self.settled = self.inference.settled(inputs) or self.settled
        return outputs

    def attached(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the results with gradients for the inputs that ask for them, in any grad mode."""
        with gradients_on():
            return self.run(inputs)

    def compiled(self, wanted: tuple[int, ...]) -> Run:
        """Return what runs where these inputs ask for gradients; compile it if need be."""
        call = self._calls.get(wanted)
        if call is None:
            if not self.known.issuperset(wanted):
                raise Unasked
            if wanted:
                self.options.refuse_frozen()
            pair = self._pair(wanted) if wanted else None
            call = self._calls[wanted] = pair or self.inference.run
        return call

    def refresh(self) -> None:
        """Let the next run prepare anew what the Program without gradients keeps."""
        if self._inference is not None:
            self._inference.executable.refresh()

    def explain(self) -> str:
        """Return the explanation of every Program compiled so far (of inference, if none is)."""
        pairs = [built.explain() for pair in self.pairs.values() for built in pair]
        inference = [] if pairs and self._inference is None else [self.inference.explain()]
        return "\n\n".join([*inference, *pairs])

    def _pair(self, wanted: tuple[int, ...]) -> Run | None:
        """Return forward and backward as one; None where no result depends on these inputs."""
        whole = self._whole or self
        pairing = whole.pairing(wanted)
        if pairing is None:
            return None
        forward, backward = whole.pairs[wanted]
        if self._whole is not None:
            forward, backward = forward.at(self._values), backward.at(self._values)
            self.pairs[wanted] = (forward, backward)
        return differentiable(forward.executable, backward.executable, pairing)

    def pairing(self, wanted: tuple[int, ...]) -> Pairing | None:
        """Compile forward and backward where these inputs ask for gradients; return how they fit.

        None where no result depends on these inputs.
        """
        if wanted not in self._pairings:
            self._pairings[wanted] = self._split(wanted)
        return self._pairings[wanted]

    def _split(self, wanted: tuple[int, ...]) -> Pairing | None:
        beside = wanted, self.flowing, self.lying
        said = f"forward and backward {wanted} {sorted(self.flowing)} {self.lying}"
        derive = functools.partial(_derived, self.graph, *beside)
        built, about = build_derived(self.graph, said, derive, self.options)
        if not built:
            return None
        forward, backward = built
        self.pairs[wanted] = (forward, backward)
        return Pairing(*about)


def _derived(
    graph: Graph, wanted: tuple[int, ...], flowing: frozenset[int], lying: Lying
) -> Derived:
    """Derive forward and backward where these inputs ask for gradients; say how they fit.

    Neither where no result depends on these inputs.
    """
    names = [graph.inputs[k].name for k in wanted]
    updated = {position for _, position in graph.updates}
    of = [k for k in range(len(graph.outputs)) if k in flowing or k not in updated]
    joint = reverse(graph, names, of=of)
    reached = {position for position, _ in joint.tangents}
    for name, position in graph.updates:
        if name in names and position not in reached:
            raise _overwritten(graph, name, graph.outputs[position])
    if not joint.tangents:
        return Derived(())
    parts = split(joint, given=own_results(joint))
    check_split(graph, names, parts)
    before, after = lying_apart(parts, lying, wanted)
    halves = (parts.forward, before), (parts.backward, after)
    return Derived(halves, astuple(pair_up(parts, wanted, len(graph.updates))))


def _overwritten(graph: Graph, name: str, value: Value) -> MutationError:
    origin = next((node.origin for node in graph.nodes if value in node.outputs), UNKNOWN)
    return MutationError(
        f"{graph.role(name).source or name} asks for a gradient and is overwritten by a constant",
        expected="in-place changes to values that gradients flow from, or of tensors without any",
        found=f"{value.type} that requires gradients, and gets a value that does not",
        where=origin,
        mend="return the new value in place of writing it, or call under torch.no_grad()",
    )


def pair_up(parts: Split, wanted: Sequence[int], updates: int) -> Pairing:
    """Say how a split's two graphs fit together, by positions.

    The Program's outputs are the graph's without the updates, which stand between the results and
    the kept values that are no results.
    """
    results = parts.outputs - updates
    inputs = {value.name: k for k, value in enumerate(parts.forward.inputs)}
    updated = {position for _, position in parts.forward.updates}
    given = [v.name for k, v in enumerate(parts.forward.outputs) if k not in updated]
    # Of a value that is a result and also kept alone, the last is the copy that nobody changes.
    places = {name: len(inputs) + k for k, name in enumerate(given)} | inputs
    saved = tuple(places[name] for _, name in parts.kept)
    taken = {value.name for value in parts.backward.inputs}
    assert {name for name, _ in parts.kept} <= taken, "the backward takes what was kept"
    gradients = tuple(k for k, at in zip(wanted, parts.gradients, strict=True) if at is not None)
    reached = [position for position, _ in parts.tangents]
    # The updates that gradients flow from count as results after the others.
    flowing = [name for name, position in parts.forward.updates if position in reached]
    order = [*range(results), *(p for _, p in parts.forward.updates if p in reached)]
    tangents = tuple(order.index(position) for position in reached)
    written = tuple(inputs[name] for name in flowing)
    return Pairing(results, saved, tangents, gradients, parts.depends, written)
