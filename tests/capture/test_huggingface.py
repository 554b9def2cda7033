"""Hugging Face models from small random configurations: captured and replayed they are eager."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.capture.replay_backend import ReplayBackend
from tests.sweep import few
from torch import nn

transformers = pytest.importorskip("transformers")

IDS = torch.arange(24).reshape(2, 12) % 17


def _gpt2() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=16,
        vocab_size=32,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": IDS}


def _bert() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=32,
        max_position_embeddings=16,
    )
    mask = torch.ones_like(IDS)
    mask[1, 8:] = 0
    inputs = {"input_ids": IDS, "attention_mask": mask, "labels": torch.tensor([0, 1])}
    return transformers.BertForSequenceClassification(config), inputs


def _llama() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        vocab_size=32,
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": IDS, "labels": IDS}


def _mixtral() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.MixtralConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        vocab_size=32,
        num_local_experts=4,
    )
    return transformers.MixtralForCausalLM(config), {"input_ids": IDS, "labels": IDS}


def _vit() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
    )
    inputs = {"pixel_values": torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8)}
    return transformers.ViTForImageClassification(config), inputs | {"labels": torch.tensor([0, 1])}


def _resnet() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic"
    )
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    inputs = {"pixel_values": pixels, "labels": torch.tensor([0, 1])}
    return transformers.ResNetForImageClassification(config), inputs


CASES: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "gpt2": _gpt2,
    "gpt2 with labels": lambda: (_gpt2()[0], {"input_ids": IDS, "labels": IDS}),
    "bert": _bert,
    "llama": _llama,
    "mixtral": _mixtral,
    "vit": _vit,
    "resnet": _resnet,
}


@pytest.mark.parametrize("name", few(CASES, "vit", "resnet", "mixtral"))
def test_a_hugging_face_model_in_training_is_eager(name: str) -> None:
    torch.manual_seed(0)
    eager, inputs = CASES[name]()
    eager.train()
    ours = copy.deepcopy(eager)
    backend = ReplayBackend()
    torch.manual_seed(1)
    expected = eager(**inputs)
    torch.manual_seed(1)
    found = torch.compile(ours, backend=backend)(**inputs)
    assert type(found) is type(expected)
    _assert_same_outputs(found, expected)
    _loss(expected).backward()
    _loss(found).backward()
    _assert_same_gradients(ours, eager)
    for (key, theirs), mine in zip(eager.named_buffers(), ours.buffers(), strict=True):
        assert torch.equal(mine, theirs), key
    assert backend.captured


@pytest.mark.slow  # tests/models runs these through the whole compiler, in eval too
@pytest.mark.parametrize("name", few(CASES, "bert"))
def test_a_hugging_face_model_in_inference_is_eager(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = CASES[name]()
    model.eval()
    with torch.no_grad():
        expected = model(**inputs)
        found = torch.compile(model, backend=ReplayBackend())(**inputs)
    _assert_same_outputs(found, expected)


def _loss(output: Any) -> torch.Tensor:
    loss: torch.Tensor = output.loss if output.loss is not None else output.logits.square().mean()
    return loss


def _assert_same_outputs(found: Any, expected: Any) -> None:
    assert list(found.keys()) == list(expected.keys())
    for key in expected:
        if isinstance(expected[key], torch.Tensor):
            assert found[key].dtype == expected[key].dtype
            torch.testing.assert_close(found[key], expected[key], rtol=1e-5, atol=1e-6, msg=key)


def _assert_same_gradients(ours: nn.Module, eager: nn.Module) -> None:
    pairs = list(zip(eager.named_parameters(), ours.parameters(), strict=True))
    whole = sum(p.grad.square().sum() for (_, p), _ in pairs if p.grad is not None) ** 0.5
    for (key, theirs), mine in pairs:
        assert (theirs.grad is None) == (mine.grad is None), key
        if theirs.grad is not None:
            assert (mine.grad - theirs.grad).norm() <= 1e-6 * whole, key
