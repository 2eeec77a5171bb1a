"""The runner for GPUs: a whole step of many requests as CUDA graphs.

There are two graphs, one after the other, for each number of segments in `BUCKETS` (`captured_step.py`); a forward
takes the smallest that holds it and leaves the rest of its segments unused, which costs next to nothing. Graphs are
captured by `warm_up`, or when first needed, and share their memory. A step costs the host one small copy in each
direction, inside the graphs, and one wait.

Canvases with a constraint use the same graph for the model; they are sampled after it, those of one automaton together
(`constrained_step.py`). So are those with a bias on their logits, if need be under a constraint that allows everything:
the head leaves logits that are not capped yet, and none of these stands for a capped one with a bias. Log-probabilities
are computed from the hidden states that the graph left, once a canvas is done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from redraft.cache.pages import pages_for
from redraft.constraints.pins import Allowed
from redraft.diffusion.constraint import CanvasConstraint, Constraint
from redraft.diffusion.rng import draw
from redraft.diffusion.step import begin, rule_fields
from redraft.engine.captured_step import CapturedStep
from redraft.engine.constrained_step import Canvases, Limit, in_rounds, rehearse_canvas, sample_constrained
from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.graph_step import SlotState, Step, new_slots
from redraft.engine.runner import attach_logprobs
from redraft.engine.slot_pages import SlotPages
from redraft.engine.work import Denoise, DenoiseResult, Encode, Limits, Segment, nothing
from redraft.kernels.streams import GraphMemory, on_device
from redraft.kernels.switches import graphable
from redraft.model.packed.forward import new_images
from redraft.model.packed.pages import new_pages
from redraft.model.packed.transformer import PackedTransformer
from redraft.settings import Bias, GenerationSettings
from redraft.text.images import PlacedImage

_log = logging.getLogger(__name__)

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LAYER_AHEAD = 4
"""The largest bucket whose first layer begins while the step before has yet to report. Of more canvases one is done
after most steps, and then the next forward is another one than was begun; it takes too long to begin these in vain."""
BIASED: Bias = ((0, -1.0),)
"""Any bias, to compile kernels with."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Shared:
    """What the runners of a model and of its adapters have in common. One thread runs them, one forward at a time.

    pages      which pages each slot holds; what one runner assigns, releases or doubts, it does for all of them
    state      what the slots' canvases keep between steps
    images     room for the embeddings of one forward's images [I,D]; None for a model without vision
    graphs     the memory of all graphs; None if operations are launched separately
    rehearsed  the constraints whose kernels have been compiled, by the thread that holds `rehearsing`: those without
               a bias, and those with one
    """

    pages: SlotPages
    state: SlotState
    images: Tensor | None
    graphs: GraphMemory | None
    rehearsed: tuple[WeakSet[Constraint], WeakSet[Constraint]] = field(default_factory=lambda: (WeakSet(), WeakSet()))
    rehearsing: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Launch:
    """Segments of one launch, in the order in which they are written to the host's block of the step that takes them.

    `rounds` are those canvases among them that obey a constraint, see `constrained_step.in_rounds`.
    """

    parts: list[Segment]
    step: CapturedStep
    rounds: list[list[Canvases]]


