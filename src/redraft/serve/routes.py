"""The generating endpoints. Each plans in a thread, hands the plan to the engine, and writes the result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response

from redraft.serve.answers import Answers
from redraft.serve.anthropic_messages import MessageWriter
from redraft.serve.drafts import draft_events
from redraft.serve.http import EventStream, Json, until_disconnect
from redraft.serve.json_route import JsonRoute
from redraft.serve.openai_chat import ChatWriter
from redraft.serve.openai_completions import CompletionWriter, plan_completion
from redraft.serve.openai_responses import ResponseWriter
from redraft.serve.planning import AnswerPlan, plan_conversation
from redraft.serve.scored_prompts import score_prompts
from redraft.serve.service import Service, fingerprint, request_cost, service_of
from redraft.serve.shapes.chat import ChatRequest
from redraft.serve.shapes.completions import CompletionRequest
from redraft.serve.shapes.messages import MessagesRequest
from redraft.serve.shapes.own import DraftsRequest
from redraft.serve.shapes.responses import ResponsesRequest

router = APIRouter(tags=["answers"], route_class=JsonRoute)
_Body = ChatRequest | CompletionRequest | MessagesRequest | ResponsesRequest


class _Writer(Protocol):
    """Writes the answers to one request in the shape of its endpoint."""

    async def whole(self, answers: Answers) -> dict[str, Any]: ...
    def events(self, answers: Answers) -> AsyncGenerator[str]: ...


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation, in OpenAI's shape."""
    service = service_of(request)
    writer = ChatWriter(body, service.llm.tokenizer, fingerprint(service), _id(request))
    return await _answer(request, body, partial(plan_conversation, service.planner, body, n=body.n or 1), writer)


@router.post("/v1/responses")
async def responses(request: Request, body: ResponsesRequest) -> Response:
    """Answer a conversation, in the shape of OpenAI's Responses API. Nothing is stored."""
    service = service_of(request)
    writer = ResponseWriter(body, service.llm.tokenizer, _id(request))
    return await _answer(request, body, partial(plan_conversation, service.planner, body), writer)


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue plain text, fill the hole before `suffix`, or score the prompts, in OpenAI's shape."""
    service = service_of(request)
    size = request.state.context.size
    score = partial(score_prompts, service, body, size)
    writer = CompletionWriter(body, service.llm.tokenizer, fingerprint(service), _id(request), score)
    if body.suffix is not None:
        return await _at_once(request, body, writer, writer.filled(service, size))
    if body.is_scored_alone:
        return await _at_once(request, body, writer, writer.scored())
    return await _answer(request, body, partial(plan_completion, service.planner, body), writer)


@router.post("/v1/messages")
async def messages(request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation, in Anthropic's shape."""
    service = service_of(request)
    writer = MessageWriter(body, service.llm.tokenizer, _id(request))
    return await _answer(request, body, partial(plan_conversation, service.planner, body), writer)


@router.post("/v1/drafts")
async def drafts(request: Request, body: DraftsRequest) -> Response:
    """Answer a conversation and show the canvas as it settles: a server-sent event for every denoising step."""
    service = service_of(request)
    answers = await _begin(request, body, partial(plan_conversation, service.planner, body, drafts=True))
    events = draft_events(answers, service.llm.tokenizer, service.llm.eos_ids, _id(request))
    return _stream(service, answers, events)


async def _answer(request: Request, body: _Body, plan: Callable[[], AnswerPlan], writer: _Writer) -> Response:
    """Answer as planned, whole or streamed."""
    answers = await _begin(request, body, plan)
    if body.stream:
        return _stream(service_of(request), answers, writer.events(answers))
    return Json(await until_disconnect(request, writer.whole(answers)))


async def _begin(request: Request, body: _Body, plan: Callable[[], AnswerPlan]) -> Answers:
    """Plan, and hand the plan to the engine; note the user for the log."""
    facts = _facts(request, body)
    begun = service_of(request).begin(plan, body.timeout, size=request_cost(request, body), facts=facts)
    return await until_disconnect(request, begun)


def _facts(request: Request, body: _Body) -> dict[str, Any]:
    """The facts of the request's log line, with the user if there is one."""
    facts = request.state.context.facts
    if body.end_user is not None:
        facts["user"] = body.end_user
    return facts


def _id(request: Request) -> str:
    """The id by which the client and the log know this request."""
    return request.state.context.id


def _stream(service: Service, answers: Answers, events: AsyncGenerator[str]) -> Response:
    return EventStream(events, answers.close, limit=service.settings.reading_limit)


async def _at_once(
    request: Request, body: CompletionRequest, writer: CompletionWriter, work: Coroutine[Any, Any, dict[str, Any]]
) -> Response:
    """Answer with a body that is known as a whole, even if it is to be streamed."""
    facts = _facts(request, body)
    whole = await until_disconnect(request, work)
    if service_of(request).settings.log_prompts:
        given = body.prompts() if body.suffix is None else [body.prompt, body.suffix]
        facts |= {"prompts": given, "texts": [choice["text"] for choice in whole["choices"]]}
    return EventStream(writer.whole_events(whole)) if body.stream else Json(whole)
