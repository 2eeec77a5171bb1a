"""Conversations to learn under templates that treat thoughts differently from `tiny`'s."""

import json
from pathlib import Path
from typing import Any

import pytest

from redraft.errors import InputError
from redraft.model.folders import resolve_folder
from redraft.text.prompt import encode_chat
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer
from redraft.train.jsonl import Limits, read_jsonl

TINY = resolve_folder("tiny")
TOKENIZER, TEMPLATE = Tokenizer.from_folder(TINY), ChatTemplate.from_folder(TINY)
ASKS = "{{- '<|turn>model\\n' -}}"


def asking(more: str) -> ChatTemplate:
    """`tiny`'s template with `more` at the end of prompts."""
    return ChatTemplate((ASKS + more).join(TEMPLATE.source.rsplit(ASKS, 1)))


NO_THOUGHT = asking("{%- if not enable_thinking -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}")
"""Ends a prompt with an empty thought where none is asked for, as the first published template does."""


WRITES_NONE = ChatTemplate(TEMPLATE.source.replace("{%- if reasoning and (", "{%- if reasoning and calls and ("))
"""Writes thoughts only before calls, as the same template does."""


def learned(path: Path, template: ChatTemplate, **record: object) -> list[tuple[list[int], str]]:
    """The prompt's ids and the learned text of every document of one line."""
    path.write_text(json.dumps(record), encoding="utf-8")
    limits = Limits(tokens=512, canvas=16, canvases=0)
    shard = read_jsonl(path, text=False, tokenizer=TOKENIZER, template=template, limits=limits)
    pieces = [shard.pieces(document) for document in range(len(shard))]
    return [(prompt, TOKENIZER.decode(answer)) for prompt, answer, _ in pieces]


def said(*turns: str, **last: object) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)
    ]
    return [*messages[:-1], {**messages[-1], **last}]


def test_the_empty_thought_that_a_template_asks_with_belongs_to_the_prompt(tmp_path: Path) -> None:
    talk = said("Hi", "Hello!", "How are you?", "Fine.")
    first, second = learned(tmp_path / "a.jsonl", NO_THOUGHT, messages=talk)
    assert first == (encode_chat(NO_THOUGHT, TOKENIZER, talk[:1]), "Hello!<turn|>")
    assert second == (encode_chat(NO_THOUGHT, TOKENIZER, talk[:3]), "Fine.<turn|>")
    assert TOKENIZER.decode(second[0]).count("<|channel>thought\n<channel|>") == 1


def test_a_thought_is_not_learned_behind_an_empty_one(tmp_path: Path) -> None:
    talk = said("2+2?", "4", reasoning="Count.")
    with pytest.raises(InputError, match=r"messages\[1\] has reasoning, and this chat template asks for none"):
        learned(tmp_path / "a.jsonl", NO_THOUGHT, messages=talk)
    ((_, answer),) = learned(tmp_path / "a.jsonl", NO_THOUGHT, messages=talk, thinking=True)
    assert answer == "<|channel>thought\nCount.\n<channel|>4<turn|>"


def test_what_a_template_leaves_out_of_an_answer_is_refused(tmp_path: Path) -> None:
    thinking = said("2+2?", "4", reasoning_content="Count.")
    with pytest.raises(InputError, match=r"line 1: this chat template leaves out reasoning of messages\[1\]"):
        learned(tmp_path / "a.jsonl", WRITES_NONE, messages=thinking)
    within = "<|channel>thought\nCount.\n<channel|>4"
    for content in (within, [{"type": "text", "text": "So:"}, {"type": "text", "text": within}]):
        with pytest.raises(InputError, match=r"leaves out content of messages\[1\]"):
            learned(tmp_path / "a.jsonl", TEMPLATE, messages=said("2+2?", "", content=content))
    first, second = learned(tmp_path / "a.jsonl", TEMPLATE, messages=[*thinking, *said("And 3+3?", " 6\n")])
    assert (first[1], second[1]) == ("<|channel>thought\nCount.\n<channel|>4<turn|>", "6<turn|>")


def test_an_answer_without_the_thought_that_it_is_asked_with_is_refused(tmp_path: Path) -> None:
    """As the current published template asks after results, if thinking is on."""
    opening = asking("{%- if enable_thinking -%}{{- '<|channel>thought\\n' -}}{%- endif -%}")
    with pytest.raises(InputError, match=r"messages\[1\] has no reasoning, which this chat template asks for"):
        learned(tmp_path / "a.jsonl", opening, messages=said("2+2?", "4"), thinking=True)
    talk = said("2+2?", "4", reasoning="Count.")
    ((_, answer),) = learned(tmp_path / "a.jsonl", opening, messages=talk, thinking=True)
    assert answer == "Count.\n<channel|>4<turn|>"
