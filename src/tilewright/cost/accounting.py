"""Parameters, operations and efficiency of a language model, in closed form.

The idea: a block is four products around one attention; each count is their shapes multiplied out.
A multiplication and an addition are two operations; only products are counted, and attention over
the whole square of the sequence, causal or not (the field's convention: Narayanan et al. 2021,
Korthikanti et al. 2022, Chowdhery et al. 2022).

  forward of a dense GPT     b s (24 h^2 + 4 s h) a layer, 2 b s h V for the head
  a step                     72 B s L h^2 (1 + s/6h + V/12Lh)
  with full recomputation    96 B s L h^2 (1 + s/6h + V/16Lh)

This module does not know bytes (`memory`), seconds, or graphs.
"""

from dataclasses import dataclass

from tilewright.base.errors import ModelSpecError, OptionError
from tilewright.cost.model_spec import ModelSpec

RECOMPUTE = ("none", "selective", "full")
SECONDS_PER_DAY = 86400


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one block.

    matrices: of the four products.  vectors: biases and norms.  router: of the choice of experts.
    """

    matrices: int
    vectors: int
    router: int

    @property
    def total(self) -> int:
        return self.matrices + self.vectors + self.router


@dataclass(frozen=True, slots=True)
class Flops:
    """Operations of one forward pass of one block.

    projections: to queries, keys and values and back.  attention: scores, and their average of
    values.  ffn: of the experts that work, where there are some.  router: the choice of them.
    """

    projections: int
    attention: int
    ffn: int
    router: int

    @property
    def total(self) -> int:
        return self.projections + self.attention + self.ffn + self.router


# -------------------------------------------------------------------------------------- parameters


def layer_parameters(spec: ModelSpec, *, tensor: int = 1, expert: int = 1) -> LayerParameters:
    """Return the parameters of one block that one rank holds.

    tensor: ranks that share each matrix; biases of their results, norms and the router are whole on
    each of them.  Where there are more ranks than heads of keys and values, these are repeated.
    expert: ranks that share the experts.
    """
    width, inner, kv = _split_widths(spec, tensor)
    experts = split_evenly(spec.experts, expert, "experts") if spec.experts else 1
    up = 2 if spec.gated else 1
    feed = (up + 1) * spec.hidden * inner
    bias = (width + 2 * kv + spec.hidden) + experts * (up * inner + spec.hidden)
    return LayerParameters(
        matrices=spec.hidden * (2 * width + 2 * kv) + experts * feed,
        vectors=2 * norm_parameters(spec) + (bias if spec.bias else 0),
        router=spec.hidden * spec.experts,
    )


def expert_parameters(spec: ModelSpec, *, tensor: int = 1, expert: int = 1) -> int:
    """Return the parameters of one block's experts that one rank holds, part of its layer's; 0
    where there are no experts.  tensor, expert: as for a layer."""
    if not spec.experts:
        return 0
    inner = _split_widths(spec, tensor)[1]
    up = 2 if spec.gated else 1
    bias = up * inner + spec.hidden if spec.bias else 0
    each = (up + 1) * spec.hidden * inner + bias
    return split_evenly(spec.experts, expert, "experts") * each


def norm_parameters(spec: ModelSpec) -> int:
    """Return the parameters of one norm."""
    return spec.hidden * (2 if spec.norm == "layer" else 1)


def embedding_parameters(spec: ModelSpec, *, tensor: int = 1) -> int:
    """Return the parameters of the embedding that one rank holds, with learned positions.

    Rows of the vocabulary are shared by `tensor` ranks, rounded up; positions are whole on each.
    """
    rows = -(-spec.vocab // tensor)
    return spec.hidden * (rows + (spec.positions if spec.learned else 0))


def head_parameters(spec: ModelSpec, *, tensor: int = 1) -> int:
    """Return the parameters of the head, of its own or a copy of the embedding, on one rank."""
    return spec.hidden * -(-spec.vocab // tensor)


def parameters(spec: ModelSpec) -> int:
    """Return the parameters of a model, exactly; a tied head is counted once.

    For a GPT: 12 L h^2 (1 + 13/12h + (V + s)/12Lh), and 2 h of the last norm.
    """
    head = 0 if spec.tied else head_parameters(spec)
    layers = spec.layers * layer_parameters(spec).total
    return layers + embedding_parameters(spec) + norm_parameters(spec) + head


def active_parameters(spec: ModelSpec) -> int:
    """Return the parameters that work on one token: of the experts, only the chosen."""
    if not spec.experts:
        return parameters(spec)
    one = (3 if spec.gated else 2) * spec.hidden * spec.ffn
    return parameters(spec) - spec.layers * (spec.experts - spec.top_k) * one


# -------------------------------------------------------------------------------------- operations


def layer_flops(spec: ModelSpec, batch: int, seq: int) -> Flops:
    """Return the operations of one block's forward pass over batch x seq tokens.

    Raises ModelSpecError where the sequence is longer than the model's positions.
    """
    check_sequence(spec, seq)
    tokens, width = batch * seq, spec.heads * spec.head
    kv = spec.kv_heads * spec.head
    feed = (3 if spec.gated else 2) * spec.hidden * spec.ffn
    return Flops(
        projections=2 * tokens * spec.hidden * (2 * width + 2 * kv),
        attention=4 * tokens * seq * width,
        ffn=2 * tokens * feed * (spec.top_k or 1),
        router=2 * tokens * spec.hidden * spec.experts,
    )


def head_flops(spec: ModelSpec, tokens: int) -> int:
    """Return the operations of the head's forward pass."""
    return 2 * tokens * spec.hidden * spec.vocab


