"""Small talk and simple questions: solved when the answer holds one of the expected words or phrases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import InputError
from redraft.eval.files import fail, json_lines
from redraft.eval.generate import Generates, run
from redraft.eval.result import EvalResult, Progress
from redraft.text.messages import check_messages

MAX_TOKENS = 256

_FIELDS = {"id": str, "messages": list, "expected": list}


@dataclass(frozen=True, kw_only=True, slots=True)
class SmalltalkItem:
    """A chat, and the words or phrases of which a right answer holds at least one."""

    id: str
    messages: list[dict[str, Any]]
    expected: tuple[str, ...]


def read_smalltalk_jsonl(path: str | Path, *, limit: int | None = None) -> list[SmalltalkItem]:
    """Reads items with ``id``, ``messages`` and ``expected`` (a list of strings); at most ``limit``.

    Raises :class:`InputError` that names file and line.
    """
    items: list[SmalltalkItem] = []
    for line, record in json_lines(path, _FIELDS):
        if limit is not None and len(items) >= limit:
            break
        items.append(_item(Path(path), line, record))
    return items


def _item(path: Path, line: int, record: Mapping[str, Any]) -> SmalltalkItem:
    try:
        check_messages(record["messages"])
    except InputError as error:
        fail(path, line, str(error).rstrip("."))
    expected = record["expected"]
    if not expected or not all(isinstance(phrase, str) and phrase.strip() for phrase in expected):
        fail(path, line, "the field 'expected' must hold one string or more, none of them blank")
    return SmalltalkItem(id=record["id"], messages=record["messages"], expected=tuple(expected))


def is_solved(item: SmalltalkItem, text: str) -> bool:
    """Whether ``text`` holds one of the expected phrases as whole words, whatever their case."""
    return any(re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE) for phrase in item.expected)


def evaluate(
    llm: Generates,
    items: Sequence[SmalltalkItem],
    *,
    steps: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    max_tokens: int = MAX_TOKENS,
    progress: Progress | None = None,
    **settings: Any,
) -> EvalResult:
    """Asks for every item; further ``settings`` go to ``generate_batch`` as they are."""
    return run(
        llm,
        items,
        prompt=lambda item: llm.encode_chat(item.messages),
        judge=lambda item, text: (item.id, is_solved(item, text), " | ".join(item.expected)),
        batch_size=batch_size,
        steps=steps,
        progress=progress,
        settings={"seed": seed, "max_tokens": max_tokens, **settings},
    )
