"""How fast a canvas could be if nothing but its matrix products took time, at the rate measured on this machine."""

from __future__ import annotations

import time

import torch

from redraft.config import ModelConfig
from redraft.model.accounting import text_parts

_SIZE = 1024
_SECONDS, _TRIES = 1.0, 10


def run_flops(config: ModelConfig, *, prompt: int, steps: int) -> float:
    """Floating point operations of encoding `prompt` tokens and denoising one canvas for `steps` steps."""
    parts, length = {part.name: part.active for part in text_parts(config)}, config.canvas_length
    head, conditioning = config.vocab_size * config.hidden_size, parts["self-conditioning"]
    layers = sum(parts.values()) - head - conditioning
    attention = sum(_attention(config, layer, prompt, length) for layer in range(config.num_hidden_layers))
    step = 2 * length * (layers + head) + attention
    soft = 2 * length * (head + conditioning) * (steps - 1)  # made by all steps but the last, for the next one
    prefill = 2 * prompt * layers
    return steps * step + soft + prefill


def _attention(config: ModelConfig, layer: int, prompt: int, length: int) -> int:
    """Scores and weighted values of one layer's canvas over the cached tokens it keeps and itself."""
    kept = min(prompt, config.sliding_window - 1) if config.is_sliding(layer) else prompt
    return 4 * config.num_attention_heads * config.layer_head_dim(layer) * length * (kept + length)


def gemm_flops_per_second(dtype: torch.dtype = torch.float32) -> float:
    """The best rate of a square matrix product, with torch's current threads, found in a second of trying.

    There are ten tries at least: on a machine that stalls, one alone may be slow, and none fit a second.
    """
    left, right = torch.randn(_SIZE, _SIZE).to(dtype), torch.randn(_SIZE, _SIZE).to(dtype)
    out = torch.empty(_SIZE, _SIZE, dtype=dtype)
    best, tries, until = 0.0, 0, time.perf_counter() + _SECONDS
    while tries < _TRIES or time.perf_counter() < until:
        tries += 1
        started = time.perf_counter()
        torch.mm(left, right, out=out)
        best = max(best, 2 * _SIZE**3 / (time.perf_counter() - started))
    return best
