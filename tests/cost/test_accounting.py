"""Parameters, operations and efficiency against the field's formulas and published figures."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from tilewright.base.errors import ModelSpecError, OptionError
from tilewright.cost import (
    ModelSpec,
    active_parameters,
    embedding_parameters,
    forward_flops,
    hardware_flops,
    head_parameters,
    layer_flops,
    layer_parameters,
    model_flops,
    model_names,
    norm_parameters,
    parameters,
    recomputed_flops,
    tokens_per_day,
    utilization,
)

Golden = Callable[[str, str], None]

GPTS = [name for name in model_names() if name.startswith(("gpt", "megatron"))]
A100 = 312e12


@pytest.mark.parametrize("name", GPTS)
def test_parameters_of_a_gpt_are_the_formula_and_the_last_norm(name: str) -> None:
    spec = ModelSpec.parse(name)
    layers, h, v, s = spec.layers, spec.hidden, spec.vocab, spec.positions
    factor = 1 + Fraction(13, 12 * h) + Fraction(v + s, 12 * layers * h)
    assert parameters(spec) == 12 * layers * h**2 * factor + 2 * h


@pytest.mark.parametrize("name", GPTS)
@pytest.mark.parametrize("seq", [128, 1024])
def test_operations_of_a_gpt_are_the_formulas(name: str, seq: int) -> None:
    spec, batch = ModelSpec.parse(name), 6
    layers, h, v = spec.layers, spec.hidden, spec.vocab
    volume = batch * seq * layers * h**2
    scores, head = Fraction(seq, h), Fraction(v, layers * h)
    assert model_flops(spec, batch, seq) == 72 * volume * (1 + scores / 6 + head / 12)
    for recompute, formula in {
        "none": 72 * volume * (1 + scores / 6 + head / 12),
        "selective": 72 * volume * (1 + scores / 3 + head / 12),
        "full": 96 * volume * (1 + scores / 6 + head / 16),
    }.items():
        assert hardware_flops(spec, batch, seq, recompute) == formula


@pytest.mark.parametrize("name", model_names())
def test_what_tensor_ranks_share_is_all_there_is(name: str) -> None:
    spec = ModelSpec.parse(name)
    whole = layer_parameters(spec)
    for ranks in (2, 4, 8):
        if spec.heads % ranks:
            continue
        part = layer_parameters(spec, tensor=ranks)
        assert part.matrices * ranks == whole.matrices
        assert part.router == whole.router
        # Biases of what is summed over ranks, and norms, are whole on each; the others are shared.
        kept = 2 * norm_parameters(spec) + (2 * spec.hidden if spec.bias else 0)
        assert (part.vectors - kept) * ranks == whole.vectors - kept
        assert head_parameters(spec, tensor=ranks) * ranks >= head_parameters(spec)
        assert embedding_parameters(spec, tensor=ranks) < embedding_parameters(spec)


def test_what_expert_ranks_share_is_all_there_is() -> None:
    spec = ModelSpec.parse("mixtral-8x7b")
    one = 3 * spec.hidden * spec.ffn
    assert layer_parameters(spec).matrices - layer_parameters(spec, expert=4).matrices == 6 * one


def test_the_parameters_that_work_are_those_of_two_experts() -> None:
    # Mixtral of Experts: 47 B parameters, of which 13 B work on each token.
    spec = ModelSpec.parse("mixtral-8x7b")
    assert round(parameters(spec) / 1e9) == 47
    assert round(active_parameters(spec) / 1e9) == 13
    dense = ModelSpec.parse("llama-2-7b")
    assert active_parameters(dense) == parameters(dense)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3-8b", "mixtral-8x7b"])
def test_operations_of_a_token_are_two_for_each_parameter_of_a_product(name: str) -> None:
    # PaLM's count: 2 N of the parameters in products, and 4 L s times the width of all heads.
    spec, seq = ModelSpec.parse(name), 512
    vectors = layer_parameters(spec).vectors
    table = embedding_parameters(spec) if not spec.tied else spec.hidden * spec.positions
    in_products = active_parameters(spec) - spec.layers * vectors - norm_parameters(spec) - table
    scores = 4 * spec.layers * seq * spec.heads * spec.head
    assert forward_flops(spec, 1, seq) == seq * (2 * in_products + scores)


def test_grouped_queries_change_projections_and_nothing_else() -> None:
    many = ModelSpec.parse("llama-2-7b")
    few = ModelSpec.parse("llama-2-7b:kv_heads=8")
    a, b = layer_flops(many, 2, 64), layer_flops(few, 2, 64)
    assert (a.attention, a.ffn, a.router) == (b.attention, b.ffn, b.router)
    assert b.projections * 8 == a.projections * 5


# -------------------------------------------------------------------------------- worked examples


def test_a_tenth_of_a_peak_for_ten_times_as_long_is_one_percent() -> None:
    assert utilization(1e12, seconds=10, devices=1, peak=1e13) == 0.01


@pytest.mark.parametrize("name", ["gpt3-175b", "megatron-1t", "llama-3-70b"])
def test_with_full_recomputation_blocks_do_three_quarters_of_the_hardwares_work(name: str) -> None:
    spec = ModelSpec.parse(name)
    again = recomputed_flops(spec, 8, 2048, "full")
    assert again * 4 == 3 * again + spec.layers * layer_flops(spec, 8, 2048).total
    # Of the whole step: the head is not computed again, so a little more than three quarters.
    mfu, hfu = model_flops(spec, 8, 2048), hardware_flops(spec, 8, 2048, "full")
    assert 0.75 < mfu / hfu < 0.76


# Korthikanti et al. 2022: model, devices, batch, seconds with sequence parallelism and selective
# recomputation, MFU and HFU in percent.
@pytest.mark.parametrize(
    ("name", "devices", "batch", "seconds", "mfu", "hfu"),
    [("megatron-22b", 8, 4, 1.10, 41.5, 43.7), ("megatron-175b", 64, 64, 13.75, 51.4, 52.8)],
)
def test_the_published_efficiency_is_that_of_the_published_times(
    name: str, devices: int, batch: int, seconds: float, mfu: float, hfu: float
) -> None:
    spec = ModelSpec.parse(name)
    model = model_flops(spec, batch, 2048)
    hardware = hardware_flops(spec, batch, 2048, "selective")
    for flops, percent in ((model, mfu), (hardware, hfu)):
        # The seconds are printed to two digits, the percentages to one.
        least = utilization(flops, seconds + 0.005, devices, A100) * 100
        most = utilization(flops, seconds - 0.005, devices, A100) * 100
        assert least <= percent + 0.05, (least, percent)
        assert percent - 0.05 <= most, (most, percent)


# Narayanan et al. 2021, table 1: devices, batch, TFLOP/s of each device, seconds that they imply.
@pytest.mark.parametrize(
    ("name", "devices", "batch", "rate", "seconds"),
    [
        ("megatron-1.7b", 32, 512, 137, 3.53),
        ("megatron-7.5b", 128, 512, 142, 3.70),
        ("megatron-39.1b", 512, 1536, 138, 14.45),
        ("megatron-145.6b", 1536, 2304, 148, 24.82),
    ],
)
def test_the_published_rates_imply_the_published_seconds(
    name: str, devices: int, batch: int, rate: float, seconds: float
) -> None:
    flops = hardware_flops(ModelSpec.parse(name), batch, 2048, "full")
    assert flops / (devices * rate * 1e12) == pytest.approx(seconds, abs=0.005)


def test_days_for_300_billion_tokens() -> None:
    # ZeRO-3 beside Megatron: 174.6 B parameters, 384 devices at 144 TFLOP/s, batch 1,536: 90 days.
    spec = ModelSpec.parse("megatron-175b")
    seconds = hardware_flops(spec, 1536, 2048, "full") / (384 * 144e12)
    assert round(300e9 / tokens_per_day(1536, 2048, seconds)) == 90


# ---------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_counted_is_refused(golden: Golden) -> None:
    spec = ModelSpec.parse("gpt2")
    told = []
    for act in (
        lambda: layer_flops(spec, 1, 2048),
        lambda: layer_parameters(spec, tensor=5),
        lambda: layer_parameters(ModelSpec.parse("mixtral-8x7b"), expert=3),
        lambda: hardware_flops(spec, 1, 8, "some"),
    ):
        with pytest.raises((ModelSpecError, OptionError)) as caught:
            act()
        told.append(f"{type(caught.value).__name__}: {caught.value}")
    golden("accounting.txt", "\n\n".join(told))
