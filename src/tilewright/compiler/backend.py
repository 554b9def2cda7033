"""`torch.compile(model, backend="tilewright")`: the entry that Dynamo calls with its graphs.

The idea: the same capture, autodiff and Programs as `tw.compile`, behind Dynamo's guards.  Where a
size varies, one compilation per size.  What cannot be compiled runs in eager with a warning that
says why, and is counted in `FALLBACKS`: never silently, never wrongly.

This module does not know torch: tensors pass through it.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.base.errors import (
    DivergenceError,
    IndexRangeError,
    IntegerDivisionError,
    OptionError,
    ShapeError,
    SizesError,
)
from tilewright.base.interpreter import uncollected
from tilewright.capture import (
    Symbols,
    Varying,
    functionalize,
    import_functional,
    prepare_dynamo,
    restore,
    varying_of,
)
from tilewright.compiler.compiled import Runs, Unasked
from tilewright.compiler.debug import check_against_eager
from tilewright.compiler.fallback import leave_to_eager, under_a_transform
from tilewright.compiler.lying import lying_of
from tilewright.compiler.options import Options
from tilewright.compiler.usual import begin_usual
from tilewright.compiler.varying import examples
from tilewright.runtime.grad_mode import asked, asks_gradients, is_transforming

MOST_VARIANTS, MOST_WHOLE = 256, 4

COMPILED: list[str] = []
"""What every compilation for this back end in this process holds for, in order."""

SPECIALIZED: list[str] = []
"""Why a graph whose sizes vary was compiled for one set of them alone, in order."""

Call = Callable[..., Sequence[Any]]


def backend(
    module: Any,
    examples: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Call:
    """Compile one Dynamo graph: returns a function of its flat inputs that gives a list.

    options: those of `tilewright.Options`, by name.  Raises OptionError for unknown ones and for a
    `mode` (there is none to choose).
    """
    if mode is not None:
        raise OptionError(
            f"mode={mode!r} has no meaning for this backend",
            expected="no mode",
            found=f"mode={mode!r}",
            mend='torch.compile(model, backend="tilewright", options={...})',
        )
    chosen = _options(options or {})
    chosen.refuse_buckets()
    graph = DynamoGraph(module, chosen)
    graph.prepare(examples)
    return graph.call


def _options(given: Mapping[str, Any]) -> Options:
    try:
        return Options(**given)
    except TypeError:
        known = ", ".join(Options.__dataclass_fields__)
        raise OptionError(
            "unknown option",
            expected=f"some of {known}",
            found=", ".join(sorted(set(given) - set(Options.__dataclass_fields__))),
            mend='torch.compile(model, backend="tilewright", options={"fuse": False})',
        ) from None


class DynamoGraph:
    """One graph of Dynamo's and its compilations, one for each set of sizes among its inputs.

    Final; what it has compiled only grows.
    """

    def __init__(self, module: Any, options: Options) -> None:
        self.eager: Call = module.forward
        self.module = module
        self.options = options
        self.prepared: Any = None
        self.only: Call | None = None
        self.variants: dict[tuple[Any, ...], Call] = {}
        self.varying: Varying | None = None
        self.whole: list[tuple[tuple[Any, ...], Variant]] = []
        self.refused = 0

    def prepare(self, examples: Sequence[Any]) -> None:
        """Read what Dynamo knows only now; compile before the first call, where no size varies."""
        begin_usual(self.options, examples)
        try:
            self.prepared = prepare_dynamo(self.module)
            self.varying = None if self.options.check else varying_of(self.module)
        except Exception as error:
            leave_to_eager(error, self.options)
            self.only = self.eager
            return
        if all(_is_plain(example) for example in examples):
            self.only = self._compiled(examples)

    def call(self, *args: Any) -> Sequence[Any]:
        """Run the graph."""
        if self.only is not None:
            return self.only(*args)
        key = tuple(_kind(arg) for arg in args)
        chosen = self.variants.get(key)
        if chosen is None:
            chosen = self._for_sizes(args) or self._compiled(args)
            if len(self.variants) >= MOST_VARIANTS:
                self.variants.pop(next(iter(self.variants)), None)
            self.variants[key] = chosen
        return chosen(*args)

    def _for_sizes(self, args: Sequence[Any]) -> Call | None:
        """Return a call of what is compiled for all sizes; None where this call needs its own."""
        values = None if self.varying is None else self.varying.values(args)
        if self.varying is None or not values:
            return None
        fixed = self.varying.fixed(args)
        for known, variant in self.whole:
            bound = variant.at(values, args) if known == fixed else None
            if bound is not None:
                return bound.call
        reason = ""
        if len(self.whole) >= MOST_WHOLE:
            SPECIALIZED.append(f"compiled {MOST_WHOLE} times, none of them for all sizes")
            return None
        for example in list(examples(values))[self.refused :]:
            symbols = Symbols(self.varying, example)
            try:
                functional = functionalize(self.prepared, args, symbols=symbols)
                imported = import_functional(functional, symbols=symbols)
                if not symbols.admit(values):
                    self.refused = 1  # nor will it be tried for other values
                    reason = f"the trace holds for {example} alone, or for sizes like these"
                    continue
                variant = Variant(imported, self.eager, self.options, self._compiled, symbols)
                bound = variant.at(values, args)
            except SizesError as error:  # another example would not help
                reason = str(error)
                break
            except Exception as error:
                reason = str(error) or type(error).__name__
                continue
            if bound is not None:
                self.whole.append((fixed, variant))
                COMPILED.append(symbols.sizes.describe())
                return bound.call
            reason = f"compiled for {symbols.sizes.describe()}"
        SPECIALIZED.append(reason)
        return None

    @uncollected()
    def _compiled(self, examples: Sequence[Any]) -> Call:
        try:
            imported = import_functional(functionalize(self.prepared, examples))
            made = Variant(imported, self.eager, self.options, self._compiled)
            COMPILED.append("one set of sizes")
            return made.call
        except Exception as error:
            leave_to_eager(error, self.options)
            return self.eager


def _is_plain(example: Any) -> bool:
    """Say whether no size of it varies: those that do come as torch's SymInt."""
    sizes = (*example.shape, *example.stride()) if hasattr(example, "stride") else (example,)
    return not any("Sym" in type(size).__name__ for size in sizes)