def forward_flops(spec: ModelSpec, batch: int, seq: int) -> int:
    """Return the operations of a forward pass; the backward has twice as many."""
    return spec.layers * layer_flops(spec, batch, seq).total + head_flops(spec, batch * seq)


def model_flops(spec: ModelSpec, batch: int, seq: int) -> int:
    """Return the operations of a step that the model asks for, forward and backward."""
    return 3 * forward_flops(spec, batch, seq)


def recomputed_flops(spec: ModelSpec, batch: int, seq: int, recompute: str) -> int:
    """Return the operations that recomputation adds to a step: of attention, or whole blocks."""
    layer = layer_flops(spec, batch, seq)
    check_recompute(recompute)
    again = {"none": 0, "selective": layer.attention, "full": layer.total}
    return spec.layers * again[recompute]


def hardware_flops(spec: ModelSpec, batch: int, seq: int, recompute: str) -> int:
    """Return the operations of a step by which a published HFU is counted.

    For selective recomputation, Korthikanti et al. count 72 B s L h^2 (1 + s/3h + V/12Lh): the
    attention's forward and backward once more, which is more than is computed again.
    """
    again = recomputed_flops(spec, batch, seq, recompute)
    return model_flops(spec, batch, seq) + again * (3 if recompute == "selective" else 1)


# -------------------------------------------------------------------------------------- efficiency


def utilization(flops: float, seconds: float, devices: int, peak: float) -> float:
    """Return the share of the devices' peak FLOP/s that `flops` in `seconds` are.

    MFU where they are the model's operations, HFU where they are the hardware's.
    """
    return flops / (seconds * devices * peak)


def tokens_per_day(batch: int, seq: int, step_seconds: float) -> float:
    """Return the tokens that are trained on in a day."""
    return batch * seq / step_seconds * SECONDS_PER_DAY


# ------------------------------------------------------------------------------------------ checks


def check_recompute(recompute: str) -> None:
    """Refuse a word that is no way to recompute."""
    if recompute not in RECOMPUTE:
        raise OptionError(
            f"there is no recomputation {recompute!r}",
            expected=f"one of {', '.join(RECOMPUTE)}",
            found=recompute,
        )


def check_sequence(spec: ModelSpec, seq: int) -> None:
    """Refuse a sequence that the table of learned positions does not reach."""
    if spec.learned and seq > spec.positions:
        raise ModelSpecError(
            "a sequence is longer than the model's positions",
            expected=f"at most {spec.positions} tokens",
            found=str(seq),
            mend=f"say positions={seq} behind the model's name",
        )


def split_evenly(count: int, ranks: int, what: str) -> int:
    """Return the share of each rank; refuse what cannot be shared evenly."""
    if count % ranks:
        raise ModelSpecError(
            f"{what} cannot be shared evenly by {ranks} ranks",
            expected=f"a divisor of {count}",
            found=str(ranks),
        )
    return count // ranks


def _split_widths(spec: ModelSpec, tensor: int) -> tuple[int, int, int]:
    """Return one rank's width of queries, of a feed-forward, and of keys (or values)."""
    heads = split_evenly(spec.heads, tensor, "heads")
    inner = split_evenly(spec.ffn, tensor, "the feed-forward")
    kv = split_evenly(spec.kv_heads, min(tensor, spec.kv_heads), "heads of keys and values")
    return heads * spec.head, inner, kv * spec.head
