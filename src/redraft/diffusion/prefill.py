"""Encoding whole prompts into a plain cache, in chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.model import Transformer

CHUNK = 512


@torch.inference_mode()
def prefill(model: Transformer, cache: KVCache, prompts: list[list[int]]) -> Tensor:
    """Encode prompts of any lengths; returns each one's last hidden state [B,D]."""
    final = torch.zeros(len(prompts), model.config.hidden_size, dtype=model.dtype, device=model.device)
    for start in range(0, max(map(len, prompts)), CHUNK):
        counts = [max(0, min(len(prompt) - start, CHUNK)) for prompt in prompts]
        width = max(counts)
        chunk = [(prompt[start : start + n] + [0] * (width - n)) for prompt, n in zip(prompts, counts, strict=True)]
        hidden = model.encode(torch.tensor(chunk, device=model.device), cache, counts)  # [B,T,D]
        for row, n in enumerate(counts):
            if n:
                final[row] = hidden[row, n - 1]
    return final
