"""How long one denoising step takes on a GPU, compared with its floor, and where the time goes.

A step of the canvases of `board.py` is measured three ways: steps of an engine, including all that the host does; the
graph alone; and operation by operation (`operation_times.py`), queued after a pause so that launching them costs
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from redraft.bench.board import Board, StepCase
from redraft.bench.clock import ClockWatch
from redraft.bench.gpu import free_cached_memory
from redraft.bench.machine import device_facts, versions
from redraft.bench.operation_times import PartTime, distinct_experts, operation_times, part_times
from redraft.bench.quantile import spread
from redraft.bench.random_weights import sharpened
from redraft.bench.roofline import Ceilings, floor_ms, step_components
from redraft.cache.fp8 import FP8
from redraft.diffusion.constraint import Constraint
from redraft.engine.build import kv_dtype
from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.graph_runner import BUCKETS
from redraft.engine.graph_step import new_slots, sample
from redraft.errors import SettingError
from redraft.kernels.packed import PackedInt4
from redraft.kernels.triton.segments import DENOISE
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.placement import lacks_fp8
from redraft.quant.int4 import INT4_GROUP

TOKENS_PER_FORWARD = 19.7
"""The number published by the model's authors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One case's figures, in milliseconds per forward of the whole batch.

    group      how many inputs of an expert share a scale, in INT4
    engine_ms  an engine's steps, of every repetition; graph_ms without the host
    clock      the card's clock and power meanwhile, as named in `bench.clock`
    fused_ms   the graph of all commits with first steps; None if no graph has room for so many segments
    constrained_ms  like `engine_ms`, by name of a constraint that all canvases obey
    """

    case: StepCase
    quantization: str | None
    group: int | None
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
            "group": self.group,
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
    experts = packed.layers[0].experts.gate_up
    group = experts.group if isinstance(experts, PackedInt4) else None
    distinct = distinct_experts(routings) * len(model.packed.shards)
    components = step_components(
        config, quantization=packed.quantization, group=group or INT4_GROUP, batch=case.batch, context=case.context,
        distinct_experts=distinct, kv_bytes=kv_dtype(model, case.kv_cache_dtype).itemsize,
        vocabulary_bytes=packed.vocabulary.dtype.itemsize, fp8_products=not lacks_fp8(packed.device),
        gathers=case.certain, gpus=len(packed.shards),
    )  # fmt: skip
    return StepResult(
        case=case,
        quantization=packed.quantization,
        group=group,
        dtype=_name(packed.dtype),
        vocabulary_dtype=_name(packed.vocabulary.dtype),
        engine_ms=tuple(engine),
        graph_ms=tuple(graph),
        clock=watch.medians,
        fused_ms=board.fused_ms(),
        constrained_ms=constrained,
        parts=part_times(times, components, ceilings),
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
