"""What a GGUF file calls the tensors that a model folder has under Hugging Face's names."""

from __future__ import annotations

import re

from redraft.model.names import DECODER, ENCODER, TABLE

ROPE = "rope_freqs.weight"
"""By what the angles of full layers are divided; part of the config here."""

_WHOLE = {
    "token_embd.weight": TABLE["embedding.weight"],
    "output.weight": "lm_head.weight",
    "output_norm.weight": TABLE["norm.weight"],
    "self_cond_pre_norm.weight": TABLE["self_conditioning.pre_norm.weight"],
    "self_cond_norm.weight": TABLE["self_conditioning.pre_norm.weight"],  # so in one of the two conversions
    "self_cond_gate.weight": TABLE["self_conditioning.gate_proj.weight"],
    "self_cond_up.weight": TABLE["self_conditioning.up_proj.weight"],
    "self_cond_down.weight": TABLE["self_conditioning.down_proj.weight"],
}
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "layer_output_scale.weight": "layer_scalar",
}
_ENCODER_SCALE = "enc_layer_output_scale.weight"
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


def to_hugging_face(name: str) -> str | None:
    """The name in a folder of one of the file's tensors; None for one that is no weight.

    A name that is not known stays as it is: as a tensor that is not expected, it is then reported.
    """
    if name == ROPE:
        return None
    match = _BLOCK.fullmatch(name)
    if match is None:
        return _WHOLE.get(name, name)
    layer, part = match[1], match[2]
    if part == _ENCODER_SCALE:
        return f"{ENCODER}layers.{layer}.layer_scalar"
    return f"{DECODER}layers.{layer}.{_LAYER[part]}" if part in _LAYER else name
