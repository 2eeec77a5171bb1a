"""What the host sends to the device before a step and reads back afterwards: one small copy each way.

All numbers of a forward are in one block of 32-bit words, laid out the same on both sides: pinned memory that the host
fills, and device memory whose views the kernels read. Shapes: S segments, L rows of each, P pages of a request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from redraft.config import FULL, SLIDING, LayerType
from redraft.kernels.crew import Crew
from redraft.kernels.triton.philox import Counters
from redraft.kernels.triton.segments import Segments
from redraft.kernels.triton.step import EOS_IDS, Report, Rules

_LONG = ("seed", "soft_from", "soft_to")
_FLOAT = ("temperature", "entropy_bound", "confidence")
_WORD = ("kind", "start", "length", "slot", "canvas_index", "step", "want_soft", "stability", "stop_at_eos")


def _columns(rows: int, pages: int) -> dict[str, int]:
    """Words of every field of one segment, 8-byte numbers first so that they are aligned."""
    single = dict.fromkeys(_LONG, 2) | dict.fromkeys((*_FLOAT, *_WORD), 1)
    by_row = dict.fromkeys(("tokens", "since", "until"), rows)
    return single | {"eos": EOS_IDS} | by_row | {FULL: pages, SLIDING: pages}


def _views(block: Tensor, segments: int, rows: int, pages: int) -> dict[str, Tensor]:
    """The fields of a block: [S] each, eos [S,8], tokens, since and until [S,L], page tables [S,P]."""
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
    entropy_bound, confidence, stability, stop_at_eos, eos   see `Rules`
    temperature, want_soft  of this step; whether another one follows
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

    def everywhere(self, crew: Crew) -> list[StepFields]:
        """The same fields on every device of a crew."""
        return [StepFields(views=views, rows=self.rows) for views in crew.send_together(self.views)]

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
        views = self.views
        return Rules(
            entropy_bound=views["entropy_bound"],
            confidence_threshold=views["confidence"],
            stability_threshold=views["stability"],
            stop_at_eos=views["stop_at_eos"],
            eos=views["eos"],
        )

    @property
    def tables(self) -> dict[LayerType, Tensor]:
        return {kind: self.views[kind] for kind in (FULL, SLIDING)}


class StepBuffers:
    """The two blocks of a bucket of S segments, and the pinned block for the step's report."""

    def __init__(self, segments: int, rows: int, pages: int, device: torch.device) -> None:
        words = segments * sum(_columns(rows, pages).values())
        pinned = device.type == "cuda"
        self._host = torch.zeros(words, dtype=torch.int32, pin_memory=pinned)
        self._device = torch.zeros(words, dtype=torch.int32, device=device)
        self._report = torch.zeros(segments, Report.words(rows), dtype=torch.int32, pin_memory=pinned)
        views = _views(self._host, segments, rows, pages)
        self.host: dict[str, np.ndarray] = {name: view.numpy() for name, view in views.items()}
        self.fields = StepFields(views=_views(self._device, segments, rows, pages), rows=rows)

    @property
    def device(self) -> torch.device:
        """Where the step runs."""
        return self._device.device

    def upload(self) -> None:
        """Copy what the host has written; in a graph this is one node."""
        self._device.copy_(self._host, non_blocking=True)

    def download(self, block: Tensor, first: int = 0) -> None:
        """Copy a report [S,2+4L], or that of some segments from `first` on, to the host."""
        self._report[first : first + len(block)].copy_(block, non_blocking=True)

    @property
    def report(self) -> np.ndarray:
        """The last report to arrive, int32 [S,2+4L]; see `kernels.triton.step.Report`."""
        return self._report.numpy()
