"""Deciding: which of the declared tools a request needs, read from a pinned canvas without writing the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from redraft.deciding import Decision
from redraft.eval.result import EvalResult, ItemRecord
from redraft.eval.task import Progress, asking, evaluate_batches
from redraft.eval.tools import ToolItem

TEMPLATE = "<|tool_call>call:{choice}{{"
"""How a call begins; the canvas continues after it."""


class Decides(Protocol):
    """The part of the model facade that is needed here."""

    def decide(self, question: Any, choices: Sequence[str], **settings: Any) -> Any: ...


def suitable(items: Sequence[ToolItem]) -> list[ToolItem]:
    """Items with one expected call and at least two tools to choose from."""
    return [item for item in items if len(item.calls) == 1 and len(_names(item)) > 1]


def evaluate(
    llm: Decides, items: Sequence[ToolItem], *, progress: Progress | None = None, **settings: Any
) -> EvalResult:
    """Decides every item; the steps of a record are its reads."""
    given = {"template": TEMPLATE, "ends": False, **settings}

    def answer(batch: Sequence[ToolItem]) -> list[ItemRecord]:
        return [_decided(llm, item, given) for item in batch]

    return evaluate_batches(items, answer, progress=progress)


def _decided(llm: Decides, item: ToolItem, given: dict[str, Any]) -> ItemRecord:
    with asking(item.id):
        return _record(item, llm.decide(item.messages, _names(item), tools=item.tools, **given))


def _names(item: ToolItem) -> list[str]:
    return [tool["function"]["name"] for tool in item.tools]


def _record(item: ToolItem, decision: Decision) -> ItemRecord:
    expected = item.calls[0][0]
    return ItemRecord(
        id=item.id,
        solved=decision.choice == expected,
        output=decision.choice,
        expected=expected,
        steps=(decision.readings[0].reads,),
        tokens=1,
        forwards=decision.forwards,
        confidence=decision.confidence,
    )
