"""What everything that uses a model needs of it, whichever form its weights have.

Two forms exist: modules (`transformer.py`), which can be trained and saved, and weights laid out for kernels
(`packed/transformer.py`). Both have the same two uses:

encode   causal over committed tokens; appends their keys and values to the cache.
denoise  two-sided over one canvas per request, reading the cache; never writes it.

Four places run the layers, with the same results up to rounding:

`Transformer.run_layers`              modules: for the two and, with keys in pages, for the engine (`model/spans.py`)
`TwoStream._run` in `train/`           modules in training, of a prompt's stream and of a canvas' stream
`model/packed/forward.py`, `forward`  packed weights with GPU kernels, for the engine and, with pages, for the two
`PackedTransformer.run_layers`        packed weights, for the two where these kernels do not run: FP8 on a CPU

Shapes: B requests, T tokens, L canvas, D width, V vocabulary, W some tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redraft import kernels
from redraft.cache import KVCache
from redraft.cache.sizes import kv_costs
from redraft.cache.slab import SlabCache
from redraft.config import ModelConfig
from redraft.errors import PromptError
from redraft.interruption import check_interrupted
from redraft.model.attention import Attend, causal_sight
from redraft.model.vision import ImageEmbeddings, VisionTower, overlay
from redraft.text.images import Image


class Model(nn.Module, ABC):
    """A text model, with the tower that turns images into embeddings in `vision`; None if it reads only text."""

    def __init__(self, config: ModelConfig, vision: VisionTower | None = None) -> None:
        super().__init__()
        self.config, self.vision = config, vision

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model takes and returns tensors."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The working dtype: that of hidden states and of keys and values."""

    @property
    @abstractmethod
    def embedding_scale(self) -> Tensor:
        """sqrt(D), rounded to the working dtype as the reference rounds it (53.0 for the 26B model in bf16)."""

    @abstractmethod
    def embeddings(self, token_ids: Tensor) -> Tensor:
        """Rows of the tied table for some tokens [...], not scaled as `embed` scales them: [...,D]."""

    @abstractmethod
    def logits(self, hidden: Tensor, temperature: float = 1.0, rows: Tensor | None = None) -> Tensor:
        """hidden [...,D] -> soft-capped fp32 logits [...,V] of the tied head, divided by `temperature`.

        With `rows` [W,D] from `embeddings`, only these tokens are considered: [...,W].
        """

    @abstractmethod
    def mean_embeddings(self, probabilities: Tensor, rows: Tensor | None = None) -> Tensor:
        """Probabilities [...,V], rounded to the working dtype -> the mean of the scaled embeddings [...,D].

        Probabilities of only some tokens, [...,W], need these tokens' `rows` [W,D].
        """

    @abstractmethod
    def condition(self, embedded: Tensor, soft: Tensor | None) -> Tensor:
        """What enters the layers for a canvas [B,L,D], see `SelfConditioning.combine`."""

    @abstractmethod
    def run_layers(self, x: Tensor, positions: Tensor, attend: Attend, causal: Tensor) -> Tensor:
        """All layers and the final norm over x [B,T,D], whose tokens are at `positions` [B,T].

        `causal`, bool [B,T,1] or of one element, says which tokens are encoded: layers scale these and canvases
        differently. What a token sees is up to `attend`.
        """

    def embed(self, token_ids: Tensor) -> Tensor:
        """[B,T] -> [B,T,D]."""
        return self.embeddings(token_ids) * self.embedding_scale

    def embed_image(self, image: Image) -> Tensor:
        """The embeddings [N,D] that replace an image's tokens in a prompt. Requires a vision tower."""
        assert self.vision is not None
        return self.vision(image.patches, image.rows, image.columns)

    def soft_embeddings(self, logits: Tensor) -> Tensor:
        """Temperature-divided logits [B,L,V] -> probability-weighted embeddings [B,L,D].

        The logits are rounded to the working dtype first, as the reference stores them between steps.
        """
        return self.mean_embeddings(kernels.soft_probabilities(logits, self.dtype))

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty cache for `batch_size` requests of at most `capacity` committed tokens each."""
        return SlabCache(self.config, batch_size, capacity, device=self.device, dtype=self.dtype)

    def cache_bytes(self, capacity: int) -> int:
        """Roughly the cache bytes for each request of `capacity` committed tokens."""
        return sum(cost.bytes_at(capacity) for cost in kv_costs(self.config, self.dtype.itemsize))

    def requests_at_once(self, most: int, tokens: int) -> int:
        """How many requests, from 1 up to `most`, memory allows to have this many more tokens each."""
        return most

    def canvas_rows(self, length: int) -> int:
        """Rows that `denoise` takes for a canvas of this many tokens; canvases of as many rows can share a forward."""
        return length

    def encode(
        self,
        token_ids: Tensor,
        cache: KVCache,
        counts: list[int] | None = None,
        images: Sequence[Sequence[ImageEmbeddings]] | None = None,
    ) -> Tensor:
        """Run committed tokens [B,T] causally and append their keys and values; returns hidden states [B,T,D].

        `counts` says how many of each request's T tokens are real; the rest is right padding, whose hidden states are
        meaningless and which the cache does not keep. `images` are each request's complete images among these tokens:
        their embeddings replace the tokens, and the tokens of an image all see each other. Raises `PromptError` for
        ids outside the vocabulary and for more tokens than the cache holds.
        """
        check_interrupted()
        self._check_ids(token_ids)
        count, width = token_ids.shape
        counts = [width] * count if counts is None else counts
        images = [()] * count if images is None else images
        cache.check_room(counts)
        hidden = self._encode(token_ids, cache, counts, images)
        cache.advance(counts)
        return hidden

    def _encode(
        self, token_ids: Tensor, cache: KVCache, counts: list[int], images: Sequence[Sequence[ImageEmbeddings]]
    ) -> Tensor:
        """`encode` for checked arguments; it does not change the cache's lengths."""
        assert isinstance(cache, SlabCache)
        width = token_ids.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            window = self.config.sliding_window if self.config.is_sliding(layer) else None
            out = q.new_zeros(q.shape[0], q.shape[2], q.shape[1] * q.shape[3])  # [B,T,N*H]
            for b, n in enumerate(counts):  # without the padding, so that a request's result does not depend on it
                if n:
                    new = q[b, :, :n], k[b, :, :n], v[b, :, :n]
                    out[b, :n] = _attend_causal(*new, cache, layer, b, window, images[b])
            cache.write(layer, k, v, counts)
            return out

        # A short prompt alone takes as many rows as in a longer batch: products of fewer rows round differently.
        token_ids = F.pad(token_ids, (0, max(0, kernels.MIN_ROWS - width)))
        rows = zip(self.embed(token_ids), cache.lengths, images, strict=True)
        x = torch.stack([overlay(*row) for row in rows])
        return self._run(x, cache.lengths, attend, causal=True)[:, :width]

    def denoise(
        self, canvas: Tensor, cache: KVCache, soft: Tensor | None = None, counts: list[int] | None = None
    ) -> Tensor:
        """One two-sided pass over a canvas of token ids [B,L] after each request's cached tokens -> hidden [B,L,D].

        `soft` [B,L,D] is the result of `soft_embeddings` for the last step; None on a canvas' first step. `counts` are
        the canvases' own lengths: the rest is padding, which nothing sees and whose hidden states are meaningless.
        """
        check_interrupted()
        self._check_ids(canvas)
        return self._denoise(canvas, cache, soft, [canvas.shape[1]] * len(canvas) if counts is None else counts)

    def _denoise(self, canvas: Tensor, cache: KVCache, soft: Tensor | None, counts: list[int]) -> Tensor:
        """`denoise` for checked arguments."""
        assert isinstance(cache, SlabCache)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = q.new_zeros(q.shape[0], q.shape[2], q.shape[1] * q.shape[3])  # [B,L,N*H]
            for b, n in enumerate(counts):
                out[b, :n] = _attend_all(q[b, :, :n], k[b, :, :n], v[b, :, :n], cache, layer, b)
            return out

        x = self.condition(self.embed(canvas), soft)
        return self._run(x, cache.lengths, attend, causal=False)

    def _run(self, x: Tensor, starts: list[int], attend: Attend, *, causal: bool) -> Tensor:
        """`run_layers` over x [B,T,D] of requests that begin at positions `starts`."""
        positions = torch.tensor(starts, device=x.device)[:, None] + torch.arange(x.shape[1], device=x.device)
        return self.run_layers(x, positions, attend, torch.full((1, 1, 1), causal, device=x.device))

    def _check_ids(self, token_ids: Tensor) -> None:
        low, high = torch.aminmax(token_ids)
        if low < 0 or high >= self.config.vocab_size:
            bad = int(low) if low < 0 else int(high)
            raise PromptError(f"Token id {bad} is outside the vocabulary of {self.config.vocab_size}.")


def _attend_all(q: Tensor, k: Tensor, v: Tensor, cache: SlabCache, layer: int, row: int) -> Tensor:
    """One request's canvas queries [N,L,H] over its cached past and the whole canvas; nothing is masked."""
    past_k, past_v, _ = cache.cached(layer, row)
    keys, values = torch.cat((past_k, k), 1), torch.cat((past_v, v), 1)  # [G,S+L,H]
    return kernels.attention(q[None], keys[None], values[None])[0]


def _attend_causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: SlabCache,
    layer: int,
    row: int,
    window: int | None,
    images: Sequence[ImageEmbeddings],
) -> Tensor:
    """One request's new tokens [N,T,H] over its cached past and themselves."""
    past_k, past_v, past = cache.cached(layer, row)
    here = cache.lengths[row] + torch.arange(q.shape[1], device=q.device)  # [T]
    seen = causal_sight(here, torch.cat((past, here)), window, [image.positions for image in images])  # [T,S+T]
    keys, values = torch.cat((past_k, k), 1), torch.cat((past_v, v), 1)
    return kernels.attention(q[None], keys[None], values[None], seen[None, None])[0]
