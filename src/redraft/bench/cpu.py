"""Redraft against Transformers on a CPU: the same weights, prompt and settings, in one process, taking turns.

Both write one canvas of a fixed number of steps: a stability threshold that is never reached keeps both from stopping
early. The speeds are compared with the floor, the time that the arithmetic alone takes at this machine's matrix product
rate.
"""

from __future__ import annotations

import logging
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from redraft.bench.floor import gemm_flops_per_second, run_flops
from redraft.bench.machine import processor, versions
from redraft.bench.quantile import spread
from redraft.errors import PromptError, SettingError
from redraft.kernels import native
from redraft.llm import LLM
from redraft.model.int4_experts import Int4Experts

STEPS, REPETITIONS = 16, 5
_NEVER_STABLE = 1_000_000
_HISTORY = 4096
"""Transformers keeps as many canvases as its threshold, so this only has to exceed any step count."""

QUESTION = (
    "A small town by the river wants to build a library. The council has a plot of land next to the old mill, a budget "
    "for one building with two floors, and many wishes: a quiet room for reading, a loud room for children, a place to "
    "repair bicycles, and a hall where the choir can sing in the evening. The mill is damp in spring, when the river "
    "rises, and the road in front of it is closed on market days. Write a short letter to the council that says which "
    "of the wishes can be met, in which order the rooms should be built, and what has to be done about the water. "
    "Be friendly, name one thing that cannot be done, and end with a question."
)

