"""How much quality number formats of the weights cost, compared with the unchanged model.

There are two views. Teacher-forced: every format sees the same canvases and soft embeddings that the full model went
through, and its distributions are compared position by position, so no early difference hides in a later one.
Free-running: every format answers the tasks by itself, and steps and scores are counted.

The formats are those of `redraft quantize`; weights are rounded to them and computed with in the model's own dtype, so
this measures the rounding of the weights, not of a kernel's activations. The vocabulary in FP8 (`vocabulary_dtype`) is
compared separately and teacher-forced only, with everything rounded that a GPU rounds: tokens' embeddings, the head's
table and rows, and soft embeddings, which are gathered where few tokens explain a position, and elsewhere are a product
of rounded weights with the transposed table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redraft.diffusion.records import DenoiseStep
from redraft.errors import SettingError, one_of
from redraft.eval.result import EvalResult
from redraft.kernels.triton.self_conditioning import few_explain, fp8_mean
from redraft.llm import LLM
from redraft.model import Model, Transformer
from redraft.model.packed.vocabulary import Vocabulary, pack_vocabulary
from redraft.model.quantize import QUANTIZATIONS, weight_format
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import quantize_int4

FULL, FP8_VOCABULARY = "full", "fp8 vocabulary"
Task = Callable[[LLM], EvalResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatResult:
    """One format's results.

    `divergence` is the mean KL(full || format) in nats per position, `agreement` the share of positions with the same
    argmax, both over `positions` teacher-forced positions; `tasks` are the free-running scores.
    """

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
    soft_fp8: Tensor | None  # [1,L,D], the same from a vocabulary in FP8
    log_probs: Tensor  # [1,L,V]


def compare(
    llm: LLM,
    prompts: Sequence[list[int]],
    tasks: Mapping[str, Task],
    *,
    formats: Sequence[str] = QUANTIZATIONS,
    group: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] = lambda format: None,
) -> list[FormatResult]:
    """Results of the full model, of every format and of the full model with an FP8 vocabulary; the model is unchanged.

    `prompts` (token ids) are answered with one canvas each for the teacher-forced part. Raises `SettingError` for an
    unknown format and a group size that does not divide the weights.
    """
    model = llm.model
    original = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert isinstance(model, Transformer)  # others refuse `state_dict`
    _check(formats, group, original)
    weight = model.embedding.weight
    vocabulary = pack_vocabulary(weight, weight.device, weight.dtype, fp8=True)
    passes = [taken for prompt in prompts for taken in _record(llm, vocabulary, prompt, seed)]
    results = []
    try:
        for format in (FULL, *formats):
            progress(format)
            if format != FULL:
                model.load_state_dict({name: _rounded(name, w, format, group) for name, w in original.items()})
            results.append(_measure(llm, format, passes, tasks))
        progress(FP8_VOCABULARY)
        tokens = vocabulary.rows(torch.arange(len(weight), device=weight.device), weight.dtype)
        model.load_state_dict(original | {"embedding.weight": tokens})
        results.append(_measure(llm, FP8_VOCABULARY, passes, {}, vocabulary))
    finally:
        model.load_state_dict(original)
    return results


def _check(formats: Sequence[str], group: int, weights: Mapping[str, Tensor]) -> None:
    for format in formats:
        if format not in QUANTIZATIONS:
            raise SettingError(f"format is {format!r}; it must be {one_of(QUANTIZATIONS)}.")
        for name, weight in weights.items():
            if weight_format(name, format) == "int4":
                quantize_int4(weight[..., :1, :], group)  # refuses a group size that does not divide, before any answer


def _rounded(name: str, weight: Tensor, format: str, group: int) -> Tensor:
    kept_as = weight_format(name, format)
    if kept_as is None:
        return weight
    quantized = quantize_fp8(weight) if kept_as == "fp8" else quantize_int4(weight, group)
    return quantized.dequantize(weight.dtype)


@torch.inference_mode()
def _record(llm: LLM, vocabulary: Vocabulary, prompt: list[int], seed: int) -> list[_Pass]:
    """The passes of one canvas of the full model's answer."""
    model, passes = llm.model, []
    soft: Tensor | None = None
    soft_fp8: Tensor | None = None
    length = model.config.canvas_length
    for step in llm.stream(prompt, seed=seed, max_tokens=length, canvas_length=length):
        if not isinstance(step, DenoiseStep):
            break
        canvas = torch.tensor([step.canvas], device=model.device)
        logits = model.logits(_hidden(model, prompt, canvas, soft))
        passes.append(_Pass(prompt, canvas, soft, soft_fp8, logits.log_softmax(-1)))
        logits = logits / step.temperature
        soft, soft_fp8 = model.soft_embeddings(logits), _fp8_soft_embeddings(model, vocabulary, logits)
    return passes


def _hidden(model: Model, prompt: list[int], canvas: Tensor, soft: Tensor | None) -> Tensor:
    cache = model.new_cache(1, len(prompt))
    model.encode(torch.tensor([prompt], device=model.device), cache)
    return model.denoise(canvas, cache, soft)


def _fp8_soft_embeddings(model: Model, vocabulary: Vocabulary, logits: Tensor) -> Tensor:
    """`Model.soft_embeddings` of tempered logits [...,V], rounded as by `kernels.triton.self_conditioning`."""
    assert vocabulary.transposed is not None
    x = logits.to(model.dtype)
    probabilities = x.softmax(-1, dtype=torch.float32)
    gathered, dense = vocabulary.mean(probabilities.to(model.dtype)), fp8_mean(x, vocabulary.transposed).to(model.dtype)
    return torch.where(few_explain(probabilities)[..., None], gathered, dense) * model.embedding_scale


@torch.inference_mode()
def _measure(
    llm: LLM, format: str, passes: Sequence[_Pass], tasks: Mapping[str, Task], vocabulary: Vocabulary | None = None
) -> FormatResult:
    """One format's result. The model already has its weights; `vocabulary` replaces its head."""
    divergence, same, positions = 0.0, 0, 0
    cap = llm.model.config.final_logit_softcapping
    for taken in passes:
        hidden = _hidden(llm.model, taken.prompt, taken.canvas, taken.soft_fp8 if vocabulary else taken.soft)
        logits = llm.model.logits(hidden) if vocabulary is None else vocabulary.logits(hidden, cap, 1.0)
        log_probs = logits.log_softmax(-1)
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
