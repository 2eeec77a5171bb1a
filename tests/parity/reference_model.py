"""A tiny random DiffusionGemma made and saved by Transformers, with every branch of the architecture on.

Both kinds of layers, a window (8) shorter than most prompts, 2 of 8 experts, a soft cap that bites, norms whose epsilon
shows and whose weights are not 1, tied weights, and different layer scalars for the two phases.
"""

import torch
from torch import Tensor
from transformers import DiffusionGemmaConfig

SLIDING, FULL = "sliding_attention", "full_attention"
VISION = {
    "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 16,
    "position_embedding_size": 8,
}  # fmt: skip


def reference_config(canvas_length: int = 16) -> DiffusionGemmaConfig:
    text = {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 24,
        "num_hidden_layers": 6, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL], "sliding_window": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "head_dim": 16,
        "global_head_dim": 32, "num_experts": 8, "top_k_experts": 2, "final_logit_softcapping": 2.0,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-2, "use_bidirectional_attention": "vision",
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 100.0},
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000.0},
        },
    }  # fmt: skip
    marks = {"boi_token_id": 125, "image_token_id": 126, "eoi_token_id": 127}
    return DiffusionGemmaConfig(text_config=text, vision_config=VISION, canvas_length=canvas_length, **marks)


def wide_config() -> DiffusionGemmaConfig:
    """Layers and vocabulary of the 26B model, but only six layers: one period of its pattern."""
    text = {
        "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704, "num_hidden_layers": 6,
        "layer_types": [*[SLIDING] * 5, FULL], "sliding_window": 1024, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512,
        "num_experts": 128, "top_k_experts": 8, "max_position_embeddings": 262144,
        "use_bidirectional_attention": "vision",
    }  # fmt: skip
    return DiffusionGemmaConfig(text_config=text, vision_config=VISION)


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Give every tensor of a Transformers model values that no default hides behind."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)

    def normal(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator, device=device)

    for name, tensor in model.state_dict().items():
        if name.endswith("layer_scalar"):
            tensor.copy_(0.8 + 0.1 * normal(tensor))
        elif name.endswith(("q_norm.weight", "k_norm.weight")):  # the attention scores have no other scale
            tensor.copy_((1.2 + 0.2 * normal(tensor)) * tensor.shape[0] ** -0.25)
        elif name.endswith(("norm.weight", "scale")) or "layernorm" in name:
            tensor.copy_(1.0 + 0.2 * normal(tensor))
        elif name.endswith("router.proj.weight"):
            tensor.copy_(normal(tensor))
        elif tensor.dim() >= 2:
            tensor.copy_(normal(tensor) * tensor.shape[-1] ** -0.5)
