"""How long one denoising step takes on a GPU, compared with its floor, and where the time goes.

Canvases of random tokens follow prompts of random tokens; thresholds that are never met keep every canvas at work for
all steps. It is measured three ways: steps of an engine, including all that the host does; the graph alone; and
operation by operation, queued after a pause so that launching them costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import Any

import torch

from redraft.bench.clock import ClockWatch
from redraft.bench.gpu import free_cached_memory, milliseconds
from redraft.bench.machine import device_facts, versions
from redraft.bench.quantile import spread
from redraft.bench.roofline import Ceilings, Component, floor_ms, step_components
from redraft.cache.fp8 import FP8
from redraft.cache.pages import PAGE, pages_for
from redraft.diffusion.constraint import Constraint
from redraft.diffusion.schedule import temperature
from redraft.diffusion.step import rule_fields
from redraft.engine.build import kv_dtype
from redraft.engine.engine import Engine
from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.graph_runner import BUCKETS, GraphRunner
from redraft.engine.graph_step import new_slots, sample
from redraft.engine.request import Request
from redraft.engine.settings import EngineSettings, KvCacheDtype
from redraft.engine.work import Denoise, Encode, Limits
from redraft.errors import SettingError
from redraft.kernels.switches import Operation, watching
from redraft.kernels.triton.routing import Routing
from redraft.kernels.triton.segments import DENOISE
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.packed.weights import tensors
from redraft.settings import GenerationSettings

EOS_IDS = (1, 106)
ENDLESS = GenerationSettings(steps=1_000_000, stability_threshold=1_000_000, confidence_threshold=1e-9)
"""Settings with which no canvas is ever done."""
TOKENS_PER_FORWARD = 19.7
"""The number published by the model's authors."""
PAUSE_CYCLES = 400_000_000
"""Long enough for the host to queue a whole step."""

LIKELY_TOKENS, LIKELIER = 32, 20.0
"""For sharp distributions: how many tokens get longer embeddings, and by what factor; these share all the mass."""

