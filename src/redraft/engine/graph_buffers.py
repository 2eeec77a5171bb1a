"""What the host sends to the device before a step and reads back afterwards: one small copy each way.

All numbers of a forward are in one block of 32-bit words, of which there are three, laid out the same: the host writes
the next one while a step runs, a step takes its own from pinned memory, and kernels read views of the device's. Shapes:
S segments, L rows of each, P pages of a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redraft.config import FULL, SLIDING, LayerType
from redraft.engine.work import Denoise, DenoiseResult, Encode, Segment
from redraft.kernels.device_group import DeviceGroup
from redraft.kernels.triton.head import END_IDS
from redraft.kernels.triton.philox import Counters
from redraft.kernels.triton.segments import DENOISE, ENCODE, ENCODE_IMAGES, SAMPLED_OUTSIDE, UNUSED, Segments
from redraft.kernels.triton.step import Report, Rules
from redraft.text.images import PlacedImage

_LONG = ("seed", "soft_from", "soft_to")
_FLOAT = ("temperature", "entropy_bound", "confidence_threshold")
_WORD = ("kind", "start", "length", "slot", "canvas_index", "step", "want_soft", "stability_threshold", "stop_at_eos")
_IDS = ("eos_ids", "not_first")

_AS_GIVEN = tuple(field.name for field in fields(Denoise) if field.name in (*_LONG, *_FLOAT, *_WORD))
"""The fields of a `Denoise` that are sent as they are."""


def _columns(rows: int, pages: int) -> dict[str, int]:
    """Words of every field of one segment, 8-byte numbers first so that they are aligned."""
    single = dict.fromkeys(_LONG, 2) | dict.fromkeys((*_FLOAT, *_WORD), 1)
    by_row = dict.fromkeys(("tokens", "since", "until"), rows)
    return single | dict.fromkeys(_IDS, END_IDS) | by_row | {FULL: pages, SLIDING: pages}


def _views(block: Tensor, segments: int, rows: int, pages: int) -> dict[str, Tensor]:
    """The fields of a block: [S] each, lists of ids [S,8], tokens, since and until [S,L], page tables [S,P]."""
    views, first = {}, 0
    for name, words in _columns(rows, pages).items():
        part = block[first : first + segments * words]
        first += segments * words
        if name in _LONG:
            part = part.view(torch.int64)
        elif name in _FLOAT:
            part = part.view(torch.float32)
        elif name not in _WORD:
            part = part.view(segments, words)
        views[name] = part
    return views


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFields:
    """The device's view of a block, as the records that kernels take.

    kind, start, length, since, until   see `Segments`
    slot                    the slot whose canvas a segment works on
    soft_from, soft_to      the slots that its soft embeddings come from and go to, see `SlotState`
    seed, canvas_index, step                            see `Counters`
    entropy_bound, confidence_threshold, stability_threshold, stop_at_eos, eos_ids      see `Rules`
    temperature, want_soft  of this step; whether another one follows
    not_first               see `kernels.triton.head.predict`
    tokens                  the tokens of an encoded segment; values below 0 are rows of images, see `norms.enter`
    FULL, SLIDING           its page tables
    """

    views: dict[str, Tensor]
    rows: int

    @property
    def count(self) -> int:
        return len(self.views["kind"])

    def part(self, first: int, end: int) -> StepFields:
        """The view of some of the segments."""
        return StepFields(views={name: view[first:end] for name, view in self.views.items()}, rows=self.rows)

    def broadcast(self, group: DeviceGroup) -> list[StepFields]:
        """The same fields on every device of a group."""
        return [StepFields(views=views, rows=self.rows) for views in group.broadcast_dict(self.views)]

    @property
    def segments(self) -> Segments:
        views = self.views
        names = ("kind", "start", "length")
        sight = {name: views[name].flatten() for name in ("since", "until")}
        return Segments(**{name: views[name] for name in names}, rows=self.rows, **sight)

    @property
    def counters(self) -> Counters:
        return Counters(seed=self.views["seed"], canvas=self.views["canvas_index"], step=self.views["step"])

    @property
    def rules(self) -> Rules:
        return Rules(**{name: self.views[name] for name in Rules.__slots__})

    @property
    def tables(self) -> dict[LayerType, Tensor]:
        return {kind: self.views[kind] for kind in (FULL, SLIDING)}


class StepBuffers:
    """The blocks of a bucket of S segments, and the pinned one for the step's report.

    Segments that are not written are unused, at first all of them; their results go to the slot after the `slots` real
    ones, see `SlotState`.
    """

    def __init__(self, segments: int, rows: int, pages: int, device: torch.device, *, slots: int) -> None:
        words = segments * sum(_columns(rows, pages).values())
        pinned = device.type == "cuda"
        self._next_block = torch.zeros(words, dtype=torch.int32)
        self._host_block = torch.zeros(words, dtype=torch.int32, pin_memory=pinned)
        self._device_block = torch.zeros(words, dtype=torch.int32, device=device)
        self._report = torch.zeros(segments, Report.words(rows), dtype=torch.int32, pin_memory=pinned)
        self._arrived = self._report.numpy()
        views = _views(self._next_block, segments, rows, pages)
        self._host: dict[str, np.ndarray] = {name: view.numpy() for name, view in views.items()}
        self.fields = StepFields(views=_views(self._device_block, segments, rows, pages), rows=rows)
        self._discard, self._zeros = slots, slots + 1
        self._clear()
        self.send()

    @property
    def device(self) -> torch.device:
        """Where the step runs."""
        return self._device_block.device

    def write(
        self,
        segments: Sequence[Segment],
        tables: Mapping[LayerType, NDArray[np.int32]],
        places: Mapping[PlacedImage, int],
    ) -> None:
        """Write the segments of a forward, of at most L tokens each; the forward before may still be running.

        `tables` int32 [C,P] are all slots' pages, `places` the rows of `Inputs.images` in which images begin.
        """
        self._clear()
        slots = [segment.slot for segment in segments]
        for kind, table in tables.items():
            self._host[kind][: len(slots)] = table[slots]
        for index, segment in enumerate(segments):
            if isinstance(segment, Encode):
                self._write_tokens(index, segment, places)
            else:
                self._write_canvas(index, segment)

    def send(self) -> None:
        """Put what was written last where a step takes it from; no step of these buffers may be running."""
        self._host_block.copy_(self._next_block)

    def upload(self) -> None:
        """Copy what the host has sent to the device; in a graph this is one node."""
        self._device_block.copy_(self._host_block, non_blocking=True)

    def download(self, block: Tensor, first: int = 0) -> None:
        """Copy a report [S,2+4L], or that of some segments from `first` on, to the host."""
        self._report[first : first + len(block)].copy_(block, non_blocking=True)

    def results(self, segments: Sequence[Segment]) -> dict[int, DenoiseResult]:
        """What the last report to arrive, see `kernels.triton.step.Report`, says of the canvases, by their index."""
        report = self._arrived[: len(segments)].copy()  # the next report comes to the same place
        canvas, argmax, accepted, entropy = report[:, 2:].reshape(len(segments), 4, -1).swapaxes(0, 1)
        accepted, entropy = accepted.astype(bool), entropy.view(np.float32)
        converged = report[:, 0].astype(bool).tolist()
        return {
            index: DenoiseResult(
                slot=segment.slot,
                canvas=canvas[index, : segment.length],
                argmax_canvas=argmax[index, : segment.length],
                accepted=accepted[index, : segment.length],
                entropy=entropy[index, : segment.length],
                converged=converged[index],
            )
            for index, segment in enumerate(segments)
            if isinstance(segment, Denoise)
        }

    def _clear(self) -> None:
        """Leave all segments unused."""
        host = self._host
        host["kind"][:], host["length"][:], host["start"][:] = UNUSED, 0, 0
        host["slot"][:], host["soft_from"][:], host["soft_to"][:] = self._discard, self._zeros, self._discard
        host["temperature"][:], host["step"][:] = 1.0, 0

    def _write_tokens(self, index: int, segment: Encode, places: Mapping[PlacedImage, int]) -> None:
        host, count = self._host, segment.tokens
        host["kind"][index] = ENCODE_IMAGES if segment.images else ENCODE
        host["start"][index], host["length"][index] = segment.start, count
        host["tokens"][index, :count] = segment.token_ids
        if segment.images:  # a row sees what comes before it, and its image, or only itself
            own = np.arange(segment.start, segment.start + count)
            host["since"][index, :count], host["until"][index, :count] = own, own + 1
        for image in segment.images:
            first, stop = max(image.start, segment.start), min(image.stop, segment.start + count)
            rows = slice(first - segment.start, stop - segment.start)
            host["since"][index, rows], host["until"][index, rows] = image.start, image.stop
            host["tokens"][index, rows] = -1 - (places[image] + np.arange(first, stop) - image.start)

    def _write_canvas(self, index: int, segment: Denoise) -> None:
        host, outside = self._host, segment.constraint is not None
        for name in _AS_GIVEN:
            host[name][index] = getattr(segment, name)
        host["kind"][index] = SAMPLED_OUTSIDE if outside else DENOISE
        host["soft_from"][index] = segment.slot if segment.step else self._zeros
        host["soft_to"][index] = self._discard if outside else segment.slot
        host["want_soft"][index] = not segment.last
        for name in _IDS:
            ids = getattr(segment, name)
            host[name][index] = (*ids, *[-1] * (END_IDS - len(ids)))
