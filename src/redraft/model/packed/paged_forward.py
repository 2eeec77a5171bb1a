"""A packed model's forwards outside the engine, for callers that run their own: filling, editing and deciding.

They read and write the pages of `paged_cache.py`. When a shape comes up again, its forward is captured as a CUDA graph:
its hundreds of launches cost the host far more time than they take on the device. The engine's own shapes, with the
sampler and a slot for every request, are in `engine/graph_runner.py`; here a caller brings any lengths, and samples
what it gets itself. Shapes: B requests, T tokens, S segments of L rows, R = S*L, D width, P pages of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.cache.pages import PAGE, pages_for
from redraft.config import LayerType
from redraft.kernels.streams import GraphMemory, capture, exclusive_streams, on_device
from redraft.kernels.switches import graphable
from redraft.kernels.triton.rehearsal import rehearse, rehearsing
from redraft.kernels.triton.segments import DENOISE, ENCODE, ENCODE_IMAGES, UNUSED, Segments
from redraft.model.packed.forward import Inputs, forward
from redraft.model.packed.paged_cache import KINDS, PagedCache, PageStore
from redraft.model.packed.weights import PackedModel
from redraft.model.vision import ImageEmbeddings
from redraft.settings import MAX_CANVAS

SEGMENT_ROWS = (64, 256, 512)
"""Lengths of segments; kernels are compiled for each one used."""
SEGMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of segments; any that are not needed stay unused."""
CANVASES = 16
"""The most canvases in a forward: each takes a page or two, so there are fewer when memory is short."""
MOST_ROWS = 8192
"""Rows of a forward, as in the engine's largest."""


def segment_rows(length: int) -> int:
    """The length of the segments that hold this many tokens, or parts of them."""
    return next((rows for rows in SEGMENT_ROWS if rows >= length), SEGMENT_ROWS[-1])


