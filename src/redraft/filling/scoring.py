"""How likely a finished filling is, by the causal pass: the one measure that holds across lengths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.model import Transformer


@torch.inference_mode()
def causal_scores(
    model: Transformer, cache: KVCache, last_hidden: Tensor, texts: Sequence[Sequence[int]]
) -> list[list[float]]:
    """log p of every token of texts (B lists of ids) after the cached context, by the causal pass, in nats.

    `last_hidden` [B,D] is the hidden state of each context's last token. The cache is extended.
    """
    counts = [len(text) for text in texts]
    rows = [[*text, *[0] * (max(counts) - len(text))] for text in texts]
    tokens = torch.tensor(rows, device=model.device)  # [B,T]
    hidden = model.encode(tokens, cache, counts)  # [B,T,D]
    before = torch.cat((last_hidden[:, None], hidden[:, :-1]), 1)
    scores = []
    for row, count in enumerate(counts):
        logprobs = model.logits(before[row, :count]).log_softmax(-1)  # [count,V]
        scores.append(logprobs.gather(1, tokens[row, :count, None])[:, 0].tolist())
    return scores
