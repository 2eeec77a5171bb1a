"""Encoding whole prompts into a cache outside the engine, in chunks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.model import Model
from redraft.model.vision import ImageEmbeddings
from redraft.text.images import PlacedImage, cut_outside

CHUNK = 512
CACHE_BYTES = 1 << 30
"""The cache budget for prompts held at once; a single one may take more."""


def held_at_once(model: Model, tokens: int, each: int = 1) -> int:
    """How many groups of `each` requests of this many tokens may be held at once: at least one, whatever it takes."""
    most = max(1, CACHE_BYTES // (each * model.cache_bytes(tokens)))
    return max(1, model.requests_at_once(each * most, tokens) // each)


@torch.inference_mode()
def prefill(
    model: Model,
    cache: KVCache,
    prompts: Sequence[Sequence[int]],
    images: Sequence[Sequence[PlacedImage]] | None = None,
) -> Tensor:
    """Encode prompts of any lengths, including their images; returns the last hidden state of each [B,D]."""
    images_of = [()] * len(prompts) if images is None else images
    final = torch.zeros(len(prompts), model.config.hidden_size, dtype=model.dtype, device=model.device)
    starts = [0] * len(prompts)
    while any(start < len(prompt) for start, prompt in zip(starts, prompts, strict=True)):
        ends = [
            cut_outside([image.positions for image in mine], start, min(start + CHUNK, len(prompt)))
            for start, prompt, mine in zip(starts, prompts, images_of, strict=True)
        ]
        counts = [end - start for start, end in zip(starts, ends, strict=True)]
        width = max(counts)
        chunk = [
            [*prompt[start:end], *[0] * (width - end + start)]
            for start, end, prompt in zip(starts, ends, prompts, strict=True)
        ]
        embeddings = [
            _embed_images(model, mine, start, end) for start, end, mine in zip(starts, ends, images_of, strict=True)
        ]
        hidden = model.encode(torch.tensor(chunk, device=model.device), cache, counts, embeddings)  # [B,T,D]
        for row, n in enumerate(counts):
            if n:
                final[row] = hidden[row, n - 1]
        starts = ends
    return final


def _embed_images(model: Model, images: Sequence[PlacedImage], start: int, end: int) -> list[ImageEmbeddings]:
    """The embeddings of the images in a chunk."""
    return [
        ImageEmbeddings(image.start, model.embed_image(image.content)) for image in images if start <= image.start < end
    ]
