"""What the Hugging Face layout calls our tensors: one table, read in both directions.

The files store the shared stack once, under `model.decoder`. Only the layer scalars exist per phase: the decoder's
belong to `denoise`, the encoder's to `encode`. The vision tower belongs to the encoder alone.
"""

from __future__ import annotations

import re

DECODER = "model.decoder."
ENCODER = "model.encoder.language_model."
"""How the files' names of the two phases' tensors begin."""
EXPERTS = re.compile(r"layers\.\d+\.experts\.(gate_up|down)_proj")
"""Our names of experts' weights."""

# ours -> theirs; {L} is the layer number.
TABLE: dict[str, str] = {
    "embedding.weight": "model.decoder.embed_tokens.weight",
    "norm.weight": "model.decoder.norm.weight",
    "self_conditioning.pre_norm.weight": "model.decoder.self_conditioning.pre_norm.weight",
    "self_conditioning.gate_proj.weight": "model.decoder.self_conditioning.gate_proj.weight",
    "self_conditioning.up_proj.weight": "model.decoder.self_conditioning.up_proj.weight",
    "self_conditioning.down_proj.weight": "model.decoder.self_conditioning.down_proj.weight",
    "layers.{L}.attention.q_proj.weight": "model.decoder.layers.{L}.self_attn.q_proj.weight",
    "layers.{L}.attention.k_proj.weight": "model.decoder.layers.{L}.self_attn.k_proj.weight",
    "layers.{L}.attention.v_proj.weight": "model.decoder.layers.{L}.self_attn.v_proj.weight",
    "layers.{L}.attention.o_proj.weight": "model.decoder.layers.{L}.self_attn.o_proj.weight",
    "layers.{L}.attention.q_norm.weight": "model.decoder.layers.{L}.self_attn.q_norm.weight",
    "layers.{L}.attention.k_norm.weight": "model.decoder.layers.{L}.self_attn.k_norm.weight",
    "layers.{L}.mlp.gate_proj.weight": "model.decoder.layers.{L}.mlp.gate_proj.weight",
    "layers.{L}.mlp.up_proj.weight": "model.decoder.layers.{L}.mlp.up_proj.weight",
    "layers.{L}.mlp.down_proj.weight": "model.decoder.layers.{L}.mlp.down_proj.weight",
    "layers.{L}.router.proj.weight": "model.decoder.layers.{L}.router.proj.weight",
    "layers.{L}.router.scale": "model.decoder.layers.{L}.router.scale",
    "layers.{L}.router.per_expert_scale": "model.decoder.layers.{L}.router.per_expert_scale",
    "layers.{L}.experts.gate_up_proj": "model.decoder.layers.{L}.experts.gate_up_proj",
    "layers.{L}.experts.down_proj": "model.decoder.layers.{L}.experts.down_proj",
    "layers.{L}.pre_attention_norm.weight": "model.decoder.layers.{L}.input_layernorm.weight",
    "layers.{L}.post_attention_norm.weight": "model.decoder.layers.{L}.post_attention_layernorm.weight",
    "layers.{L}.pre_mlp_norm.weight": "model.decoder.layers.{L}.pre_feedforward_layernorm.weight",
    "layers.{L}.post_mlp_norm.weight": "model.decoder.layers.{L}.post_feedforward_layernorm_1.weight",
    "layers.{L}.pre_experts_norm.weight": "model.decoder.layers.{L}.pre_feedforward_layernorm_2.weight",
    "layers.{L}.post_experts_norm.weight": "model.decoder.layers.{L}.post_feedforward_layernorm_2.weight",
    "layers.{L}.post_feedforward_norm.weight": "model.decoder.layers.{L}.post_feedforward_layernorm.weight",
    "layers.{L}.denoise_scalar": "model.decoder.layers.{L}.layer_scalar",
    "layers.{L}.encode_scalar": "model.encoder.language_model.layers.{L}.layer_scalar",
    "vision.patch_proj.weight": "model.encoder.vision_tower.patch_embedder.input_proj.weight",
    "vision.positions": "model.encoder.vision_tower.patch_embedder.position_embedding_table",
    "vision.std_bias": "model.encoder.vision_tower.std_bias",
    "vision.std_scale": "model.encoder.vision_tower.std_scale",
    "vision.projection.weight": "model.encoder.embed_vision.embedding_projection.weight",
} | {
    f"vision.layers.{{L}}.{ours}.weight": f"model.encoder.vision_tower.encoder.layers.{{L}}.{theirs}.weight"
    for ours, theirs in {
        "attention.q_proj": "self_attn.q_proj.linear",
        "attention.k_proj": "self_attn.k_proj.linear",
        "attention.v_proj": "self_attn.v_proj.linear",
        "attention.o_proj": "self_attn.o_proj.linear",
        "attention.q_norm": "self_attn.q_norm",
        "attention.k_norm": "self_attn.k_norm",
        "mlp.gate_proj": "mlp.gate_proj.linear",
        "mlp.up_proj": "mlp.up_proj.linear",
        "mlp.down_proj": "mlp.down_proj.linear",
        "pre_attention_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "pre_mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    }.items()
}
_REVERSED = {theirs: ours for ours, theirs in TABLE.items()}
_LAYER = re.compile(r"layers\.(\d+)\.")
_VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")


def to_hugging_face(name: str) -> str:
    """The file's name of one of our tensors."""
    return _translate(name, TABLE) or _unknown(name)


def split_experts(name: str, count: int) -> list[tuple[str, ...]]:
    """What files that hold each expert alone call the matrices of our experts' weight `name`, without `.weight`.

    For each of `count` experts the names whose rows, joined, are its part: gate and up, or down.
    """
    prefix = to_hugging_face(name).rpartition(".")[0]
    kinds = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
    return [tuple(f"{prefix}.{expert}.{kind}" for kind in kinds) for expert in range(count)]


def from_hugging_face(name: str) -> str | None:
    """Our name of a tensor in a file, None if it is not one of ours."""
    return _translate(name, _REVERSED)


def is_vision(name: str) -> bool:
    """Whether the tensor belongs to the vision tower or its projector."""
    return name.startswith(_VISION)


def tied_to(name: str) -> str | None:
    """The tensor that is shared with this one, the head or an encoder's, and by whose name it is read; else None."""
    if name == "lm_head.weight":
        return TABLE["embedding.weight"]
    partner = name.replace(ENCODER, DECODER, 1)
    return partner if partner != name and from_hugging_face(partner) is not None else None


def _translate(name: str, table: dict[str, str]) -> str | None:
    match = _LAYER.search(name)
    if match is None:
        return table.get(name)
    found = table.get(name.replace(match[0], "layers.{L}.", 1))
    return None if found is None else found.format(L=match[1])


def _unknown(name: str) -> str:
    raise AssertionError(f"{name} is missing from the table of names")
