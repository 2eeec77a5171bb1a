"""`/v1/messages`: turns answers into Anthropic's bodies and events."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

from redraft.engine.request import Finished
from redraft.serve.answers import Answers, CallPiece, Piece, ReplyBuilder, new_replies, read_all
from redraft.serve.http import dumps, sse_event
from redraft.serve.openai_common import extras
from redraft.serve.planning import AnswerPlan, Planner, rename_fields
from redraft.serve.shapes.messages import CountRequest, MessagesRequest
from redraft.text.reply import Content, Reasoning
from redraft.text.tokenizer import Tokenizer


def count_tokens(planner: Planner, body: CountRequest) -> int:
    """Count the prompt tokens of a conversation, even one that is too long to be answered."""
    planner = planner.for_model(body.model)
    with rename_fields(body.names):
        return len(planner.read_long_chat(body.chat(), tools=body.declared_tools(), thinking=body.wants_thinking))


@dataclass(slots=True)
class MessageWriter:
    """Writes one response."""

    body: MessagesRequest
    tokenizer: Tokenizer
    request_id: str
    id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(12)}")

    async def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        (reply,) = await read_all(answers)
        more = extras(reply.end, answers.plan.requests[0].settings, self.tokenizer, confidence=False)
        return self._message(answers.plan) | self._ending(reply, answers.plan) | {
            "content": _whole_blocks(reply.pieces), "usage": _usage(answers.plan, reply),
            "redraft": more,
        }  # fmt: skip

    async def events(self, answers: Answers) -> AsyncGenerator[str]:
        """Yield the events of a streamed answer; a failure along the way also becomes an event."""
        (reply,) = new_replies(answers.plan)
        blocks = _Blocks()
        try:
            yield _named({"type": "message_start", "message": self._message(answers.plan)})
            async for _, event in answers.events():
                for piece in reply.take(event):
                    for change in blocks.take(piece):
                        yield _named(change)
                if isinstance(event, Finished):
                    for change in [*blocks.close(), self._delta(reply, answers.plan)]:
                        yield _named(change)
            yield _named({"type": "message_stop"})
        except Exception as error:
            yield _named(answers.fault(self.request_id, error).anthropic(self.request_id))

    def _message(self, plan: AnswerPlan) -> dict[str, Any]:
        return {
            "id": self.id, "type": "message", "role": "assistant", "model": self.body.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": _usage(plan),
        }  # fmt: skip

    def _delta(self, reply: ReplyBuilder, plan: AnswerPlan) -> dict[str, Any]:
        more = extras(reply.end, plan.requests[0].settings, self.tokenizer, confidence=False)
        return {"type": "message_delta", "delta": self._ending(reply, plan), "usage": _usage(plan, reply),
                "redraft": more}  # fmt: skip

    def _ending(self, reply: ReplyBuilder, plan: AnswerPlan) -> dict[str, Any]:
        if reply.end.finish_reason != "stop":
            bounded = plan.requests[0].settings.max_tokens < self.body.max_tokens
            full = bounded and reply.end.finish_reason == "length"
            return {"stop_reason": "model_context_window_exceeded" if full else "max_tokens", "stop_sequence": None}
        if reply.calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        stop = reply.end.stop_text
        return {"stop_reason": "end_turn" if stop is None else "stop_sequence", "stop_sequence": stop}


def _whole_blocks(pieces: list[Piece]) -> list[dict[str, Any]]:
    """The content blocks of a complete answer: the same ones that its stream opens."""
    blocks: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, CallPiece):
            blocks.append({**_tool_use(piece), "input": piece.call.arguments})
            continue
        block = _empty_block(piece)
        if not blocks or blocks[-1]["type"] != block["type"]:
            blocks.append(block)
        blocks[-1][block["type"]] += piece.text  # a block's text field is named after its type
    return blocks


def _empty_block(piece: Content | Reasoning) -> dict[str, Any]:
    if isinstance(piece, Content):
        return {"type": "text", "text": ""}
    return {"type": "thinking", "thinking": "", "signature": ""}


class _Blocks:
    """Content blocks of a stream: text and thinking grow in the open block; each call is its own block."""

    def __init__(self) -> None:
        self._index = -1
        self._open: type | None = None

    def take(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if self._open is not type(piece):
            yield from self.close()
        match piece:
            case Content(text):
                yield from self._begin(Content, _empty_block(piece))
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._begin(Reasoning, _empty_block(piece))
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallPiece():
                yield from self._begin(CallPiece, {**_tool_use(piece), "input": {}})
                yield self._delta({"type": "input_json_delta", "partial_json": dumps(piece.call.arguments)})
                yield from self.close()

    def close(self) -> Iterator[dict[str, Any]]:
        if self._open is Reasoning:  # clients that see no signature do not send the thought back
            yield self._delta({"type": "signature_delta", "signature": ""})
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _begin(self, kind: type, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open is not kind:
            self._open, self._index = kind, self._index + 1
            yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _named(content: dict[str, Any]) -> str:
    return sse_event(content, content["type"])


def _tool_use(call: CallPiece) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id.replace("call_", "toolu_"), "name": call.call.name}


def _usage(plan: AnswerPlan, reply: ReplyBuilder | None = None) -> dict[str, Any]:
    """Count the tokens read and written so far.

    Input tokens are those of the prompt that were not read from the prefix cache. How many were is known once the
    `reply` is whole; until then, all of the prompt counts as input. The last count of a stream replaces the first.
    """
    cached, written = (reply.end.stats.cached_tokens, reply.end.stats.tokens) if reply else (0, 0)
    return {
        "input_tokens": plan.prompt_tokens - cached,
        "output_tokens": written,
        "output_tokens_details": {"thinking_tokens": reply.reasoning_tokens(plan.tokenizer) if reply else 0},
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }
