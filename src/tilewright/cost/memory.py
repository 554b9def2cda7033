"""Bytes of training and serving a language model: activations, state under ZeRO, KV cache.

The idea: activations are counted value by value, as Korthikanti et al. (2022) do: what the backward
of each product, norm, dropout and softmax reads, at two bytes (masks one).  Operands of products
are kept as they are; pointwise functions are computed again from what is kept beside them.

  one layer of a GPT         s b h (34 + 5 a s / h)
  tensor parallel            s b h (10 + 24/t + 5 a s / (h t))
  and sequence parallel      s b h (34/t + 5 a s / (h t))
  selective recomputation    the same without the last term
  full recomputation         2 s b h, the block's input

Each pipeline stage is counted for itself: stages differ, and the fullest decides.
This module does not know timetables: how many micro-batches are in flight comes in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.errors import ModelSpecError, OptionError
from tilewright.cost.accounting import (
    check_recompute,
    check_sequence,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    norm_parameters,
)
from tilewright.cost.model_spec import ModelSpec

HALF, FULL, MASK = 2, 4, 1  # bytes of an element: half precision, float32, a mask
# Optimizer -> how many numbers of float32 it keeps for each parameter, a master copy left out.
OPTIMIZERS = (("adam", 2), ("adamw", 2), ("momentum", 1), ("adagrad", 1), ("sgd", 0))


@dataclass(frozen=True, slots=True)
class State:
    """Bytes that stay for the whole training, on one device."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True)
class Split:
    """How a layer is shared: `tensor` ranks, their sequence too, and what is computed again.

    recompute: "none", "selective" (scores, softmax and dropout of the attention), or "full".
    fused_attention: scores are never written; only the logarithm of each row's sum is kept.
    """

    tensor: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    fused_attention: bool = False


# ------------------------------------------------------------------------------------- activations


def layer_activation_bytes(spec: ModelSpec, batch: int, seq: int, split: Split = Split()) -> float:
    """Return the bytes that one block keeps of one micro-batch for the backward, on one rank.

    With full recomputation the block's input is whole on each rank, sequence parallel or not, as
    published.
    """
    check_recompute(split.recompute)
    check_sequence(spec, seq)
    tokens = batch * seq
    if split.recompute == "full":
        return float(HALF * tokens * spec.hidden)
    t = split.tensor
    between = (_between_bytes(spec) + _dispatch_bytes(spec)) / (t if split.sequence_parallel else 1)
    return tokens * (between + _inside_bytes(spec, t) + _attention_bytes(spec, seq, split))


def _between_bytes(spec: ModelSpec) -> int:
    """Of one token, what is whole on each rank: norms' inputs and results, and masks."""
    masks = 2 * MASK if spec.dropout else 0
    return spec.hidden * (2 * HALF + 2 * HALF + masks)


def _dispatch_bytes(spec: ModelSpec) -> int:
    """Of one token, a copy for each expert that works and what it gives; the router's softmax."""
    return spec.top_k * spec.hidden * 2 * HALF + spec.experts * FULL


def _inside_bytes(spec: ModelSpec, t: int) -> float:
    """Of one token, what t ranks share: operands of attention, and of the feed-forward."""
    width, kv = spec.heads * spec.head / t, spec.kv_heads * spec.head / min(t, spec.kv_heads)
    attention = HALF * (width + 2 * kv) + HALF * width
    inner = HALF * spec.ffn / t * (3 if spec.gated else 2)
    return attention + inner * (spec.top_k or 1)


def _attention_bytes(spec: ModelSpec, seq: int, split: Split) -> float:
    """Of one token, the rows of all heads: softmax, its mask, and what is left after dropout."""
    heads = spec.heads / split.tensor
    if split.fused_attention:
        return FULL * heads
    if split.recompute == "selective":
        return 0.0
    return heads * seq * (HALF + (MASK + HALF if spec.dropout else 0))


def head_activation_bytes(spec: ModelSpec, batch: int, seq: int, *, tensor: int = 1) -> float:
    """Return the bytes of the last norm, the head and the loss (logits in float32).

    4 s b h / t (1 + V/h): published with sequence parallelism.
    """
    return batch * seq * (2 * HALF * spec.hidden + FULL * spec.vocab) / tensor


