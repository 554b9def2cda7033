"""Models by their numbers: texts that print and parse, names, and foreign configuration files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.errors import ModelSpecError
from tilewright.cost import ModelSpec, model_names, parameters, specify

Golden = Callable[[str, str], None]


@st.composite
def _specs(draw: st.DrawFn) -> ModelSpec:
    kv, shared = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    settings: dict[str, int | bool | str] = {
        "layers": draw(st.integers(1, 200)),
        "heads": kv * shared,
        "hidden": kv * shared * draw(st.integers(1, 256)),
        "vocab": draw(st.integers(1, 300_000)),
    }
    if draw(st.booleans()):
        settings |= {"kv_heads": kv, "head": draw(st.integers(1, 256))}
    for switch in ("tied", "gated", "bias", "learned", "dropout"):
        if draw(st.booleans()):
            settings[switch] = draw(st.booleans())
    return specify(draw(st.sampled_from(["gpt", "llama", "moe"])), settings)


@given(_specs())
def test_a_model_is_read_as_it_was_printed(spec: ModelSpec) -> None:
    assert ModelSpec.parse(str(spec)) == spec


def test_a_width_that_is_no_whole_heads_prints_its_head() -> None:
    text = "gpt:layers=2,hidden=10,heads=3,vocab=5,head=3"
    assert str(ModelSpec.parse(text)) == text


@pytest.mark.parametrize("name", model_names())
def test_a_name_stands_for_a_text(name: str) -> None:
    spec = ModelSpec.parse(name)
    assert ModelSpec.parse(str(spec)) == spec


def test_a_number_behind_a_name_is_said_anew_and_others_follow() -> None:
    small = ModelSpec.parse("gpt3-175b:hidden=6144,vocab=51200")
    assert (small.hidden, small.ffn, small.head, small.vocab) == (6144, 24576, 64, 51200)
    assert small.layers == 96


# The sizes that give the models their names.
@pytest.mark.parametrize(
    ("name", "count", "unit"),
    [
        ("gpt2", 124_439_808, 1),
        ("gpt2-medium", 354_823_168, 1),
        ("gpt2-large", 774_030_080, 1),
        ("gpt2-xl", 1_557_611_200, 1),
        ("gpt3-175b", 174.6, 1e9),
        ("megatron-1.7b", 1.7, 1e9),
        ("megatron-3.6b", 3.6, 1e9),
        ("megatron-7.5b", 7.5, 1e9),
        ("megatron-18.4b", 18.4, 1e9),
        ("megatron-39.1b", 39.1, 1e9),
        ("megatron-76.1b", 76.1, 1e9),
        ("megatron-145.6b", 145.6, 1e9),
        ("megatron-310.1b", 310.1, 1e9),
        ("megatron-530b", 529.6, 1e9),
        ("megatron-1t", 1008.0, 1e9),
        ("llama-2-7b", 6_738_415_616, 1),
        ("llama-2-13b", 13_015_864_320, 1),
        ("llama-2-70b", 68_976_648_192, 1),
        ("llama-3-8b", 8_030_261_248, 1),
        ("llama-3-70b", 70_553_706_496, 1),
        ("mistral-7b", 7_241_732_096, 1),
        ("mixtral-8x7b", 46_702_792_704, 1),
    ],
)
def test_a_model_has_the_parameters_that_it_is_known_for(
    name: str, count: float, unit: float
) -> None:
    found = parameters(ModelSpec.parse(name)) / unit
    assert found == count if unit == 1 else round(found, 1) == count


REFUSED = {
    "unknown_model": "gpt3-174b",
    "unknown_number": "llama:layers=2,hiden=3",
    "missing_numbers": "gpt:layers=2",
    "no_layers": "gpt:layers=0,hidden=8,heads=2,vocab=5",
    "uneven_heads": "gpt:layers=2,hidden=10,heads=3,vocab=5",
    "uneven_keys": "llama:layers=2,hidden=12,heads=4,vocab=5,kv_heads=3",
    "too_many_experts": "moe:layers=2,hidden=8,heads=2,vocab=5,experts=2,top_k=3",
    "a_strange_answer": "gpt3-175b:tied=maybe",
    "said_twice": "gpt:layers=2,layers=3",
    "more_behind_it": "gpt3-175b x 8",
    "too_large": "gpt:layers=99999999999999999999,hidden=8,heads=2,vocab=5",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_is_no_model_is_refused(name: str, golden: Golden) -> None:
    with pytest.raises(ModelSpecError) as caught:
        ModelSpec.parse(REFUSED[name])
    golden(f"model_{name}.txt", str(caught.value))


@given(st.text(alphabet="gpt3:-175b,=layershidnvoc0\n ", max_size=60))
def test_any_text_is_a_model_or_refused(text: str) -> None:
    try:
        spec = ModelSpec.parse(text)
    except ModelSpecError:
        return
    assert ModelSpec.parse(str(spec)) == spec


# ------------------------------------------------------------------------- configurations of others

GPT2 = {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_inner": None}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
}
MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 56,
    "hidden_size": 6144,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "intermediate_size": 16384,
    "max_position_embeddings": 65536,
}


@pytest.mark.parametrize(
    ("config", "name"), [(GPT2, "gpt2-xl"), (LLAMA, "llama-2-70b"), (MIXTRAL, "mixtral-8x22b")]
)
def test_a_configuration_of_hugging_face_is_the_model_of_its_name(
    config: dict[str, object], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert ModelSpec.parse(str(path)) == ModelSpec.parse(name)


CONFIGURATIONS: dict[str, bytes] = {
    "truncated": json.dumps(LLAMA).encode()[:60],
    "of_no_object": b"[1, 2]",
    "of_another_kind": b'{"model_type": "lama"}',
    "without_a_kind": b'{"n_layer": 3}',
    "with_nothing": json.dumps(LLAMA | {"hidden_size": None}).encode(),
    "with_a_text": json.dumps(LLAMA | {"hidden_size": "8192"}).encode(),
    "with_a_truth": json.dumps(LLAMA | {"num_hidden_layers": True}).encode(),
    "with_a_fraction": json.dumps(LLAMA | {"vocab_size": 1.5}).encode(),
    "with_a_huge_number": json.dumps(LLAMA | {"vocab_size": 10**4000}).encode(),
    "with_a_negative": json.dumps(LLAMA | {"hidden_size": -4}).encode(),
    "with_biases": json.dumps(LLAMA | {"attention_bias": True}).encode(),
    "in_another_encoding": b"\xff\xfe{}",
    "nested_for_ever": b"[" * 200_000,
    "that_is_huge": b" " * (1 << 21),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_that_is_no_model_is_refused(
    name: str, tmp_path: Path, golden: Golden
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(CONFIGURATIONS[name])
    with pytest.raises(ModelSpecError) as caught:
        ModelSpec.parse(str(path))
    golden(f"config_{name}.txt", str(caught.value))


def test_a_configuration_that_is_not_there_is_refused(golden: Golden) -> None:
    with pytest.raises(ModelSpecError) as caught:
        ModelSpec.parse("nowhere/config.json")
    golden("config_that_is_not_there.txt", str(caught.value))