PARTS = {
    "experts": ("experts", "sum_of_experts"),
    "attention projections": ("qkv_linear", "out_linear"),
    "dense MLP": ("gated_linear", "mlp_linear"),
    "attention": ("attention", "quantize"),
    "router": ("route",),
    "head": ("predict",),
    "soft embeddings": ("soft_embeddings",),
    "self-conditioning MLP": ("soft_norm", "soft_gated_linear", "soft_linear"),
    "norms, rotation, sampling": (
        "enter_tokens", "rope", "enter", "qkv", "after_attention", "add_attention", "feed_forward_norms",
        "after_experts", "add_experts", "next_norm", "class_sums", "automaton_terms", "best_tokens", "add_by_class",
        "finish_step",
    ),
}  # fmt: skip
"""The operations of `kernels.switches` that make up each component of the roofline."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTime:
    """One component: its time, its floor, and its operations' times, in milliseconds per step."""

    name: str
    ms: float
    floor_ms: float | None
    operations: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One case's figures, in milliseconds per forward of the whole batch.

    engine_ms  an engine's steps, of every repetition; graph_ms without the host
    clock      the card's clock and power meanwhile, as named in `bench.clock`
    fused_ms   the graph of all commits with first steps; None if no graph has room for so many segments
    constrained_ms  like `engine_ms`, by name of a constraint that all canvases obey
    """

    case: StepCase
    quantization: str | None
    dtype: str
    vocabulary_dtype: str
    engine_ms: tuple[float, ...]
    graph_ms: tuple[float, ...]
    clock: dict[str, float]
    fused_ms: float | None
    constrained_ms: dict[str, tuple[float, ...]]
    parts: tuple[PartTime, ...]
    floor_ms: float
    distinct_experts: float
    memory: dict[str, float]
    canvas_length: int
    gpus: int

    @property
    def ms(self) -> float:
        return spread(self.engine_ms)["median"]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        tokens, steps, fused = self.case.batch * self.canvas_length, self.case.steps, self.fused_ms
        return {
            "ms_per_forward": self.ms,
            "ms_per_forward_spread": spread(self.engine_ms),
            "graph_ms": spread(self.graph_ms),
            **self.clock,
            "fused_commit_ms": fused and round(fused, 3),
            "constrained_ms": {name: spread(times) for name, times in self.constrained_ms.items()},
            "floor_ms": round(self.floor_ms, 3),
            "percent_of_floor": round(100 * self.floor_ms / self.ms, 1),
            "batch": self.case.batch,
            "gpus": self.gpus,
            "context": self.case.context,
            "steps": steps,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "vocabulary_dtype": self.vocabulary_dtype,
            "kv_cache_dtype": self.case.kv_cache_dtype,
            "certain": self.case.certain,
            "distinct_experts": round(self.distinct_experts, 2),
            "tokens_per_second": round(1e3 * tokens / ((steps + 1) * self.ms), 1),
            "tokens_per_second_fused_commit": fused and round(1e3 * tokens / ((steps - 1) * self.ms + fused), 1),
            "tokens_per_second_published": round(1e3 * self.case.batch * TOKENS_PER_FORWARD / self.ms, 1),
            "memory_gb": self.memory["peak"],
            "memory": self.memory,
            "components": [
                {"name": part.name, "ms": round(part.ms, 4), "floor_ms": part.floor_ms and round(part.floor_ms, 4),
                 "operations": {name: round(ms, 4) for name, ms in part.operations.items()}}
                for part in self.parts
            ],
        }  # fmt: skip


def measure_step(
    model: PackedTransformer, case: StepCase, ceilings: Ceilings, constraints: Mapping[str, Constraint] | None = None
) -> StepResult:
    """Measure one case, and the same under each of some constraints.

    The model's pages and graphs are rebuilt, so cases do not disturb each other.
    """
    with sharpened(model) if case.certain else nullcontext():
        return _measure(model, case, ceilings, constraints or {})


@contextmanager
def sharpened(model: PackedTransformer) -> Iterator[None]:
    """Make a random model's distributions sharp inside a `with` block."""
    copies = list({id(shard.vocabulary): shard.vocabulary for shard in model.packed.shards}.values())
    kept = [tensor.to("cpu", copy=True) for tensor in tensors(copies[0])]  # not on the card, whose memory is measured
    for vocabulary in copies:
        vocabulary.lengthen(slice(None, None, model.config.vocab_size // LIKELY_TOKENS), LIKELIER)
    try:
        yield
    finally:
        for vocabulary in copies:
            for tensor, old in zip(tensors(vocabulary), kept, strict=True):
                tensor.copy_(old)


def _measure(
    model: PackedTransformer, case: StepCase, ceilings: Ceilings, constraints: Mapping[str, Constraint]
) -> StepResult:
    sampler = sampler_gb(model, case.batch)
    free_cached_memory()
    torch.cuda.reset_peak_memory_stats(model.device)
    board = Board(model, case)
    board.prefill()
    board.runner.run(board.steps_at(0))
    memory = _memory(model) | {"sampler": sampler}  # before other graphs are captured or anything runs outside one
    with ClockWatch(model.device) as watch:
        engine = board.engine_times()
    constrained = {name: tuple(board.engine_times(one)) for name, one in constraints.items()}
    board.prefill()  # the engine gave the pages to its own requests
    graph = [board.graph_ms(board.steps_at(1)) for _ in range(case.repeats)]
    times, routings = operation_times(board)
    config, packed = model.config, model.packed
    distinct = _distinct_experts(routings) * len(model.packed.shards)
    components = step_components(
        config, quantization=packed.quantization, batch=case.batch, context=case.context, distinct_experts=distinct,
        kv_bytes=kv_dtype(model, case.kv_cache_dtype).itemsize, vocabulary_bytes=packed.vocabulary.dtype.itemsize,
        gathers=case.certain, gpus=len(packed.shards),
    )  # fmt: skip
    return StepResult(
        case=case,
        quantization=packed.quantization,
        dtype=_name(packed.dtype),
        vocabulary_dtype=_name(packed.vocabulary.dtype),
        engine_ms=tuple(engine),
        graph_ms=tuple(graph),
        clock=watch.medians,
        fused_ms=board.fused_ms(),
        constrained_ms=constrained,
        parts=_parts(times, components, ceilings),
        floor_ms=floor_ms(components, ceilings),
        distinct_experts=distinct,
        memory=memory,
        canvas_length=config.canvas_length,
        gpus=len(packed.shards),
    )


def _name(dtype: torch.dtype) -> str:
    return "fp8" if dtype == FP8 else str(dtype).removeprefix("torch.")


def record(result: StepResult, ceilings: Ceilings, device: torch.device, command: str) -> dict[str, Any]:
    """The contents of a results file for one case."""
    return result.to_dict() | device_facts(device) | {
        "bench": "step", "ceilings": ceilings.to_dict(), "versions": versions(), "command": command,
    }  # fmt: skip


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


def operation_times(board: Board, rounds: int = 3) -> tuple[dict[str, float], list[Routing]]:
    """Milliseconds per step of every operation, and the routing of every layer.

    The step runs operation by operation; a pause on the device lets the host queue all of it first, so the events
    around an operation enclose only its work. Still, each operation starts on an empty device here and nothing runs
    next to it, so the times add up to more than a step takes. Of several GPUs only the first one's operations are
    timed, with what they wait for the others.
    """
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {}
    routings: list[Routing] = []
    first = board.runner.model.device

    def watch(operation: Operation) -> Any:
        if torch.cuda.current_device() != first.index:
            return operation.run()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = operation.run()
        end.record()
        events.setdefault(operation.name, []).append((start, end))
        if isinstance(result, Routing):
            routings.append(result)
        return result

    board.runner.run(board.steps_at(1))
    bucket = board.runner.bucket(board.case.batch)
    with torch.inference_mode(), watching(watch):
        for number in range(rounds + 1):
            if number == 1:  # the first round warms up
                events.clear()
            routings.clear()
            torch.cuda._sleep(PAUSE_CYCLES)
            bucket.launch_singly()
            torch.cuda.synchronize()
    empty = _empty_pair_ms()
    times = {
        name: sum(max(start.elapsed_time(end) - empty, 0.0) for start, end in pairs) / rounds
        for name, pairs in events.items()
    }
    return times, routings


def _empty_pair_ms() -> float:
    """The time between two events with nothing between them."""
    torch.cuda._sleep(PAUSE_CYCLES // 100)
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(50)]
    for start, end in pairs:
        start.record()
        end.record()
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in pairs)


def _distinct_experts(routings: list[Routing]) -> float:
    """How many experts a forward touches, averaged over the layers."""
    touched = [len(torch.unique(routing.index[routing.index >= 0])) for routing in routings]
    return sum(touched) / len(touched)


def _parts(times: dict[str, float], components: Sequence[Component], ceilings: Ceilings) -> tuple[PartTime, ...]:
    floors = {component.name: component.floor_ms(ceilings) for component in components}
    found = []
    for name, operations in PARTS.items():
        mine = {operation: times[operation] for operation in operations if operation in times}
        if not mine:
            continue
        found.append(PartTime(name=name, ms=sum(mine.values()), floor_ms=floors.get(name), operations=mine))
    return tuple(found)


def _memory(model: PackedTransformer) -> dict[str, float]:
    """Gigabytes of the weights, at the peak of torch's allocations, and of the whole process on the card."""
    free, total = torch.cuda.mem_get_info(model.device)
    return {
        "weights": round(model.packed.nbytes / 1e9, 2),
        "peak": round(torch.cuda.max_memory_allocated(model.device) / 1e9, 2),
        "process": round((total - free) / 1e9, 2),
    }


def sampler_gb(model: PackedTransformer, batch: int) -> float:
    """Peak gigabytes of head, sampler and soft embeddings of `batch` canvases, on top of what is always kept."""
    packed, rows = model.packed, model.config.canvas_length
    fields, state = StepBuffers(batch, rows, 1, packed.device, slots=batch).fields, new_slots(packed, batch, rows)
    for name, value in {"kind": DENOISE, "length": rows, "want_soft": 1, "temperature": 0.8}.items():
        fields.views[name].fill_(value)
    for name in ("slot", "soft_to"):
        fields.views[name].copy_(torch.arange(batch))
    with torch.inference_mode():
        hidden = torch.randn(batch * rows, model.config.hidden_size, dtype=packed.dtype, device=packed.device)
        free_cached_memory()
        torch.cuda.reset_peak_memory_stats(packed.device)
        before = torch.cuda.memory_allocated(packed.device)
        sample(packed, fields, state, [hidden.to(device) for device in packed.devices], lambda block: None)
    return round((torch.cuda.max_memory_allocated(packed.device) - before) / 1e9, 2)


def cases(batches: Sequence[int], contexts: Sequence[int], *, steps: int, repeats: int, **other: Any) -> list[StepCase]:
    """Every batch after every context, with equal `other` fields. Raises `SettingError` if no graph holds a batch."""
    if max(batches) > BUCKETS[-1]:
        raise SettingError(f"batch is {max(batches)}; a graph holds at most {BUCKETS[-1]} canvases.")
    base = StepCase(batch=1, context=0, steps=steps, repeats=repeats, **other)
    return [replace(base, batch=batch, context=context) for context in contexts for batch in batches]
