"""How likely given tokens are, by the causal pass: the one measure that is comparable across lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.cache import KVCache
from redraft.diffusion.prefill import CHUNK
from redraft.diffusion.sampler import rows_at_once
from redraft.model import Model


class TokenScore(NamedTuple):
    """How likely one given token is after all that comes before it.

    logprob  natural logarithm of its probability
    top      the most likely (token id, logprob) in its place, best first; empty unless requested
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def causal_scores(
    model: Model, cache: KVCache, last_hidden: Tensor, texts: Sequence[Sequence[int]]
) -> list[list[float]]:
    """The log-probabilities alone; see `token_scores`."""
    return [[token.logprob for token in text] for text in token_scores(model, cache, last_hidden, texts)]


@torch.inference_mode()
def token_scores(
    model: Model, cache: KVCache, last_hidden: Tensor, texts: Sequence[Sequence[int]], top: int = 0
) -> list[list[TokenScore]]:
    """Every token of texts (B lists of ids, also empty ones) after the cached context, by the causal pass.

    `last_hidden` [B,D] is the hidden state of each context's last token. The cache is extended. Long texts are encoded
    in chunks, and logits exist for some rows at a time. With `top`, also the most likely tokens.
    """
    scores: list[list[TokenScore]] = [[] for _ in texts]
    for start in range(0, max(map(len, texts), default=0), CHUNK):
        parts = [text[start : start + CHUNK] for text in texts]
        found, last_hidden = _score_chunk(model, cache, last_hidden, parts, top)
        for score, part in zip(scores, found, strict=True):
            score += part
    return scores


def _score_chunk(
    model: Model, cache: KVCache, last_hidden: Tensor, texts: Sequence[Sequence[int]], top: int
) -> tuple[list[list[TokenScore]], Tensor]:
    """The scores of texts that are encoded at once, and the hidden states [B,D] after the longest ones."""
    counts = [len(text) for text in texts]
    rows = [[*text, *[0] * (max(counts) - len(text))] for text in texts]
    tokens = torch.tensor(rows, device=model.device)  # [B,T]
    hidden = model.encode(tokens, cache, counts)  # [B,T,D]
    before = torch.cat((last_hidden[:, None], hidden[:, :-1]), 1)
    real = torch.arange(tokens.shape[1])[None] < torch.tensor(counts)[:, None]
    before, tokens = before[real.to(before.device)], tokens[real.to(before.device)]  # [N,D], [N]
    size = rows_at_once(model)
    parts = [_logprobs(model, *part, top) for part in zip(before.split(size), tokens.split(size), strict=True)]
    own, best, ids = (torch.cat(column).tolist() for column in zip(*parts, strict=True))
    scored = (
        TokenScore(token, logprob, tuple(zip(*pair, strict=True)))
        for token, logprob, *pair in zip(tokens.tolist(), own, ids, best, strict=True)
    )
    return [[next(scored) for _ in range(count)] for count in counts], hidden[:, -1]


def _logprobs(model: Model, before: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """log p [N] of tokens [N] after hidden states [N,D]; log p of the `top` most likely ones and their ids [N,top]."""
    count = len(before)
    if model.device.type != "cpu":  # where a row's product and its sum may round by how many rows there are
        before = F.pad(before, (0, 0, 0, rows_at_once(model) - count))
    logits = model.logits(before)  # [N,V] and perhaps rows of padding
    logits, total = logits[:count], logits.logsumexp(-1)[:count]
    best, ids = logits.topk(top)
    return logits.gather(1, tokens[:, None])[:, 0] - total, best - total[:, None], ids
