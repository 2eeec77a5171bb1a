"""How much arithmetic a training step takes, and what share of a machine's peak that is.

This counts the products with the weights that a token really uses (its own experts, not all), forward and backward, and
those with the embedding in losses and soft embeddings. It leaves out attention scores, norms and recomputation that
saves memory.
"""

from __future__ import annotations

import torch

from redraft.config import ModelConfig
from redraft.train.recipe import Recipe

PEAKS = {"H100": 989e12, "H200": 989e12, "GH200": 989e12, "A100": 312e12, "B200": 2250e12}
"""Dense bf16 products per second, by a word of the device's name (makers' data sheets)."""


def peak(device: torch.device) -> float | None:
    """The device's bf16 peak in operations per second; None if it is unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((value for word, value in PEAKS.items() if word in name), None)


def share_of_peak(recipe: Recipe, seconds: float, device: torch.device) -> float | None:
    """The share of the device's peak that a process with steps of `seconds` reaches; None if the peak is unknown."""
    ceiling = peak(device)
    return None if ceiling is None else step_flops(recipe) / seconds / ceiling


def active_parameters(config: ModelConfig) -> int:
    """Layer weights that one token is multiplied with; without the embedding."""
    width, total = config.hidden_size, 0
    for layer in range(config.num_hidden_layers):
        dim = config.layer_head_dim(layer)
        queries, keys = config.num_attention_heads * dim, config.layer_kv_heads(layer) * dim
        kv = keys * (2 if config.is_sliding(layer) else 1)
        total += width * (2 * queries + kv) + 3 * width * config.intermediate_size
        total += 3 * width * config.moe_intermediate_size * config.top_k_experts + width * config.num_experts
    return total


def step_flops(recipe: Recipe) -> float:
    """Operations of one step in one process."""
    data, objective, config = recipe.data, recipe.objective, recipe.model
    clean = data.rows * data.tokens
    canvas = data.rows * data.canvases * config.canvas_length
    conditioned = canvas * objective.self_conditioning
    # Forward, gradient of the input, and gradient of the weights, which frozen weights do not need.
    passes = 6 if recipe.lora is None else 4
    layers = active_parameters(config) * (passes * (clean + canvas) + 2 * conditioned)
    judged = canvas + (clean * objective.encoder_share if objective.encoder_weight else 0)
    # Soft embeddings take two products forward, and one for the gradient of the embedding.
    head = config.vocab_size * config.hidden_size * passes * (judged + conditioned)
    return float(layers + head) * data.accumulate
