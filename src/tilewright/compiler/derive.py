"""Derivatives of captured functions: which inputs, which outputs, and what the result looks like.

The idea: reverse and forward mode know graphs; here a user's words (argument numbers, trees, an
auxiliary result) become names of inputs and positions of outputs, and back.

This module does not know who calls, nor how a graph is compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tilewright.autodiff import forward, full, reverse
from tilewright.base.errors import TransformError
from tilewright.capture import torch_func
from tilewright.capture.function import (
    Arguments,
    Function,
    SampleTensor,
    Slot,
    alike,
    fill,
    leaves_of,
    map_leaves,
    number_tensors,
)
from tilewright.graph.build import Builder, prune
from tilewright.graph.ir import Graph, TensorType, Value

Inner = Callable[[Arguments], Function]
Callee = Callable[..., Any]


class Outputs:
    """The outputs of a graph in the making: each value that a slot asks for, once."""

    def __init__(self, graph: Graph) -> None:
        self.builder = Builder.extending(graph)
        self.values: list[Value] = []

    def slot(self, value: Value) -> Slot:
        """Return the slot of a value."""
        if value not in self.values:
            self.values.append(value)
        return Slot(self.values.index(value))

    def zeros(self, type_: TensorType) -> Slot:
        """Return the slot of a tensor of zeros."""
        zero = 0.0 if type_.dtype.kind == "float" else 0
        return self.slot(self.builder.formula(full(type_, zero), name="zeros"))

    def moved(self, tree: Any, graph: Graph) -> Any:
        """Return a tree of the outputs of an earlier graph, whose values this one has."""
        return map_leaves(
            lambda leaf: self.slot(graph.outputs[leaf.number]) if isinstance(leaf, Slot) else leaf,
            tree,
        )

    def finish(self) -> Graph:
        """Return the graph."""
        return prune(self.builder.finish(self.values))


@dataclass(frozen=True, slots=True)
class Grad:
    """The gradient of a scalar by arguments; with the value before it where `value` says so."""

    argnums: int | tuple[int, ...]
    has_aux: bool
    value: bool

    @property
    def name(self) -> str:
        return "value_and_grad" if self.value else "grad"

    def in_torch(self, fn: Callee) -> Callee:
        """Return torch's transform of torch's function."""
        made = torch_func.value_and_grad if self.value else torch_func.grad
        return made(fn, self.argnums, has_aux=self.has_aux)

    def derive(self, inner: Inner, arguments: Arguments) -> Function:
        """Return the transformed function, from the function for the same arguments."""
        numbered, samples = number_tensors(arguments)
        asked = self._asked(numbered[0], samples)
        function = inner(arguments)
        value, aux = parted(function.result, has_aux=self.has_aux, name=self.name)
        place = self._scalar(function.graph, value)
        names = names_of(function)
        numbers = [slot.number for slot in leaves_of(asked)]
        wrt = list(dict.fromkeys(names[n] for n in numbers if n in names))
        joint = reverse(function.graph, wrt, of=[place], ones=True)
        outputs = Outputs(joint.graph)
        found = dict(zip(wrt, joint.gradients, strict=True))

        def gradient(slot: Slot) -> Slot:
            at = found.get(names.get(slot.number, ""))
            if at is None:
                return outputs.zeros(samples[slot.number].type)
            return outputs.slot(joint.graph.outputs[at])

        gradients = map_leaves(gradient, asked)
        result: Any = gradients
        if self.value:
            result = (self._with_aux(outputs.moved(value, function.graph), outputs, aux, function),)
            result = (*result, gradients)
        else:
            result = self._with_aux(gradients, outputs, aux, function)
        return replace(function, graph=outputs.finish(), arguments=numbered, result=result)

    def _with_aux(self, tree: Any, outputs: Outputs, aux: Any, function: Function) -> Any:
        return (tree, outputs.moved(aux, function.graph)) if self.has_aux else tree

    def _asked(self, args: tuple[Any, ...], samples: list[SampleTensor]) -> Any:
        """Return the trees of slots that the gradient is asked for."""
        single = isinstance(self.argnums, int)
        listed = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        trees = []
        for number in listed:
            if not -len(args) <= number < len(args):
                raise TransformError(
                    f"{self.name} is asked for argument {number}, which the call does not have",
                    expected=f"argument numbers below {len(args)}, the positional arguments",
                    found=f"argnums={self.argnums!r}",
                    mend="pass that argument by position, or correct argnums",
                )
            tree = args[number]
            for leaf in leaves_of(tree):
                _refuse_no_float(self.name, f"argument {number}", leaf, samples)
            trees.append(tree)
        return trees[0] if single else tuple(trees)

    def _scalar(self, graph: Graph, value: Any) -> int:
        type_ = graph.outputs[value.number].type if isinstance(value, Slot) else None
        if type_ is None or type_.rank or type_.dtype.kind != "float":
            raise TransformError(
                f"{self.name} differentiates a function that does not give one number",
                expected="a floating tensor without dims",
                found=str(type_) if type_ is not None else _shown(value),
                mend="reduce it (.sum(), .mean()), or use vjp for the gradient along a cotangent",
            )
        assert isinstance(value, Slot), "a type is that of a slot"
        return value.number


@dataclass(frozen=True, slots=True)
class Jvp:
    """A function's result, and its change when the arguments change; takes (primals, tangents)."""

    has_aux: bool = False
    name = "jvp"

    def derive(self, inner: Inner, arguments: Arguments) -> Function:
        """Return the transformed function, from the function of the primals."""
        numbered, samples = number_tensors(arguments)
        (primals, tangents), _ = numbered
        _refuse_tangents(primals, tangents, samples)
        plain = fill(primals, samples)
        function = inner((plain, {}))
        out, aux = parted(function.result, has_aux=self.has_aux, name=self.name)
        names = names_of(function)
        pairs = zip(leaves_of(primals), leaves_of(tangents), strict=True)
        along = {names[p.number]: t.number for p, t in pairs if p.number in names}
        pushed = forward(function.graph, list(along))
        outputs = Outputs(pushed.graph)

        def change(slot: Any) -> Slot:
            if not isinstance(slot, Slot):
                raise TransformError(
                    "jvp differentiates a function whose result is no tensor",
                    expected="tensors, and lists, tuples or dicts of them",
                    found=_shown(slot),
                    mend="return tensors only, or the rest as auxiliary result: has_aux=True",
                )
            at = pushed.changes[slot.number]
            if at is None:
                return outputs.zeros(function.graph.outputs[slot.number].type)
            return outputs.slot(pushed.graph.outputs[at])

        result: tuple[Any, ...] = (outputs.moved(out, function.graph), map_leaves(change, out))
        if self.has_aux:
            result = (*result, outputs.moved(aux, function.graph))
        sources = (*function.sources, *along.values())
        return replace(
            function, graph=outputs.finish(), sources=sources, arguments=numbered, result=result
        )


