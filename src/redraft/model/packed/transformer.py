"""A packed model behind the methods of `Model`.

Generation goes through the runner of the engine; everything else that uses the model (evaluation, filling,
constraints) calls these methods, on any device and in any weight format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.config import SLIDING
from redraft.errors import SettingError
from redraft.kernels import eager
from redraft.kernels.triton.language import use_triton
from redraft.kernels.triton.linear import without_workspace
from redraft.kernels.triton.qkv import heads_of
from redraft.kernels.triton.segments import DENOISE, ENCODE, Segments
from redraft.model.adapters import Adapter
from redraft.model.attention import Attend
from redraft.model.base import Model
from redraft.model.packed.layers import (
    after_attention,
    as_rows,
    conditioning,
    end_layer,
    enter_layer,
    feed_forward,
    product,
)
from redraft.model.packed.paged_cache import PagedCache, request_bytes
from redraft.model.packed.paged_forward import PagedForward, segment_rows
from redraft.model.packed.vocabulary import Vocabulary
from redraft.model.packed.weights import PackedModel
from redraft.model.rope import rope_table, rotate
from redraft.model.vision import ImageEmbeddings, VisionTower


class PackedTransformer(Model):
    """A `Model` with packed weights. It has no modules to train and cannot be saved."""

    def __init__(
        self, packed: PackedModel, vision: VisionTower | None = None, folded: tuple[Adapter, ...] = ()
    ) -> None:
        """`vision` is plain in every format; `folded` are the adapters folded into the weights, in order."""
        super().__init__(packed.config, vision)
        if packed.quantization is not None:
            without_workspace()
        self.packed, self.folded = packed, folded
        self.paged = PagedForward(packed)

    def state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: the weights are not laid out as files hold them."""
        raise SettingError(
            "These weights are packed for computing and cannot be saved; load the folder with load_model."
        )

    @property
    def device(self) -> torch.device:
        return self.packed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.packed.dtype

    @property
    def embedding_scale(self) -> Tensor:
        """See `Model.embedding_scale`."""
        return self.packed.embedding_scale

    def embeddings(self, token_ids: Tensor) -> Tensor:
        """See `Model.embeddings`."""
        return self.packed.vocabulary.rows(token_ids, self.dtype)

    def logits(self, hidden: Tensor, temperature: float = 1.0, rows: Tensor | None = None) -> Tensor:
        """See `Model.logits`."""
        vocabulary = self.packed.vocabulary if rows is None else Vocabulary(head=rows)
        return vocabulary.logits(hidden, self.config.final_logit_softcapping, temperature)

    def mean_embeddings(self, probabilities: Tensor, rows: Tensor | None = None) -> Tensor:
        """See `Model.mean_embeddings`."""
        vocabulary = self.packed.vocabulary if rows is None else Vocabulary(head=rows)
        return vocabulary.mean(probabilities.to(self.dtype)) * self.embedding_scale

    def condition(self, embedded: Tensor, soft: Tensor | None) -> Tensor:
        """See `Model.condition`."""
        if soft is not None:
            embedded = embedded + conditioning(self.packed, soft.flatten(0, -2)).view_as(embedded)
        return eager.rms_norm(embedded, None, self.config.rms_norm_eps)

    @property
    def _in_pages(self) -> bool:
        """Whether caches are paged: they are wherever Triton's kernels read them, or several devices' shards."""
        return use_triton(self.packed.embedding_scale) or len(self.packed.shards) > 1

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """See `Model.new_cache`."""
        new = self.paged.new_cache if self._in_pages else super().new_cache
        return new(batch_size, capacity)

    def cache_bytes(self, capacity: int) -> int:
        """See `Model.cache_bytes`."""
        return request_bytes(self.packed, capacity) if self._in_pages else super().cache_bytes(capacity)

    def requests_at_once(self, most: int, tokens: int) -> int:
        """See `Model.requests_at_once`."""
        return self.paged.store.requests_at_once(most, tokens) if self._in_pages else most

    def canvas_rows(self, length: int) -> int:
        """See `Model.canvas_rows`."""
        return segment_rows(length) if self._in_pages else length

    def _encode(
        self, token_ids: Tensor, cache: KVCache, counts: list[int], images: Sequence[Sequence[ImageEmbeddings]]
    ) -> Tensor:
        if isinstance(cache, PagedCache):
            return self.paged.encode(token_ids, cache, counts, images)
        return super()._encode(token_ids, cache, counts, images)

    def _denoise(self, canvas: Tensor, cache: KVCache, soft: Tensor | None, counts: list[int]) -> Tensor:
        if isinstance(cache, PagedCache):
            return self.paged.denoise(canvas, cache, soft, counts)
        return super()._denoise(canvas, cache, soft, counts)

    def run_layers(self, x: Tensor, positions: Tensor, attend: Attend, causal: Tensor) -> Tensor:
        """See `Model.run_layers`; used where no kernel for pages runs."""
        eps, shard = self.config.rms_norm_eps, self.packed.shards[0]
        rope = {kind: rope_table(positions, unit, x.dtype) for kind, unit in shard.frequencies.items()}
        segments, rows = _single_rows(positions, causal), x.flatten(0, 1)  # [B*T,D]
        h = enter_layer(shard, rows)
        for number, layer in enumerate(shard.layers):
            dim, groups = self.config.layer_head_dim(number), self.config.layer_kv_heads(number)
            qkv = product("qkv_linear", h, layer.qkv, x.dtype)
            heads = heads_of(qkv, groups, dim, own_values=layer.kind == SLIDING)
            q, k, v = (part.unflatten(0, x.shape[:2]) for part in heads)  # [B,T,heads,H]
            q = rotate(eager.rms_norm(q, layer.q_norm, eps), rope[layer.kind]).transpose(1, 2)
            k = rotate(eager.rms_norm(k, layer.k_norm, eps), rope[layer.kind]).transpose(1, 2)
            attended = attend(number, q, k, eager.rms_norm(v, None, eps).transpose(1, 2))  # [B,T,N*H]
            attended = as_rows(attended.flatten(0, 1), layer.out)
            out = product("out_linear", attended, layer.out, x.dtype)
            rows, given = after_attention(number, shard, rows, [out])
            dense, sparse = feed_forward(number, shard, given, None)
            rows, h = end_layer(number, shard, rows, [dense], [sparse], segments)
        assert isinstance(h, Tensor)
        return h.view_as(x)


def _single_rows(positions: Tensor, causal: Tensor) -> Segments:
    """Every token as a segment of its own; see `Model.run_layers`."""
    start = positions.flatten().int()
    kind = torch.where(causal, ENCODE, DENOISE).expand(*positions.shape, 1).flatten().int()
    return Segments(kind=kind, start=start, length=torch.ones_like(start), rows=1)
