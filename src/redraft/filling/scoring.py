"""How likely a finished filling is, by the causal pass: the one measure that is comparable across lengths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.diffusion.sampler import rows_at_once
from redraft.model import Model


@torch.inference_mode()
def causal_scores(
    model: Model, cache: KVCache, last_hidden: Tensor, texts: Sequence[Sequence[int]]
) -> list[list[float]]:
    """log p of every token of texts (B lists of ids) after the cached context, by the causal pass, in nats.

    `last_hidden` [B,D] is the hidden state of each context's last token. The cache is extended.
    """
    counts = [len(text) for text in texts]
    rows = [[*text, *[0] * (max(counts) - len(text))] for text in texts]
    tokens = torch.tensor(rows, device=model.device)  # [B,T]
    hidden = model.encode(tokens, cache, counts)  # [B,T,D]
    before = torch.cat((last_hidden[:, None], hidden[:, :-1]), 1)
    real = torch.arange(tokens.shape[1])[None] < torch.tensor(counts)[:, None]
    before, tokens = before[real.to(before.device)], tokens[real.to(before.device)]  # [N,D], [N]
    size = rows_at_once(model)
    logprobs = [_logprobs(model, *part) for part in zip(before.split(size), tokens.split(size), strict=True)]
    return [row.tolist() for row in torch.cat(logprobs).cpu().split(counts)]


def _logprobs(model: Model, before: Tensor, tokens: Tensor) -> Tensor:
    """log p [N] of tokens [N] after hidden states [N,D]."""
    logits = model.logits(before)  # [N,V]
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
