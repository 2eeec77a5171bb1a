"""The runner for GPUs: a whole step of many requests as one CUDA graph.

There is one graph for each number of segments in `BUCKETS`; a forward takes the smallest that holds it and leaves the
rest of its segments unused, which costs next to nothing. Graphs are captured by `warm_up`, or when first needed, and
share their memory. A step costs the host one small copy in each direction, inside the graph, and one wait.

Canvases with a constraint use the same graph for the model; they are sampled after it, those of one automaton together
(`constrained_step.py`). Log-probabilities are computed from the hidden states that the graph left, once a canvas is
done.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self
from weakref import WeakSet

import numpy as np
import torch

from redraft.cache.pages import pages_for
from redraft.constraints.pins import not_empty
from redraft.diffusion.constraint import CanvasConstraint, Constraint, TabledConstraint
from redraft.diffusion.rng import draw
from redraft.diffusion.step import begin
from redraft.engine.captured_step import CapturedStep
from redraft.engine.constrained_step import Canvases, in_rounds, rehearse_canvas, sample_constrained
from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.graph_step import new_slots, run_step
from redraft.engine.runner import with_top
from redraft.engine.work import Denoise, Drafted, Encode, Limits, Segment
from redraft.kernels.crew import Crew
from redraft.kernels.streams import memory_for_graphs, on_device
from redraft.kernels.switches import graphable
from redraft.kernels.triton.segments import DENOISE, ENCODE, ENCODE_IMAGES, SAMPLED_OUTSIDE, UNUSED
from redraft.kernels.triton.step import EOS_IDS
from redraft.model.packed.forward import new_images
from redraft.model.packed.pages import new_pages
from redraft.model.packed.transformer import PackedTransformer
from redraft.text.images import PlacedImage

_log = logging.getLogger(__name__)

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class GraphRunner:
    """Runs forwards of a packed model; see `engine.work.Runner`.

    With `graphs` False every operation is launched separately: the same kernels, hence the same numbers. That is the
    default without a GPU, and when an operation is switched to its eager twin. Pages hold `kv_dtype`, by default the
    model's dtype.
    """

    def __init__(
        self,
        model: PackedTransformer,
        limits: Limits,
        *,
        graphs: bool | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        packed = model.packed
        self.model, self.limits, self._rows = model, limits, limits.canvas
        self._graphs = packed.device.type == "cuda" and graphable() if graphs is None else graphs
        self._trash, self._zeros = limits.slots, limits.slots + 1
        self._state = new_slots(packed, limits.slots, self._rows)
        self._pages = new_pages(packed, full=limits.full_pages, sliding=limits.sliding_pages, dtype=kv_dtype)
        self._images = None if model.vision is None else new_images(packed, limits.forward)
        self._tables = {name: np.zeros((limits.slots, self._width), np.int32) for name in ("full", "sliding")}
        self._held: dict[str, list[tuple[int, ...]]] = {name: [()] * limits.slots for name in self._tables}
        self._touched: dict[str, list[set[int]]] = {name: [set() for _ in range(limits.slots)] for name in self._tables}
        self._pool = memory_for_graphs(*packed.devices) if self._graphs else None
        self._steps: dict[int, CapturedStep] = {}
        self._rehearsed: WeakSet[Constraint] = WeakSet()
        self._rehearsing = threading.Lock()
        self._doubtful: set[int] = set()
        """Slots whose last forward gave numbers that are not finite, or no numbers at all."""
        self._unclean: dict[str, set[int]] = {name: set() for name in self._tables}
        """Pages that nobody holds and that may have numbers that are not finite, which their next user would read."""

    def for_model(self, model: PackedTransformer) -> Self:
        """A runner for another model of this shape, on the same pages and slots, with its own graphs."""
        other = copy.copy(self)
        other.model, other._steps = model, {}
        return other

    @property
    def _width(self) -> int:
        """Pages of the longest request."""
        return pages_for(self.limits.context)

    def assign(self, slot: int, full: Sequence[int], sliding: Sequence[int]) -> None:
        """See `engine.work.Runner`."""
        for name, pages in (("full", full), ("sliding", sliding)):
            self._held[name][slot] = tuple(pages)
            self._touched[name][slot].update(pages)
            self._tables[name][slot, : len(pages)] = pages
            self._tables[name][slot, len(pages) :] = 0

    def release(self, slot: int) -> bool:
        """See `engine.work.Runner`. Pages that cannot be cleaned now are cleaned before the next forward."""
        doubtful = slot in self._doubtful
        if doubtful:
            for name, unclean in self._unclean.items():
                unclean |= self._only_in(slot, name)
        self._doubtful.discard(slot)
        self.assign(slot, (), ())
        for touched in self._touched.values():
            touched[slot].clear()
        try:
            return not doubtful or self._clean()
        except Exception as error:
            _log.warning("pages could not be cleaned yet: %s", error)
            return False

    def _only_in(self, slot: int, name: str) -> set[int]:
        """The pages that only this slot has held. Shared ones are left alone, so that others notice what is wrong."""
        others = {page for other, pages in enumerate(self._held[name]) if other != slot for page in pages}
        return {page for page in self._touched[name][slot] - others if page >= 0}

    def _clean(self) -> bool:
        """Zero the values that are not finite in unclean pages, because their next user reads whole tiles. Returns
        whether there were none."""
        if not any(self._unclean.values()):
            return True
        given = [sorted(self._unclean[name]) for name in ("full", "sliding")]
        with Crew(self.model.packed.devices) as crew:
            found = crew.each(lambda pages: pages.clean(*given), self._pages)
        clean = not any(map(bool, found))
        for unclean in self._unclean.values():
            unclean.clear()
        return clean

    @torch.inference_mode()
    def warm_up(self) -> None:
        """See `engine.work.Runner`: captures a graph of every size that forwards can need.

        The largest comes first, so that the others fit into its memory. Then one canvas with a constraint takes a step.
        """
        most = most_segments(self.limits.slots, self.limits.prompt, self._rows)
        if self._graphs:
            with on_device(self.model.device):
                for size in reversed(BUCKETS[: BUCKETS.index(_bucket(most)) + 1]):
                    self.bucket(size)
                self._take_constrained_step()

    def _take_constrained_step(self) -> None:
        """Take a step in the first slot and pages, still unused, to set up what all constrained canvases share."""
        rows, pages = self._rows, [0] * pages_for(self._rows)
        limit = not_empty(rows, self.model.config.eos_token_id)
        rehearse_canvas(self.model.packed, limit, rows, rows)
        self.assign(0, pages, pages)
        canvas = Denoise(
            slot=0, start=0, length=rows, canvas_index=0, step=0, seed=0, temperature=1.0, last=False,
            entropy_bound=0.1, stability_threshold=1, confidence_threshold=0.0, stop_at_eos=False, eos_ids=(),
            constraint=limit,
        )  # fmt: skip
        self.run([canvas])
        self.release(0)

    def rehearse(self, constraint: Constraint, length: int, max_tokens: int) -> None:
        """See `engine.work.Runner`. Handles one constraint at a time and skips it if memory runs out."""
        if not self._graphs or constraint in self._rehearsed:
            return
        with self._rehearsing:
            canvas = None if constraint in self._rehearsed else constraint.begin().canvas(length, max_tokens)
            try:
                if canvas is not None:
                    rehearse_canvas(self.model.packed, canvas, length, self._rows)
            except torch.OutOfMemoryError:
                _log.warning(
                    "not enough memory to compile a constraint's kernels ahead; its first forward will compile them"
                )
            self._rehearsed.add(constraint)

    @torch.inference_mode()
    def prepare(self, work: Sequence[Segment]) -> None:
        """See `engine.work.Runner`: captures the graphs that have not been."""
        if not self._graphs or len(self._steps) == len(BUCKETS):
            return
        with on_device(self.model.device):
            for parts in self._launches(work):
                self.bucket(len(parts))

    @torch.inference_mode()
    def run(self, work: Sequence[Segment]) -> list[Drafted]:
        """See `engine.work.Runner`."""
        drafted: list[Drafted] = []
        self._clean()
        self._doubtful |= {segment.slot for segment in work}
        with on_device(self.model.device):
            places = self._see([image for segment in work if isinstance(segment, Encode) for image in segment.images])
            for parts in self._launches(work):
                drafted += self._forward(parts, places)
        order = {segment.slot: number for number, segment in enumerate(work) if isinstance(segment, Denoise)}
        drafted.sort(key=lambda one: order[one.slot])
        self._doubtful -= {one.slot for one in drafted if np.isfinite(one.entropy).all()}
        return drafted

    def _launches(self, work: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Parts in runs that fit a graph, keeping those of one segment together: they may see each other."""
        launch: list[Segment] = []
        for parts in (list(self._parts(segment)) for segment in work):
            if launch and len(launch) + len(parts) > BUCKETS[-1]:
                yield launch
                launch = []
            launch += parts
        if launch:
            yield launch

    def _parts(self, segment: Segment) -> Iterator[Segment]:
        """A segment, or a long Encode in pieces: keys are written before anything attends, so nothing changes."""
        if isinstance(segment, Denoise) or len(segment.token_ids) <= self._rows:
            yield segment
            return
        for first in range(0, len(segment.token_ids), self._rows):
            ids, start = segment.token_ids[first : first + self._rows], segment.start + first
            images = tuple(image for image in segment.images if image.start < start + len(ids) and start < image.stop)
            yield replace(segment, start=start, token_ids=ids, images=images)

    def _see(self, images: Sequence[PlacedImage]) -> dict[PlacedImage, int]:
        """Encode images; returns where each begins among the embeddings that token ids below 0 refer to."""
        places, first = {}, 0
        for image in dict.fromkeys(images):  # answers to one prompt share its images
            assert self._images is not None
            self._images[first : first + image.content.tokens] = self.model.see(image.content)
            places[image] = first
            first += image.content.tokens
        return places

    def _forward(self, parts: list[Segment], places: Mapping[PlacedImage, int]) -> list[Drafted]:
        parts, rounds = self._by_automaton(parts)
        step = self.bucket(len(parts))
        self._fill(step.buffers, parts, places)
        for part in parts:
            if isinstance(part, Denoise) and part.constraint is not None and part.step == 0:
                self._begin(part, part.constraint)
        try:
            hidden = step.launch()
            for canvases in rounds:
                fields = step.buffers.fields
                sample_constrained(self.model.packed, fields, self._state, hidden, canvases, step.deliver)
        except BaseException:
            step.give_up()
            raise
        step.wait()
        report = step.buffers.report.copy()
        return [
            with_top(self.model, hidden[0][index * self._rows :][: part.length], part, _drafted(part, report[index]))
            for index, part in enumerate(parts)
            if isinstance(part, Denoise)
        ]

    def _by_automaton(self, parts: list[Segment]) -> tuple[list[Segment], list[list[Canvases]]]:
        """The parts in another order, constrained canvases last, and the rounds in which these are sampled."""
        packed, together = self.model.packed, dict[tuple[int, int], list[tuple[Denoise, TabledConstraint]]]()
        canvases, encodes = list[Segment](), list[Segment]()
        for part in parts:
            if isinstance(part, Encode):
                encodes.append(part)
            elif part.constraint is None:
                canvases.append(part)
            else:
                automaton, _ = part.constraint.tables(packed.device, packed.config.vocab_size)
                together.setdefault((id(automaton), part.length), []).append((part, part.constraint))
        ordered = _spread(canvases, encodes)
        groups = [(length, [limit for _, limit in group]) for (_, length), group in together.items()]
        rounds = in_rounds(packed, groups, len(ordered), self._rows)
        return [*ordered, *(part for group in together.values() for part, _ in group)], rounds

    # --- what the host writes for a graph -------------------------------------------------------------------------

    def bucket(self, segments: int) -> CapturedStep:
        """The step that takes this many segments, captured on first use."""
        size = _bucket(segments)
        return self._steps.get(size) or self._new_bucket(size)

    def _new_bucket(self, segments: int) -> CapturedStep:
        buffers = StepBuffers(segments, self._rows, self._width, self.model.device)
        self._clear(buffers.host)
        step = partial(run_step, self.model.packed, buffers.fields, self._state, self._pages, self._images)
        self._steps[segments] = CapturedStep(buffers, step, self._pool)
        return self._steps[segments]

    def _clear(self, host: dict[str, np.ndarray]) -> None:
        host["kind"][:], host["length"][:], host["start"][:] = UNUSED, 0, 0
        host["slot"][:], host["soft_from"][:], host["soft_to"][:] = self._trash, self._zeros, self._trash
        host["temperature"][:], host["step"][:] = 1.0, 0

    def _fill(self, buffers: StepBuffers, parts: list[Segment], places: Mapping[PlacedImage, int]) -> None:
        host = buffers.host
        self._clear(host)
        for index, part in enumerate(parts):
            host["start"][index], host["length"][index] = part.start, part.tokens
            for name, table in self._tables.items():
                host[name][index] = table[part.slot]
            if isinstance(part, Encode):
                host["kind"][index] = ENCODE_IMAGES if part.images else ENCODE
                host["tokens"][index, : part.tokens] = part.token_ids
                self._fill_images(host, index, part, places)
            else:
                self._fill_canvas(host, index, part)

    def _fill_images(
        self, host: dict[str, np.ndarray], index: int, part: Encode, places: Mapping[PlacedImage, int]
    ) -> None:
        """Fill in image tokens, and what every row sees besides what comes before it: its image, or only itself."""
        if part.images:
            own = np.arange(part.start, part.start + part.tokens)
            host["since"][index, : part.tokens], host["until"][index, : part.tokens] = own, own + 1
        for image in part.images:
            first, stop = max(image.start, part.start), min(image.stop, part.start + part.tokens)
            rows = slice(first - part.start, stop - part.start)
            host["since"][index, rows], host["until"][index, rows] = image.start, image.stop
            host["tokens"][index, rows] = -1 - (places[image] + np.arange(first, stop) - image.start)

    def _fill_canvas(self, host: dict[str, np.ndarray], index: int, part: Denoise) -> None:
        outside = part.constraint is not None
        host["kind"][index] = SAMPLED_OUTSIDE if outside else DENOISE
        host["slot"][index] = part.slot
        host["soft_from"][index] = part.slot if part.step else self._zeros
        host["soft_to"][index] = self._trash if outside else part.slot
        host["seed"][index] = part.seed
        host["canvas_index"][index], host["step"][index] = part.canvas_index, part.step
        host["want_soft"][index] = not part.last
        host["temperature"][index], host["entropy_bound"][index] = part.temperature, part.entropy_bound
        host["confidence"][index], host["stability"][index] = part.confidence_threshold, part.stability_threshold
        host["stop_at_eos"][index] = part.stop_at_eos
        host["eos"][index] = (*part.eos_ids, *[-1] * (EOS_IDS - len(part.eos_ids)))

    # --- outside the graph ----------------------------------------------------------------------------------------

    def _begin(self, part: Denoise, constraint: CanvasConstraint) -> None:
        """The first canvas of a segment that obeys a constraint: noise, with what is fixed in place."""
        seeds = torch.full((1,), part.seed, dtype=torch.long, device=self.model.device)  # a copy would make us wait
        noise = draw(seeds, part.canvas_index, part.step, part.length, self.model.config.vocab_size, "initial").tokens
        canvas = begin(noise[0], constraint).canvas
        self._state.canvases.tokens[part.slot, : part.length] = canvas.to(self.model.device).int()