class GraphRunner:
    """Runs forwards of a packed model; see `engine.work.Runner`.

    With `graphs` False every operation is launched separately: the same kernels, hence the same numbers. That is the
    default without a GPU, and when an operation is switched to its eager twin. Pages hold `kv_dtype`, by default the
    model's dtype. `shared` is another runner's (`for_model`), which has settled both.
    """

    def __init__(
        self,
        model: PackedTransformer,
        limits: Limits,
        *,
        graphs: bool | None = None,
        kv_dtype: torch.dtype | None = None,
        shared: Shared | None = None,
    ) -> None:
        self.model, self.limits = model, limits
        self.shared = _new_shared(model, limits, graphs, kv_dtype) if shared is None else shared
        self._steps: dict[int, CapturedStep] = {}
        self._prepared: tuple[Sequence[Segment], Launch] | None = None

    def for_model(self, model: PackedTransformer) -> GraphRunner:
        """A runner for another model of this shape, with its own graphs; everything else is shared, see `Shared`."""
        return GraphRunner(model, self.limits, shared=self.shared)

    def assign(self, slot: int, full: Sequence[int], sliding: Sequence[int]) -> None:
        """See `engine.work.Runner`."""
        self.shared.pages.assign(slot, full, sliding)

    def release(self, slot: int) -> bool:
        """See `engine.work.Runner`."""
        return self.shared.pages.release(slot)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """See `engine.work.Runner`: captures a graph of every size that forwards can need.

        The largest comes first, so that the others fit into its memory. Then canvases with a constraint take a step.
        """
        most = most_segments(self.limits.slots, self.limits.prompt, self.limits.canvas)
        if self.shared.graphs is not None:
            with on_device(self.model.device):
                for size in reversed(BUCKETS[: BUCKETS.index(_bucket(most)) + 1]):
                    self.bucket(size)
                self._take_constrained_steps()

    def _take_constrained_steps(self) -> None:
        """Take steps in the first slot and pages, still unused, to set up what all canvases with a constraint share,
        and all with a bias."""
        rows, pages, ends = self.limits.canvas, [0] * pages_for(self.limits.canvas), self.model.config.eos_token_id
        self.assign(0, pages, pages)
        for not_first, bias in ((ends, ()), (ends, BIASED), ((), BIASED)):
            limit = _anything(rows, not_first)
            rehearse_canvas(self.model.packed, (limit, bias), rows, rows)
            canvas = Denoise(
                slot=0, start=0, length=rows, canvas_index=0, step=0, seed=0, temperature=1.0, last=False, eos_ids=(),
                constraint=limit, **rule_fields(GenerationSettings(logit_bias=bias)),
            )  # fmt: skip
            self.run([canvas])
        self.release(0)

    def rehearse(self, constraint: Constraint, length: int, max_tokens: int, *, biased: bool = False) -> None:
        """See `engine.work.Runner`. Handles one constraint at a time and skips it if memory runs out."""
        rehearsed = self.shared.rehearsed[biased]
        if self.shared.graphs is None or constraint in rehearsed:
            return
        with self.shared.rehearsing:
            canvas = None if constraint in rehearsed else constraint.begin().canvas(length, max_tokens)
            try:
                if canvas is not None:
                    limit = canvas, BIASED if biased else ()
                    rehearse_canvas(self.model.packed, limit, length, self.limits.canvas)
            except torch.OutOfMemoryError:
                _log.warning(
                    "not enough memory to compile a constraint's kernels ahead; its first forward will compile them"
                )
            rehearsed.add(constraint)

    @torch.inference_mode()
    def capture(self, work: Sequence[Segment]) -> None:
        """See `engine.work.Runner`."""
        if self.shared.graphs is None or len(self._steps) == len(BUCKETS) or self._launch_prepared_for(work):
            return
        with on_device(self.model.device):
            for parts in self._launches(work):
                self.bucket(len(parts))

    @torch.inference_mode()
    def prepare(self, work: Sequence[Segment]) -> None:
        """See `engine.work.Runner`: writes what a single launch sends, unless images or a new graph are needed, and
        begins it if all its canvases go on."""
        self._prepared = None
        launches = list(self._launches(work))
        if len(launches) == 1 and _bucket(len(launches[0])) in self._steps and not any(map(_images, work)):
            launch = self._written(launches[0], {})
            self._prepared = work, launch
            if all(map(_goes_on, work)):
                with on_device(self.model.device):
                    launch.step.begin()
                self.shared.pages.doubt(self._slots_written_ahead())

    @torch.inference_mode()
    def run(self, work: Sequence[Segment], meanwhile: Callable[[], None] = nothing) -> list[DenoiseResult]:
        """See `engine.work.Runner`."""
        launch, self._prepared = self._launch_prepared_for(work), None
        results: list[DenoiseResult] = []
        pages = self.shared.pages
        pages.begin(work)
        with on_device(self.model.device):
            if launch is None:
                places = self._see([image for segment in work for image in _images(segment)])
                *firsts, last = self._launches(work)
                for parts in firsts:
                    results += self._forward(self._written(parts, places), nothing)
                launch = self._written(last, places)
            results += self._forward(launch, meanwhile)
        order = {segment.slot: number for number, segment in enumerate(work) if isinstance(segment, Denoise)}
        results.sort(key=lambda one: order[one.slot])
        finite, ahead = (one for one in results if np.isfinite(one.entropy).all()), self._slots_written_ahead()
        pages.trust(one.slot for one in finite if one.converged or one.slot not in ahead)
        return results

    def _slots_written_ahead(self) -> set[int]:
        """Slots to whose pages the prepared forward may have begun to write, unless their canvas was done."""
        if self._prepared is None or not self._prepared[1].step.writes_ahead:
            return set()
        return {segment.slot for segment in self._prepared[0]}

    def _launch_prepared_for(self, work: Sequence[Segment]) -> Launch | None:
        return self._prepared[1] if self._prepared is not None and self._prepared[0] is work else None

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
        if isinstance(segment, Denoise) or len(segment.token_ids) <= self.limits.canvas:
            yield _sampled_outside(segment)
            return
        for first in range(0, len(segment.token_ids), self.limits.canvas):
            ids, start = segment.token_ids[first : first + self.limits.canvas], segment.start + first
            images = tuple(image for image in segment.images if image.start < start + len(ids) and start < image.stop)
            yield replace(segment, start=start, token_ids=ids, images=images)

    def _see(self, images: Sequence[PlacedImage]) -> dict[PlacedImage, int]:
        """Encode images; returns where each begins among the embeddings that token ids below 0 refer to."""
        places, first = {}, 0
        for image in dict.fromkeys(images):  # answers to one prompt share its images
            assert self.shared.images is not None
            self.shared.images[first : first + image.content.tokens] = self.model.embed_image(image.content)
            places[image] = first
            first += image.content.tokens
        return places

    def _written(self, parts: list[Segment], places: Mapping[PlacedImage, int]) -> Launch:
        """A launch of these segments, with all that the host sends for it written."""
        parts, rounds = self._by_automaton(parts)
        step = self.bucket(len(parts))
        step.drop()
        step.buffers.write(parts, self.shared.pages.tables, places)
        return Launch(parts=parts, step=step, rounds=rounds)

    def _forward(self, launch: Launch, meanwhile: Callable[[], None]) -> list[DenoiseResult]:
        parts, step = launch.parts, launch.step
        for part in parts:
            if isinstance(part, Denoise) and part.constraint is not None and part.step == 0:
                self._begin(part, part.constraint)
        try:
            hidden = step.launch()
            for canvases in launch.rounds:
                fields = step.buffers.fields
                sample_constrained(self.model.packed, fields, self.shared.state, hidden, canvases, step.deliver)
            scored = self._kept_hidden(parts, hidden[0])
            meanwhile()
        except BaseException:
            step.give_up()
            raise
        step.wait()
        results = step.buffers.results(parts)
        for index, (part, rows) in scored.items():
            results[index] = attach_logprobs(self.model, rows, part, results[index])
        return [*results.values()]

    def _kept_hidden(self, parts: Sequence[Segment], hidden: Tensor) -> dict[int, tuple[Denoise, Tensor]]:
        """Canvases whose log-probabilities are wanted, by their index, and a copy of their rows [L,D] of the hidden
        states: what begins before these are read takes the same memory."""
        kept = {}
        for index, part in enumerate(parts):
            if isinstance(part, Denoise) and part.logprobs is not None:
                first = index * self.limits.canvas
                kept[index] = part, hidden[first : first + part.length].clone()
        return kept

    def _by_automaton(self, parts: list[Segment]) -> tuple[list[Segment], list[list[Canvases]]]:
        """The parts in another order, constrained canvases last, and the rounds in which these are sampled."""
        packed, together = self.model.packed, dict[tuple[int, int, bool], list[tuple[Denoise, Limit]]]()
        canvases, encodes = list[Segment](), list[Segment]()
        for part in parts:
            if isinstance(part, Encode):
                encodes.append(part)
            elif part.constraint is None:
                canvases.append(part)
            else:
                automaton, _ = part.constraint.tables(packed.device, packed.config.vocab_size)
                alike, limit = (id(automaton), part.length, bool(part.logit_bias)), (part.constraint, part.logit_bias)
                together.setdefault(alike, []).append((part, limit))
        ordered = _spread(canvases, encodes)
        groups = [(length, [limit for _, limit in group]) for (_, length, _), group in together.items()]
        rounds = in_rounds(packed, groups, len(ordered), self.limits.canvas)
        return [*ordered, *(part for group in together.values() for part, _ in group)], rounds

    def bucket(self, segments: int) -> CapturedStep:
        """The step that takes this many segments, captured on first use."""
        size = _bucket(segments)
        return self._steps.get(size) or self._new_bucket(size)

    def _new_bucket(self, segments: int) -> CapturedStep:
        shared = self.shared
        rows, slots = self.limits.canvas, self.limits.slots
        buffers = StepBuffers(segments, rows, shared.pages.width, self.model.device, slots=slots)
        step = Step(
            model=self.model.packed, fields=buffers.fields, state=shared.state, pages=shared.pages.stored,
            images=shared.images, first_layers=int(segments <= LAYER_AHEAD),
        )  # fmt: skip
        self._steps[segments] = CapturedStep(buffers, step, shared.graphs)
        return self._steps[segments]

    def _begin(self, part: Denoise, constraint: CanvasConstraint) -> None:
        """The first canvas of a segment that obeys a constraint: noise, with what is fixed in place."""
        seeds = torch.full((1,), part.seed, dtype=torch.long, device=self.model.device)  # a copy would make us wait
        noise = draw(seeds, part.canvas_index, part.step, part.length, self.model.config.vocab_size, "initial").tokens
        canvas = begin(noise[0], constraint).canvas
        self.shared.state.canvases.tokens[part.slot, : part.length] = canvas.to(self.model.device).int()


