"""`/v1/responses`: turns answers into OpenAI's items and events."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from redraft.serve.answers import Answers, CallPiece, Piece, ReplyBuilder, new_replies, read_all
from redraft.serve.http import dumps, sse_event
from redraft.serve.openai_common import extras, token_logprobs
from redraft.serve.planning import AnswerPlan
from redraft.serve.shapes.responses import ResponsesRequest
from redraft.text.reply import Content, Reasoning
from redraft.text.tokenizer import Tokenizer

_REPEATED = {"text", "tools", "tool_choice", "reasoning"}


@dataclass(slots=True)
class ResponseWriter:
    """Writes one response."""

    body: ResponsesRequest
    tokenizer: Tokenizer
    request_id: str
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the body of a response that is not streamed."""
        (reply,) = await read_all(answers)
        output = _Output()
        for piece in reply.pieces:
            list(output.take(piece))
        list(output.end(cut=_cut(reply), logprobs=self._logprobs(reply)))
        return self._ended(reply, answers.plan, output.items)

    async def events(self, answers: Answers) -> AsyncGenerator[str]:
        """Yield the events of a streamed response; a failure along the way also becomes an event."""
        (reply,) = new_replies(answers.plan)
        output, numbers = _Output(), count()

        def numbered(change: dict[str, Any]) -> str:
            return sse_event(change | {"sequence_number": next(numbers)}, change["type"])

        try:
            for name in ("response.created", "response.in_progress"):
                yield numbered({"type": name, "response": self._response("in_progress", [])})
            async for _, event in answers.events():
                for piece in reply.take(event):
                    for change in output.take(piece):
                        yield numbered(change)
            for change in output.end(cut=_cut(reply), logprobs=self._logprobs(reply)):
                yield numbered(change)
            response = self._ended(reply, answers.plan, output.items)
            yield numbered({"type": f"response.{response['status']}", "response": response})
        except Exception as error:
            fault = answers.fault(self.request_id, error)
            for change in output.close("incomplete"):
                yield numbered(change)
            failure = {"code": "server_error", "message": fault.message}
            response = self._response("failed", output.items) | {"error": failure}
            yield numbered({"type": "response.failed", "response": response})

    def _logprobs(self, reply: ReplyBuilder) -> list[dict[str, Any]]:
        """Log-probabilities of all tokens, if they are asked for."""
        if self.body.logprobs is None:
            return []
        return token_logprobs(reply.end, self.tokenizer)

    def _ended(self, reply: ReplyBuilder, plan: AnswerPlan, items: list[dict[str, Any]]) -> dict[str, Any]:
        cut = _cut(reply)
        return self._response("incomplete" if cut else "completed", items) | {
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": _usage(plan, reply),
            "redraft": extras(reply.end, plan.requests[0].settings, self.tokenizer, confidence=False),
        }

    def _response(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        """A response with this status, repeating what was asked for."""
        asked = self.body.model_dump(mode="json", by_alias=True, exclude_none=True, include=_REPEATED)
        return {
            "id": self.id, "object": "response", "created_at": self.created, "completed_at": None, "status": status,
            "model": self.body.model, "output": items, "error": None, "incomplete_details": None, "usage": None,
            "instructions": self.body.instructions, "max_output_tokens": self.body.max_output_tokens,
            "top_logprobs": self.body.top_logprobs or 0,
            "metadata": self.body.metadata or {}, "parallel_tool_calls": self.body.parallel_tool_calls is not False,
            "temperature": self.body.temperature, "top_p": self.body.top_p, "user": self.body.user,
            "text": {"format": {"type": "text"}} | asked.get("text", {}),
            "tools": asked.get("tools", []), "tool_choice": asked.get("tool_choice", "auto"),
            "reasoning": {"effort": None, "summary": None} | asked.get("reasoning", {}),
            "store": False, "background": False, "previous_response_id": None, "truncation": "disabled",
            "service_tier": "default",
        }  # fmt: skip


def _cut(reply: ReplyBuilder) -> bool:
    """Whether a limit ended the answer."""
    return reply.finished is not None and reply.finished.finish_reason != "stop"


def _usage(plan: AnswerPlan, reply: ReplyBuilder) -> dict[str, Any]:
    """Count the tokens read and written."""
    written, cached = reply.end.stats.tokens, reply.end.stats.cached_tokens
    return {
        "input_tokens": plan.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens(plan.tokenizer)},
        "total_tokens": plan.prompt_tokens + written,
    }


