"""`/v1/fill`, `/v1/edits`, `/v1/decisions`: work whose forward passes take turns with those of answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from redraft.deciding.asking import read_question, split_questions
from redraft.deciding.form import Form
from redraft.editing.api import DEFAULT_STEPS as EDIT_STEPS
from redraft.editing.following import NextEdit
from redraft.errors import about
from redraft.filling.api import DEFAULT_STEPS as FILL_STEPS
from redraft.filling.api import fill_settings
from redraft.serve.http import EventStream, Json, until_disconnect
from redraft.serve.json_route import JsonRoute
from redraft.serve.planning import Planner, rename_fields
from redraft.serve.service import request_cost, service_of
from redraft.serve.shapes.two_sided import Constrained, DecisionRequest, EditRequest, FillRequest, NextEditRequest
from redraft.serve.two_sided_drafts import Drafting, Report, watching
from redraft.text.pieces import split_pieces

router = APIRouter(tags=["answers"], route_class=JsonRoute)


@router.post("/v1/fill")
async def fill(request: Request, body: FillRequest) -> Response:
    """Fill the holes of a text; the given text comes back byte for byte."""
    planner = _planner(request, body.model)
    settings = {"max_tokens": body.max_tokens, "length": body.length, "seed": body.seed}
    text = (body.text,) if body.text is not None else (body.prefix, body.suffix)
    work = functools.partial(planner.llm.fill, *text, **body.keywords(), **_without_none(settings))
    with about(None if body.text is None else "text"):
        pieces = split_pieces(*text)  # type: ignore[arg-type]
    texts = {"text": "".join(pieces)} if body.text is not None else {"prefix": pieces[0], "suffix": pieces[1]}
    check = functools.partial(planner.check_text, texts)
    return await (_stream if body.stream else _run)(request, body, check, work)


@router.post("/v1/edits")
async def edits(request: Request, body: EditRequest) -> Response:
    """Change a span of a text as an instruction says, or repair it; everything else comes back byte for byte."""
    planner = _planner(request, body.model)
    settings = {"max_tokens": body.max_tokens, "seed": body.seed, "strength": body.strength} | body.keywords()
    start, end = body.span
    work = functools.partial(planner.llm.edit, body.text, (start, end), body.instruction, **_without_none(settings))
    check = functools.partial(planner.check_text, _without_none({"text": body.text, "instruction": body.instruction}))
    return await (_stream if body.stream else _run)(request, body, check, work)


@router.post("/v1/edits/next")
async def next_edit(request: Request, body: NextEditRequest) -> Response:
    """Propose the next edit, or none (`edit` is null)."""
    planner = _planner(request, body.model)
    recent = [(edit.old, edit.new) for edit in body.recent or ()]
    settings = _without_none({"max_tokens": body.max_tokens, "seed": body.seed})
    work = functools.partial(planner.llm.next_edit, body.text, body.cursor, recent, **body.settings(), **settings)
    texts = {"text": body.text}
    for index, (old, new) in enumerate(recent):
        texts |= {f"recent[{index}].old": old, f"recent[{index}].new": new}
    check = functools.partial(planner.check_text, texts)
    return await _run(request, body, check, lambda: _Proposal(work()))


@router.post("/v1/decisions")
async def decisions(request: Request, body: DecisionRequest) -> Response:
    """Choose an answer for every question and slot, with probabilities, without writing text."""
    planner, decoded = _planner(request, body.model), list[Any]()

    def check() -> None:
        """Decode images too, so that the model's thread does not have to."""
        asked = body.asked()
        with about("messages"):
            if body.messages is not None:
                planner.check_count(asked)
                asked = planner.llm.decoded(asked)
        decoded.append(asked)
        _check_questions(planner, body, decoded[0])

    return await _run(request, body, check, lambda: planner.llm.decide(decoded[0], body.choices, **body.options()))


@dataclass(frozen=True, slots=True)
class _Proposal:
    edit: NextEdit | None

    def to_dict(self) -> dict[str, Any]:
        return {"edit": None if self.edit is None else self.edit.to_dict()}


_Body = FillRequest | EditRequest | NextEditRequest | DecisionRequest


async def _run(request: Request, body: _Body, check: Callable[[], None], work: Callable[[], Any]) -> Response:
    """Answer with what the work comes to."""
    return Json(await until_disconnect(request, _done(request, body, check, work)))


async def _stream(
    request: Request, body: FillRequest | EditRequest, check: Callable[[], None], work: Callable[..., Any]
) -> Response:
    """Answer with the drafts as they settle; anything that is refused before any compute is an ordinary error."""
    service, context = service_of(request), request.state.context
    llm, default = service.llm, FILL_STEPS if isinstance(body, FillRequest) else EDIT_STEPS
    steps = fill_settings(llm.defaults, body.keywords(), default).steps

    def begin(report: Report) -> Coroutine[Any, Any, dict[str, Any]]:
        return _done(request, body, check, functools.partial(work, **watching(report, steps)))

    fault = functools.partial(service.stream_fault, context.facts, context.id)
    drafting = Drafting(begin)
    try:
        await until_disconnect(request, drafting.begun())
    except BaseException:
        await drafting.close()
        raise
    return EventStream(drafting.events(fault), drafting.close, limit=service.settings.reading_limit)


async def _done(request: Request, body: _Body, check: Callable[[], None], work: Callable[[], Any]) -> dict[str, Any]:
    """What the work comes to, once it is done."""
    service = service_of(request)
    with rename_fields(body.names if isinstance(body, Constrained | DecisionRequest) else dict[str, str]):
        result = await service.work(check, work, size=request_cost(request, body))
    several = isinstance(result, list)
    content = {"decisions": [decision.to_dict() for decision in result]} if several else result.to_dict()
    if service.settings.log_prompts:
        request.state.context.facts |= {"asked": body.model_dump(exclude_unset=True), "answered": content}
    return {"model": body.model} | content


def _check_questions(planner: Planner, body: DecisionRequest, asked: Any) -> None:
    """Refuse questions that, together with their choices, have more tokens than a prompt may have."""
    options = body.options()
    with about("choices" if body.template is None else "template"):
        form = Form.of(body.choices, body.template, ends=body.ends is not False)
    questions, several = split_questions(asked)
    for index, question in enumerate(questions):
        place = f"question[{index}]" if several else "question"
        names: dict[str, str] = {}
        if body.messages is None:
            names = {name: place for name in ("question", "messages", "messages[0].content")}
        with rename_fields(lambda names=names: names), about("messages"):
            planner.checked(read_question(planner.llm, question, form, options.get("tools")))


def _planner(request: Request, model: str) -> Planner:
    """The planner for the model or adapter that a request names."""
    return service_of(request).planner.for_model(model)


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that a request gives."""
    return {name: value for name, value in settings.items() if value is not None}
