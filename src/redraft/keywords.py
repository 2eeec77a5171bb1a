"""The keywords of the methods of `LLM`, for editors and type checkers. They are checked where they are used.

A keyword that is None is not given. What each means and allows is said at its home: `GenerationSettings` and its
presets, `redraft.constraints.build`, `redraft.filling.fill`, `redraft.editing.edit` and `redraft.deciding.decide`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from redraft.filling.reporting import OnProgress, OnRecord


class TextKeywords(TypedDict, total=False):
    """What answers, fillings and edits share: how a canvas is denoised, and what its text must be."""

    preset: Literal["fast", "balanced", "careful"] | None
    max_tokens: int | None
    steps: int | None
    entropy_bound: float | None
    t_max: float | None
    t_min: float | None
    schedule_steps: int | None
    stretch_schedule: bool | None
    stability_threshold: int | None
    confidence_threshold: float | None
    canvas_length: int | None
    seed: int | None
    choices: Sequence[str] | None
    regex: str | None
    json_schema: Any
    json_object: bool | None
    template: str | None
    text_pins: Mapping[int, str] | None
    must_include: Sequence[str] | None
    forbidden: Sequence[str] | None
    strict: bool | None


class ChatKeywords(TextKeywords, total=False):
    """Those of `LLM.chat`, besides its parameters."""

    stop: str | list[str] | tuple[str, ...] | None
    stop_at_eos: bool | None
    forbid_empty: bool | None
    fit_canvas: bool | None
    latency_budget_ms: float | None
    logprobs: int | None
    logit_bias: Mapping[int, float] | None
    pins: Mapping[int, str] | None
    parallel_tool_calls: bool | None


class AnswerKeywords(ChatKeywords, total=False):
    """Those of `LLM.generate`, `generate_batch`, `stream` and `request`."""

    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    thinking: bool | None


class FillKeywords(TextKeywords, total=False):
    """Those of `LLM.fill`."""

    length: int | None
    on_record: OnRecord | None
    on_progress: OnProgress | None


class EditKeywords(TextKeywords, total=False):
    """Those of `LLM.edit`, and of `LLM.next_edit`, which refuses constraints and `on_progress`."""

    strength: float | None
    on_record: OnRecord | None
    on_progress: OnProgress | None


class DecideKeywords(TypedDict, total=False):
    """Those of `LLM.decide`."""

    template: str | None
    ends: bool | None
    tools: Sequence[Mapping[str, Any]] | None
    calibrate: bool | None
    temperature: float | None
    sure: float | None
    reads: int | None
    seed: int | None
