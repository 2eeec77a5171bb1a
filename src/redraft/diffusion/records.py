"""The records an answer emits while it is written; the terminal, traces, server, page and tests all read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseStep:
    """One denoising step of one canvas. Every sequence has one entry per canvas position.

    canvas         token ids that entered this step
    argmax_canvas  most likely token ids after it: the draft
    accepted       positions kept by the entropy bound; the others are renoised
    entropy        nats, of the tempered distribution
    temperature    that divided the logits
    converged      stable and confident: its argmax is committed. A canvas that ends at its step cap may not be
    """

    request_id: int
    canvas_index: int
    step: int
    canvas: tuple[int, ...]
    argmax_canvas: tuple[int, ...]
    accepted: tuple[bool, ...]
    entropy: tuple[float, ...]
    temperature: float
    converged: bool

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict with a `type`, read back by `record_from_dict`."""
        return {"type": "denoise", **asdict(self)}


class TokenConfidence(NamedTuple):
    """How sure the model was of one answer token, at its canvas' last step.

    entropy       nats, of the tempered distribution
    settled_step  the step since which the draft has held this token
    logprob       of the token; None unless `logprobs` was set
    top           the most likely (token id, logprob), best first; empty unless requested
    """

    token_id: int
    entropy: float
    settled_step: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """What a finished canvas adds to the answer; if a canvas was broken off, what earlier ones had held back.

    token_ids      the new tokens, cut at end-of-text, max_tokens and stop strings; joined, they are the answer's
    text           the new text; the texts of all commits, joined, are the answer
    finish_reason  None while more canvases follow, and if the answer was broken off
    """

    request_id: int
    canvas_index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict with a `type`, read back by `record_from_dict`."""
        return {"type": "commit", **asdict(self)}


Record = DenoiseStep | Commit


def record_from_dict(raw: Mapping[str, Any]) -> Record:
    """The record that `to_dict` wrote. Raises `ValueError` for an unknown type and `TypeError` for missing fields."""
    fields: dict[str, Any] = {name: value for name, value in raw.items() if name != "type"}
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    match raw.get("type"):
        case "denoise":
            return DenoiseStep(**fields)
        case "commit":
            return Commit(**fields)
        case other:
            raise ValueError(f"unknown record type {other!r}")
