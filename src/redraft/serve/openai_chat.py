"""`/v1/chat/completions`: turns answers into OpenAI's bodies and chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from redraft.engine.request import Finished
from redraft.serve.answers import Answers, CallPiece, Piece, ReplyBuilder, new_replies, read_all
from redraft.serve.http import dumps, sse_event
from redraft.serve.openai_common import chat_logprobs, extras, finish_reason, usage
from redraft.serve.planning import AnswerPlan
from redraft.serve.shapes.chat import ChatRequest
from redraft.text.reply import Content, Reasoning
from redraft.text.tokenizer import Tokenizer


@dataclass(slots=True)
class ChatWriter:
    """Writes one response. All of its chunks have the same id and time."""

    body: ChatRequest
    tokenizer: Tokenizer
    fingerprint: str
    request_id: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        replies = await read_all(answers)
        choices = [self._choice(i, reply, answers.plan) for i, reply in enumerate(replies)]
        return self._envelope("chat.completion") | {"choices": choices, "usage": self._usage(replies, answers.plan)}

    async def events(self, answers: Answers) -> AsyncGenerator[str]:
        """Yield the events of a streamed answer; a failure along the way also becomes an event."""
        replies = new_replies(answers.plan)
        try:
            for index in range(len(replies)):
                yield self._chunk(index, {"role": "assistant", "content": ""})
            async for index, event in answers.events():
                for piece in replies[index].take(event):
                    yield self._chunk(index, _delta(piece))
                if isinstance(event, Finished):
                    yield self._chunk(index, {}, **self._ending(index, replies[index], answers.plan))
            if self.body.wants_usage:
                last = {"choices": [], "usage": self._usage(replies, answers.plan)}
                yield sse_event(self._envelope("chat.completion.chunk") | last)
            yield sse_event("[DONE]")
        except Exception as error:
            yield sse_event(answers.fault(self.request_id, error).openai())

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.body.model,
                "system_fingerprint": self.fingerprint}  # fmt: skip

    def _choice(self, index: int, reply: ReplyBuilder, plan: AnswerPlan) -> dict[str, Any]:
        content = None if reply.calls and not reply.content else reply.content
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [_call(call) for call in reply.calls]
        return {"index": index, "message": message, **self._ending(index, reply, plan)}

    def _ending(self, index: int, reply: ReplyBuilder, plan: AnswerPlan) -> dict[str, Any]:
        """What is only known once an answer has ended."""
        reason = finish_reason(reply.end)
        return {
            "finish_reason": "tool_calls" if reply.calls and reason == "stop" else reason,
            "logprobs": chat_logprobs(reply.end, self.tokenizer) if self.body.logprobs else None,
            "redraft": extras(
                reply.end, plan.requests[index].settings, self.tokenizer, confidence=self.body.confidence
            ),
        }

    def _usage(self, replies: list[ReplyBuilder], plan: AnswerPlan) -> dict[str, Any]:
        reasoning = sum(reply.reasoning_tokens(self.tokenizer) for reply in replies)
        return usage(plan, [reply.end for reply in replies]) | {
            "completion_tokens_details": {"reasoning_tokens": reasoning}
        }

    def _chunk(self, index: int, delta: dict[str, Any], **ending: Any) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None} | ending
        chunk = self._envelope("chat.completion.chunk") | {"choices": [choice]}
        return sse_event(chunk | {"usage": None} if self.body.wants_usage else chunk)


def _delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallPiece():
            return {"tool_calls": [{"index": piece.index} | _call(piece)]}


def _call(call: CallPiece) -> dict[str, Any]:
    function = {"name": call.call.name, "arguments": dumps(call.call.arguments)}
    return {"id": call.id, "type": "function", "function": function}
