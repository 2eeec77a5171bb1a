"""The shape and the defaults of the model in a GGUF file, as the content of `config.json` and `generation_config.json`.

Its keys are those of llama.cpp's conversion. What a file leaves out is as in the published checkpoint.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from redraft.config import FULL, SLIDING, LayerType, ModelConfig
from redraft.errors import CheckpointError
from redraft.model.folders import check_config, naming
from redraft.model.gguf.container import ARCHITECTURE, GgufHeader
from redraft.model.gguf.names import ROPE
from redraft.model.gguf.vocabulary import TOKENS, named_ids

_UNSUPPORTED = ("attention.shared_kv_layers", "embedding_length_per_layer_input")
"""Parts of other Gemma 4 models; DiffusionGemma's files set them to 0."""
_ENDS = ("<turn|>", "<|tool_response>")
"""Tokens that end an answer besides the one that the file names."""
_DEFAULTS = {
    "max_denoising_steps": ("eb_max_steps", 48),
    "t_min": ("eb_t_min", 0.4),
    "t_max": ("eb_t_max", 0.8),
    "stability_threshold": ("eb_stability_threshold", 1),
    "confidence_threshold": ("eb_confidence_threshold", 0.005),
}
_ENTROPY_BOUND = ("eb_entropy_bound", 0.1)


def model_config(header: GgufHeader) -> ModelConfig:
    """The shape of the model, which has no vision tower. Raises `CheckpointError` naming what is missing or wrong."""
    for name in _UNSUPPORTED:
        if value := _number(header, name, 0):
            raise CheckpointError(f"{header.file} sets {ARCHITECTURE}.{name} to {value}; only 0 is supported.")
    layer_types, ids = _layer_types(header), named_ids(header)
    sliding_heads, full_heads = _kv_heads(header, layer_types)
    fields: dict[str, Any] = dict(
        vocab_size=_vocabulary(header),
        hidden_size=_number(header, "embedding_length"),
        intermediate_size=_number(header, "feed_forward_length"),
        moe_intermediate_size=_number(header, "expert_feed_forward_length"),
        num_experts=_number(header, "expert_count"),
        top_k_experts=_number(header, "expert_used_count"),
        num_attention_heads=_number(header, "attention.head_count"),
        num_key_value_heads=sliding_heads,
        num_global_key_value_heads=full_heads,
        head_dim=_head_dim(header, "_swa"),
        global_head_dim=_head_dim(header, ""),
        layer_types=layer_types,
        sliding_window=_number(header, "attention.sliding_window"),
        rope_theta=_factor(header, "rope.freq_base_swa", 1e4),
        global_rope_theta=_factor(header, "rope.freq_base", 1e6),
        partial_rotary_factor=_rotated(header),
        rms_norm_eps=_factor(header, "attention.layer_norm_rms_epsilon", 1e-6),
        final_logit_softcapping=_factor(header, "final_logit_softcapping", 30.0),
        max_position_embeddings=_number(header, "context_length"),
        canvas_length=header.value("diffusion.canvas_length", int, 256),
        bos_token_id=ids.get("bos", 2),
        eos_token_id=_ends(header),
        pad_token_id=ids.get("pad", 0),
    )
    with naming(header.file):
        config = ModelConfig(**fields)
    check_config(config, header.file)
    return config


def generation_config(header: GgufHeader) -> dict[str, Any]:
    """How the model samples. Raises `CheckpointError` for values of the wrong kind."""
    if header.value("diffusion.shift_logits", bool, False):
        raise CheckpointError(f"{header.file} sets diffusion.shift_logits; DiffusionGemma's logits are not shifted.")

    def value(name: str, default: Any) -> Any:
        return header.value(f"diffusion.{name}", type(default), default)

    return {
        **{ours: value(*theirs) for ours, theirs in _DEFAULTS.items()},
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": value(*_ENTROPY_BOUND)},
        "eos_token_id": list(_ends(header)),
    }


def _ends(header: GgufHeader) -> tuple[int, ...]:
    """The ids that end an answer."""
    tokens = header.entries(TOKENS, str)
    ends = (tokens.index(token) for token in _ENDS if token in tokens)
    return tuple(dict.fromkeys((named_ids(header).get("eos", 1), *ends)))


def _layer_types(header: GgufHeader) -> tuple[LayerType, ...]:
    count, pattern = _number(header, "block_count"), _value(header, "attention.sliding_window_pattern", list)
    if count != len(pattern):
        raise CheckpointError(f"{header.file} has {count} layers and says of {len(pattern)} which slide.")
    return tuple(SLIDING if slides else FULL for slides in pattern)


def _kv_heads(header: GgufHeader, layer_types: tuple[LayerType, ...]) -> tuple[int, int]:
    """The key/value heads of a sliding and of a full layer."""
    given = header.metadata.get(f"{ARCHITECTURE}.attention.head_count_kv")
    counts = [given] * len(layer_types) if type(given) is int else _value(header, "attention.head_count_kv", list)
    found = {kind: {n for n, layer in zip(counts, layer_types, strict=False) if layer == kind} for kind in layer_types}
    if len(counts) != len(layer_types) or any(len(heads) != 1 for heads in found.values()):
        raise CheckpointError(f"{header.file} must give the same head_count_kv to all layers of a kind.")
    (full,) = found.get(FULL, counts[:1])
    (sliding,) = found.get(SLIDING, [full])
    return sliding, full


def _head_dim(header: GgufHeader, kind: str) -> int:
    """The size of a head, of keys as of values, all of which RoPE covers."""
    names = (f"attention.key_length{kind}", f"attention.value_length{kind}", f"rope.dimension_count{kind}")
    size, *others = (_number(header, name) for name in names)
    if any(other != size for other in others):
        raise CheckpointError(f"{header.file} must set {', '.join(names)} to the same number.")
    return size


def _vocabulary(header: GgufHeader) -> int:
    table = header.tensors.get("token_embd.weight")
    return len(header.entries(TOKENS, str)) if table is None else table.shape[0]


def _rotated(header: GgufHeader) -> float:
    """The part of the pairs that full layers rotate: those whose angles are divided by 1, not by a huge number."""
    tensor = header.tensors.get(ROPE)
    if tensor is None or tensor.type != "F32":
        raise CheckpointError(f"{header.file} has no {ROPE} in F32, which says what part of a head is rotated.")
    divisors = np.fromfile(header.file, "<f4", (tensor.end - tensor.start) // 4, offset=tensor.start)
    rotated = int((divisors == 1).sum())
    if not len(divisors) or not (divisors[:rotated] == 1).all() or not (divisors[rotated:] > 1e9).all():
        raise CheckpointError(f"{ROPE} in {header.file} must be 1 for the first pairs and huge for the others.")
    return rotated / len(divisors)


def _number(header: GgufHeader, name: str, default: int | None = None) -> int:
    return _value(header, name, int, default)


def _factor(header: GgufHeader, name: str, default: float) -> float:
    return _value(header, name, float, default)


def _value(header: GgufHeader, name: str, kind: type, default: Any = None) -> Any:
    return header.value(f"{ARCHITECTURE}.{name}", kind, default)
