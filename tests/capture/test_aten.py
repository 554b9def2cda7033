"""Every ATen overload that the table reads: operators, equal to the call they stand for."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from tests.capture.aten_samples import SAMPLES
from tests.sweep import collected
from tests.versions import OLD_TORCH
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from tilewright.base.dtypes import BF16
from tilewright.capture import Imported, import_functional, replay
from tilewright.capture.aten import RULES
from tilewright.capture.functionalize import Functional, Traced
from tilewright.capture.record import Computed, Input
from tilewright.capture.replay import overload
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import BUILT_IN
from tilewright.ops import TABLE
from tilewright.ops.operator import expansion

# Of each overload `make test` asks the first sample, `make sweep` the others.
CASES = collected(
    [
        pytest.param(
            target,
            *sample,
            id=f"{target.removeprefix('aten.')}-{at}",
            marks=pytest.mark.sweep if at else (),
        )
        for target, samples in SAMPLES.items()
        for at, sample in enumerate(samples)
    ]
)
# Results that a rule leaves out, as nobody but torch's own backward reads them.
HIDDEN = {
    "aten._native_batch_norm_legit_functional.default": (1, 2),
    "aten._native_batch_norm_legit.no_stats": (1, 2),
    "aten._native_batch_norm_legit_no_training.default": (1, 2),
    "aten.native_layer_norm.default": (1, 2),
    "aten.native_group_norm.default": (1, 2),
    "aten.embedding_bag.padding_idx": (1, 2, 3),
    "aten.nll_loss_forward.default": (1,),
    "aten.nll_loss2d_forward.default": (1,),
    "aten.log_sigmoid_forward.default": (1,),
}
# Torch differentiates these with respect to their first operand at most.
FIRST_ONLY = {
    "aten.nll_loss2d_forward.default",
    "aten.multi_margin_loss.default",
    "aten.soft_margin_loss.default",
    "aten.binary_cross_entropy.default",
    "aten._native_batch_norm_legit_functional.default",
    "aten._native_batch_norm_legit_no_training.default",
    "aten.nll_loss_forward.default",
    "aten.cross_entropy_loss.default",
    "aten.binary_cross_entropy_with_logits.default",
}
# ... and these not at all (the last, in an older version), wrongly (the strided write; the slopes
# that it was given, not those that it drew), or (ours) in another place than the operator itself.
NEVER = {
    "aten.as_strided_scatter.default",
    "aten.rrelu_with_noise_functional.default",
    "prims.fma.default",
    "aten.floor_divide.default",
    "aten.copy.default",
    "aten.heaviside.default",
    "tilewright.stop_gradient.default",
    "tilewright.dropout.default",
    *(("aten.aminmax.default",) if OLD_TORCH else ()),
}
UNFILLED = ("aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default")


def import_call(target: str, args: Any, kwargs: Any) -> tuple[Imported, list[torch.Tensor]]:
    """Import a graph of one call; return it with the tensors it takes, in order."""
    graph, tensors, inputs = fx.Graph(), [], []
    mode = FakeTensorMode()

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(tensors)}")
        node.meta["val"] = mode.from_tensor(value)
        inputs.append(Input(len(tensors), "argument", node.name, (), (), value.dtype, False))
        tensors.append(value)
        return node

    placed_args, placed_kwargs = pytree.tree_map(placed, (args, kwargs))
    call = graph.call_function(overload(target), placed_args, placed_kwargs)
    faked = pytree.tree_map_only(fx.Node, lambda n: n.meta["val"], (placed_args, placed_kwargs))
    with mode:
        call.meta["val"] = overload(target)(*faked[0], **faked[1])
    results = _pick(graph, call, HIDDEN.get(target, ()))
    graph.output(tuple(results))
    module = fx.GraphModule(torch.nn.Module(), graph)
    computed = tuple(
        Computed(at, tuple(node.meta["val"].shape), (), False) for at, node in enumerate(results)
    )
    functional = Functional(Traced(module, {}), tuple(inputs), (), computed, len(results))
    return import_functional(functional), tensors


def _pick(graph: fx.Graph, call: fx.Node, hidden: Sequence[int]) -> list[fx.Node]:
    if isinstance(call.meta["val"], torch.Tensor):
        return [call]
    picked = []
    for at, value in enumerate(call.meta["val"]):
        if at not in hidden:
            node = graph.call_function(operator.getitem, (call, at))
            node.meta["val"] = value
            picked.append(node)
    return picked


def _expected(target: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    result = overload(target)(*args, **kwargs)
    if isinstance(result, torch.Tensor):
        return [result]
    return [value for at, value in enumerate(result) if at not in HIDDEN.get(target, ())]


def test_every_overload_of_the_table_has_a_sample() -> None:
    # What marks a derivative taken inside of a function is no call that computes anything.
    marks = {f"tilewright.{name}.default" for name in ("mark", "pull", "push")}
    assert set(SAMPLES) == set(RULES) - marks


@pytest.mark.parametrize(("target", "args", "kwargs"), CASES)
def test_a_call_becomes_operators_of_the_same_types(target: str, args: Any, kwargs: Any) -> None:
    imported, _ = import_call(target, args, kwargs)
    library = [dict(n.attrs)["target"] for n in imported.graph.nodes if n.op == "library"]
    if target.startswith("tilewright.dropout"):
        assert library in (["aten.bernoulli.p"], [])
    else:
        assert library == ([target] if RULES[target].opaque else [])
    made = {node.op for node in imported.graph.nodes if node.op not in BUILT_IN}
    assert made <= {*RULES[target].operators, "cast"}
    assert set(RULES[target].operators) <= set(TABLE)


@pytest.mark.parametrize(("target", "args", "kwargs"), CASES)
def test_a_replay_is_the_call_and_so_are_its_gradients(target: str, args: Any, kwargs: Any) -> None:
    if target in FIRST_ONLY:
        args = (_leaf(args[0]), *args[1:])
    elif target not in NEVER and kwargs.get("rounding_mode") != "floor":
        args, kwargs = pytree.tree_map_only(torch.Tensor, _leaf, (args, kwargs))
    imported, tensors = import_call(target, args, kwargs)
    torch.manual_seed(0)
    replayed = replay(imported.graph, tensors)
    found = [replayed[result.output] for result in imported.results]  # type: ignore[union-attr]
    torch.manual_seed(0)
    expected = _expected(target, args, kwargs)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        if target not in UNFILLED:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
    leaves = [t for t in tensors if t.requires_grad]
    if leaves and any(t.requires_grad for t in expected):
        torch.testing.assert_close(
            _gradients(found, leaves), _gradients(expected, leaves), equal_nan=True
        )


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach().clone()
    return copy.requires_grad_() if copy.is_floating_point() else copy


def _gradients(results: list[torch.Tensor], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    parts = [
        (t.double() * torch.linspace(0.5, 2, t.numel()).reshape(t.shape)).sum()
        for t in results
        if t.requires_grad
    ]
    if not parts:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(sum(parts), leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    # Only torch runs library calls.
    [
        case
        for case in CASES
        if "dropout" not in case.values[0] and not RULES[case.values[0]].opaque
    ],
)
def test_the_loops_mean_what_the_call_computes(target: str, args: Any, kwargs: Any) -> None:
    imported, tensors = import_call(target, args, kwargs)
    outputs = evaluate(
        imported.graph,
        [_array(tensor) for tensor in tensors],
        expand=lambda node: expansion(
            TABLE[node.op], tuple(value.type for value in node.inputs), node.attrs
        ),
    )
    found = [outputs[r.output] for r in imported.results]  # type: ignore[union-attr]
    tolerance = {torch.bfloat16: (8e-3, 0), torch.float32: (2e-6, 1e-6)}
    for ours, theirs in zip(found, _expected(target, args, kwargs), strict=True):
        if target not in UNFILLED:
            rtol, atol = tolerance.get(theirs.dtype, (1e-11, 1e-12))
            wide = np.asarray(ours).astype(np.float64)
            np.testing.assert_allclose(wide, theirs.double().numpy(), rtol=rtol, atol=atol)


def _array(tensor: torch.Tensor) -> Any:
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.contiguous().view(torch.int16).numpy().view(BF16.numpy)
