"""`/v1/drafts`: the canvas as it settles, as server-sent events.

    event: start     what was asked for: prompt tokens, end-of-text ids, settings including the seed
    event: denoise   a DenoiseStep, and `pieces`: the text of every position's draft token
    event: commit    a Commit: text that is final
    event: done      how the answer ended, its parts (content, reasoning, tool calls), and what it cost
    event: error     OpenAI's error body

The data of `denoise`, without `pieces`, and of `commit` are the lines of a trace (`redraft generate --trace`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from redraft.diffusion.records import Commit, DenoiseStep
from redraft.filling.reporting import HoleStep
from redraft.serve.answers import Answers, new_replies
from redraft.serve.http import sse_event
from redraft.serve.openai_common import extras
from redraft.text.tokenizer import Tokenizer

ENTROPY_DIGITS = 4


async def draft_events(
    answers: Answers, tokenizer: Tokenizer, eos_ids: tuple[int, ...], request_id: str
) -> AsyncGenerator[str]:
    """Yield the events of one answer; a failure along the way also becomes an event."""
    (reply,), request = new_replies(answers.plan), answers.plan.requests[0]
    try:
        settings = {name: value for name, value in dataclasses.asdict(request.settings).items() if value is not None}
        yield sse_event(
            {"prompt_tokens": answers.plan.prompt_tokens, "eos_token_ids": list(eos_ids), "settings": settings}, "start"
        )
        async for _, event in answers.events():
            reply.take(event)
            if isinstance(event, DenoiseStep):
                yield sse_event(step_data(event, tokenizer), "denoise")
            elif isinstance(event, Commit):
                yield sse_event(event.to_dict(), "commit")
        calls = [{"id": call.id, "name": call.call.name, "arguments": call.call.arguments} for call in reply.calls]
        yield sse_event(
            {"content": reply.content, "reasoning": reply.reasoning, "tool_calls": calls}
            | extras(reply.end, request.settings, tokenizer, confidence=True),
            "done",
        )
    except Exception as error:
        yield sse_event(answers.fault(request_id, error).openai(), "error")


def step_data(record: DenoiseStep, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a step as JSON, with the text of every draft token."""
    return _rounded(record) | {"pieces": list(pieces(record.argmax_canvas, tokenizer))}


def hole_data(step: HoleStep) -> dict[str, Any]:
    """Return a step of a hole as JSON, at the hole's positions alone."""
    size = len(step.pieces)
    return {name: value[:size] if isinstance(value, tuple | list) else value for name, value in _rounded(step).items()}


def _rounded(record: DenoiseStep) -> dict[str, Any]:
    return record.to_dict() | {"entropy": [round(value, ENTROPY_DIGITS) for value in record.entropy]}


def pieces(token_ids: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the text of every token, a split character at the token that completes it; joined, they give the text."""
    stream = tokenizer.stream()
    piece = None
    for token in token_ids:
        if piece is not None:
            yield piece
        piece = stream.push([token])
    if piece is not None:
        yield piece + stream.finish()
