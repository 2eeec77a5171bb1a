"""Cross-entropy and soft embeddings of the soft-capped, tied head, in chunks: all tokens' logits never exist at once.

The loss and its gradients for the hidden states and the embedding are computed together in the forward pass, chunk by
chunk; the backward pass only scales them. Soft embeddings compute a chunk's probabilities anew in the backward pass.
Shapes: T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from redraft.train.compiling import compiled_if

CHUNK_ELEMENTS = 1 << 28
"""Logits per chunk; a wider vocabulary means fewer tokens at a time."""
Seen = tuple[Tensor, Tensor]
"""Tokens int64 [T] that the model was shown, and what is added to their logits, fp32 [T]."""


def chunk_of(embedding: Tensor) -> int:
    """How many tokens' logits exist at a time."""
    return max(1, CHUNK_ELEMENTS // len(embedding))


def soft_capped(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(logits / cap), in fp32 (fp64 stays fp64)."""
    return (logits.to(_wide(logits)) / cap).tanh() * cap


def _wide(tensor: Tensor) -> torch.dtype:
    """In which dtype sums of numbers like these are kept."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _chunk(
    hidden: Tensor, embedding: Tensor, target: Tensor, weight: Tensor, seen: Seen | None, cap: float, wanted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses [t], hits [t], gradients of hidden [t,D] and, if `wanted`, of embedding [V,D] for one chunk of tokens."""
    capped = soft_capped(hidden @ embedding.t(), cap)  # [t,V]
    vocabulary = torch.arange(capped.shape[1], device=target.device)
    logits = capped if seen is None else capped + (vocabulary == seen[0][:, None]) * seen[1][:, None]
    log_sum = logits.logsumexp(-1)
    picked = logits.gather(-1, target[:, None])[:, 0]
    hit = picked >= logits.amax(-1)
    gradient = (logits - log_sum[:, None]).exp()
    gradient = gradient - (vocabulary == target[:, None]).to(gradient.dtype)
    gradient = gradient * weight[:, None] * (1.0 - (capped / cap).square())
    gradient = gradient.to(hidden.dtype)  # [t,V]
    return log_sum - picked, hit, gradient @ embedding, gradient.t() @ hidden if wanted else gradient.new_zeros(0)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, embedding: Tensor, target: Tensor, weight: Tensor, seen: Seen | None, cap: float,
        chunk: int, compiled: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        body = compiled_if(_chunk, compiled)
        wanted = embedding.requires_grad
        d_embedding = embedding.new_zeros(embedding.shape if wanted else 0, dtype=_wide(embedding))
        parts = []
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            shown = None if seen is None else (seen[0][part], seen[1][part])
            loss, hit, d_hidden, d_part = body(hidden[part], embedding, target[part], weight[part], shown, cap, wanted)
            d_embedding += d_part
            parts.append((loss, hit, d_hidden))
        losses, hits, d_hidden = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(d_hidden, d_embedding.to(embedding.dtype))
        ctx.mark_non_differentiable(losses, hits)
        return (losses * weight).sum(), losses, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        d_hidden, d_embedding = ctx.saved_tensors
        gradient = gradients[0].to(d_hidden.dtype)
        return d_hidden * gradient, d_embedding * gradient if d_embedding.numel() else None, *(None,) * 6


def linear_cross_entropy(
    hidden: Tensor, embedding: Tensor, target: Tensor, weight: Tensor, cap: float, *, seen: Seen | None = None,
    chunk: int | None = None, compiled: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Weighted sum of token losses -sum_t weight_t log p(target_t), with gradients for hidden and embedding.

    hidden [T,D], embedding [V,D], target int64 [T], weight fp32 [T], `cap` the soft cap of the logits, `seen` what is
    added to the logit of one token at each position, after the cap. Returns the sum, and (both detached) the unweighted
    losses [T] in nats and whether the target was the most likely token, bool [T].
    """
    count, chunk = len(target), chunk or chunk_of(embedding)
    padding = -count % min(chunk, count)
    if padding:  # one static chunk shape for the compiler
        hidden = F.pad(hidden, (0, 0, 0, padding))
        target, weight = F.pad(target, (0, padding)), F.pad(weight, (0, padding))
        seen = None if seen is None else (F.pad(seen[0], (0, padding)), F.pad(seen[1], (0, padding)))
    settings = (cap, min(chunk, count), compiled)
    total, losses, hits = _LinearCrossEntropy.apply(hidden, embedding, target, weight, seen, *settings)
    return total, losses[:count], hits[:count]


def _tempered(hidden: Tensor, embedding: Tensor, temperature: Tensor, cap: float) -> Tensor:
    """hidden [t,D], temperature [t] -> logits [t,V], rounded to the dtype of hidden as the sampler's are."""
    return (soft_capped(hidden @ embedding.t(), cap) / temperature[:, None]).to(hidden.dtype)


def _soft_chunk(hidden: Tensor, embedding: Tensor, temperature: Tensor, cap: float) -> tuple[Tensor, Tensor, Tensor]:
    """hidden [t,D], temperature [t] -> mean embeddings [t,D] (unscaled), likeliest tokens [t], entropies [t]."""
    logits = _tempered(hidden, embedding, temperature, cap)
    probabilities = logits.softmax(-1, dtype=torch.float32)  # [t,V]
    wide = logits.float()
    entropy = wide.logsumexp(-1) - (probabilities * wide).sum(-1)
    return probabilities.to(hidden.dtype) @ embedding, logits.argmax(-1), entropy.clamp(min=0)


def _averaged_gradient(logits: Tensor, d_soft: Tensor) -> Tensor:
    """The gradient [V,D] of the embeddings that logits [t,V] average, from that of their means, d_soft [t,D]."""
    return logits.softmax(-1, dtype=torch.float32).to(d_soft.dtype).t() @ d_soft


class _SoftEmbeddings(torch.autograd.Function):
    """Differentiable in the embeddings that are averaged; probabilities are constants, computed anew for it."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, embedding: Tensor, temperature: Tensor, cap: float, chunk: int, compiled: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        body = compiled_if(_soft_chunk, compiled)
        parts = [body(h, embedding, t, cap) for h, t in zip(hidden.split(chunk), temperature.split(chunk), strict=True)]
        soft, argmax, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, embedding, temperature)
        ctx.cap, ctx.chunk, ctx.compiled = cap, chunk, compiled
        ctx.mark_non_differentiable(argmax, entropy)
        return soft, argmax, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, embedding, temperature = ctx.saved_tensors
        # Two functions, because a compiler that sees both leaves out the rounding between them.
        tempered, body = compiled_if(_tempered, ctx.compiled), compiled_if(_averaged_gradient, ctx.compiled)
        d_embedding = torch.zeros_like(embedding, dtype=_wide(embedding))
        columns = (column.split(ctx.chunk) for column in (hidden, temperature, gradients[0]))
        for h, t, d_soft in zip(*columns, strict=True):
            d_embedding += body(tempered(h, embedding, t, ctx.cap), d_soft)
        return None, d_embedding.to(embedding.dtype), None, None, None, None


def soft_embeddings(
    hidden: Tensor,
    embedding: Tensor,
    temperature: Tensor,
    cap: float,
    *,
    chunk: int | None = None,
    compiled: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `Transformer.soft_embeddings` computes from `logits(hidden) / temperature`, chunked and unscaled, [T,D].

    hidden [T,D], temperature fp32 [T]. Also returns the likeliest tokens int64 [T] and the entropies [T] in nats. The
    logits are constants: a gradient reaches `embedding` as the table that is averaged, not as the head, and `hidden`
    not at all.
    """
    count = len(hidden)
    size = min(chunk or chunk_of(embedding), count)
    padding = -count % size
    hidden, temperature = F.pad(hidden, (0, 0, 0, padding)), F.pad(temperature, (0, padding), value=1.0)
    soft, argmax, entropy = _SoftEmbeddings.apply(hidden, embedding, temperature, cap, size, compiled)
    return soft[:count], argmax[:count], entropy[:count]
