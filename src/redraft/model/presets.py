"""Named shapes. A preset is only a `ModelConfig`, without weights."""

from __future__ import annotations

from typing import Any

from redraft.config import FULL, SLIDING, ModelConfig
from redraft.errors import SettingError, one_of


def preset(name: str) -> ModelConfig:
    """The shape of `26b-a4b`, `tiny` or `nano`. Raises `SettingError` for other names."""
    if name not in PRESETS:
        raise SettingError(f"preset is {name!r}; it must be {one_of(PRESETS)}.")
    return PRESETS[name]


def _files_extra(vision: dict[str, Any], begin_image: int, image: int, end_image: int) -> dict[str, Any]:
    """What config.json holds besides the text model; Transformers always builds a vision tower."""
    return {
        "boi_token_id": begin_image, "image_token_id": image, "eoi_token_id": end_image,
        "vision_config": {"model_type": "gemma4_vision", **vision},
    }  # fmt: skip


# One narrow layer: there is no vision in a text-only model, and Transformers' default tower is larger than the model.
_NO_VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 16, "position_embedding_size": 16,
}  # fmt: skip

_VISION_26B = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "head_dim": 72, "global_head_dim": 72, "patch_size": 16, "pooling_kernel_size": 3,
    "position_embedding_size": 10240, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "standardize": True,
    "use_clipped_linears": False, "hidden_activation": "gelu_pytorch_tanh", "default_output_length": 280,
}  # fmt: skip

PRESETS: dict[str, ModelConfig] = {
    # google/diffusiongemma-26B-A4B-it
    "26b-a4b": ModelConfig(
        vocab_size=262_144,
        hidden_size=2816,
        intermediate_size=2112,
        moe_intermediate_size=704,
        num_experts=128,
        top_k_experts=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        head_dim=256,
        global_head_dim=512,
        layer_types=((SLIDING,) * 5 + (FULL,)) * 5,
        sliding_window=1024,
        max_position_embeddings=262_144,
        canvas_length=256,
        eos_token_id=(1, 106),
        extra=_files_extra(_VISION_26B, 255_999, 258_880, 258_882),
    ),
    # The embedded model.
    "tiny": ModelConfig(
        vocab_size=16_384,
        hidden_size=384,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_experts=16,
        top_k_experts=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_global_key_value_heads=1,
        head_dim=64,
        global_head_dim=128,
        layer_types=((SLIDING,) * 2 + (FULL,)) * 3,
        sliding_window=512,
        max_position_embeddings=4096,
        canvas_length=128,
        eos_token_id=(1, 16),
        extra=_files_extra(_NO_VISION, 17, 19, 20),
    ),
    # Small enough for tests, with every branch of the large model.
    "nano": ModelConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_experts=4,
        top_k_experts=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_global_key_value_heads=1,
        head_dim=16,
        global_head_dim=32,
        layer_types=(SLIDING, SLIDING, FULL),
        sliding_window=8,
        max_position_embeddings=512,
        canvas_length=16,
        eos_token_id=(1, 16),
        extra=_files_extra(_NO_VISION, 17, 19, 20),
    ),
}
