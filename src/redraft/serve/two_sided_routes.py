"""`/v1/fill`, `/v1/edits`, `/v1/decisions`: work that the model's thread does between two steps of other answers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from redraft.editing.following import NextEdit
from redraft.llm import LLM
from redraft.serve.http import Json, unless_gone
from redraft.serve.service import service_of
from redraft.serve.shapes.two_sided import DecisionRequest, EditRequest, FillRequest, NextEditRequest

router = APIRouter()


@router.post("/v1/fill")
async def fill(request: Request, body: FillRequest) -> Response:
    """Fill the holes of a text; what is given comes back byte for byte."""
    llm = _llm(request, body.model)
    given = {"max_tokens": body.max_tokens, "length": body.length, "seed": body.seed}
    text = (body.text,) if body.text is not None else (body.prefix, body.suffix)
    work = functools.partial(llm.fill, *text, **body.wanted(), **_given(given))  # type: ignore[arg-type]
    return await _run(request, body.model, work)


@router.post("/v1/edits")
async def edits(request: Request, body: EditRequest) -> Response:
    """Change a span of a text as an instruction says, or repair it; everything else comes back byte for byte."""
    llm = _llm(request, body.model)
    given = {"max_tokens": body.max_tokens, "seed": body.seed, "strength": body.strength}
    start, end = body.span
    work = functools.partial(llm.edit, body.text, (start, end), body.instruction, **body.wanted(), **_given(given))
    return await _run(request, body.model, work)


@router.post("/v1/edits/next")
async def next_edit(request: Request, body: NextEditRequest) -> Response:
    """Propose the next edit, or none (`edit` is null)."""
    llm = _llm(request, body.model)
    recent = [(edit.old, edit.new) for edit in body.recent]
    given = _given({"max_tokens": body.max_tokens, "seed": body.seed})
    work = functools.partial(llm.next_edit, body.text, body.cursor, recent, **body.settings(), **given)
    return await _run(request, body.model, lambda: _Proposal(work()))


@router.post("/v1/decisions")
async def decisions(request: Request, body: DecisionRequest) -> Response:
    """Choose for every question and slot, with probabilities, without writing text."""
    work = functools.partial(_llm(request, body.model).decide, body.asked(), body.choices, **body.options())
    return await _run(request, body.model, work)


@dataclass(frozen=True, slots=True)
class _Proposal:
    edit: NextEdit | None

    def to_dict(self) -> dict[str, Any]:
        return {"edit": None if self.edit is None else self.edit.to_dict()}


async def _run(request: Request, model: str, work: Callable[[], Any]) -> Response:
    result = await unless_gone(request, service_of(request).work(work))
    several = isinstance(result, list)
    content = {"decisions": [one.to_dict() for one in result]} if several else result.to_dict()
    return Json({"model": model} | content)


def _llm(request: Request, model: str) -> LLM:
    """The model, or the one of its adapters, that a request names."""
    return service_of(request).planner.for_model(model).llm


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
