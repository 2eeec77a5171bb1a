"""The eager runner: forwards in plain PyTorch, on a CPU or on CUDA."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from redraft.cache.fp8 import FP8
from redraft.cache.paged import PagedKV
from redraft.diffusion.constraint import Constraint
from redraft.diffusion.rng import Draws, Purpose, draw
from redraft.diffusion.sampler import top_tokens
from redraft.diffusion.step import CanvasState, StepOutcome, advance, begin
from redraft.engine.work import Denoise, DenoiseResult, Encode, Limits, Segment, nothing
from redraft.model import Model, Transformer
from redraft.model.spans import Span, key_units, run_spans
from redraft.model.vision import ImageEmbeddings


@dataclass(slots=True)
class _Slot:
    """What a slot keeps for its request: the pages, and the canvas between two steps."""

    full: list[int] = field(default_factory=list)
    sliding: list[int] = field(default_factory=list)
    canvas: CanvasState | None = None


class EagerRunner:
    """A `work.Runner` on a `Transformer`. The results for a request's rows do not depend on the other rows.

    Pages hold `kv_dtype`: FP8, or the model's own dtype.
    """

    def __init__(self, model: Transformer, limits: Limits, *, kv_dtype: torch.dtype | None = None) -> None:
        self.model, self.limits = model, limits
        self._pages = PagedKV(
            model.config,
            limits.full_pages,
            limits.sliding_pages,
            device=model.device,
            dtype=model.dtype,
            units=key_units(model) if kv_dtype == FP8 else None,
        )
        self._slots: dict[int, _Slot] = {}

    def for_model(self, model: Transformer) -> Self:
        """A runner for another model of this shape, on the same pages and slots."""
        other = copy.copy(self)
        other.model = model
        return other

    def assign(self, slot: int, full: Sequence[int], sliding: Sequence[int]) -> None:
        """See `work.Runner.assign`."""
        state = self._slots.setdefault(slot, _Slot())
        state.full, state.sliding = list(full), list(sliding)

    def release(self, slot: int) -> bool:
        """See `work.Runner.release`; whoever reads pages that are not finite will notice."""
        self._slots.pop(slot, None)
        return True

    def warm_up(self) -> None:
        """See `work.Runner.warm_up`; there is nothing to do."""

    def rehearse(self, constraint: Constraint, length: int, max_tokens: int, *, biased: bool = False) -> None:
        """See `work.Runner.rehearse`; there is nothing to do."""

    def capture(self, work: Sequence[Segment]) -> None:
        """See `work.Runner.capture`; there is nothing to do."""

    def prepare(self, work: Sequence[Segment]) -> None:
        """See `work.Runner.prepare`; there is nothing to do."""

    @torch.inference_mode()
    def run(self, work: Sequence[Segment], meanwhile: Callable[[], None] = nothing) -> list[DenoiseResult]:
        """See `work.Runner.run`."""
        for segment in work:
            if isinstance(segment, Denoise) and segment.step == 0:
                self._slots[segment.slot].canvas = begin(self._draw(segment, "initial").tokens[0], segment.constraint)
        hidden = run_spans(self.model, self._pages, [self._span(segment) for segment in work])
        results, row = [], 0
        for segment in work:
            if isinstance(segment, Denoise):
                results.append(self._step(segment, hidden[row : row + segment.length]))
            row += segment.tokens
        meanwhile()
        return results

    def _span(self, segment: Segment) -> Span:
        slot = self._slots[segment.slot]
        where = {"start": segment.start, "full": slot.full, "sliding": slot.sliding}
        if isinstance(segment, Encode):
            ids = torch.tensor(segment.token_ids, device=self.model.device)
            images = [ImageEmbeddings(image.start, self.model.embed_image(image.content)) for image in segment.images]
            return Span(token_ids=ids, causal=True, images=images, **where)
        canvas = slot.canvas
        assert canvas is not None
        return Span(token_ids=canvas.canvas, causal=False, soft=canvas.soft, **where)

    def _draw(self, segment: Denoise, purpose: Purpose) -> Draws:
        """The canvas' random numbers, [1,L]."""
        seed = torch.tensor([segment.seed], device=self.model.device)
        vocabulary = self.model.config.vocab_size
        return draw(seed, segment.canvas_index, segment.step, segment.length, vocabulary, purpose)

    def _step(self, segment: Denoise, hidden: Tensor) -> DenoiseResult:
        """Take the canvas' step from its hidden states [L,D]."""
        slot, draws = self._slots[segment.slot], self._draw(segment, "step")
        assert slot.canvas is not None
        entered = slot.canvas.canvas
        slot.canvas, outcome = advance(self.model, hidden, slot.canvas, segment, draws.uniform[0], draws.tokens[0])
        return attach_logprobs(self.model, hidden, segment, _on_host(segment.slot, entered, outcome))


def attach_logprobs(model: Model, hidden: Tensor, segment: Denoise, result: DenoiseResult) -> DenoiseResult:
    """`result`, plus log-probabilities from the hidden states [L,D] if they were requested and the canvas is done."""
    if segment.logprobs is None or not (segment.last or result.converged):
        return result
    tokens = torch.from_numpy(result.argmax_canvas).to(model.device).long()
    top = top_tokens(
        model, hidden, tokens, segment.temperature, segment.constraint, segment.not_first, segment.logit_bias,
        count=segment.logprobs,
    )  # fmt: skip
    return replace(result, top=top)


def _on_host(slot: int, entered: Tensor, outcome: StepOutcome) -> DenoiseResult:
    """The outcome of a step of the canvas `entered` [L], on the host: one copy, which waits for the device."""
    columns = entered, outcome.argmax, outcome.accepted, outcome.entropy, outcome.converged.expand_as(entered)
    canvas, argmax, accepted, entropy, converged = torch.stack([column.double() for column in columns]).cpu().numpy()
    return DenoiseResult(
        slot=slot,
        canvas=canvas.astype(np.int64),
        argmax_canvas=argmax.astype(np.int64),
        accepted=accepted.astype(bool),
        entropy=entropy.astype(np.float32),
        converged=bool(converged[0]),
    )