@dataclass(frozen=True, slots=True)
class Plain:
    """The function itself, with its auxiliary result told apart: what vjp goes through."""

    has_aux: bool = False
    name = "vjp"

    def derive(self, inner: Inner, arguments: Arguments) -> Function:
        """Return the function; its result is (result, auxiliary result)."""
        numbered, samples = number_tensors(arguments)
        for leaf in leaves_of(numbered[0]):
            _refuse_no_float(self.name, "an argument", leaf, samples)
        function = inner(arguments)
        out, aux = parted(function.result, has_aux=self.has_aux, name=self.name)
        for leaf in leaves_of(out):
            if not isinstance(leaf, Slot):
                raise TransformError(
                    "vjp differentiates a function whose result is no tensor",
                    expected="tensors, and lists, tuples or dicts of them",
                    found=_shown(leaf),
                    mend="return tensors only, or the rest as auxiliary result: has_aux=True",
                )
        return replace(function, result=(out, aux))


def names_of(function: Function) -> dict[int, str]:
    """Return the name of the graph's input for the number of each tensor of the arguments."""
    pairs = zip(function.sources, function.graph.inputs, strict=True)
    return {source: value.name for source, value in pairs if source >= 0}


def parted(result: Any, *, has_aux: bool, name: str) -> tuple[Any, Any]:
    """Part a result from the auxiliary one, where there is to be one."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise TransformError(
            f"{name} with has_aux=True takes a function that gives a pair",
            expected="(result, auxiliary result)",
            found=_shown(result),
            mend="return (result, auxiliary), or leave has_aux out",
        )
    return result


def _shown(value: Any) -> str:
    if isinstance(value, Slot):
        return "a tensor"
    if isinstance(value, tuple | list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r}, of type {type(value).__name__}"


def _refuse_no_float(name: str, what: str, leaf: Any, samples: list[SampleTensor]) -> None:
    sample = samples[leaf.number] if isinstance(leaf, Slot) else None
    if sample is None or sample.type.dtype.kind != "float":
        raise TransformError(
            f"{name} differentiates by {what}, which has no derivative",
            expected="floating tensors, and lists, tuples or dicts of them",
            found=_shown(leaf) if sample is None else str(sample.type),
            mend="convert it to a floating type, or differentiate by another argument",
        )


def _refuse_tangents(primals: Any, tangents: Any, samples: list[SampleTensor]) -> None:
    for which, tree in (("primals", primals), ("tangents", tangents)):
        if not isinstance(tree, tuple) or not tree:
            raise TransformError(
                f"jvp takes its {which} as a tuple, one for each argument",
                expected=f"jvp(f, (x,), (t,)): {which} in a tuple that is not empty",
                found=_shown(tree),
                mend=f"put {which} of a single argument in a tuple as well: (x,)",
            )
    if not alike(primals, tangents):
        raise TransformError(
            "jvp has tangents that are not arranged as the primals",
            expected=f"a tree of {len(leaves_of(primals))} tensors like that of the primals",
            found=f"a tree of {len(leaves_of(tangents))}",
            mend="give every primal a tangent (zeros where it does not change)",
        )
    for primal, tangent in zip(leaves_of(primals), leaves_of(tangents), strict=True):
        _refuse_no_float("jvp", "a primal", primal, samples)
        _refuse_no_float("jvp", "a primal whose tangent is none", tangent, samples)
        one, other = samples[primal.number].type, samples[tangent.number].type
        if one != other:
            raise TransformError(
                "jvp has a tangent that is not of its primal's type",
                expected=str(one),
                found=str(other),
                mend="give each primal a tangent of its own shape and element type",
            )
