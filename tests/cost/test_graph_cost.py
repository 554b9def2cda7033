"""What a graph costs, against counts by hand and against the specifications of captured models."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.sweep import swept
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tilewright as tw
from tilewright.autodiff import activations, reverse
from tilewright.cost import (
    GraphCost,
    ModelSpec,
    Split,
    embedding_activation_bytes,
    forward_flops,
    graph_cost,
    layer_activation_bytes,
    layer_flops,
    model_flops,
    parameters,
)
from tilewright.graph.ir import Graph
from tilewright.models.convnet import convnet

transformers = pytest.importorskip("transformers")

META = torch.device("meta")


def _cost(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> GraphCost:
    return graph_cost(tw.capture(fn, *(torch.empty(shape, device=META) for shape in shapes)).graph)


# -------------------------------------------------------------------------------- counts by hand


def test_a_product_is_two_operations_a_term() -> None:
    cost = _cost(torch.matmul, (5, 7), (7, 3))
    assert cost.products == cost.operations == 2 * 5 * 7 * 3
    assert cost.bytes == 4 * (5 * 7 + 7 * 3 + 5 * 3)
    assert cost.unknown == ()


@pytest.mark.parametrize(
    ("fn", "shapes", "count"),
    [
        (nn.functional.linear, ((1, 1, 8), (4, 8)), 8 * 4),
        (torch.matmul, ((1, 8), (8, 4)), 8 * 4),
        (torch.bmm, ((3, 4, 8), (3, 8, 1)), 3 * 4 * 8),
        (torch.bmm, ((1, 1, 8), (1, 8, 5)), 8 * 5),
    ],
)
def test_a_product_of_one_row_is_a_product(
    fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], count: int
) -> None:
    assert _cost(fn, *shapes).products == 2 * count


def test_adding_is_no_product() -> None:
    cost = _cost(torch.add, (6, 4), (6, 4))
    assert (cost.products, cost.operations, cost.bytes) == (0, 24, 3 * 24 * 4)


def test_a_weighted_sum_is_no_product_of_matrices() -> None:
    cost = _cost(lambda x, y: (x * y).sum(0), (6, 4), (6, 4))
    assert (cost.products, cost.operations) == (0, 48)


@pytest.mark.parametrize("groups", [1, 3])
def test_a_convolution_is_a_product_of_windows(groups: int) -> None:
    layer = nn.Conv2d(6, 12, 3, padding=1, groups=groups, bias=False, device=META)
    cost = _cost(layer, (2, 6, 8, 8))
    assert cost.products == 2 * (2 * 12 * 8 * 8) * (6 // groups * 9)
    assert cost.parameters == 12 * 6 // groups * 9
    assert cost.parameter_bytes == 4 * cost.parameters


def test_a_depthwise_convolution_is_a_product_of_windows_too() -> None:
    layer = nn.Conv2d(6, 6, 3, groups=6, bias=False, device=META)
    assert _cost(layer, (2, 6, 8, 8)).products == 2 * (2 * 6 * 6 * 6) * 9


def test_attention_counts_the_whole_square_causal_or_not() -> None:
    shape = (2, 4, 16, 8)
    attend = nn.functional.scaled_dot_product_attention
    for causal in (False, True):
        cost = _cost(lambda q, k, v, c=causal: attend(q, k, v, is_causal=c), shape, shape, shape)
        assert cost.products == 4 * 2 * 4 * 16 * 16 * 8


def test_views_are_free_and_a_table_gives_the_rows_that_are_asked_for() -> None:
    assert _cost(lambda x: x.reshape(6, 4).t()[1:3], (4, 6)).bytes == 0
    table = nn.Embedding(1000, 8, device=META)
    graph = tw.capture(table, torch.zeros(5, dtype=torch.long, device=META)).graph
    assert graph_cost(graph).bytes == 5 * 8 + 2 * (5 * 8 * 4)


def test_a_loop_counts_as_often_as_it_runs() -> None:
    net = nn.LSTM(4, 8, device=META)
    steps = [_cost(net, (length, 3, 4)).products for length in (5, 10)]
    # Four gates, of the input and of the state.
    assert steps == [2 * length * 3 * 4 * 8 * (4 + 8) for length in (5, 10)]


def test_a_branch_counts_as_its_dearer_side() -> None:
    def branch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a, b: a @ b, lambda a, b: (a @ b) @ b, (x, y))

    assert _cost(branch, (4, 4), (4, 4)).products == 2 * 2 * 4**3


def test_a_library_call_that_cannot_be_counted_is_named() -> None:
    cost = _cost(torch.linalg.inv, (4, 4))
    assert [name.split(".")[1] for name in cost.unknown] == ["linalg_inv"]


def _counted_by_torch(net: nn.Module, *given: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(*given)
    return counter.get_total_flops()


def test_products_are_those_that_torch_counts() -> None:
    with META:
        pictured, pictures = convnet(), torch.empty(4, 3, 32, 32)
        layer = nn.TransformerEncoderLayer(64, 4, 96, batch_first=True).eval()
        words = torch.empty(3, 20, 64)
    for net, given in ((pictured, pictures), (layer, words)):
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            expected = _counted_by_torch(net, given)
        assert graph_cost(tw.capture(net, given).graph).products == expected > 0


# ---------------------------------------------------------- captured models and their specification


def _gpt2(spec: ModelSpec, drop: float, attention: str) -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=spec.layers, n_embd=spec.hidden, n_head=spec.heads, vocab_size=spec.vocab,
        attn_pdrop=drop, embd_pdrop=drop, resid_pdrop=drop, use_cache=False,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _llama_sizes(spec: ModelSpec) -> dict[str, Any]:
    return {
        "num_hidden_layers": spec.layers, "hidden_size": spec.hidden, "vocab_size": spec.vocab,
        "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads,
        "intermediate_size": spec.ffn, "max_position_embeddings": spec.positions,
        "use_cache": False,
    }  # fmt: skip


def _llama(spec: ModelSpec, _: float, attention: str) -> nn.Module:
    config = transformers.LlamaConfig(**_llama_sizes(spec), attn_implementation=attention)
    return transformers.LlamaForCausalLM(config)


def _mixtral(spec: ModelSpec, _: float, attention: str) -> nn.Module:
    config = transformers.MixtralConfig(
        **_llama_sizes(spec), num_local_experts=spec.experts, num_experts_per_tok=spec.top_k,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config)


MAKERS = {"gpt": _gpt2, "llama": _llama, "moe": _mixtral}


def _captured(spec: ModelSpec, batch: int, seq: int, attention: str) -> Graph:
    with META:
        model = MAKERS[spec.family](spec, 0.1 if spec.dropout else 0.0, attention)
        ids = torch.zeros(batch, seq, dtype=torch.long)
    return tw.capture(model.to(torch.bfloat16), ids).graph


def _parameters(graph: Graph) -> list[str]:
    return [value.name for value in graph.inputs if _role(graph, value.name) == "parameter"]


def _role(graph: Graph, name: str) -> str:
    return dict(graph.roles)[name].kind


def _agrees(spec: ModelSpec, graph: Graph, batch: int, seq: int, *, fused: bool) -> None:
    """Parameters and operations are equal; activations are within 2 %."""
    cost = graph_cost(graph)
    assert cost.parameters == parameters(spec)
    assert cost.products == forward_flops(spec, batch, seq)
    assert cost.unknown == ()
    kept = sum(size for _, size in activations(graph, _parameters(graph)))
    layers = spec.layers * layer_activation_bytes(spec, batch, seq, Split(fused_attention=fused))
    # The inputs of the last norm and of the head, less that of the first norm: rows of a table are
    # read again.  The logits are a result.
    ends = 2 * batch * seq * spec.hidden + embedding_activation_bytes(spec, batch, seq)
    assert kept == pytest.approx(layers + ends, rel=0.02)


CAPTURED = [
    ("gpt2:layers=3", "eager", 2, 256),
    swept("gpt2:layers=4,dropout=no", "sdpa", 2, 256),
    ("llama-3-8b:layers=2", "sdpa", 1, 1024),
    ("mixtral-8x7b:layers=2", "sdpa", 1, 1024),
]


@pytest.mark.parametrize(("name", "attention", "batch", "seq"), CAPTURED)
def test_a_captured_model_costs_what_its_specification_says(
    name: str, attention: str, batch: int, seq: int
) -> None:
    spec = ModelSpec.parse(name)
    graph = _captured(spec, batch, seq, attention)
    _agrees(spec, graph, batch, seq, fused=attention == "sdpa")
    both = graph_cost(reverse(graph, _parameters(graph)).graph)
    # The backward of fused attention makes the scores again: a quarter of its two products, each.
    again = spec.layers * layer_flops(spec, batch, seq).attention // 2 * (attention == "sdpa")
    assert both.products == model_flops(spec, batch, seq) + again


@pytest.mark.parametrize("experts", ["batched_mm", swept("grouped_mm")])
def test_experts_count_the_tokens_that_they_work_on_however_they_are_computed(
    experts: str,
) -> None:
    spec = ModelSpec.parse(
        "mixtral-8x7b:layers=1,hidden=64,heads=4,kv_heads=2,head=16,ffn=96,vocab=50"
    )
    with META:
        model = _mixtral(spec, 0.0, "sdpa")
        model.config._experts_implementation = experts
        ids = torch.zeros(2, 16, dtype=torch.long)
    graph = tw.capture(model.to(torch.bfloat16), ids).graph
    assert graph_cost(graph).products == forward_flops(spec, 2, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gpt2-xl:dropout=no", "llama-2-7b", "mistral-7b", "mixtral-8x7b", "llama-2-70b"]
)
def test_a_captured_model_of_real_size_costs_what_its_specification_says(name: str) -> None:
    spec = ModelSpec.parse(name)
    _agrees(spec, _captured(spec, 1, 1024, "sdpa"), 1, 1024, fused=True)


def test_a_multilayer_perceptron_keeps_what_its_products_and_kinks_read() -> None:
    net = nn.Sequential(nn.Linear(8, 16, device=META), nn.Tanh(), nn.Linear(16, 4, device=META))
    graph = tw.capture(net, torch.empty(32, 8, device=META)).graph
    kept = activations(graph, _parameters(graph))
    # The input is an input; tanh's result is what its gradient and the second product read.
    assert [(value.type.shape, size) for value, size in kept] == [((32, 16), 32 * 16 * 4)]
    assert math.prod(kept[0][0].type.shape) * 4 == kept[0][1]
