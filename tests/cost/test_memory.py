"""Bytes of activations, state, stages and caches against published tables and closed forms."""

from collections.abc import Callable

import pytest

from tilewright.base.errors import ModelSpecError, OptionError
from tilewright.cost import (
    ModelSpec,
    Split,
    embedding_activation_bytes,
    head_activation_bytes,
    head_parameters,
    interleaving_factor,
    kv_cache_bytes,
    layer_activation_bytes,
    layer_parameters,
    norm_parameters,
    parameter_server_traffic,
    parameters,
    ring_traffic,
    stage_parameters,
    state_bytes,
    zero_traffic,
)

Golden = Callable[[str, str], None]

GIB, GB = 2**30, 1e9


# Korthikanti et al. 2022: bytes of s b h of one layer of a GPT.
@pytest.mark.parametrize("seq", [512, 2048])
@pytest.mark.parametrize("t", [1, 2, 8])
def test_activations_of_a_layer_are_the_published_formulas(seq: int, t: int) -> None:
    spec, batch = ModelSpec.parse("megatron-175b"), 2
    sbh, scores = seq * batch * spec.hidden, 5 * spec.heads * seq / spec.hidden
    found = {
        "tensor": Split(t),
        "sequence": Split(t, sequence_parallel=True),
        "tensor, selective": Split(t, recompute="selective"),
        "sequence, selective": Split(t, sequence_parallel=True, recompute="selective"),
        "full": Split(t, recompute="full"),
    }
    formulas = {
        "tensor": sbh * (10 + 24 / t + scores / t),
        "sequence": sbh * (34 / t + scores / t),
        "tensor, selective": sbh * (10 + 24 / t),
        "sequence, selective": sbh * 34 / t,
        "full": sbh * 2,
    }
    for name, split in found.items():
        assert layer_activation_bytes(spec, batch, seq, split) == pytest.approx(
            formulas[name], rel=1e-12
        ), name


# Korthikanti et al. 2022, figure 1: GiB of the first stage.  Model, stages, chunks, micro-batch;
# state, and activations under tensor parallelism, with sequence parallelism, each with selective
# recomputation, and with full recomputation.
TABLE = [
    ("megatron-22b", 1, 1, 4, 45.5625, 59.2500, 39.5625, 29.2500, 9.5625, 4.5000),
    ("megatron-175b", 8, 3, 1, 45.5625, 66.8438, 41.4141, 37.7812, 12.3516, 5.8125),
]


@pytest.mark.parametrize(
    ("name", "stages", "chunks", "micro", "state", "plain", "sequence", "less", "both", "full"),
    TABLE,
)
def test_the_published_memory_of_the_first_stage(
    name: str, stages: int, chunks: int, micro: int, state: float,
    plain: float, sequence: float, less: float, both: float, full: float,
) -> None:  # fmt: skip
    spec, t = ModelSpec.parse(name), 8
    matrices = layer_parameters(spec, tensor=t).matrices * spec.layers // stages
    assert state_bytes(matrices, main_gradients=True).total / GIB == state
    # 1F1B: the first stage holds as many micro-batches as there are stages.
    layers = spec.layers * interleaving_factor(stages, chunks)
    for printed, split in (
        (plain, Split(t)),
        (sequence, Split(t, sequence_parallel=True)),
        (less, Split(t, recompute="selective")),
        (both, Split(t, sequence_parallel=True, recompute="selective")),
        (full, Split(t, recompute="full")),
    ):
        found = layers * layer_activation_bytes(spec, micro, 2048, split) / GIB
        assert round(found, 4) == pytest.approx(printed, abs=0.00005)


def test_the_published_shares_of_the_activations() -> None:
    # Figure 7, percent of tensor parallelism alone: sequence, selective, both, full.
    for (name, *_, plain, sequence, less, both, full), published in zip(
        TABLE, [(66.84, 49.42, 16.18, 7.64), (62.04, 56.53, 18.49, 8.71)], strict=True
    ):
        spec = ModelSpec.parse(name)
        whole = layer_activation_bytes(spec, 1, 2048, Split(8))
        splits = (
            Split(8, sequence_parallel=True),
            Split(8, recompute="selective"),
            Split(8, sequence_parallel=True, recompute="selective"),
            Split(8, recompute="full"),
        )
        for split, printed, percent in zip(
            splits, (sequence, less, both, full), published, strict=True
        ):
            share = layer_activation_bytes(spec, 1, 2048, split) / whole
            assert share == pytest.approx(printed / plain, rel=1e-5)
            # The published shares have the loss and embedding in them: up to 0.1 points.
            assert share * 100 == pytest.approx(percent, abs=0.1)


def test_what_the_first_and_the_last_stage_keep_beside_their_layers() -> None:
    spec, seq, batch, t = ModelSpec.parse("megatron-22b"), 2048, 4, 8
    sbh = seq * batch * spec.hidden
    head = head_activation_bytes(spec, batch, seq, tensor=t)
    assert head == 4 * sbh / t * (1 + spec.vocab / spec.hidden)
    assert embedding_activation_bytes(spec, batch, seq, tensor=t) == sbh / t
    assert embedding_activation_bytes(ModelSpec.parse("llama-2-7b"), batch, seq) == 0


