"""Small random models of many architectures, each with inputs: what the border is swept with.

The idea: one row for an architecture (its class, its sizes, its inputs); chance is taken out of all
of them (every dropout is 0), so that two runs of one model are the same function.
This module does not know what is compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]

VOCABULARY = 67


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row: the class of the model, the sizes of its configuration, and its inputs.

    inputs: an example; called with a batch and a length (or the side of a picture) another one.
    """

    model: str
    sizes: Mapping[str, Any]
    inputs: Callable[..., Inputs]
    config: str = ""
    required: bool = False

    def build(self) -> tuple[nn.Module, Inputs]:
        """Return a model with random weights and an example of its inputs."""
        import transformers

        torch.manual_seed(0)
        cls = getattr(transformers, self.model)
        kind = getattr(transformers, self.config) if self.config else cls.config_class
        config = kind(**self.sizes)
        _take_out_chance(config)
        model = cls._from_config(config)
        _spread(model)
        torch.manual_seed(1)
        return model, self.inputs()


def _take_out_chance(config: Any, depth: int = 0) -> None:
    for key, value in list(vars(config).items()):
        if isinstance(value, float) and ("drop" in key or "jitter" in key):
            setattr(config, key, 0.0)
        elif hasattr(value, "to_dict") and depth < 3:
            _take_out_chance(value, depth + 1)
    if hasattr(config, "apply_spec_augment"):
        config.apply_spec_augment = False