def _kind(arg: Any) -> tuple[Any, ...]:
    if hasattr(arg, "stride"):
        return (tuple(arg.shape), arg.stride(), arg.storage_offset())
    return (type(arg), arg)


class Variant:
    """A graph compiled for one set of sizes; what turns out to be impossible is left to eager.

    Final; it learns only which calls have been tried, and whether it has given up.
    """

    def __init__(
        self,
        imported: Any,
        eager: Call,
        options: Options,
        again: Callable[[Sequence[Any]], Call],
        symbols: Symbols | None = None,
    ) -> None:
        """Compile what was captured, as its example asks for gradients; for all sizes that
        `symbols` admit.  again: compiles the graph for a call that asks for others."""
        self.again = again
        self.others: dict[tuple[int, ...], Call] = {}
        self.symbols = symbols
        self.eager = eager
        self.options = options
        self.positions = [item.position for item in imported.inputs]
        self.constants = list(imported.constants)
        self.results = imported.results
        lying = lying_of(imported.graph, imported.inputs, imported.results)
        self.runs = Runs(imported.graph, options, imported.inputs, imported.mutations, lying)
        names = [value.name for value in imported.graph.inputs]
        self.updated = [names.index(name) for name, _ in imported.graph.updates]
        self.tried: set[tuple[int, ...]] = set()
        self.given_up = False
        self.runs.compiled(asked([item.requires_grad for item in imported.inputs]))

    def at(self, values: Mapping[str, int], args: Sequence[Any]) -> "Variant | None":
        """Return the variant for these values of the sizes that vary, ready for such a call.

        None where what is compiled does not hold for them.
        """
        assert self.symbols is not None, "sizes vary"
        if not self.symbols.admit(values):
            return None
        bound = copy.copy(self)
        bound.results = self.symbols.bound(self.results, values)
        bound.tried, bound.others, bound.given_up = set(), {}, False
        bound.runs = self.runs.at(values)
        try:
            bound.runs.compiled(asks_gradients([args[k] for k in self.positions] + self.constants))
        except (ShapeError, Unasked):  # compiling for these gradients has assumed more, or less
            return None
        return bound

    def call(self, *args: Any) -> Sequence[Any]:
        """Run the graph."""
        if self.given_up:
            return self.eager(*args)
        if is_transforming():
            leave_to_eager(under_a_transform(), self.options)
            return self.eager(*args)
        inputs = [args[at] for at in self.positions] + self.constants
        wanted = asks_gradients(inputs)
        if wanted not in self.tried:
            return self._try(wanted, args, inputs)
        if self.options.check:
            check_against_eager(self.runs.inference, inputs)
        return restore(self.results, inputs, self.runs.compiled(wanted)(inputs))

    def _try(
        self, wanted: tuple[int, ...], args: Sequence[Any], inputs: list[Any]
    ) -> Sequence[Any]:
        """Run for the first time: if that fails, eager takes over from where things stood."""
        if wanted in self.others:
            return self.others[wanted](*args)
        before = [(inputs[k].detach(), inputs[k].detach().clone()) for k in self.updated]
        try:
            if self.options.check:
                check_against_eager(self.runs.inference, inputs)
            results = restore(self.results, inputs, self.runs.compiled(wanted)(inputs))
        except (IndexRangeError, IntegerDivisionError, DivergenceError):
            raise  # what the user did, or asked to be told
        except Unasked:  # Dynamo's guards of modules may miss that a parameter asks for one now
            self.others[wanted] = self.again(args)
            return self.others[wanted](*args)
        except Exception as error:
            leave_to_eager(error, self.options)
            self.given_up = True
            for tensor, value in before:
                tensor.copy_(value)
            return self.eager(*args)
        self.tried.add(wanted)
        return results