Run = Callable[[], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """One engine's repetitions, in seconds per canvas."""

    name: str
    seconds: tuple[float, ...]

    def speeds(self, tokens: int) -> dict[str, float]:
        """Committed tokens per second: slowest, median and fastest repetition."""
        return spread([tokens / seconds for seconds in self.seconds])

    def ms_per_forward(self, steps: int) -> float:
        """Milliseconds per denoising step, prompt included, in the median repetition."""
        return spread([1e3 * seconds / steps for seconds in self.seconds])["median"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuResult:
    """What was measured. `floor_seconds` is for one whole canvas, prompt included."""

    redraft: Engine
    transformers: Engine | None
    prompt_tokens: int
    canvas_length: int
    steps: int
    dtype: str
    quantization: str | None
    floor_seconds: float
    gemm_flops_per_second: float

    @property
    def ratios(self) -> dict[str, float] | None:
        """Redraft's speed over Transformers', repetition by repetition."""
        if self.transformers is None:
            return None
        pairs = zip(self.transformers.seconds, self.redraft.seconds, strict=True)
        return spread([theirs / ours for theirs, ours in pairs])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        engines = [engine for engine in (self.redraft, self.transformers) if engine is not None]
        return {
            "bench": "cpu",
            "results": [self._record(engine) for engine in engines],
            "ratio": self.ratios,
            "floor_tokens_per_second": round(self.canvas_length / self.floor_seconds, 2),
            "gemm_gflops": round(self.gemm_flops_per_second / 1e9, 1),
            "c_kernels": native.available(),
            "versions": versions(),
        }

    def _record(self, engine: Engine) -> dict[str, Any]:
        return {
            "engine": engine.name,
            "tokens_per_second": engine.speeds(self.canvas_length),
            "ms_per_forward": engine.ms_per_forward(self.steps),
            "floor_ms": round(1e3 * self.floor_seconds / self.steps, 3),
            "batch": 1,
            "context": self.prompt_tokens,
            "canvas_length": self.canvas_length,
            "steps": self.steps,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "device": processor(),
            "threads": torch.get_num_threads(),
            "memory_gb": _peak_memory_gb(),
        }


def measure(
    llm: LLM,
    *,
    steps: int = STEPS,
    repetitions: int = REPETITIONS,
    compare: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> CpuResult:
    """Measure a plain model on the CPU, in its dtype. Without `compare`, Redraft alone.

    Raises `SettingError` for counts below 1, another device, or if Transformers should be compared but is not installed
    or experts are in INT4.
    """
    _check(llm, steps, repetitions)
    quantization = "int4" if any(isinstance(part, Int4Experts) for part in llm.model.modules()) else None
    if compare and quantization:
        raise SettingError(
            "The experts stay in INT4, which Transformers would unpack; measure Redraft alone with --alone."
        )
    ids, length = llm.encode_chat([{"role": "user", "content": QUESTION}]), llm.model.config.canvas_length
    if len(ids) + length > llm.model.config.max_position_embeddings:
        raise PromptError(f"The prompt of {len(ids)} tokens and a canvas of {length} do not fit the model's context.")
    runs = {"redraft": _redraft(llm, ids, steps)}
    if compare:
        runs["transformers"] = _transformers(llm.path, ids, steps, llm.model.dtype)
    rate = gemm_flops_per_second(llm.model.dtype)
    seconds = _take_turns(runs, repetitions, progress)
    rate = max(rate, gemm_flops_per_second(llm.model.dtype))  # a busy machine may have disturbed the first try
    engines = {name: Engine(name=name, seconds=tuple(times)) for name, times in seconds.items()}
    return CpuResult(
        redraft=engines["redraft"],
        transformers=engines.get("transformers"),
        prompt_tokens=len(ids),
        canvas_length=length,
        steps=steps,
        dtype=str(llm.model.dtype).removeprefix("torch."),
        quantization=quantization,
        floor_seconds=run_flops(llm.model.config, prompt=len(ids), steps=steps) / rate,
        gemm_flops_per_second=rate,
    )


def _check(llm: LLM, steps: int, repetitions: int) -> None:
    for name, value in {"steps": steps, "repetitions": repetitions}.items():
        if value < 1:
            raise SettingError(f"{name} is {value}; it must be at least 1.")
    if llm.model.device.type != "cpu":
        raise SettingError(f"The model is on {llm.model.device}; this benchmark needs it on cpu.")


def _take_turns(
    runs: dict[str, Run], repetitions: int, progress: Callable[[int, int], None] | None
) -> dict[str, list[float]]:
    """Seconds per engine and repetition; a first round of everything is discarded."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(repetitions + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if repetition:
                seconds[name].append(time.perf_counter() - started)
        if progress is not None:
            progress(repetition + 1, repetitions + 1)
    return seconds


def _redraft(llm: LLM, ids: list[int], steps: int) -> Run:
    length = llm.model.config.canvas_length

    def run() -> None:
        llm.engine.scheduler.forget_prefixes()  # the other engine also encodes its prompt every time
        result = llm.generate(
            ids,
            max_tokens=length,
            canvas_length=length,
            steps=steps,
            stretch_schedule=True,  # what Transformers does with its step cap
            stability_threshold=_NEVER_STABLE,
        )
        assert result.stats.steps == (steps,)

    return run


def _transformers(folder: Path, ids: list[int], steps: int, dtype: torch.dtype) -> Run:
    """A run of the same weights by Transformers, which is a test dependency only."""
    try:
        from transformers import DiffusionGemmaForBlockDiffusion
        from transformers.utils import logging as their_logging
    except ImportError:
        raise SettingError(
            "bench cpu compares with transformers (5.23 or newer), which is not installed; "
            "install it or measure Redraft alone with --alone."
        ) from None
    level = their_logging.get_verbosity()
    # They lack the vision tower, which a text model does not have, and say so at length.
    their_logging.set_verbosity(logging.CRITICAL)
    their_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = DiffusionGemmaForBlockDiffusion.from_pretrained(folder, dtype=dtype)
    finally:
        their_logging.set_verbosity(level)
    model.eval()
    return _their_run(model, torch.tensor([ids]), steps)


def _their_run(model: Any, tokens: torch.Tensor, steps: int) -> Run:
    length, forwards = model.config.canvas_length, 0

    def count(*_: object) -> None:
        nonlocal forwards
        forwards += 1

    model.model.decoder.register_forward_hook(count)

    def run() -> None:
        nonlocal forwards
        forwards = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.generate(
                tokens, max_new_tokens=length, max_denoising_steps=steps, stability_threshold=_HISTORY, pad_token_id=0
            )
        assert forwards == steps, forwards

    return run


def _peak_memory_gb() -> float | None:
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    scale = 1 if platform.system() == "Darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9, 2)
