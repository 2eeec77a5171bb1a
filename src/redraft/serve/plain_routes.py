"""Endpoints that generate nothing: models, tokens, health, metrics, and the page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

import redraft
from redraft.errors import about
from redraft.serve.anthropic_messages import count_tokens
from redraft.serve.drafts import pieces
from redraft.serve.faults import Fault, loading, stopping
from redraft.serve.http import Json
from redraft.serve.json_route import JsonRoute
from redraft.serve.metrics import CONTENT_TYPE
from redraft.serve.page import Page
from redraft.serve.planning import Planner, rename_fields
from redraft.serve.service import Service, read, service_of
from redraft.serve.shapes.messages import CountRequest
from redraft.serve.shapes.own import DetokenizeRequest, TokenizeRequest
from redraft.text.tokenizer import Tokenizer

router = APIRouter(route_class=JsonRoute)
_STARTED = int(time.time())
_PAGE = Page.read()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """List the models that are served, with the fields of OpenAI's, Anthropic's and vLLM's lists."""
    service = service_of(request)
    names = service.planner.names
    page = {"first_id": names[0], "last_id": names[-1], "has_more": False}
    return Json({"object": "list", "data": [_model(service, name) for name in names]} | page)


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """Describe one model."""
    service = service_of(request)
    service.planner.for_model(name)
    return Json(_model(service, name))


@router.post("/tokenize", tags=["tokens"])
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Turn a text, or a conversation as the model reads it, into token ids."""
    return await read(request, body, partial(_tokens, _planner(request, body.model), body))


@router.post("/detokenize", tags=["tokens"])
async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
    """Turn token ids into text."""
    return await read(request, body, partial(_texts, _planner(request, body.model).llm.tokenizer, body))


@router.post("/v1/messages/count_tokens", tags=["tokens"])
async def messages_count_tokens(request: Request, body: CountRequest) -> Response:
    """Count the tokens of a conversation, in Anthropic's shape."""
    return Json({"input_tokens": await read(request, body, partial(count_tokens, service_of(request).planner, body))})


@router.get("/health")
async def health(request: Request) -> Response:
    """Say that the process is alive, whatever state the model is in."""
    return Json({"status": "ok", "phase": service_of(request).phase, "version": redraft.__version__})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Say whether the server takes requests: 200, or 503 while it is loading or stopping."""
    service = service_of(request)
    if service.phase != "ready":
        raise loading() if service.phase == "loading" else stopping()
    if not service.healthy:
        raise Fault(503, "The engine has stopped after repeated failures; its log says why.", code="engine_stopped")
    return Json({"status": "ready"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return all metrics, in Prometheus' text format."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """Describe every endpoint."""
    text = await service_of(request).threads.call(request.app.state.document.text)
    return Response(text, media_type="application/json")


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The page that shows the canvas."""
    return Response(_PAGE.body, media_type="text/html", headers=_PAGE.headers)


def _planner(request: Request, model: str | None) -> Planner:
    """The planner for the model that a request names, or the default one."""
    planner = service_of(request).planner
    return planner if model is None else planner.for_model(model)


def _model(service: Service, name: str) -> dict[str, Any]:
    llm, most = service.llm, service.settings.max_prompt
    context, canvas = llm.model.config.max_position_embeddings, llm.model.config.canvas_length
    base = {} if name in service.settings.names else {"parent": service.settings.names[0]}
    return base | {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "redraft",
        "type": "model",
        "display_name": name,
        "lifecycle": "active",
        "created_at": datetime.fromtimestamp(_STARTED, UTC).isoformat(),
        "max_input_tokens": context - canvas if most is None else min(most, context - canvas),
        "max_tokens": context - canvas,
        "max_model_len": context,
        "context": context,
        "canvas_length": canvas,
        "steps": llm.defaults.steps,
        "images": llm.model.vision is not None,
        "thinking": llm.template is not None and llm.template.can_think,
    }


def _tokens(planner: Planner, body: TokenizeRequest) -> Json:
    tokenizer, ids = planner.llm.tokenizer, _ids(planner, body)
    strings = {"token_strs": [tokenizer.token(id) for id in ids]} if body.return_token_strs else {}
    context = planner.llm.model.config.max_position_embeddings
    return Json({"tokens": ids, "count": len(ids), "max_model_len": context} | strings)


def _ids(planner: Planner, body: TokenizeRequest) -> Sequence[int]:
    tokenizer = planner.llm.tokenizer
    if body.text is not None:
        with about("text"):
            return tokenizer.encode(body.text, special=bool(body.special))
    if body.prompt is not None:
        bos = [] if body.add_special_tokens is False else [tokenizer.bos_id]
        with about("prompt"):
            return bos + tokenizer.encode(body.prompt, special=False)
    with rename_fields(lambda: {"thinking": "chat_template_kwargs.enable_thinking"}):
        return planner.read_long_chat(body.chat(), tools=body.declared_tools(), thinking=body.wants_thinking).ids


def _texts(tokenizer: Tokenizer, body: DetokenizeRequest) -> Json:
    several = bool(body.tokens) and isinstance(body.tokens[0], list)
    rows: list[list[int]] = body.tokens if several else [body.tokens]  # type: ignore[assignment, list-item]
    for index, row in enumerate(rows):
        with about(f"tokens[{index}]" if several else "tokens"):
            tokenizer.check_ids(row)
    answer: dict[str, Any] = {"text": [tokenizer.decode(row) for row in rows]}
    if body.pieces:
        answer["pieces"] = [list(pieces(row, tokenizer)) for row in rows]
    if several:
        return Json(answer)
    single = {name: value[0] for name, value in answer.items()}
    return Json(single | {"prompt": single["text"]})  # which vLLM's clients read