def test_keys_and_values_that_ranks_repeat_are_kept_by_each() -> None:
    spec = ModelSpec.parse("llama-2-70b")
    sharing = [layer_activation_bytes(spec, 1, 64, Split(t)) for t in (8, 16)]
    kv = 2 * 2 * 64 * spec.head  # of one head, which both 8 and 16 ranks hold
    between = 64 * spec.hidden * 8
    assert sharing[0] - kv - between == 2 * (sharing[1] - kv - between)


def test_fused_attention_keeps_a_number_for_each_row() -> None:
    spec = ModelSpec.parse("gpt2")
    rows = 2 * 128 * spec.heads
    fused = layer_activation_bytes(spec, 2, 128, Split(fused_attention=True))
    again = layer_activation_bytes(spec, 2, 128, Split(recompute="selective"))
    assert fused - again == 4 * rows


# ------------------------------------------------------------------------------------------- state


def test_zero_holds_the_published_gigabytes() -> None:
    # Rajbhandari et al. 2020, figure 1: 7.5 B parameters on 64 devices.
    held = [state_bytes(7.5e9, zero=zero, data=64).total / GB for zero in range(4)]
    assert [round(value, 1) for value in held] == [120.0, 31.4, 16.6, 1.9]


def test_gpt3_weighs_the_published_gigabytes() -> None:
    half = state_bytes(175e9)
    whole = state_bytes(175e9, precision=4)
    assert (half.weights, whole.weights) == (350 * GB, 700 * GB)
    assert half.optimizer == 2100 * GB


@pytest.mark.parametrize(
    ("optimizer", "precision", "main", "bytes_each"),
    [
        ("adam", 2, False, 16),
        ("adam", 2, True, 18),
        ("adamw", 4, False, 16),
        ("momentum", 2, False, 12),
        ("sgd", 2, False, 8),
        ("sgd", 4, False, 8),
    ],
)
def test_each_parameter_has_its_bytes(
    optimizer: str, precision: int, main: bool, bytes_each: int
) -> None:
    state = state_bytes(1000, optimizer=optimizer, precision=precision, main_gradients=main)
    assert state.total == 1000 * bytes_each


def test_layer_boundaries_of_gpt3_hold_the_published_gigabytes() -> None:
    # 3.2 M tokens of 12,288 numbers: 78.64 GB in 16 bits.
    spec = ModelSpec.parse("gpt3-175b")
    kept = layer_activation_bytes(spec, 1, 2000, Split(recompute="full")) * 1600
    assert round(kept / GB, 2) == 78.64


def test_stages_are_counted_each_for_itself() -> None:
    spec = ModelSpec.parse("megatron-7.5b")
    block = layer_parameters(spec, tensor=4).total
    table = spec.hidden * spec.vocab // 4
    stages = stage_parameters(spec, (8, 10, 10, 8), tensor=4)
    assert stages == (
        8 * block + table + spec.hidden * spec.positions,
        10 * block,
        10 * block,
        8 * block + norm_parameters(spec) + table,
    )


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("cuts", [(1,), (1, 3), (3, 4, 1)])
def test_stages_hold_the_model_and_a_copy_of_a_tied_embedding(
    name: str, cuts: tuple[int, ...]
) -> None:
    spec = ModelSpec.parse(f"{name}:layers={sum(cuts)}")
    copy = head_parameters(spec) if spec.tied and len(cuts) > 1 else 0
    assert sum(stage_parameters(spec, cuts)) == parameters(spec) + copy


def test_the_cache_of_llama_2_is_half_a_megabyte_for_each_token() -> None:
    assert kv_cache_bytes(ModelSpec.parse("llama-2-7b"), 1, 1) == 512 * 1024
    assert kv_cache_bytes(ModelSpec.parse("llama-2-70b"), 1, 1) == 320 * 1024


# ----------------------------------------------------------------------------------------- traffic


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_carries_a_share_of_what_a_parameter_server_does(ranks: int) -> None:
    assert parameter_server_traffic(1000, ranks) == 2 * 1000 * (ranks - 1)
    assert ring_traffic(1000, ranks) * ranks == parameter_server_traffic(1000, ranks)


def test_zero_3_sends_half_as_much_again() -> None:
    plain = zero_traffic(1000, 8, zero=0)
    assert plain == ring_traffic(1000, 8) == zero_traffic(1000, 8, zero=2)
    assert zero_traffic(1000, 8, zero=3) == 1.5 * plain
    assert zero_traffic(1000, 8, zero=2, micro_batches=4) == 2.5 * plain
    assert zero_traffic(1000, 8, zero=3, micro_batches=4) == 6 * plain


# ---------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_held_is_refused(golden: Golden) -> None:
    spec = ModelSpec.parse("gpt2")
    told = []
    for act in (
        lambda: state_bytes(1, optimizer="adamm"),
        lambda: state_bytes(1, zero=4),
        lambda: stage_parameters(spec, (4, 4)),
        lambda: stage_parameters(spec, ()),
    ):
        with pytest.raises((ModelSpecError, OptionError)) as caught:
            act()
        told.append(f"{type(caught.value).__name__}: {caught.value}")
    golden("memory.txt", "\n\n".join(told))
