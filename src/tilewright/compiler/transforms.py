"""`tw.grad`, `value_and_grad`, `vjp`, `jvp` and `vmap`: transforms of plain torch functions.

The idea: a transform makes a callable that knows what it transforms and how; for the arguments of a
call it derives a graph from the graph of what it transforms, so that a transform of a transform is
a pass over a pass's graph::

    jvp(grad(f))   =  forward(reverse(capture(f)))
    vmap(grad(f))  =  batch(reverse(capture(f)))

and only the outermost graph is compiled, once for each kind of arguments.  Inside of code that is
captured itself, a transform is torch.func's.

This module does not know torch: trees and tensors are `capture`'s.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from tilewright.autodiff import resolve
from tilewright.base.errors import TransformError
from tilewright.capture import torch_func
from tilewright.capture.function import (
    Arguments,
    Function,
    alike,
    capture_function,
    captured_now,
    describe_tree,
    fill,
    leaves_of,
    name_of,
    number_tensors,
    sampled,
    surroundings,
)
from tilewright.compiler.compiled import Runs
from tilewright.compiler.derive import Callee, Grad, Jvp, Plain
from tilewright.compiler.options import Options
from tilewright.compiler.vectorize import Vectorize, checked
from tilewright.graph.ir import Graph
from tilewright.optimize import RollLoops
from tilewright.runtime.autograd import attached, pulled

How = Grad | Jvp | Plain | Vectorize


def grad(
    f: Callee,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    options: Options | None = None,
) -> Callee:
    """Return the function that gives the gradient of `f`, a function that gives one number.

    argnums: the positional arguments to differentiate by; a tuple gives a tuple of gradients.
    has_aux: `f` gives (number, auxiliary); so does the result, (gradient, auxiliary).  Arguments
    and gradients may be trees of tensors.  Raises TransformError at a call that does not fit.
    """
    return _transformed(f, Grad(_listed(argnums), bool(has_aux), value=False), options)


def value_and_grad(
    f: Callee,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    options: Options | None = None,
) -> Callee:
    """Return the function that gives `f`'s value and gradient: (value, gradient), or with
    `has_aux` ((value, auxiliary), gradient).  Otherwise as `grad`."""
    return _transformed(f, Grad(_listed(argnums), bool(has_aux), value=True), options)


def vmap(
    f: Callee,
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    options: Options | None = None,
) -> Callee:
    """Return `f`, a function of one sample, as a function of a batch.

    in_dims: which dim of each positional argument is the batch's: a number, None (no batch), or a
    tuple of these or of trees of these.  out_dims: where the results shall have it.  randomness:
    whether drawing random numbers is refused ("error"), done once ("same") or by each sample
    ("different").  Keyword arguments have no batch.
    """
    return _transformed(f, Vectorize(in_dims, out_dims, checked(randomness)), options)


def jvp(
    f: Callee,
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    has_aux: bool = False,
    options: Options | None = None,
) -> Any:
    """Return `f(*primals)` and how it changes when the primals change along the tangents.

    With `has_aux`, (result, change, auxiliary).  Compiled once for each function and kind of
    arguments: a lambda written anew is compiled anew.
    """
    if captured_now():
        return torch_func.jvp(in_torch(f), primals, tangents, has_aux=has_aux)
    return _kept(f, Jvp(has_aux), options or Options())(primals, tangents)


def vjp(f: Callee, *primals: Any, has_aux: bool = False, options: Options | None = None) -> Any:
    """Return `f(*primals)` and a function from a cotangent of it to those of the primals.

    The pullback takes one tree like the result, and gives a tuple with one entry for each primal;
    it may be called more than once.  With `has_aux`, (result, pullback, auxiliary).
    """
    if captured_now():
        return torch_func.vjp(in_torch(f), primals, has_aux=has_aux)
    through = _kept(f, Plain(has_aux), options or Options())
    numbered, tensors = number_tensors(primals)
    inputs = attached(tensors)
    out, aux = through.attached(fill(numbered, inputs))
    shape, results = number_tensors(out)

    def pullback(cotangents: Any) -> Any:
        """Return the cotangents of the primals for that of the result."""
        given, seeds = number_tensors(cotangents)
        _refuse_cotangents(out, cotangents, results, seeds, given)
        return fill(numbered, pulled(results, inputs, seeds))

    values = fill(shape, [result.detach() for result in results])
    return (values, pullback, aux) if has_aux else (values, pullback)


class Transformed:
    """A transformed function: call it as torch.func's.  `graph(*args)` shows what is computed.

    Mutable only in that it compiles at the first call for each kind of arguments.
    """

    def __init__(self, fn: Callee, how: How, options: Options) -> None:
        self.fn = fn
        self.how = how
        self.options = options
        self.__name__ = f"{how.name}({name_of(fn)})"
        self.__wrapped__ = fn
        self._made: dict[Any, list[tuple[Function, Runs]]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the transformed function."""
        if captured_now():
            return in_torch(self)(*args, **kwargs)
        _, tensors = number_tensors((args, kwargs))
        function, runs = self._compiled((args, kwargs))
        return fill(function.result, runs.run(function.feed(tensors)))

    def attached(self, primals: tuple[Any, ...]) -> Any:
        """Call it so that torch's autograd sees it, whatever the grad mode is."""
        _, tensors = number_tensors((primals, {}))
        function, runs = self._compiled((primals, {}))
        return fill(function.result, runs.attached(function.feed(tensors)))

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """Return the graph that a call with these arguments runs."""
        return self._compiled((args, kwargs))[0].graph

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return how every value of a call with these arguments is computed, and why."""
        return self._compiled((args, kwargs))[1].explain()

    def derived(self, arguments: Arguments) -> Function:
        """Return the transformed function for arguments of which only the kind is known."""
        inner = self.fn.derived if isinstance(self.fn, Transformed) else None
        return self.how.derive(inner or partial(_captured, self.fn), arguments)

    def _compiled(self, arguments: Arguments) -> tuple[Function, Runs]:
        known = sampled(arguments)
        base = self.fn
        while isinstance(base, Transformed):
            base = base.fn
        key = (describe_tree(known), surroundings(base))
        versions = self._made.setdefault(key, [])
        for function, runs in versions:
            if function.unchanged():
                return function, runs
        function = self.derived(known)
        runs = Runs(function.graph, self.options)
        versions.append((function, runs))
        return function, runs


def _captured(fn: Callee, arguments: Arguments) -> Function:
    """Capture a function, and take the derivatives that it takes itself."""
    found = capture_function(fn, arguments)
    return replace(found, graph=RollLoops()(resolve(found.graph)))


def in_torch(fn: Callee) -> Callee:
    """Return torch.func's transform for one of ours; any other function as it is."""
    if not isinstance(fn, Transformed):
        return fn
    how = fn.how
    assert isinstance(how, Grad | Vectorize), f"{how.name} is called at once"
    return how.in_torch(in_torch(fn.fn))