_TEXT = {"type": "output_text", "annotations": [], "logprobs": []}
_ITEMS = {
    Content: ("msg", {"type": "message", "role": "assistant"}, _TEXT),
    Reasoning: ("rs", {"type": "reasoning", "summary": []}, {"type": "reasoning_text"}),
}  # fmt: skip
"""For each kind of text: the prefix of its item ids, the item, and the part that holds the text."""


class _Output:
    """The items of a response as they grow. Each change is an event of the stream, which holds a copy."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: type[Content] | type[Reasoning] | None = None

    def take(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Add a piece: text goes into the open item if that is of its kind; a call is its own item."""
        if isinstance(piece, CallPiece):
            yield from self.close("completed")
            yield from self._call(piece)
            return
        if self._open is not type(piece):
            yield from self.close("completed")
            yield from self._begin(type(piece))
        part = self._part()
        part["text"] += piece.text
        yield self._event(f"response.{part['type']}.delta", content_index=0, delta=piece.text, **_logprobs(part))

    def end(self, *, cut: bool, logprobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """End the answer, complete or `cut`; an answer with nothing in it becomes an empty message.

        A text at its end gets the log-probabilities of all its tokens, including thoughts and calls before it.
        """
        if not self.items:
            yield from self._begin(Content)
        if self._open is Content:
            self._part()["logprobs"] = logprobs
        yield from self.close("incomplete" if cut else "completed")

    def close(self, status: str) -> Iterator[dict[str, Any]]:
        """Close the open item, if there is one, with this status."""
        if self._open is None:
            return
        self._open = None
        part = self._part()
        yield self._event(f"response.{part['type']}.done", content_index=0, text=part["text"], **_logprobs(part))
        yield self._event("response.content_part.done", content_index=0, part=dict(part))
        self.items[-1]["status"] = status
        yield self._item("done")

    def _begin(self, kind: type[Content] | type[Reasoning]) -> Iterator[dict[str, Any]]:
        prefix, item, part = _ITEMS[kind]
        self._open = kind
        self.items.append({"id": f"{prefix}_{secrets.token_hex(12)}", **item, "status": "in_progress", "content": []})
        yield self._item("added")
        self.items[-1]["content"] = [part | {"text": ""}]
        yield self._event("response.content_part.added", content_index=0, part=dict(self._part()))

    def _call(self, piece: CallPiece) -> Iterator[dict[str, Any]]:
        name, arguments = piece.call.name, dumps(piece.call.arguments)
        item = {"type": "function_call", "call_id": piece.id, "name": name}
        self.items.append({"id": f"fc_{secrets.token_hex(12)}", **item, "status": "in_progress", "arguments": ""})
        yield self._item("added")
        yield self._event("response.function_call_arguments.delta", delta=arguments)
        yield self._event("response.function_call_arguments.done", name=name, arguments=arguments)
        self.items[-1] |= {"status": "completed", "arguments": arguments}
        yield self._item("done")

    def _part(self) -> dict[str, Any]:
        return self.items[-1]["content"][0]

    def _item(self, what: str) -> dict[str, Any]:
        item = dict(self.items[-1])
        return {"type": f"response.output_item.{what}", "output_index": len(self.items) - 1, "item": item}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}


def _logprobs(part: dict[str, Any]) -> dict[str, Any]:
    """The field without which OpenAI's clients reject an event of a text; it is empty until the answer ends."""
    return {"logprobs": part["logprobs"]} if "logprobs" in part else {}