def most_segments(slots: int, prompt: int, canvas: int) -> int:
    """The most segments of one launch: a commit and a canvas of every slot, or parts of prompts of `prompt` tokens in
    all, a canvas for every prompt that ends, and a commit and a canvas of the other slots."""
    return min(2 * slots - 1 + max(1, -(-prompt // canvas)), BUCKETS[-1])


def _spread(*groups: Sequence[Segment]) -> list[Segment]:
    """All parts, with each group spread evenly: GPUs divide segments by their order, and sample only the canvases."""
    placed = [((number + 0.5) / len(group), part) for group in groups for number, part in enumerate(group)]
    return [part for _, part in sorted(placed, key=lambda one: one[0])]


def _bucket(segments: int) -> int:
    """The smallest of `BUCKETS` that holds this many segments."""
    return next(size for size in BUCKETS if size >= segments)


def _drafted(part: Denoise, report: np.ndarray) -> Drafted:
    """A result from a row int32 [2+4L] of a step's report."""
    canvas, argmax, accepted, entropy = report[2:].reshape(4, -1)[:, : part.length]
    return Drafted(
        slot=part.slot,
        canvas=canvas,
        argmax_canvas=argmax,
        accepted=accepted.astype(bool),
        entropy=entropy.view(np.float32),
        converged=bool(report[0]),
    )
