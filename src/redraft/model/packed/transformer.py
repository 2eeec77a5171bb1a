"""A packed model behind the public methods of `Transformer`.

Generation goes through the runner of the engine; everything else that uses the model (evaluation, filling,
constraints) calls these methods, on any device and in any weight format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from redraft.cache import KVCache
from redraft.errors import SettingError
from redraft.kernels import eager
from redraft.kernels.triton.language import use_triton
from redraft.kernels.triton.linear import without_workspace
from redraft.kernels.triton.segments import DENOISE, ENCODE, Segments
from redraft.model.adapters import Adapter
from redraft.model.attention import Attend
from redraft.model.packed.layers import (
    after_attention,
    as_rows,
    conditioning,
    end_layer,
    enter_layer,
    feed_forward,
    layer_heads,
    product,
)
from redraft.model.packed.paged_cache import PagedCache, request_bytes
from redraft.model.packed.paged_forward import PagedForward, segment_rows
from redraft.model.packed.vocabulary import Vocabulary
from redraft.model.packed.weights import PackedModel
from redraft.model.rope import rotate
from redraft.model.transformer import Transformer
from redraft.model.vision import ImageEmbeddings, VisionTower


class PackedTransformer(Transformer):
    """A `Transformer` that computes with packed weights. It has no modules to train and cannot be saved."""

    def __init__(
        self, packed: PackedModel, vision: VisionTower | None = None, folded: tuple[Adapter, ...] = ()
    ) -> None:
        """`vision` is plain in every format; `folded` are the adapters folded into the weights, in order."""
        nn.Module.__init__(self)
        if packed.quantization is not None:
            without_workspace()
        self.config, self.packed = packed.config, packed
        self.self_conditioning = _SelfConditioning(packed)
        self.vision = vision
        self.folded = folded
        self.paged = PagedForward(packed)
        self._frequencies: dict[str, Tensor] = {}

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

    def embed(self, token_ids: Tensor) -> Tensor:
        """See `Transformer.embed`."""
        return self.embeddings(token_ids) * self.packed.embedding_scale

    def embeddings(self, token_ids: Tensor) -> Tensor:
        """See `Transformer.embeddings`; here of any shape."""
        return self.packed.vocabulary.rows(token_ids, self.dtype)

    def logits(self, hidden: Tensor, temperature: float = 1.0, rows: Tensor | None = None) -> Tensor:
        """See `Transformer.logits`."""
        vocabulary = self.packed.vocabulary if rows is None else Vocabulary(head=rows)
        return vocabulary.logits(hidden, self.config.final_logit_softcapping, temperature)

    def mean_embeddings(self, probabilities: Tensor, rows: Tensor | None = None) -> Tensor:
        """See `Transformer.mean_embeddings`."""
        vocabulary = self.packed.vocabulary if rows is None else Vocabulary(head=rows)
        return vocabulary.mean(probabilities.to(self.dtype)) * self.packed.embedding_scale

    @property
    def _in_pages(self) -> bool:
        """Whether caches are paged: they are wherever Triton's kernels read them, or several devices' shards."""
        return use_triton(self.packed.embedding_scale) or len(self.packed.shards) > 1

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """See `Transformer.new_cache`."""
        new = self.paged.new_cache if self._in_pages else super().new_cache
        return new(batch_size, capacity)

    def cache_bytes(self, capacity: int) -> int:
        """See `Transformer.cache_bytes`."""
        return request_bytes(self.packed, capacity) if self._in_pages else super().cache_bytes(capacity)

    def requests_at_once(self, most: int, tokens: int) -> int:
        """See `Transformer.requests_at_once`."""
        return self.paged.store.requests_at_once(most, tokens) if self._in_pages else most

    def canvas_rows(self, length: int) -> int:
        """See `Transformer.canvas_rows`."""
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

    def _run(self, x: Tensor, starts: list[int], attend: Attend, phase: str) -> Tensor:
        """See `Transformer._run`; used where no kernel for pages runs, with the caller's attention."""
        count, length, _ = x.shape
        rows = x.flatten(0, 1)  # [B*T,D]
        segments = _segments(starts, length, DENOISE if phase == "denoise" else ENCODE, x.device)
        offsets = torch.arange(length, device=x.device)
        rope = self.rope(segments.start[:, None] + offsets)
        eps, shard = self.config.rms_norm_eps, self.packed.shards[0]
        h = enter_layer(shard, rows)
        for number, layer in enumerate(shard.layers):
            dim, groups = self.config.layer_head_dim(number), self.config.layer_kv_heads(number)
            raw = layer_heads(product("qkv_linear", h, layer.qkv, x.dtype), layer, dim, groups)
            q, k, v = (part.unflatten(0, (count, length)) for part in raw)  # [B,T,heads,H]
            q = rotate(eager.rms_norm(q, layer.q_norm, eps), rope[layer.kind]).transpose(1, 2)
            k = rotate(eager.rms_norm(k, layer.k_norm, eps), rope[layer.kind]).transpose(1, 2)
            attended = attend(number, q, k, eager.rms_norm(v, None, eps).transpose(1, 2))  # [B,T,N*H]
            attended = as_rows(attended.flatten(0, 1), layer.out)
            out = product("out_linear", attended, layer.out, x.dtype)
            rows, given = after_attention(shard, number, rows, [out])
            dense, sparse = feed_forward(shard, number, given, None)
            rows, h = end_layer(shard, number, rows, [dense], [sparse], segments)
        assert isinstance(h, Tensor)
        return h.view_as(x)


class _SelfConditioning(nn.Module):
    """`SelfConditioning.combine` on packed weights."""

    def __init__(self, packed: PackedModel) -> None:
        super().__init__()
        self._packed = packed

    def combine(self, embedded: Tensor, soft: Tensor | None) -> Tensor:
        """See `SelfConditioning.combine`."""
        if soft is not None:
            embedded = embedded + conditioning(self._packed, soft.flatten(0, -2)).view_as(embedded)
        return eager.rms_norm(embedded, None, self._packed.config.rms_norm_eps)


def _segments(starts: list[int], length: int, kind: int, device: torch.device) -> Segments:
    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    count = len(starts)
    return Segments(kind=column([kind] * count), start=column(starts), length=column([length] * count), rows=length)
