"""Run a Dynamo graph on fake tensors and write down what the functional graph cannot say.

The idea: one pass of an interpreter, with gradients on or off just as the user has them, shows for
every node whether eager would let a gradient through, which memory its result lives in, and what
it overwrites.  Whatever a functional graph cannot express is refused here, at the user's line.
This module does not rewrite anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd.graph import increment_version
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tilewright.base.errors import (
    DataDependentShapeError,
    MutationError,
    TilewrightError,
)
from tilewright.capture.custom_functions import carry_gradient
from tilewright.capture.keep import EagerMode
from tilewright.capture.origin import origin_of_meta
from tilewright.capture.refusal import not_applicable

_DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
_SWITCHES = (torch._C._set_grad_enabled,)


@dataclass(frozen=True, slots=True)
class Survey:
    """What one run showed.

    inputs: the fakes passed in.  results: the fakes that came out.
    updated: positions of inputs whose memory was written.
    stops: nodes whose float result eager cuts from the gradient although an argument has one.
    stopped_arguments: by node that writes into a tensor without gradient: arguments that have one.
    creators: which node first gave a tensor in a piece of memory.
    carried: memory of a custom function's result -> the memory that eager would have it in.
    """

    inputs: tuple[Any, ...]
    results: tuple[Any, ...]
    updated: tuple[int, ...]
    stops: frozenset[str]
    stopped_arguments: Mapping[str, tuple[fx.Node, ...]]
    creators: Mapping[int, tuple[fx.Node, torch.Tensor | None]]
    carried: Mapping[int, int]


def survey(module: fx.GraphModule, fakes: Sequence[Any], mode: FakeTensorMode) -> Survey:
    """Run `module` on `fakes`, in the grad mode that is on now."""
    tensors = [fake for fake in fakes if isinstance(fake, torch.Tensor)]
    layouts = [_layout(fake) for fake in tensors]
    versions = {id(fake): fake._version for fake in tensors}
    switches = any(node.target in _SWITCHES for node in module.graph.nodes)
    grad_was = torch.is_grad_enabled()
    observer = _Observer(module, watch=grad_was or switches)
    try:
        # As in Dynamo: torch's C++ composites would ask for plain numbers where sizes vary.
        with mode, enable_python_dispatcher(), EagerMode():
            results = observer.run(*fakes)
    finally:
        torch._C._set_grad_enabled(grad_was)
    _refuse_moved_inputs(module, tensors, layouts)
    updated = tuple(
        position
        for position, fake in enumerate(fakes)
        if isinstance(fake, torch.Tensor) and fake._version != versions[id(fake)]
    )
    _refuse_shared_updates(fakes, updated, observer.writers)
    return Survey(
        tuple(fakes),
        tuple(results),
        updated,
        frozenset(observer.stops),
        observer.stopped_arguments,
        observer.creators,
        observer.carried,
    )


def memory(tensor: torch.Tensor) -> int:
    """Name the piece of memory a tensor lives in."""
    return int(_whole(tensor).untyped_storage()._cdata)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Under vmap, return the whole batch: it is what has memory and what eager differentiates."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def asks_gradient(tensor: torch.Tensor) -> bool:
    """Say whether eager lets a gradient through a tensor, under vmap too."""
    return _whole(tensor).requires_grad


def _some_require_grad(result: object) -> bool:
    leaves = pytree.tree_leaves(result)
    return any(isinstance(leaf, torch.Tensor) and asks_gradient(leaf) for leaf in leaves)


class _Observer(fx.Interpreter):
    """Runs every node, and watches gradients, memory and versions while it does."""

    def __init__(self, module: fx.GraphModule, *, watch: bool) -> None:
        # No garbage collection of values: a freed storage's address could come back as another's.
        super().__init__(module, garbage_collect_values=False)
        self.extra_traceback = False  # our errors name the node themselves
        self.stops: set[str] = set()
        self.stopped_arguments: dict[str, tuple[fx.Node, ...]] = {}
        self.creators: dict[int, tuple[fx.Node, torch.Tensor | None]] = {}
        self.carried: dict[int, int] = {}
        self.writers: dict[int, fx.Node] = {}  # which node first wrote into a piece of memory
        self._watch = watch
        self._open: set[str] = set()  # nodes with a tuple of results, some of them to be stopped
        self._stopped: dict[int, fx.Node] = {}  # memory that is seen both with and past gradients
        self._tainted: set[int] = set()  # memory written past gradients by a node that also has one

    def run_node(self, n: fx.Node) -> Any:
        arguments = [] if n.op in ("placeholder", "output") else self._arguments(n)
        had = [(tensor, tensor._version, self._carries(tensor)) for tensor in arguments]
        try:
            result = super().run_node(n)
        except TilewrightError:
            raise
        except _DATA_DEPENDENT as reason:
            raise _data_dependent(n, reason) from reason
        except Exception as reason:
            raise _impossible(n, arguments, reason) from reason
        self._count_writes(n)
        if n.op == "output":
            return result
        self._record(n, result)
        if n.target is carry_gradient:
            values: Any = fx.node.map_arg(n.args[0], lambda a: self.env[a])
            self.carried |= {memory(b): memory(a) for a, b in zip(values, result, strict=True)}
        for tensor, version, _ in had:
            if tensor._version != version:
                self.writers.setdefault(memory(tensor), n)
        if self._watch:
            if self._check_writes(n, had):
                self._watch_written(n, result, had)
            else:
                self._watch_gradient(n, result, had)
        return result

    def _count_writes(self, n: fx.Node) -> None:
        """Count what operators over lists write, which torch does not of fakes (2.13 at least)."""
        name = _name(n).partition(".")[0]
        if name.startswith("_foreach_") and name.endswith("_"):
            first = n.args[0] if n.args else n.kwargs["self"]
            increment_version(pytree.tree_leaves(fx.node.map_arg(first, lambda a: self.env[a])))

    def _arguments(self, n: fx.Node) -> list[torch.Tensor]:
        values = pytree.tree_leaves(fx.node.map_arg((n.args, n.kwargs), lambda a: self.env[a]))
        return [value for value in values if isinstance(value, torch.Tensor)]

    def _record(self, n: fx.Node, result: object) -> None:
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                whole = leaf if isinstance(result, torch.Tensor) else None
                self.creators.setdefault(memory(leaf), (n, whole))

    def _check_writes(self, n: fx.Node, had: list[tuple[torch.Tensor, int, bool]]) -> bool:
        """Tell whether the node writes in place; refuse what a functional graph gets wrong."""
        written = [item for item in had if item[0]._version != item[1]]
        for tensor, _, differentiable in written:
            # A leaf can only have been written where gradients are off, inside the function called.
            if differentiable and (tensor.is_leaf or not torch.is_grad_enabled()):
                raise MutationError(
                    "a tensor that requires gradients is changed in place under no_grad",
                    expected="in-place operators under no_grad to change tensors without gradients",
                    found=f"{describe(tensor)} changed by {_name(n)}, which autograd cannot see",
                    where=origin_of_meta(n.meta),
                    mend="change it outside the captured function, or compute a fresh tensor",
                )
            if memory(tensor) in self._stopped:
                first = self._stopped[memory(tensor)]
                raise MutationError(
                    "a tensor is changed in place while a detached alias of it is alive",
                    expected="no in-place operator on memory that detach() or no_grad has aliased",
                    found=f"{describe(tensor)} changed by {_name(n)}",
                    known=f"the alias was made by {_name(first)} at {origin_of_meta(first.meta)}",
                    where=origin_of_meta(n.meta),
                    mend="detach a copy: x.detach().clone()",
                )
        return bool(written)

    def _carries(self, tensor: torch.Tensor) -> bool:
        """Tell whether a functional graph would let a gradient through this tensor."""
        return asks_gradient(tensor) or memory(tensor) in self._tainted

    def _watch_written(
        self, n: fx.Node, result: object, had: list[tuple[torch.Tensor, int, bool]]
    ) -> None:
        """Note arguments whose gradient eager cuts because the tensor they go into has none.

        Their own values are cut: cutting the result would part it from the memory written.  Where
        the node has a result with a gradient beside what it writes (running statistics), what is
        written is cut wherever it is read.
        """
        written = [tensor for tensor, version, _ in had if tensor._version != version]
        if any(asks_gradient(tensor) for tensor in written):
            return
        if _some_require_grad(result):
            self._tainted.update(memory(tensor) for tensor in written)
        else:
            self._cut_arguments(n, asks_gradient)

    def _cut_arguments(self, n: fx.Node, chosen: Callable[[torch.Tensor], bool]) -> None:
        cut = tuple(
            argument
            for argument in n.all_input_nodes
            if isinstance(self.env[argument], torch.Tensor) and chosen(self.env[argument])
        )
        if cut:
            self.stopped_arguments[n.name] = cut

    def _watch_gradient(
        self, n: fx.Node, result: object, had: list[tuple[torch.Tensor, int, bool]]
    ) -> None:
        """Note a float result without gradient of an argument with one: eager cuts it here."""
        if _some_require_grad(result):
            self._cut_arguments(n, lambda tensor: memory(tensor) in self._tainted)
        opened = any(argument.name in self._open for argument in n.all_input_nodes)
        if not opened and not any(differentiable for _, _, differentiable in had):
            return
        if isinstance(result, torch.Tensor):
            if result.is_floating_point() and not asks_gradient(result):
                self.stops.add(n.name)
                if any(memory(tensor) == memory(result) for tensor, _, _ in had):
                    self._stopped.setdefault(memory(result), n)
        elif any(
            isinstance(leaf, torch.Tensor) and not asks_gradient(leaf)
            for leaf in pytree.tree_leaves(result)
        ):
            self._open.add(n.name)


# ---------------------------------------------------------------------------- refusals


def _data_dependent(n: fx.Node, reason: BaseException) -> DataDependentShapeError:
    name = "indexing" if _name(n) == "getitem" else _name(n)
    operator = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
    return DataDependentShapeError(
        f"the shape or value that {name} gives depends on the data in a tensor",
        expected="every size to follow from the sizes of the inputs",
        found=f"{operator}, whose result is known only when it runs",
        where=origin_of_meta(n.meta),
        mend="compute it outside, pass it in as a number, or use an operator of fixed size"
        " (torch.where in place of boolean indexing)",
    )


def _impossible(
    n: fx.Node, arguments: Sequence[torch.Tensor], reason: Exception
) -> TilewrightError:
    text = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
    found = ", ".join(describe(tensor) for tensor in arguments)
    return not_applicable(_name(n), text, found, origin_of_meta(n.meta))


def _refuse_moved_inputs(
    module: fx.GraphModule, tensors: Sequence[torch.Tensor], before: Sequence[tuple[object, ...]]
) -> None:
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, tensor, layout in zip(placeholders, tensors, before, strict=False):
        if _layout(tensor) != layout:
            raise MutationError(
                "an argument's shape, strides or memory is changed in place",
                expected="in-place operators to change values only",
                found=f"{node.name} went from {layout[0]} to {tuple(tensor.shape)}",
                where=origin_of_meta(node.meta),
                mend="return the reshaped tensor in place of changing the argument",
            )


def _refuse_shared_updates(
    fakes: Sequence[Any], updated: Sequence[int], writers: Mapping[int, fx.Node]
) -> None:
    for position in updated:
        for other, fake in enumerate(fakes):
            if other == position or not isinstance(fake, torch.Tensor):
                continue
            if memory(fake) == memory(fakes[position]):
                raise MutationError(
                    "an argument that shares memory with another one is changed in place",
                    expected="arguments that are changed to have memory of their own",
                    found=f"arguments {min(position, other)} and {max(position, other)}"
                    f" of the captured graph: {describe(fakes[position])}, {describe(fake)}",
                    where=origin_of_meta(writers[memory(fake)].meta),
                    mend="pass a copy of one of the two: x.clone()",
                )


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), memory(tensor)


def describe(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}[{', '.join(str(size) for size in tensor.shape)}]"


def _name(n: fx.Node) -> str:
    target = n.target
    if isinstance(target, str):
        return target
    return str(getattr(target, "__name__", target))