def _spread(model: nn.Module) -> None:
    """Move weights away from the start's zeros and ones, where errors would not be seen."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)


# ---------------------------------------------------------------------------- inputs


def ids(batch: int = 2, length: int = 10) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def tokens(batch: int = 2, length: int = 10) -> Inputs:
    return {"input_ids": ids(batch, length)}


def labelled(batch: int = 2, length: int = 10) -> Inputs:
    given = ids(batch, length)
    return {"input_ids": given, "labels": given.clone()}


def padded(batch: int = 2, length: int = 10) -> Inputs:
    """Tokens of which the first sequence has padding at its end."""
    given = ids(batch, length)
    mask = torch.ones_like(given)
    mask[0, length - length * 3 // 10 :] = 0
    return {"input_ids": given, "attention_mask": mask}


def padded_and_labelled(batch: int = 2, length: int = 10) -> Inputs:
    given = padded(batch, length)
    labels = ids(batch, length)
    labels[given["attention_mask"] == 0] = -100
    return given | {"labels": labels}


def translated(batch: int = 2, length: int = 10) -> Inputs:
    """Tokens to read, and fewer to write."""
    given, fewer = padded(batch, length), (length * 7 + 9) // 10
    return given | {"decoder_input_ids": ids(batch, fewer), "labels": ids(batch, fewer)}


def pixels(side: int = 32, batch: int = 2) -> Callable[..., Inputs]:
    def drawn(batch: int = batch, length: int = side) -> Inputs:
        return {"pixel_values": torch.randn(batch, 3, length, length)}

    return drawn


def classified(side: int = 32, batch: int = 2) -> Callable[..., Inputs]:
    def drawn(batch: int = batch, length: int = side) -> Inputs:
        labels = torch.tensor([1, 3, 0, 4, 2, 1, 3, 0][:batch])
        return {**pixels()(batch, length), "labels": labels}

    return drawn


def many_classified() -> Callable[..., Inputs]:
    """Pictures enough that the statistics of a narrow batch norm are not those of two numbers."""
    return classified(64, 4)


# ---------------------------------------------------------------------------- sizes

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GROUPED = TEXT | {"num_key_value_heads": 2}
HEADED = GROUPED | {"head_dim": 8}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 5,
}
TRANSLATION = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 1,
}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5}
EXPERTS = GROUPED | {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}


A = Architecture

REQUIRED: dict[str, Architecture] = {
    "gpt2": A("GPT2LMHeadModel", GPT, padded),
    "gpt2 with labels": A("GPT2LMHeadModel", GPT, labelled),
    "bert": A("BertForMaskedLM", TEXT, padded_and_labelled),
    "llama": A("LlamaForCausalLM", GROUPED, labelled),
    "vit": A("ViTForImageClassification", VISION, classified(16)),
    "resnet": A("ResNetForImageClassification", STAGES | {"layer_type": "basic"}, classified()),
}

TEXTS: dict[str, Architecture] = {
    # Decoders.
    "mistral": A("MistralForCausalLM", GROUPED | {"sliding_window": 4}, padded_and_labelled),
    "qwen2": A("Qwen2ForCausalLM", GROUPED, padded_and_labelled),
    "qwen3": A("Qwen3ForCausalLM", HEADED, labelled),
    "gemma": A("GemmaForCausalLM", HEADED, labelled),
    "gemma2": A("Gemma2ForCausalLM", HEADED | {"sliding_window": 4}, padded_and_labelled),
    "gemma3": A("Gemma3ForCausalLM", HEADED | {"sliding_window": 4}, labelled, "Gemma3TextConfig"),
    "phi": A("PhiForCausalLM", TEXT, padded_and_labelled),
    "phi3": A("Phi3ForCausalLM", GROUPED, labelled),
    "gpt_neox": A("GPTNeoXForCausalLM", TEXT, padded_and_labelled),
    "gpt_neo": A(
        "GPTNeoForCausalLM",
        TEXT | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
        labelled,
    ),
    "gptj": A("GPTJForCausalLM", GPT | {"rotary_dim": 4}, labelled),
    "gpt_bigcode": A("GPTBigCodeForCausalLM", GPT, labelled),
    "codegen": A("CodeGenForCausalLM", GPT | {"rotary_dim": 4}, labelled),
    "opt": A("OPTForCausalLM", TEXT | {"ffn_dim": 48, "word_embed_proj_dim": 32}, padded),
    "bloom": A("BloomForCausalLM", TEXT | {"n_layer": 2, "n_head": 4}, padded_and_labelled),
    "falcon": A("FalconForCausalLM", TEXT | {"alibi": True}, padded_and_labelled),
    "mpt": A("MptForCausalLM", {**TEXT, "d_model": 32, "n_heads": 4, "n_layers": 2}, labelled),
    "stablelm": A("StableLmForCausalLM", GROUPED, labelled),
    "starcoder2": A("Starcoder2ForCausalLM", GROUPED, labelled),
    "olmo": A("OlmoForCausalLM", GROUPED, labelled),
    "olmo2": A("Olmo2ForCausalLM", GROUPED, labelled),
    "granite": A("GraniteForCausalLM", GROUPED, labelled),
    "cohere": A("CohereForCausalLM", GROUPED, labelled),
    "glm": A("GlmForCausalLM", HEADED, labelled),
    "nemotron": A("NemotronForCausalLM", GROUPED, labelled),
    "smollm3": A("SmolLM3ForCausalLM", GROUPED, labelled),
    "persimmon": A("PersimmonForCausalLM", TEXT, labelled),
    "xglm": A(
        "XGLMForCausalLM",
        TEXT | {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
        labelled,
    ),
    "biogpt": A("BioGptForCausalLM", TEXT, labelled),
    "ctrl": A("CTRLLMHeadModel", GPT | {"dff": 48}, labelled),
    "openai-gpt": A("OpenAIGPTLMHeadModel", GPT, labelled),
    "modernbert-decoder": A("ModernBertDecoderForCausalLM", TEXT, labelled),
    # Mixtures of experts, recurrences and state spaces.
    "mixtral": A("MixtralForCausalLM", EXPERTS, labelled),
    "mixtral in batches": A(
        "MixtralForCausalLM", EXPERTS | {"experts_implementation": "batched_mm"}, labelled
    ),
    "qwen2 moe": A(
        "Qwen2MoeForCausalLM", EXPERTS | {"shared_expert_intermediate_size": 24}, labelled
    ),
    "gpt-oss": A("GptOssForCausalLM", EXPERTS | {"head_dim": 8, "sliding_window": 4}, labelled),
    "switch": A("SwitchTransformersForConditionalGeneration", T5 | {"num_experts": 4}, translated),
    "mamba": A("MambaForCausalLM", TEXT | {"state_size": 4}, labelled),
    "mamba2": A(
        "Mamba2ForCausalLM",
        TEXT | {"state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
        labelled,
    ),
    "rwkv": A("RwkvForCausalLM", TEXT | {"attention_hidden_size": 32}, labelled),
    "recurrent gemma": A(
        "RecurrentGemmaForCausalLM", HEADED | {"lru_width": 32, "num_hidden_layers": 3}, labelled
    ),
    "jamba": A(
        "JambaForCausalLM",
        EXPERTS | {"use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1},
        labelled,
    ),
    # Encoders.
    "bert with tokens alone": A("BertModel", TEXT, tokens),
    "distilbert": A(
        "DistilBertForMaskedLM",
        TEXT | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        padded_and_labelled,
    ),
    "roberta": A("RobertaForMaskedLM", TEXT, padded_and_labelled),
    "albert": A("AlbertForMaskedLM", TEXT | {"embedding_size": 16}, padded_and_labelled),
    "electra": A("ElectraForMaskedLM", TEXT | {"embedding_size": 16}, padded_and_labelled),
    "deberta": A("DebertaForMaskedLM", TEXT | {"relative_attention": True}, padded),
    "deberta-v2": A(
        "DebertaV2ForMaskedLM",
        TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        padded_and_labelled,
    ),
    "mpnet": A("MPNetForMaskedLM", TEXT, padded_and_labelled),
    "xlm": A("XLMModel", TEXT | {"emb_dim": 32, "n_layers": 2, "n_heads": 4}, padded),
    "xlnet": A(
        "XLNetLMHeadModel",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_inner": 48, "n_layer": 2, "n_head": 4},
        labelled,
    ),
    "flaubert": A("FlaubertModel", TEXT | {"emb_dim": 32, "n_layers": 2, "n_heads": 4}, padded),
    "fnet": A("FNetForMaskedLM", TEXT, labelled),
    "squeezebert": A("SqueezeBertForMaskedLM", TEXT | {"embedding_size": 32}, padded),
    "mobilebert": A("MobileBertForMaskedLM", TEXT | {"embedding_size": 32}, padded),
    "convbert": A("ConvBertForMaskedLM", TEXT | {"embedding_size": 32}, padded),
    "modernbert": A("ModernBertForMaskedLM", TEXT, padded),
    "nomic-bert": A("NomicBertModel", TEXT, padded),
    "roformer": A("RoFormerForMaskedLM", TEXT | {"embedding_size": 32}, padded),
    "esm": A("EsmForMaskedLM", TEXT | {"mask_token_id": 3}, padded_and_labelled),
    "canine": A("CanineModel", TEXT | {"local_transformer_stride": 4}, tokens),
    "longformer": A("LongformerForMaskedLM", TEXT | {"attention_window": 4}, padded),
    "big bird": A("BigBirdForMaskedLM", TEXT | {"block_size": 4}, padded),
    "funnel": A(
        "FunnelModel",
        {"vocab_size": VOCABULARY, "d_model": 32, "block_sizes": [1, 1], "d_inner": 48}
        | {"n_head": 4, "d_head": 8},
        padded,
    ),
    "nystromformer": A("NystromformerForMaskedLM", TEXT, padded),
    "megatron-bert": A("MegatronBertForMaskedLM", TEXT, padded),
    "ibert": A("IBertForMaskedLM", TEXT, padded),
    "layoutlm": A("LayoutLMForMaskedLM", TEXT, padded),
    "splinter": A("SplinterModel", TEXT, padded),
    # Encoders with decoders.
    "t5": A("T5ForConditionalGeneration", T5, translated),
    "umt5": A("UMT5ForConditionalGeneration", T5, translated),
    "long t5": A("LongT5ForConditionalGeneration", T5 | {"local_radius": 4}, translated),
    "bart": A("BartForConditionalGeneration", TRANSLATION, translated),
    "mbart": A("MBartForConditionalGeneration", TRANSLATION, translated),
    "pegasus": A("PegasusForConditionalGeneration", TRANSLATION, translated),
    "marian": A("MarianMTModel", TRANSLATION, translated),
    "blenderbot": A("BlenderbotForConditionalGeneration", TRANSLATION, translated),
    "m2m100": A("M2M100ForConditionalGeneration", TRANSLATION, translated),
    "prophetnet": A(
        "ProphetNetForConditionalGeneration",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "pad_token_id": 1, "ngram": 2}
        | {"num_encoder_layers": 2, "num_decoder_layers": 2, "encoder_ffn_dim": 48}
        | {"num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4}
        | {"decoder_ffn_dim": 48, "max_position_embeddings": 64},
        translated,
    ),
    "led": A("LEDForConditionalGeneration", TRANSLATION | {"attention_window": 4}, translated),
}
