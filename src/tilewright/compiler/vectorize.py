"""Batches of captured functions: which dims of the arguments and of the results are the batch's.

The idea: the function is captured for one sample; its graph is batched with the batch in front, and
a view before and after puts the user's dims there and back.

This module does not know who calls, nor how a graph is compiled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.autodiff import batch
from tilewright.base.errors import TransformError
from tilewright.base.expr import Expr, Read, Sym
from tilewright.capture import torch_func
from tilewright.capture.function import (
    Arguments,
    Function,
    SampleTensor,
    Slot,
    fill,
    leaves_of,
    map_leaves,
    number_tensors,
    spread_over,
)
from tilewright.compiler.derive import Callee, Inner
from tilewright.graph.build import Builder, prune
from tilewright.graph.ir import Dim, Formula, Graph, Loop, TensorType, Value
from tilewright.graph.notation import normal

RANDOMNESS = ("error", "same", "different")


@dataclass(frozen=True, slots=True, eq=False)
class Vectorize:
    """A function of one sample as a function of a batch.  in_dims, out_dims: as torch.vmap's."""

    in_dims: Any
    out_dims: Any
    randomness: str
    name = "vmap"

    def in_torch(self, fn: Callee) -> Callee:
        """Return torch's transform of torch's function."""
        return torch_func.vmap(fn, self.in_dims, self.out_dims, self.randomness)

    def derive(self, inner: Inner, arguments: Arguments) -> Function:
        """Return the batched function, from the function of one sample."""
        numbered, samples = number_tensors(arguments)
        dims = self._dims_in(numbered[0], samples)
        size = _size(dims, samples)
        ones = [_one(sample, dims.get(at)) for at, sample in enumerate(samples)]
        function = inner(fill(numbered, ones))
        flags = [dims.get(source) is not None for source in function.sources]
        made = batch(function.graph, flags, size, randomness=self.randomness)
        builder = Builder(made.graph.name)
        builder.reserve(value.name for node in made.graph.nodes for value in node.outputs)
        given = []
        for value, source in zip(made.graph.inputs, function.sources, strict=True):
            dim = dims.get(source)
            type_ = value.type if dim is None else samples[source].type
            entry = builder.input(value.name, type_, made.graph.role(value.name))
            given.append(entry if not dim else _moved(builder, entry, dim, 0))
        results = _inlined(builder, made.graph, given)
        outputs, slots = self._results(builder, function, results, made.outputs, size)
        graph = prune(builder.finish(outputs))
        return replace(function, graph=graph, arguments=numbered, result=slots)

    def _results(
        self,
        builder: Builder,
        function: Function,
        values: Sequence[Value],
        flags: Sequence[bool],
        size: int,
    ) -> tuple[list[Value], Any]:
        places = spread_over(self.out_dims, function.result)
        if places is None:
            raise TransformError(
                "vmap has out_dims that are not arranged as the function's result",
                expected=f"a tree of dims above {len(leaves_of(function.result))} tensors",
                found=f"out_dims={self.out_dims!r}",
                mend="give one number for all results, or one for each",
            )
        remaining = iter(places)
        outputs: list[Value] = []

        def place(leaf: Any) -> Slot:
            dim = next(remaining)
            if not isinstance(leaf, Slot):
                raise TransformError(
                    "vmap batches a function whose result is no tensor",
                    expected="tensors, and lists, tuples or dicts of them",
                    found=f"{leaf!r}, of type {type(leaf).__name__}",
                    mend="return tensors only",
                )
            outputs.append(_placed(builder, values[leaf.number], flags[leaf.number], dim, size))
            return Slot(len(outputs) - 1)

        return outputs, map_leaves(place, function.result)

    def _dims_in(
        self, args: tuple[Any, ...], samples: Sequence[SampleTensor]
    ) -> dict[int, int | None]:
        """Return the dim of the batch, from the front, for the number of each tensor that has it.

        Keyword arguments have none, as in torch.
        """
        prefix = self.in_dims
        places = spread_over(prefix, args) if isinstance(prefix, int | tuple) else None
        if places is None:
            raise TransformError(
                "vmap has in_dims that are not arranged as the arguments",
                expected=f"a number, or a tuple of {len(args)} (numbers, None, or trees of them)",
                found=f"in_dims={prefix!r}",
                mend="give each positional argument a dim, or None where it has no batch",
            )
        found: dict[int, int | None] = {}
        for leaf, dim in zip(leaves_of(args), places, strict=True):
            if dim is None:
                continue
            if not isinstance(leaf, Slot) or isinstance(dim, bool) or not isinstance(dim, int):
                raise TransformError(
                    "vmap is to batch an argument that is no tensor",
                    expected="None in in_dims for what is no tensor, a number for a tensor",
                    found=f"in_dims {dim!r} for {'a tensor' if isinstance(leaf, Slot) else leaf!r}",
                    mend="give it None in in_dims",
                )
            found[leaf.number] = _counted(dim, len(samples[leaf.number].shape), "in_dims")
        if not found:
            raise TransformError(
                "vmap has nothing to batch",
                expected="a dim in in_dims for one tensor at least",
                found=f"in_dims={prefix!r} for {len(args)} arguments",
                mend="give the batch's dim of an argument, or call the function itself",
            )
        return found


