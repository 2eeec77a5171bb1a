"""GGUF files for tests, written with llama.cpp's own package from a model folder."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from redraft.model.checkpoint import Checkpoint
from redraft.model.gguf.names import to_hugging_face as from_gguf
from redraft.model.names import to_hugging_face

NO_DIVISOR = 1e30
"""What llama.cpp's conversion writes for pairs that are not rotated."""
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
          "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,)}  # fmt: skip
"""Where the scales in half precision are in a block."""
_OUTSIDE = ("token_embd", "output_norm", "self_cond_pre_norm", "self_cond_gate", "self_cond_up", "self_cond_down")
_BLOCK = ("attn_norm", "attn_q", "attn_q_norm", "attn_k", "attn_k_norm", "attn_v", "attn_output", "post_attention_norm",
          "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp", "ffn_gate_inp.scale", "ffn_gate_up_exps",
          "ffn_down_exps", "ffn_down_exps.scale", "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2",
          "post_ffw_norm", "layer_output_scale", "enc_layer_output_scale")  # fmt: skip


def names_of(layers: int) -> list[str]:
    """The names of all tensors of a file, without a value projection or with one."""
    inside = [f"blk.{layer}.{part}" for layer in range(layers) for part in _BLOCK]
    return [name if name.endswith(".scale") else f"{name}.weight" for name in (*_OUTSIDE, *inside)]


def write_gguf(
    folder: Path,
    file: Path,
    *,
    type: Callable[[str], str] = lambda name: "F32",
    tokens: Mapping[str, int] | None = None,
    merges: tuple[str, ...] = (),
    keys: Mapping[str, Any] | None = None,
    renamed: Mapping[str, str] | None = None,
    left_out: tuple[str, ...] = (),
    architecture: str = "diffusion-gemma",
) -> dict[str, Tensor]:
    """Write the weights of a folder, matrices in the type that `type` says for a name in the file.

    `tokens` are those of the vocabulary with their types, by default made up; `keys` are added to the metadata or
    replace it, or are left out if None; `renamed` tensors have another name. Returns the numbers that the file holds,
    by our names.
    """
    checkpoint = Checkpoint(folder)
    ours = {to_hugging_face(name): name for name in checkpoint.shapes}
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in (_metadata(checkpoint, folder, tokens, merges) | dict(keys or {})).items():
        if value is not None:
            _add(writer, key, value)
    rotated = int(checkpoint.config.partial_rotary_factor * checkpoint.config.global_head_dim // 2)
    divisors = np.full(checkpoint.config.global_head_dim // 2, NO_DIVISOR, np.float32)
    divisors[:rotated] = 1
    held = dict[str, Tensor]()
    for name in names_of(checkpoint.config.num_hidden_layers):
        wanted = ours.get(from_gguf(name) or "")
        if wanted is None or name in left_out:
            continue
        weight = checkpoint.weight(wanted)
        assert isinstance(weight, Tensor)
        kind = gguf.GGMLQuantizationType[type(name) if weight.ndim > 1 else "F32"]
        codes = _encoded(weight.float().numpy(), kind)
        writer.add_tensor((renamed or {}).get(name, name), codes, raw_dtype=kind)
        held[wanted] = torch.from_numpy(gguf.dequantize(codes, kind).reshape(weight.shape).copy())
    writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def _encoded(weight: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The codes of a matrix; made up, with small scales, for types that the package can decode only."""
    try:
        return gguf.quantize(weight, kind)
    except NotImplementedError:
        count = weight.size // gguf.GGML_QUANT_SIZES[kind][0]
        return made_up_blocks(kind.name, count, 1e-4, seed=weight.size).reshape(*weight.shape[:-1], -1)


def made_up_blocks(type: str, count: int, scale: float | None, seed: int) -> np.ndarray:
    """Random bytes [count,bytes] of a quantized type, in which all scales in half precision are this one, or random."""
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    blocks = np.random.default_rng(seed).integers(0, 256, (count, size), dtype=np.uint8)
    for place in HALVES[type] if scale is not None else ():
        blocks[:, place : place + 2] = np.array([scale], np.float16).view(np.uint8)
    return blocks


def _metadata(
    checkpoint: Checkpoint, folder: Path, tokens: Mapping[str, int] | None, merges: tuple[str, ...]
) -> dict[str, Any]:
    config, layers = checkpoint.config, range(checkpoint.config.num_hidden_layers)
    names = [f"<unused{id}>" for id in range(config.vocab_size - 1)]
    tokens = tokens or dict.fromkeys([*names, names[0] + names[1]], 1)
    of_model = {
        "block_count": len(layers),
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_count": config.num_experts,
        "expert_used_count": config.top_k_experts,
        "final_logit_softcapping": config.final_logit_softcapping,
        "embedding_length_per_layer_input": 0,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": [config.layer_kv_heads(layer) for layer in layers],
        "attention.key_length": config.global_head_dim,
        "attention.value_length": config.global_head_dim,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [config.is_sliding(layer) for layer in layers],
        "attention.shared_kv_layers": 0,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.causal": False,
        "rope.freq_base": config.global_rope_theta,
        "rope.freq_base_swa": config.rope_theta,
        "rope.dimension_count": config.global_head_dim,
        "rope.dimension_count_swa": config.head_dim,
    }
    sampling = json.loads((folder / "generation_config.json").read_text())
    return {f"diffusion-gemma.{name}": value for name, value in of_model.items()} | {
        "diffusion.canvas_length": config.canvas_length,
        "diffusion.eb_max_steps": sampling.get("max_denoising_steps"),
        "diffusion.eb_t_min": sampling.get("t_min"),
        "diffusion.eb_t_max": sampling.get("t_max"),
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": list(tokens.values()),
        "tokenizer.ggml.merges": list(merges) or [_some_merge(tokens)],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _some_merge(tokens: Mapping[str, int]) -> str:
    """One that the tokens allow; the package writes no empty list."""
    halves = ((token[:place], token[place:]) for token in tokens for place in range(1, len(token)))
    return " ".join(next(pair for pair in halves if tokens.keys() >= {*pair}))


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
