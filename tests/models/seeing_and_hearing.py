"""More architectures: those that take pictures, sound, series, or several of them at once.

The idea: the same rows as in `architectures`.  This module does not know what is compared.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tests.models.architectures import (
    GPT,
    REQUIRED,
    STAGES,
    TEXT,
    TEXTS,
    TRANSLATION,
    VISION,
    Architecture,
    Inputs,
    classified,
    ids,
    many_classified,
    padded,
    pixels,
    tokens,
)

A = Architecture

SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": 5,
}
SPEECH = {
    "vocab_size": 20,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}


def paired(batch: int = 2, length: int = 10) -> Inputs:
    return {**padded(batch, length), **pixels(16, batch)()}


def spoken(batch: int = 2, length: int = 400) -> Inputs:
    return {"input_values": torch.randn(batch, length)}


def spectrum(batch: int = 2, length: int = 6) -> Inputs:
    return {
        "input_features": torch.randn(batch, 8, 40),
        "decoder_input_ids": ids(batch, length),
        "labels": ids(batch, length),
    }


def series(batch: int = 2, length: int = 16) -> Inputs:
    past, future = torch.randn(batch, length, 2), torch.randn(batch, 4, 2)
    return {"past_values": past, "future_values": future}


def film(batch: int = 2, length: int = 16) -> Inputs:
    labels = torch.tensor([1, 3, 0, 4][:batch])
    return {"pixel_values": torch.randn(batch, 2, 3, length, length), "labels": labels}


def played(batch: int = 2, length: int = 4) -> Inputs:
    return {
        "states": torch.randn(batch, length, 5),
        "actions": torch.randn(batch, length, 3),
        "rewards": torch.randn(batch, length, 1),
        "returns_to_go": torch.randn(batch, length, 1),
        "timesteps": torch.arange(length).repeat(batch, 1),
        "attention_mask": torch.ones(batch, length),
    }


def _pair(text: Mapping[str, Any], vision: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"text_config": dict(text), "vision_config": dict(vision), "projection_dim": 16, **more}


VISIONS: dict[str, Architecture] = {
    "resnet of bottlenecks": A(
        "ResNetForImageClassification", STAGES | {"layer_type": "bottleneck"}, classified()
    ),
    "convnext": A("ConvNextForImageClassification", STAGES | {"num_stages": 2}, classified()),
    "convnextv2": A("ConvNextV2ForImageClassification", STAGES | {"num_stages": 2}, classified()),
    "swin": A("SwinForImageClassification", SWIN, classified()),
    "swinv2": A("Swinv2ForImageClassification", SWIN, classified()),
    "deit": A("DeiTForImageClassification", VISION, classified(16)),
    "beit": A("BeitForImageClassification", VISION | {"use_relative_position_bias": True},
              classified(16)),
    "dinov2": A("Dinov2ForImageClassification", VISION, classified(16)),
    "ijepa": A("IJepaForImageClassification", VISION, classified(16)),
    "vit msn": A("ViTMSNForImageClassification", VISION, classified(16)),
    "mobilenet v1": A("MobileNetV1ForImageClassification",
                      {"depth_multiplier": 0.125, "num_labels": 5}, many_classified()),
    "mobilenet v2": A("MobileNetV2ForImageClassification",
                      {"depth_multiplier": 0.25, "num_labels": 5}, many_classified()),
    "mobilevit": A(
        "MobileViTForImageClassification",
        {"image_size": 32, "hidden_sizes": [16, 16, 16], "num_attention_heads": 2,
         "neck_hidden_sizes": [4, 8, 8, 8, 8, 8, 8], "num_labels": 5},
        classified(),
    ),
    "regnet": A("RegNetForImageClassification",
                STAGES | {"groups_width": 4, "layer_type": "y"}, classified()),
    "efficientnet": A(
        "EfficientNetForImageClassification",
        {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320, "num_labels": 5},
        many_classified(),
    ),
    "bit": A("BitForImageClassification",
             STAGES | {"num_groups": 4, "hidden_sizes": [16, 32]}, classified()),
    "levit": A(
        "LevitForImageClassification",
        {"image_size": 64, "hidden_sizes": [16, 16, 16], "num_attention_heads": [2, 2, 2],
         "depths": [1, 1, 1], "key_dim": [8, 8, 8], "num_labels": 5},
        many_classified(),
    ),
    "segformer": A(
        "SegformerForImageClassification",
        {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
         "num_attention_heads": [1, 2, 2, 4], "num_labels": 5},
        classified(),
    ),
    "segformer of pixels": A(
        "SegformerForSemanticSegmentation",
        {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16,
         "num_attention_heads": [1, 2, 2, 4], "num_labels": 5},
        pixels(32),
    ),
    "poolformer": A(
        "PoolFormerForImageClassification",
        {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_labels": 5},
        classified(),
    ),
    "pvt": A(
        "PvtForImageClassification",
        {"image_size": 32, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
         "num_labels": 5, "num_attention_heads": [1, 2, 2, 4]},
        classified(),
    ),
    "cvt": A("CvtForImageClassification",
             {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3],
              "drop_rate": [0.0, 0.0, 0.0], "drop_path_rate": [0.0, 0.0, 0.0],
              "attention_drop_rate": [0.0, 0.0, 0.0], "num_labels": 5}, classified()),
    "focalnet": A("FocalNetForImageClassification",
                  {"image_size": 32, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_labels": 5},
                  classified()),
    "swiftformer": A(
        "SwiftFormerForImageClassification",
        {"embed_dims": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_labels": 5}, classified(),
    ),
    "hiera": A(
        "HieraForImageClassification",
        {"image_size": [32, 32], "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2],
         "masked_unit_size": [4, 4], "query_stride": [2, 2], "num_query_pool": 1,
         "num_labels": 5},
        classified(),
    ),
    "dpt": A("DPTModel", VISION, pixels(16)),
    "yolos": A("YolosModel", VISION | {"image_size": [16, 16], "num_detection_tokens": 3},
               pixels(16)),
    "vitdet": A("VitDetModel", VISION | {"window_size": 2}, pixels(16)),
    "image gpt": A("ImageGPTForCausalImageModeling", GPT, tokens),
    "vit with heads of its own": A("ViTModel", VISION | {"qkv_bias": False}, pixels(16)),
    "vit mae": A(
        "ViTMAEModel", VISION | {"mask_ratio": 0.0},
        lambda: {**pixels(16)(), "noise": torch.rand(2, 16)},
    ),
}  # fmt: skip

OTHERS: dict[str, Architecture] = {
    "clip": A("CLIPModel", _pair(TEXT, VISION), paired),
    "siglip": A("SiglipModel", _pair(TEXT | {"projection_size": 32}, VISION), paired),
    "blip text": A("BlipTextModel", TEXT | {"is_decoder": False}, padded),
    "groupvit text": A("GroupViTTextModel", TEXT, padded),
    "whisper": A(
        "WhisperForConditionalGeneration",
        TRANSLATION | {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16},
        spectrum,
    ),
    "wav2vec2": A("Wav2Vec2Model", SPEECH | {"num_feat_extract_layers": 2}, spoken),
    "wav2vec2 ctc": A(
        "Wav2Vec2ForCTC", SPEECH,
        lambda batch=2, length=400: {
            **spoken(batch, length), "labels": torch.randint(1, 20, (batch, 4)),
        },
    ),
    "hubert": A("HubertModel", SPEECH, spoken),
    "wavlm": A("WavLMModel", SPEECH, spoken),
    "sew": A("SEWModel", SPEECH | {"squeeze_factor": 2}, spoken),
    "unispeech": A("UniSpeechModel", SPEECH, spoken),
    "data2vec audio": A("Data2VecAudioModel", SPEECH, spoken),
    "ast": A(
        "ASTModel", VISION | {"max_length": 24, "num_mel_bins": 16, "frequency_stride": 4,
                              "time_stride": 4},
        lambda batch=2, length=24: {"input_values": torch.randn(batch, length, 16)},
    ),
    "patchtst": A(
        "PatchTSTForPrediction",
        {"num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4,
         "d_model": 16, "num_attention_heads": 2, "ffn_dim": 24, "num_hidden_layers": 1,
         "prediction_length": 4, "loss": "mse"},
        series,
    ),
    "patchtsmixer": A(
        "PatchTSMixerForPrediction",
        {"num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4,
         "d_model": 16, "num_layers": 1, "prediction_length": 4, "loss": "mse"},
        series,
    ),
    "timesformer": A(
        "TimesformerForVideoClassification", VISION | {"num_frames": 2},
        film,
    ),
    "videomae": A(
        "VideoMAEForVideoClassification", VISION | {"num_frames": 2, "tubelet_size": 2},
        film,
    ),
    "vilt": A(
        "ViltModel", TEXT | VISION,
        lambda batch=2, length=10: {
            **paired(batch, length), "pixel_mask": torch.ones(batch, 16, 16).long(),
        },
    ),
    "perceiver": A(
        "PerceiverForMaskedLM",
        TEXT | {"num_latents": 4, "d_latents": 16, "d_model": 16, "num_blocks": 1,
                "num_self_attends_per_block": 1, "num_self_attention_heads": 2,
                "num_cross_attention_heads": 2, "qk_channels": 16, "v_channels": 16},
        lambda batch=2, length=10: {
            "inputs": ids(batch, length), "attention_mask": torch.ones(batch, length),
        },
    ),
    "encodec": A(
        "EncodecModel", {"hidden_size": 16, "num_filters": 4, "upsampling_ratios": [2, 2],
                         "codebook_size": 8, "target_bandwidths": [24.0]},
        lambda: {"input_values": torch.randn(1, 1, 64)},
    ),
    "decision transformer": A(
        "DecisionTransformerModel",
        {"state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 1, "n_head": 2,
         "max_ep_len": 16, "action_tanh": True},
        played,
    ),
}  # fmt: skip

ALL = REQUIRED | TEXTS | VISIONS | OTHERS