def _new_shared(model: PackedTransformer, limits: Limits, graphs: bool | None, kv_dtype: torch.dtype | None) -> Shared:
    packed = model.packed
    if graphs is None:
        graphs = packed.device.type == "cuda" and graphable()
    pages = new_pages(packed, full=limits.full_pages, sliding=limits.sliding_pages, dtype=kv_dtype)
    return Shared(
        pages=SlotPages(pages, limits),
        state=new_slots(packed, limits.slots, limits.canvas),
        images=None if model.vision is None else new_images(packed, limits.forward),
        graphs=GraphMemory(*packed.devices) if graphs else None,
    )


def most_segments(slots: int, prompt: int, canvas: int) -> int:
    """The most segments of one launch: a commit and a canvas of every slot, or parts of prompts of `prompt` tokens in
    all, a canvas for every prompt that ends, and a commit and a canvas of the other slots."""
    return min(2 * slots - 1 + max(1, -(-prompt // canvas)), BUCKETS[-1])


def _spread(*groups: Sequence[Segment]) -> list[Segment]:
    """All parts, with each group spread evenly: GPUs divide segments by their order, and sample only the canvases."""
    placed = [((number + 0.5) / len(group), part) for group in groups for number, part in enumerate(group)]
    return [part for _, part in sorted(placed, key=lambda one: one[0])]


def _sampled_outside(segment: Segment) -> Segment:
    """The segment; a canvas with a bias has a constraint, if only one that allows everything."""
    if isinstance(segment, Denoise) and segment.logit_bias and segment.constraint is None:
        return replace(segment, constraint=_anything(segment.length, segment.not_first))
    return segment


@lru_cache(maxsize=64)
def _anything(length: int, not_first: tuple[int, ...]) -> Allowed:
    """All tokens at every position, but none of `not_first` at the first one. One object, as it keeps its tables."""
    return Allowed(length, forbidden={0: not_first} if not_first else None)


def _goes_on(segment: Segment) -> bool:
    """Whether a segment is a canvas' second step or a later one."""
    return isinstance(segment, Denoise) and segment.step > 0


def _images(segment: Segment) -> tuple[PlacedImage, ...]:
    return segment.images if isinstance(segment, Encode) else ()


def _bucket(segments: int) -> int:
    """The smallest of `BUCKETS` that holds this many segments."""
    return next(size for size in BUCKETS if size >= segments)