class PagedForward:
    """`encode` and `denoise` of one model, and the pages of its caches."""

    def __init__(self, model: PackedModel) -> None:
        self.store = PageStore(model)
        self._model = model
        self._width = pages_for(model.config.max_position_embeddings + MAX_CANVAS)
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._pool = GraphMemory(*model.devices) if model.device.type == "cuda" else None

    def new_cache(self, batch_size: int, capacity: int) -> PagedCache:
        """See `Model.new_cache`."""
        return PagedCache(self.store, batch_size, capacity)

    def encode(
        self, token_ids: Tensor, cache: PagedCache, counts: list[int], images: Sequence[Sequence[ImageEmbeddings]]
    ) -> Tensor:
        """See `Model.encode`: [B,T] -> [B,T,D]. A request's tokens are several segments of one forward."""
        width = token_ids.shape[1]
        rows = min(segment_rows(width), PAGE)
        pieces = -(-width // rows)
        ids = F.pad(token_ids, (0, pieces * rows - width))  # [B,pieces*L]
        return self._run(ENCODE, ids, cache, counts, rows, images=images)[:, :width]

    def denoise(self, canvas: Tensor, cache: PagedCache, soft: Tensor | None, counts: list[int]) -> Tensor:
        """See `Model.denoise`: [B,L] -> [B,L,D]. Canvases write to copies of the requests, which are dropped."""
        width = canvas.shape[1]
        rows = segment_rows(width)
        ids = F.pad(canvas, (0, rows - width))
        soft = None if soft is None else F.pad(soft, (0, 0, 0, rows - width))
        hidden, first, rows_of = list[Tensor](), 0, range(len(ids))
        while first < len(ids):
            part = slice(first, first + self.store.requests_at_once(CANVASES, rows))
            some = None if soft is None else soft[part]
            hidden.append(self._run(DENOISE, ids[part], cache.copy([*rows_of[part]]), counts[part], rows, some))
            first = part.stop
        return torch.cat(hidden)[:, :width]

    @torch.inference_mode()
    def _run(
        self,
        kind: int,
        ids: Tensor,
        cache: PagedCache,
        counts: Sequence[int],
        rows: int,
        soft: Tensor | None = None,
        images: Sequence[Sequence[ImageEmbeddings]] = (),
    ) -> Tensor:
        """Token ids [B,T], in segments of `rows`, after what is committed -> hidden states [B,T,D].

        Meanwhile no other thread captures graphs or uses side streams.
        """
        hidden, at_once, pieces = list[Tensor](), max(1, MOST_ROWS // ids.shape[1]), ids.shape[1] // rows
        with exclusive_streams(), self.store.lock, on_device(self._model.device):
            cache.own(counts)
            tables = cache.tables(self._width)
            for first in range(0, len(ids), at_once):
                part = slice(first, first + at_once)
                starts, shown = cache.lengths[part], images[part]
                shape = self._shape(ids[part].numel() // rows, rows)
                shape.fill(
                    _with_images(ids[part], starts, shown),
                    None if soft is None else soft[part],
                    _columns(kind, starts, counts[part], rows, pieces),
                    {name: table[part].repeat(pieces, 0) for name, table in tables.items()},
                )
                states = shape.run_with(shown, pieces) if any(shown) else shape.run()
                hidden.append(states[: ids[part].numel()].view(*ids[part].shape, -1))
        return torch.cat(hidden)

    def _shape(self, segments: int, rows: int) -> _Shape:
        """The forward for so many segments of any kind, which is one of its inputs."""
        size = next((size for size in SEGMENTS if size >= segments), segments)
        if (size, rows) not in self._shapes:
            self._shapes[size, rows] = _Shape(self._model, self.store, size, rows, self._width, self._pool)
        return self._shapes[size, rows]


class _Shape:
    """The forward of S segments of L rows over inputs at fixed addresses."""

    def __init__(
        self, model: PackedModel, store: PageStore, segments: int, rows: int, width: int, pool: GraphMemory | None
    ) -> None:
        """Tables are `width` pages wide. The forward is captured into `pool`, or never if there is none."""
        self._model, self._store, self._pool = model, store, pool
        self._columns = torch.zeros(3, segments, dtype=torch.int32, device=model.device)
        total = segments * rows
        self._inputs = Inputs(
            token_ids=torch.zeros(total, dtype=torch.int32, device=model.device),
            soft=torch.zeros(total, model.config.hidden_size, dtype=model.dtype, device=model.device),
            segments=Segments(**dict(zip(("kind", "start", "length"), self._columns, strict=True)), rows=rows),
            tables={kind: torch.zeros(segments, width, dtype=torch.int32, device=model.device) for kind in KINDS},
        )
        self._met = -1
        self._captured: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def fill(self, ids: Tensor, soft: Tensor | None, columns: np.ndarray, tables: dict[LayerType, np.ndarray]) -> None:
        """Fill in the first segments; the others are unused. `soft` None stands for zeros."""
        used = columns.shape[1]
        self._columns[:, :used] = torch.from_numpy(columns).to(self._columns.device)
        self._columns[:, used:] = UNUSED  # of no length
        self._inputs.token_ids[: ids.numel()] = ids.flatten()
        for kind, table in tables.items():
            self._inputs.tables[kind][:used] = torch.from_numpy(table).to(self._columns.device)
        if soft is None:
            self._inputs.soft.zero_()
        else:
            self._inputs.soft[: ids.numel()] = soft.flatten(0, 1)

    def run(self) -> Tensor:
        """Hidden states [R,D]. The second forward over the same pages is captured, and later ones replay that graph."""
        if self._pool is None or not graphable() or rehearsing():
            return self._forward(self._inputs)
        if self._met != self._store.generation:
            if self._met < 0:
                rehearse(partial(self._forward, self._inputs))
            self._met, self._captured = self._store.generation, None
            return self._forward(self._inputs)
        if self._captured is None:
            self._captured = capture(partial(self._forward, self._inputs), self._pool, rehearsed=True)
        graph, hidden = self._captured
        graph.replay()
        return hidden.clone()  # other graphs share its memory

    def run_with(self, images: Sequence[Sequence[ImageEmbeddings]], pieces: int) -> Tensor:
        """The same for requests of `pieces` segments each with images among their tokens; never captured."""
        embedded = [image.embeddings.to(self._inputs.soft) for shown in images for image in shown]
        segments = _with_image_spans(self._inputs.segments, images, pieces)
        return self._forward(replace(self._inputs, segments=segments, images=torch.cat(embedded)))

    def _forward(self, inputs: Inputs) -> Tensor:
        return forward(self._model, inputs, self._store.pages, all_rows=True)[0]


def _columns(kind: int, starts: Sequence[int], counts: Sequence[int], rows: int, pieces: int) -> np.ndarray:
    """Kind, start and length, int32 [3,S], of `pieces` segments per request; those after its tokens are unused."""
    offset = np.arange(pieces) * rows
    start = np.array(starts)[:, None] + offset  # [B,pieces]
    length = (np.array(counts)[:, None] - offset).clip(0, rows)
    return np.stack([np.where(length > 0, kind, UNUSED), start, length]).reshape(3, -1).astype(np.int32)


def _with_images(ids: Tensor, starts: Sequence[int], images: Sequence[Sequence[ImageEmbeddings]]) -> Tensor:
    """Token ids [B,T] of requests from positions `starts` on, with those of images put in place; see `Inputs`."""
    if not any(images):
        return ids
    ids, first = ids.clone(), 0
    for row, (start, shown) in enumerate(zip(starts, images, strict=True)):
        for image in shown:
            size = len(image.embeddings)
            ids[row, image.start - start :][:size] = torch.arange(-1 - first, -1 - first - size, -1, device=ids.device)
            first += size
    return ids


def _with_image_spans(segments: Segments, images: Sequence[Sequence[ImageEmbeddings]], pieces: int) -> Segments:
    """Segments of requests, `pieces` of each plus unused ones, whose rows also see all of their own image."""
    since, kind = segments.positions(), segments.kind.clone()  # [R], [S]
    until = since + 1
    size = pieces * segments.rows
    for row, shown in enumerate(images):
        here = slice(row * size, (row + 1) * size)
        own = kind[row * pieces : (row + 1) * pieces]
        own[own == ENCODE] = ENCODE_IMAGES if shown else ENCODE
        for image in shown:
            inside = (since[here] >= image.start) & (since[here] < image.stop)
            since[here] = since[here].where(~inside, image.start)
            until[here] = until[here].where(~inside, image.stop)
    return replace(segments, kind=kind, since=since, until=until)
