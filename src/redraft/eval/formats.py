"""What number formats of the weights cost in quality, next to the model as it is.

Two views. Teacher-forced: every format sees the same canvases and soft embeddings that the full model went through, and
its distributions are compared position by position, so that no early difference hides in a later one. Free-running:
every format answers the tasks by itself, and steps and scores are counted.

The formats are those of `redraft quantize`; weights are rounded to them and computed with in the model's own dtype, so
what is measured is the rounding of the weights, not that of a kernel's activations. The products over the vocabulary in
FP8 (`head_dtype`) are compared by themselves and teacher-forced only: the table, the rows that the head multiplies and
the weights of soft embeddings are rounded, of all positions, where a GPU gathers those that few tokens explain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redraft.diffusion.records import DenoiseStep
from redraft.errors import SettingError
from redraft.eval.result import EvalResult
from redraft.llm import LLM
from redraft.model import Transformer
from redraft.model.quantize import FORMATS, format_of
from redraft.quant.fp8 import LARGEST, quantize_fp8
from redraft.quant.int4 import quantize_int4

FULL, FP8_VOCABULARY = "full", "fp8 vocabulary"
Task = Callable[[LLM], EvalResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatResult:
    """One format. `divergence` is the mean KL(full || format) in nats per position, `agreement` the share of positions
    with the same argmax, both over `positions` teacher-forced positions; `tasks` are the free-running scores."""

    format: str
    divergence: float
    agreement: float
    positions: int
    tasks: Mapping[str, EvalResult]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "format": self.format,
            "divergence": round(self.divergence, 7),
            "agreement": round(self.agreement, 5),
            "positions": self.positions,
            "tasks": {name: result.summary() for name, result in self.tasks.items()},
        }


@dataclass(frozen=True, slots=True)
class _Pass:
    """One denoising pass of the full model: its inputs and what it predicted."""

    prompt: list[int]
    canvas: Tensor  # [1,L]
    soft: Tensor | None  # [1,L,D]
    soft_fp8: Tensor | None  # [1,L,D], the same by a product in FP8
    log_probs: Tensor  # [1,L,V]


def compare(
    llm: LLM,
    prompts: Sequence[list[int]],
    tasks: Mapping[str, Task],
    *,
    formats: Sequence[str] = FORMATS,
    group: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] = lambda format: None,
) -> list[FormatResult]:
    """Results of the full model, of every format and of the full model with an FP8 vocabulary. The model is unchanged.

    `prompts` (token ids) are answered with one canvas each for the teacher-forced part. Raises `SettingError` for an
    unknown format and a group that does not divide.
    """
    original = {name: tensor.clone() for name, tensor in llm.model.state_dict().items()}
    _check(formats, group, original)
    passes = [taken for prompt in prompts for taken in _record(llm, prompt, seed)]
    results = []
    try:
        for format in (FULL, *formats):
            progress(format)
            if format != FULL:
                llm.model.load_state_dict({name: _rounded(name, w, format, group) for name, w in original.items()})
            results.append(_measure(llm, format, passes, tasks))
    finally:
        llm.model.load_state_dict(original)
    progress(FP8_VOCABULARY)
    return [*results, _measure(llm, FP8_VOCABULARY, passes, {})]


def _check(formats: Sequence[str], group: int, weights: Mapping[str, Tensor]) -> None:
    for format in formats:
        if format not in FORMATS:
            raise SettingError(f"format is {format!r}; it must be one of {', '.join(FORMATS)}.")
        for name, weight in weights.items():
            if format_of(name, format) == "int4":
                quantize_int4(weight[..., :1, :], group)  # refuses a group that does not divide, before any answer


def _rounded(name: str, weight: Tensor, format: str, group: int) -> Tensor:
    kept_as = format_of(name, format)
    if kept_as is None:
        return weight
    quantized = quantize_fp8(weight) if kept_as == "fp8" else quantize_int4(weight, group)
    return quantized.dequantize(weight.dtype)


@torch.inference_mode()
def _record(llm: LLM, prompt: list[int], seed: int) -> list[_Pass]:
    """The passes of one canvas of the full model's answer."""
    model, passes = llm.model, []
    soft: Tensor | None = None
    soft_fp8: Tensor | None = None
    length, in_fp8 = model.config.canvas_length, _fp8_soft_embeddings(model)
    for step in llm.stream(prompt, seed=seed, max_tokens=length, canvas_length=length):
        if not isinstance(step, DenoiseStep):
            break
        canvas = torch.tensor([step.canvas], device=model.device)
        logits = model.logits(_hidden(model, prompt, canvas, soft))
        passes.append(_Pass(prompt, canvas, soft, soft_fp8, logits.log_softmax(-1)))
        soft, soft_fp8 = (mean(logits / step.temperature) for mean in (model.soft_embeddings, in_fp8))
    return passes


def _hidden(model: Transformer, prompt: list[int], canvas: Tensor, soft: Tensor | None) -> Tensor:
    cache = model.new_cache(1, len(prompt))
    model.encode(torch.tensor([prompt], device=model.device), cache)
    return model.denoise(canvas, cache, soft)


def _fp8_head(model: Transformer) -> Callable[[Tensor], Tensor]:
    """`Transformer.logits` with its rows and its table rounded to FP8."""
    cap, table = model.config.final_logit_softcapping, _in_fp8(model.embedding.weight)
    return lambda hidden: (_in_fp8(hidden) @ table.T).float().div(cap).tanh() * cap


def _fp8_soft_embeddings(model: Transformer) -> Callable[[Tensor], Tensor]:
    """`Transformer.soft_embeddings` with weights and table in FP8, rounded as by `kernels.triton.self_conditioning`."""
    table = _in_fp8(model.embedding.weight.T)  # [D,V]

    def mean(logits: Tensor) -> Tensor:
        weights = (logits - logits.amax(-1, keepdim=True)).float().exp() * LARGEST
        weights = weights.to(torch.float8_e4m3fn).to(table.dtype)
        return (weights @ table.T) / weights.sum(-1, keepdim=True) * model.embedding_scale

    return mean


def _in_fp8(x: Tensor) -> Tensor:
    return quantize_fp8(x).dequantize(x.dtype)


@torch.inference_mode()
def _measure(llm: LLM, format: str, passes: Sequence[_Pass], tasks: Mapping[str, Task]) -> FormatResult:
    divergence, same, positions = 0.0, 0, 0
    rounded = format == FP8_VOCABULARY
    head = _fp8_head(llm.model) if rounded else llm.model.logits
    for taken in passes:
        hidden = _hidden(llm.model, taken.prompt, taken.canvas, taken.soft_fp8 if rounded else taken.soft)
        log_probs = head(hidden).log_softmax(-1)
        divergence += float((taken.log_probs.exp() * (taken.log_probs - log_probs)).sum())
        same += int((taken.log_probs.argmax(-1) == log_probs.argmax(-1)).sum())
        positions += taken.canvas.numel()
    return FormatResult(
        format=format,
        divergence=divergence / positions,
        agreement=same / positions,
        positions=positions,
        tasks={name: task(llm) for name, task in tasks.items()},
    )