def embedding_activation_bytes(spec: ModelSpec, batch: int, seq: int, *, tensor: int = 1) -> float:
    """Return the bytes of the mask of the dropout behind the embedding: s b h / t."""
    return batch * seq * spec.hidden * MASK / tensor if spec.dropout else 0.0


def interleaving_factor(stages: int, chunks: int) -> float:
    """Return how much more the first stage keeps than without interleaving: 1 + (p - 1)/(p v).

    chunks: of layers on each device; 1 is no interleaving, and adds nothing.
    """
    return 1.0 if chunks == 1 else 1 + (stages - 1) / (stages * chunks)


# ------------------------------------------------------------------------------------------- state


def state_bytes(
    parameters: float,
    *,
    optimizer: str = "adam",
    zero: int = 0,
    data: int = 1,
    precision: int = HALF,
    main_gradients: bool = False,
) -> State:
    """Return what one of `data` ranks holds of `parameters` parameters (Rajbhandari et al. 2020).

    zero: 0 nothing is shared, 1 the optimizer's state, 2 gradients too, 3 weights too.
    precision: bytes of a weight; below 4, the optimizer keeps a master copy in float32.
    main_gradients: gradients are summed in float32 (18 bytes a parameter with Adam; 16 without).
    """
    if not 0 <= zero <= 3:
        raise OptionError(
            f"there is no ZeRO stage {zero}", expected="one of 0, 1, 2, 3", found=str(zero)
        )
    share = 1 / data
    master = FULL if precision < FULL else 0
    gradient = FULL if main_gradients else precision
    return State(
        weights=parameters * precision * (share if zero >= 3 else 1),
        gradients=parameters * gradient * (share if zero >= 2 else 1),
        optimizer=parameters * (master + FULL * _states(optimizer)) * (share if zero >= 1 else 1),
    )


def _states(optimizer: str) -> int:
    table = dict(OPTIMIZERS)
    if optimizer not in table:
        raise OptionError(
            f"there is no optimizer {optimizer!r}",
            expected=f"one of {', '.join(table)}",
            found=optimizer,
        )
    return table[optimizer]


def stage_parameters(
    spec: ModelSpec, layers: Sequence[int], *, tensor: int = 1, expert: int = 1
) -> tuple[int, ...]:
    """Return the parameters that one rank of each pipeline stage holds.

    layers: of each stage, all of the model's in sum.  The embedding is on the first stage, the last
    norm and the head on the last; where the head is tied, the last holds a copy of the embedding.
    """
    if sum(layers) != spec.layers or min(layers, default=0) < 0:
        raise ModelSpecError(
            "the stages do not hold the model's layers",
            expected=f"counts of layers that sum to {spec.layers}",
            found=" + ".join(map(str, layers)) or "no stage",
        )
    block = layer_parameters(spec, tensor=tensor, expert=expert).total
    counts = [count * block for count in layers]
    counts[0] += embedding_parameters(spec, tensor=tensor)
    counts[-1] += norm_parameters(spec)
    if not spec.tied or len(layers) > 1:
        counts[-1] += head_parameters(spec, tensor=tensor)
    return tuple(counts)


def kv_cache_bytes(spec: ModelSpec, batch: int, seq: int, *, precision: int = HALF) -> int:
    """Return the bytes of keys and values of batch x seq tokens, in all layers."""
    return 2 * spec.layers * spec.kv_heads * spec.head * batch * seq * precision


# ----------------------------------------------------------------------------------------- traffic


def parameter_server_traffic(count: int, workers: int) -> int:
    """Return what a parameter server among `workers` ranks carries: 2 N (P - 1), in what N is."""
    return 2 * count * (workers - 1)


def ring_traffic(count: int, ranks: int) -> float:
    """Return what each rank of a ring all-reduce sends: 2 N (P - 1)/P, in what N is."""
    return 2 * count * (ranks - 1) / ranks


def zero_traffic(count: int, ranks: int, *, zero: int, micro_batches: int = 1) -> float:
    """Return what each rank sends in a step, of gradients and weights, in what `count` is.

    DDP and ZeRO-1 2 N; ZeRO-2 (m + 1) N, as gradients are scattered after each of m micro-batches;
    ZeRO-3 3 m N, as weights are gathered for each forward and backward; each times (P - 1)/P.
    """
    rounds = {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[zero]
    return rounds * count * (ranks - 1) / ranks
