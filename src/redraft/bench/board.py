"""Canvases at work on a GPU, for benchmarks: one for every slot, whose steps are those of an engine.

Canvases of random tokens follow prompts of random tokens; thresholds that are never met keep every canvas at work for
all steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from redraft.bench.gpu import milliseconds
from redraft.cache.pages import PAGE, pages_for
from redraft.diffusion.constraint import Constraint
from redraft.diffusion.schedule import temperature
from redraft.diffusion.step import rule_fields
from redraft.engine.build import kv_dtype
from redraft.engine.engine import Engine
from redraft.engine.graph_runner import BUCKETS, GraphRunner
from redraft.engine.request import Request
from redraft.engine.settings import EngineSettings, KvCacheDtype
from redraft.engine.work import Denoise, Encode, Limits
from redraft.model.packed.transformer import PackedTransformer
from redraft.settings import GenerationSettings

EOS_IDS = (1, 106)
ENDLESS = GenerationSettings(steps=1_000_000, stability_threshold=1_000_000, confidence_threshold=1e-9)
"""Settings with which no canvas is ever done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCase:
    """What to measure: `batch` canvases after `context` tokens each, for `steps` steps, `repeats` times.

    `kv_cache_dtype` is that of `EngineSettings`. `certain` makes distributions so sharp that soft embeddings gather a
    few tokens' rows; otherwise they are a random model's, which are flat and take the dense product.
    """

    batch: int
    context: int
    steps: int = 16
    repeats: int = 5
    kv_cache_dtype: KvCacheDtype = "auto"
    certain: bool = False


class _Spelled:
    """A decoder for answers that nobody reads."""

    special_ids: Mapping[str, int] = MappingProxyType({})

    def decode(self, token_ids: Sequence[int], /) -> str:
        return " ".join(map(str, token_ids))


class Board:
    """A runner with one request per slot, with pages laid out as an engine would, or driven by an engine."""

    def __init__(self, model: PackedTransformer, case: StepCase, *, graphs: bool | None = None) -> None:
        config = model.config
        self.case, self.config = case, config
        self.end = case.context + 2 * config.canvas_length  # room for a commit and the next canvas
        self._full = pages_for(self.end)
        self._ring = min(self._full, pages_for(config.sliding_window + PAGE + 2 * config.canvas_length) + 1)
        self.runner = GraphRunner(
            model,
            Limits(
                slots=case.batch,
                full_pages=case.batch * self._full,
                sliding_pages=case.batch * self._ring,
                window=config.sliding_window,
                context=self.end,
                canvas=config.canvas_length,
                forward=max(PAGE, 2 * case.batch * config.canvas_length),
            ),
            graphs=graphs,
            kv_dtype=kv_dtype(model, case.kv_cache_dtype),
        )
        self.ids = torch.randint(config.vocab_size, (case.batch, self.end), generator=torch.Generator().manual_seed(1))

    def prefill(self) -> None:
        for start in range(0, self.case.context, PAGE):
            self._assign(start)
            self.runner.run(self._encodes(start, min(start + PAGE, self.case.context)))
        self._assign(self.case.context)

    def steps_at(self, step: int, start: int | None = None) -> list[Denoise]:
        """Step `step` of every request's canvas, which never stops."""
        heat = temperature(step, t_min=ENDLESS.t_min, t_max=ENDLESS.t_max, steps=ENDLESS.temperature_steps)
        return [
            Denoise(
                slot=slot, start=self.case.context if start is None else start, length=self.config.canvas_length,
                canvas_index=0, step=step, seed=slot, temperature=heat, last=False, eos_ids=EOS_IDS,
                **rule_fields(ENDLESS),
            )
            for slot in range(self.case.batch)
        ]  # fmt: skip

    def engine_times(self, constraint: Constraint | None = None) -> list[float]:
        """`engine_ms` of every repetition, after a warm-up, all under one constraint."""
        engine = Engine(
            self.runner,
            _Spelled(),
            vocab_size=self.config.vocab_size,
            canvas_length=self.config.canvas_length,
            eos_ids=EOS_IDS,
            settings=EngineSettings(slots=self.case.batch, prompt_tokens=PAGE),
        )
        return [self.engine_ms(engine, constraint) for _ in range(self.case.repeats + 1)][1:]

    def engine_ms(self, engine: Engine, constraint: Constraint | None = None) -> float:
        """Milliseconds per step of an engine on this board's runner, all of whose slots have a canvas."""
        slots = range(self.case.batch)
        for slot in slots:
            settings = replace(ENDLESS, seed=slot, max_tokens=self.config.canvas_length)
            prompt = tuple(self.ids[slot, : max(1, self.case.context)].tolist())
            request = Request(request_id=slot, prompt=prompt, settings=settings, constraint=constraint, drafts=False)
            engine.add(request, lambda event: None)
        engine.step()
        assert not engine.scheduler.waiting, "there is no room for every slot's request"
        while not all(job.step for job in engine.scheduler.running.values()):
            engine.step()
        started = time.perf_counter()
        for _ in range(self.case.steps):
            engine.step()
        ms = 1e3 * (time.perf_counter() - started) / self.case.steps
        engine.cancel_all(slots)
        return ms

    def graph_ms(self, work: Sequence[Denoise | Encode]) -> float:
        """Milliseconds of the captured step alone, repeated on the same input."""
        self.runner.run(work)
        bucket = self.runner.bucket(len(work))
        with torch.inference_mode():
            return milliseconds(bucket.launch, count=10, warm=2)

    def fused_ms(self) -> float | None:
        """The same for committing every request together with its next canvas' first step, if a graph holds both."""
        if 2 * self.case.batch > BUCKETS[-1]:
            return None
        after = self.case.context + self.config.canvas_length
        return self.graph_ms([*self._encodes(self.case.context, after), *self.steps_at(0, after)])

    def _encodes(self, start: int, end: int) -> list[Encode]:
        return [
            Encode(slot=slot, start=start, token_ids=tuple(self.ids[slot, start:end].tolist()))
            for slot in range(self.case.batch)
        ]

    def _assign(self, start: int) -> None:
        """Assign pages for what begins at `start`: sliding ones behind the window are reused for what follows."""
        behind = max(0, start - self.config.sliding_window + 1) // PAGE
        for slot in range(self.case.batch):
            full = range(slot * self._full, (slot + 1) * self._full)
            sliding = [-1 if page < behind else slot * self._ring + page % self._ring for page in range(self._full)]
            self.runner.assign(slot, list(full), sliding)
