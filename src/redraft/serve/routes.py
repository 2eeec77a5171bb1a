"""The generating endpoints. Each plans in a thread, hands the plan to the engine, and writes the result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial

from fastapi import APIRouter, Request, Response

from redraft.serve.answers import Answers
from redraft.serve.anthropic_messages import MessageWriter, plan_messages
from redraft.serve.drafts import draft_events
from redraft.serve.http import EventStream, Json, JsonRoute, until_disconnect
from redraft.serve.openai_chat import ChatWriter, plan_chat
from redraft.serve.openai_completions import CompletionWriter, plan_completion
from redraft.serve.openai_responses import ResponseWriter, plan_response
from redraft.serve.planning import Plan
from redraft.serve.service import Service, fingerprint, request_cost, service_of
from redraft.serve.shapes.chat import ChatRequest
from redraft.serve.shapes.completions import CompletionRequest
from redraft.serve.shapes.messages import MessagesRequest
from redraft.serve.shapes.own import DraftsRequest
from redraft.serve.shapes.responses import ResponsesRequest

router = APIRouter(tags=["answers"], route_class=JsonRoute)
_Body = ChatRequest | CompletionRequest | MessagesRequest | ResponsesRequest


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation, in OpenAI's shape."""
    service = service_of(request)
    answers = await _begin(request, body, partial(plan_chat, service.planner, body), body.asker)
    writer = ChatWriter(body, service.llm.tokenizer, fingerprint(service), _id(request))
    if body.stream:
        return _stream(service, answers, writer.chunks(answers))
    return Json(await until_disconnect(request, writer.whole(answers)))


@router.post("/v1/responses")
async def responses(request: Request, body: ResponsesRequest) -> Response:
    """Answer a conversation, in the shape of OpenAI's Responses API. Nothing is stored."""
    service = service_of(request)
    answers = await _begin(request, body, partial(plan_response, service.planner, body), body.asker)
    writer = ResponseWriter(body, service.llm.tokenizer, _id(request))
    if body.stream:
        return _stream(service, answers, writer.events(answers))
    return Json(await until_disconnect(request, writer.whole(answers)))


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue plain text, or fill the hole before `suffix`, in OpenAI's shape."""
    service = service_of(request)
    writer = CompletionWriter(body, service.llm.tokenizer, fingerprint(service), _id(request))
    if body.suffix is not None:
        return await _fill(request, service, body, writer)
    answers = await _begin(request, body, partial(plan_completion, service.planner, body), body.user)
    if body.stream:
        return _stream(service, answers, writer.chunks(answers))
    return Json(await until_disconnect(request, writer.whole(answers)))


@router.post("/v1/messages")
async def messages(request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation, in Anthropic's shape."""
    service = service_of(request)
    user = body.metadata.user_id if body.metadata else None
    answers = await _begin(request, body, partial(plan_messages, service.planner, body), user)
    writer = MessageWriter(body, service.llm.tokenizer, _id(request))
    if body.stream:
        return _stream(service, answers, writer.events(answers))
    return Json(await until_disconnect(request, writer.whole(answers)))


@router.post("/v1/drafts")
async def drafts(request: Request, body: DraftsRequest) -> Response:
    """Answer a conversation and show the canvas as it settles: a server-sent event for every denoising step."""
    service = service_of(request)
    plan = partial(plan_chat, service.planner, body, drafts=True)
    answers = await _begin(request, body, plan, body.asker)
    events = draft_events(answers, service.llm.tokenizer, service.llm.eos_ids, _id(request))
    return _stream(service, answers, events)


async def _begin(request: Request, body: _Body, plan: Callable[[], Plan], user: str | None) -> Answers:
    """Plan, and hand the plan to the engine; note the user for the log."""
    facts = request.state.context.facts
    facts |= _asker(user)
    begun = service_of(request).begin(plan, body.timeout, size=request_cost(request, body), facts=facts)
    return await until_disconnect(request, begun)


def _id(request: Request) -> str:
    """The id by which the client and the log know this request."""
    return request.state.context.id


def _stream(service: Service, answers: Answers, events: AsyncGenerator[str]) -> Response:
    return EventStream(events, answers.close, limit=service.settings.reading_limit)


def _asker(user: str | None) -> dict[str, str]:
    return {} if user is None else {"user": user}


async def _fill(request: Request, service: Service, body: CompletionRequest, writer: CompletionWriter) -> Response:
    facts = request.state.context.facts
    facts |= _asker(body.user)
    whole = await until_disconnect(request, writer.filled(service, request.state.context.size))
    if service.settings.log_prompts:
        facts |= {"prompts": [body.prompt, body.suffix], "texts": [choice["text"] for choice in whole["choices"]]}
    return EventStream(writer.filled_chunks(whole)) if body.stream else Json(whole)
