"""The whole text model. One stack of weights with two uses:

encode   causal over committed tokens; appends their keys and values to the cache.
denoise  two-sided over one canvas per request, reading the cache; never writes it.

Five places run the layers, with the same results up to rounding:

`Transformer._run`                    layers as modules, requests side by side; for direct calls of the two
`TwoStream._run` in `train/`           the same layers in training, of a prompt's stream and of a canvas' stream
`model/spans.py`, `run_spans`         the same layers, for the engine: both uses in one forward, keys in pages
`model/packed/forward.py`, `forward`  packed weights with GPU kernels, for the engine and, with pages, for the two
`PackedTransformer._run`              packed weights where these kernels do not run: FP8 on a CPU

Shapes: B requests, T tokens, L canvas, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redraft import kernels
from redraft.cache import KVCache
from redraft.cache.sizes import kv_costs
from redraft.cache.slab import SlabCache
from redraft.config import SLIDING, ModelConfig
from redraft.errors import PromptError
from redraft.model.attention import Attend, Attention, RMSNorm, causal_sight
from redraft.model.interruption import check_interrupted
from redraft.model.moe import Experts, GatedMLP, Router
from redraft.model.rope import inverse_frequencies, rope_table
from redraft.model.self_conditioning import SelfConditioning
from redraft.model.vision import ImageEmbeddings, VisionTower, overlay
from redraft.text.images import Image

RopeTables = dict[str, tuple[Tensor, Tensor]]
"""Cosines and sines of every position, by kind of layer."""


class Layer(nn.Module):
    """Attention, then a dense MLP and a mixture of experts in parallel; every part is normed on both sides."""

    encode_scalar: Tensor
    denoise_scalar: Tensor

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.kind = config.layer_types[layer]
        self.attention = Attention(config, layer)
        self.mlp = GatedMLP(width, config.intermediate_size)
        self.router = Router(config)
        self.experts = Experts(config)
        self.pre_attention_norm = RMSNorm(width, eps)
        self.post_attention_norm = RMSNorm(width, eps)
        self.pre_mlp_norm = RMSNorm(width, eps)
        self.post_mlp_norm = RMSNorm(width, eps)
        self.pre_experts_norm = RMSNorm(width, eps)
        self.post_experts_norm = RMSNorm(width, eps)
        self.post_feedforward_norm = RMSNorm(width, eps)
        self.register_buffer("encode_scalar", torch.ones(1))
        self.register_buffer("denoise_scalar", torch.ones(1))

    def forward(self, x: Tensor, rope: RopeTables, attend: Attend, scalar: Tensor) -> Tensor:
        """x [B,T,D] -> [B,T,D]; `scalar` is the layer's scale in this phase."""
        x = self.post_attention_norm.added(x, self.attention(self.pre_attention_norm(x), rope[self.kind], attend))
        return self.post_feedforward_norm.added(x, self.feed_forward(x)) * scalar

    def feed_forward(self, x: Tensor) -> Tensor:
        """The sum of the dense MLP's and the experts' normed outputs."""
        flat, norms = x.flatten(0, 1), (None, self.pre_mlp_norm.weight, self.pre_experts_norm.weight)  # [B*T,D]
        raw, dense, sparse = kernels.rms_norms(flat, norms, self.pre_mlp_norm.eps)
        index, weight = self.router.choose(self.router.of_normed(raw))
        dense = self.post_mlp_norm(self.mlp(dense))
        return self.post_experts_norm.added(dense, self.experts(sparse, index, weight)).view_as(x)