def _counted(dim: int, rank: int, what: str) -> int:
    if not -rank <= dim < rank:
        raise TransformError(
            f"vmap has a dim in {what} that the tensor does not have",
            expected=f"a dim from {-rank} to {rank - 1}" if rank else "a tensor with dims",
            found=f"dim {dim} of a tensor of rank {rank}",
            mend="name the dim that is the batch's",
        )
    return dim % rank


def _size(dims: dict[int, int | None], samples: Sequence[SampleTensor]) -> int:
    sizes = [samples[at].shape[dim] for at, dim in dims.items() if dim is not None]
    if len(set(sizes)) > 1:
        raise TransformError(
            "vmap has batches of different sizes",
            expected="one size in the batch's dim of every argument that has it",
            found=", ".join(str(size) for size in sizes),
            mend="give None in in_dims to what has no batch, or correct the dims",
        )
    return sizes[0]


def _one(sample: SampleTensor, dim: int | None) -> SampleTensor:
    """Return what is known of one sample of a batch."""
    if dim is None:
        return sample
    return replace(sample, shape=(*sample.shape[:dim], *sample.shape[dim + 1 :]))


def _inlined(builder: Builder, graph: Graph, given: Sequence[Value]) -> tuple[Value, ...]:
    """Add a graph's nodes as they are, on other inputs."""
    known = dict(zip((value.name for value in graph.inputs), given, strict=True))
    for node in graph.nodes:
        inputs = tuple(known.get(value.name, value) for value in node.inputs)
        builder.nodes.append(replace(node, inputs=inputs))
    return tuple(known.get(value.name, value) for value in graph.outputs)


def _placed(builder: Builder, value: Value, has: bool, dim: Any, size: int) -> Value:
    """Return a result with the batch in the dim that the user wants it in."""
    if dim is None:
        if has:
            raise TransformError(
                "vmap is to give a result without a batch that depends on the batch",
                expected="a dim in out_dims for every result that differs between samples",
                found="out_dims None",
                mend="give the dim that the batch shall be",
            )
        return value
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TransformError(
            "vmap has something in out_dims that is no dim",
            expected="numbers, or None for a result without a batch",
            found=repr(dim),
            mend="name the dim that the batch shall be",
        )
    rank = value.type.rank + (not has)
    target = _counted(dim, rank, "out_dims")
    if has and target == 0:
        return value
    return _moved(builder, value, 0, target) if has else _repeated(builder, value, target, size)


def _moved(builder: Builder, value: Value, source: int, target: int) -> Value:
    """Move one dim: y[i, z, j] = x[z, i, j]."""
    names = [f"i{k}" for k in range(value.type.rank)]
    order = list(range(value.type.rank))
    order.insert(target, order.pop(source))
    shape = tuple(value.type.shape[k] for k in order)
    return _view(builder, value, [names[k] for k in order], shape, names)


def _repeated(builder: Builder, value: Value, target: int, size: int) -> Value:
    """Give every sample a result that was computed once: y[i, z<8, j] = x[i, j]."""
    names = [f"i{k}" for k in range(value.type.rank)]
    outs, shape = list(names), list(value.type.shape)
    outs.insert(target, "z")
    shape.insert(target, size)
    return _view(builder, value, outs, tuple(shape), names)


def _view(
    builder: Builder,
    value: Value,
    outs: Sequence[str],
    shape: tuple[Dim, ...],
    names: Sequence[str],
) -> Value:
    loops = tuple(Loop(name, extent) for name, extent in zip(outs, shape, strict=True))
    index: tuple[Expr, ...] = tuple(Sym(name) for name in outs)
    read = Read("x", tuple(Sym(name) for name in names))
    type_ = TensorType(shape, value.type.dtype)
    made = normal(Formula(("x",), loops, index, "=", read, type_))
    return builder.formula(made, value, name=value.name)


def checked(randomness: str) -> str:
    """Return what `randomness` says; raises TransformError for a word that torch does not know."""
    if randomness not in RANDOMNESS:
        raise TransformError(
            f"vmap has no randomness {randomness!r}",
            expected=", ".join(RANDOMNESS),
            found=repr(randomness),
            mend='say "different" for a draw of its own for each sample, "same" for one for all',
        )
    return randomness