def _transformed(f: Callee, how: Grad | Vectorize, options: Options | None) -> Callee:
    if captured_now():
        return how.in_torch(in_torch(f))
    if not callable(f):
        raise TransformError(
            f"{how.name} transforms what is no function",
            expected="a function of tensors, or a module",
            found=f"{f!r}, of type {type(f).__name__}",
            mend=f"pass the function itself: tw.{how.name}(f)(x)",
        )
    return Transformed(f, how, options or Options())


@lru_cache(maxsize=128)
def _kept(f: Callee, how: Jvp | Plain, options: Options) -> Transformed:
    """Return the transform of a function that was made before, if it is still known."""
    return Transformed(f, how, options)


def _listed(argnums: int | Sequence[int]) -> int | tuple[int, ...]:
    return argnums if isinstance(argnums, int) else tuple(argnums)


def _refuse_cotangents(
    out: Any, cotangents: Any, results: Sequence[Any], seeds: Sequence[Any], given: Any
) -> None:
    if not alike(out, cotangents) or len(seeds) != len(results):
        raise TransformError(
            "a pullback takes a cotangent that is arranged as the function's result",
            expected=f"a tree of {len(results)} tensors like that of the result",
            found=f"a tree of {len(leaves_of(given))} leaves, {len(seeds)} of them tensors",
            mend="give every result a cotangent (zeros where there is none)",
        )
    for result, seed in zip(results, seeds, strict=True):
        if result.shape != seed.shape or result.dtype != seed.dtype:
            raise TransformError(
                "a pullback takes a cotangent of its result's type",
                expected=f"{result.dtype} of shape {list(result.shape)}",
                found=f"{seed.dtype} of shape {list(seed.shape)}",
                mend="give each result a cotangent of its own shape and element type",
            )