class Transformer(nn.Module):
    """DiffusionGemma. `load_model` fills it from a checkpoint, `initialise` draws fresh weights.

    `vision` is the tower that turns images into embeddings; None for a model that reads only text.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.self_conditioning = SelfConditioning(config)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.vision: VisionTower | None = None
        self._frequencies: dict[str, Tensor] = {}

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def embedding_scale(self) -> Tensor:
        """sqrt(D), rounded to the working dtype as the reference rounds it (53.0 for the 26B model in bf16)."""
        return torch.tensor(self.config.hidden_size**0.5, dtype=self.dtype, device=self.device)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[B,T] -> [B,T,D]."""
        return self.embedding(token_ids) * self.embedding_scale

    def embed_image(self, image: Image) -> Tensor:
        """The embeddings [N,D] that replace an image's tokens in a prompt. Requires a vision tower."""
        assert self.vision is not None
        return self.vision(image.patches, image.rows, image.columns)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty cache for `batch_size` requests of at most `capacity` committed tokens each."""
        return SlabCache(self.config, batch_size, capacity, device=self.device, dtype=self.dtype)

    def cache_bytes(self, capacity: int) -> int:
        """Roughly the cache bytes for each request of `capacity` committed tokens."""
        return sum(cost.bytes_at(capacity) for cost in kv_costs(self.config, self.dtype.itemsize))

    def requests_at_once(self, most: int, tokens: int) -> int:
        """How many requests, from 1 up to `most`, memory allows to have this many more tokens each."""
        return most

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
        return self._run(torch.stack([overlay(*row) for row in rows]), cache.lengths, attend, "encode")[:, :width]

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

        x = self.self_conditioning.combine(self.embed(canvas), soft)
        return self._run(x, cache.lengths, attend, "denoise")

    def canvas_rows(self, length: int) -> int:
        """Rows that `denoise` takes for a canvas of this many tokens; canvases of as many rows can share a forward."""
        return length

    def embeddings(self, token_ids: Tensor) -> Tensor:
        """Rows of the tied table for some tokens [W], not scaled as `embed` scales them: [W,D]."""
        return self.embedding.weight.index_select(0, token_ids)

    def logits(self, hidden: Tensor, temperature: float = 1.0, rows: Tensor | None = None) -> Tensor:
        """hidden [...,D] -> soft-capped fp32 logits [...,V] of the tied head, divided by `temperature`.

        With `rows` [W,D] from `embeddings`, only these tokens are considered: [...,W].
        """
        table = self.embedding.weight if rows is None else rows
        return kernels.head(hidden, table, self.config.final_logit_softcapping, temperature)

    def soft_embeddings(self, logits: Tensor) -> Tensor:
        """Temperature-divided logits [B,L,V] -> probability-weighted embeddings [B,L,D].

        The logits are rounded to the working dtype first, as the reference stores them between steps.
        """
        return self.mean_embeddings(kernels.soft_probabilities(logits, self.dtype))

    def mean_embeddings(self, probabilities: Tensor, rows: Tensor | None = None) -> Tensor:
        """Probabilities [...,V], rounded to the working dtype -> the mean of the scaled embeddings [...,D].

        Probabilities of only some tokens, [...,W], need these tokens' `rows` [W,D].
        """
        table = self.embedding.weight if rows is None else rows
        return kernels.expectation(probabilities.to(self.dtype), table) * self.embedding_scale

    def rope(self, positions: Tensor) -> RopeTables:
        """cos and sin per layer kind for positions [B,T]."""
        if not self._frequencies:  # set in one assignment, for other threads
            kinds = dict.fromkeys(self.config.layer_types)
            self._frequencies = {kind: inverse_frequencies(self.config, sliding=kind == SLIDING) for kind in kinds}
        return {
            kind: rope_table(positions, frequencies.to(positions.device), self.dtype)
            for kind, frequencies in self._frequencies.items()
        }

    def _run(self, x: Tensor, starts: list[int], attend: Attend, phase: str) -> Tensor:
        """Run all layers over x [B,T,D], whose requests begin at positions `starts`."""
        offsets = torch.arange(x.shape[1], device=x.device)
        rope = self.rope(torch.tensor(starts, device=x.device)[:, None] + offsets)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            x = layer(x, rope, attend, layer.encode_scalar if phase == "encode" else layer.denoise_scalar)
        return self.norm(x)

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
