"""Cross-entropy of the soft-capped, tied head, in chunks: the logits of all tokens never exist at once.

The loss and its gradients for the hidden states and the embedding are computed together in the forward pass, chunk by
chunk; the backward pass only scales them. Shapes: T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from redraft.train.compiling import compiled_if

CHUNK = 16_384


def soft_capped(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(logits / cap), in fp32 (fp64 stays fp64)."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return (wide / cap).tanh() * cap


def _chunk(
    hidden: Tensor, embedding: Tensor, target: Tensor, weight: Tensor, cap: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses [t], hits [t], gradients of hidden [t,D] and of embedding [V,D] for one chunk of t tokens."""
    capped = soft_capped(hidden @ embedding.t(), cap)  # [t,V]
    log_sum = capped.logsumexp(-1)
    picked = capped.gather(-1, target[:, None])[:, 0]
    hit = picked >= capped.amax(-1)
    gradient = (capped - log_sum[:, None]).exp()
    gradient = gradient - (torch.arange(capped.shape[1], device=target.device) == target[:, None]).to(gradient.dtype)
    gradient = gradient * weight[:, None] * (1.0 - (capped / cap).square())
    gradient = gradient.to(hidden.dtype)  # [t,V]
    return log_sum - picked, hit, gradient @ embedding, gradient.t() @ hidden


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, embedding: Tensor, target: Tensor, weight: Tensor, cap: float, chunk: int,
        compiled: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        body = compiled_if(_chunk, compiled)
        accumulate = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        d_embedding = torch.zeros(embedding.shape, dtype=accumulate, device=embedding.device)
        parts = []
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            loss, hit, d_hidden, d_part = body(hidden[part], embedding, target[part], weight[part], cap)
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
        gradient = gradients[0]
        return d_hidden * gradient.to(d_hidden.dtype), d_embedding * gradient.to(d_hidden.dtype), *(None,) * 5


def linear_cross_entropy(
    hidden: Tensor, embedding: Tensor, target: Tensor, weight: Tensor, cap: float, *, chunk: int = CHUNK,
    compiled: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Weighted sum of token losses -sum_t weight_t log p(target_t), with gradients for hidden and embedding.

    hidden [T,D], embedding [V,D], target int64 [T], weight fp32 [T], `cap` the soft cap of the logits. Returns the sum,
    the unweighted losses [T] in nats and whether the target was the most likely token, bool [T] (both detached).
    """
    count = len(target)
    padding = -count % min(chunk, count)
    if padding:  # one static chunk shape for the compiler
        hidden = F.pad(hidden, (0, 0, 0, padding))
        target, weight = F.pad(target, (0, padding)), F.pad(weight, (0, padding))
    total, losses, hits = _LinearCrossEntropy.apply(hidden, embedding, target, weight, cap, min(chunk, count), compiled)  # type: ignore[misc]
    return total, losses[:count], hits[:count]


def _soft_chunk(hidden: Tensor, embedding: Tensor, temperature: Tensor, cap: float) -> Tensor:
    """hidden [t,D], temperature [t] -> probability-weighted embeddings [t,D], not yet scaled."""
    logits = (soft_capped(hidden @ embedding.t(), cap) / temperature[:, None]).to(hidden.dtype)
    return logits.softmax(-1, dtype=torch.float32).to(hidden.dtype) @ embedding


def soft_embeddings(
    hidden: Tensor, embedding: Tensor, temperature: Tensor, cap: float, *, chunk: int = CHUNK, compiled: bool = False
) -> Tensor:
    """What `Transformer.soft_embeddings` computes from `logits(hidden) / temperature`, chunked and unscaled.

    hidden [T,D], temperature fp32 [T] -> [T,D]. Meant for use without gradients.
    """
    count = len(hidden)
    size = min(chunk, count)
    padding = -count % size
    hidden, temperature = F.pad(hidden, (0, 0, 0, padding)), F.pad(temperature, (0, padding), value=1.0)
    body = compiled_if(_soft_chunk, compiled)
    parts = [body(h, embedding, t, cap) for h, t in zip(hidden.split(size), temperature.split(size), strict=True)]
    return torch.cat(parts)[:count]
