"""`edit`: a span of a text, changed as an instruction says, and nothing else.

The model reads the instruction and the text in its chat format and then writes the text again. Everything up to the
span is given, the span's canvas begins as its own tokens with noise where they are doubted, and the text behind it
stands pinned. A span that fills more than half a canvas is edited part by part, cut at line ends.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from redraft.config import GenerationSettings, resolve_settings
from redraft.diffusion.prefill import prefill
from redraft.editing.drafts import draft_probabilities, drafts_of, keeping
from redraft.editing.result import EditResult
from redraft.editing.spans import Cut, Span, check_span, cut
from redraft.errors import PromptError, SettingError
from redraft.filling.context import Context
from redraft.filling.hole import Draft
from redraft.filling.lengths import SCORED_TOKENS, Candidate, OnRecord, find
from redraft.filling.result import confidence
from redraft.model import Transformer
from redraft.text.tokenizer import Tokenizer

DEFAULT_STEPS = 16
"""Step cap when none is given."""
VIEW = 32
"""Positions of the canvas behind the span, for the nearest given text."""
SHOWN = 4000
"""Characters of the text that the prompt shows on each side of the span at most, fewer where they do not fit."""
LEAD = 64
"""Tokens before the span that the answer repeats, so that it goes on from them."""
CHANGE = 2.0
"""Nats that every changed token must bring: of two edits that are nearly as likely, the smaller one is meant."""
OPEN, CLOSE = "<<<", ">>>"
"""Mark the span in the prompt."""


class Front(Protocol):
    """The part of `redraft.llm.LLM` that editing needs."""

    @property
    def model(self) -> Transformer: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def defaults(self) -> GenerationSettings: ...
    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]: ...


def edit(
    front: Front,
    text: str,
    span: Span,
    instruction: str,
    *,
    strength: float = 0.0,
    max_tokens: int | None = None,
    on_record: OnRecord | None = None,
    **given: Any,
) -> EditResult:
    """Change the characters `span` of a text as `instruction` says; everything else stays byte for byte.

    strength    the share of the span that begins as noise at least: 0 renoises only what the model doubts, and small
                edits are preferred; 1 keeps nothing and rewrites
    max_tokens  most tokens of the new span (of each part, if it is long); twice the old one's and 16 if not given
    Raises `PromptError` and `SettingError` before any compute.
    """
    started = time.perf_counter()
    settings = resolve_settings(
        dataclasses.replace(front.defaults, steps=min(front.defaults.steps, DEFAULT_STEPS)), **given
    )
    start, end = check_span(text, span)
    if not isinstance(instruction, str) or not instruction.strip():
        raise PromptError("The instruction is empty.")
    task = _Task(front, instruction, settings, strength, max_tokens, on_record)
    edited, at = text, start
    for length in task.parts(text, (start, end)):
        edited, at = task.run(edited, (at, at + length))
    return EditResult(
        span=(start, end),
        old=text[start:end],
        text=edited[start:at],
        full_text=edited,
        tokens=tuple(token for best in task.best for token in confidence(best.records, range(best.length))),
        steps=sum(len(best.records) for best in task.best),
        forwards=task.forwards,
        seconds=time.perf_counter() - started,
    )


class _Task:
    """One instruction, carried out part by part."""

    def __init__(
        self,
        front: Front,
        instruction: str,
        settings: GenerationSettings,
        strength: float,
        max_tokens: int | None,
        on_record: OnRecord | None,
    ) -> None:
        self._front, self._instruction, self._settings, self._on_record = front, instruction, settings, on_record
        canvas = settings.canvas_length or front.model.config.canvas_length
        self._view = min(VIEW, canvas // 4)
        self._room = canvas - self._view
        if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 <= strength <= 1:
            raise SettingError(f"strength is {strength!r}; it must be between 0 and 1.")
        if max_tokens is not None and (type(max_tokens) is not int or not 1 <= max_tokens <= self._room):
            raise SettingError(f"max_tokens is {max_tokens!r}; beside {self._view} positions for the text behind it, "
                               f"a canvas of {canvas} holds 1 to {self._room}.")  # fmt: skip
        self._strength, self._max_tokens = strength, max_tokens
        self.best: list[Candidate] = []
        self.forwards = 0

    def parts(self, text: str, span: Span) -> list[int]:
        """Lengths in characters of the parts that the span is edited in, after checking that the first one fits."""
        lengths = [len(part) for part in self._parts(text[span[0] : span[1]])]
        self._prompt(text, (span[0], span[0] + lengths[0]))
        return lengths

    def run(self, text: str, span: Span) -> tuple[str, int]:
        """Edit one part; returns the new text and where the part now ends."""
        start, end = span
        near = max(0, start - SHOWN)
        here = cut(self._front.tokenizer, text[near : end + SHOWN], (start - near, end - near))
        ids = [*self._prompt(text, span), *here.before[-LEAD:]]
        model = self._front.model
        cache = model.new_cache(1, len(ids) + self._room + here.hole.seams + SCORED_TOKENS)
        last = prefill(model, cache, [ids])
        context = Context(
            model=model,
            cache=cache,
            last_hidden=last,
            view=self._view,
            canvas=self._room + self._view,
            settings=self._settings,
        )
        kept = partial(keeping, here.draft, CHANGE * (1 - self._strength))
        choice = find(context, here.hole, self._drafts(context, here), self._on_record, kept)
        self.best.append(choice.best)
        self.forwards += choice.forwards + bool(here.draft)
        new = here.hole.text(choice.best.tokens)
        return text[:start] + new + text[end:], start + len(new)

    def _drafts(self, context: Context, here: Cut) -> list[Draft]:
        longest = self._max_tokens or min(self._room, 2 * len(here.draft) + 16)
        sure = draft_probabilities(context, here.hole, here.draft) if here.draft else []
        return drafts_of(here.draft, sure, self._strength, longest + here.hole.seams)

    def _parts(self, text: str) -> list[str]:
        """The text in parts that fit a canvas twice, cut at line ends where that is possible."""
        if len(text) < 2 or len(self._front.tokenizer.encode(text, special=False)) <= max(1, self._room // 2):
            return [text]
        half = len(text) // 2
        ends = [at for at in range(1, len(text)) if text[at - 1] == "\n"] or [half]
        middle = min(ends, key=lambda at: abs(at - half))
        return [*self._parts(text[:middle]), *self._parts(text[middle:])]

    def _prompt(self, text: str, span: Span) -> list[int]:
        """The instruction and as much of the text around the span as the context has room for."""
        start, end = span
        context = self._front.model.config.max_position_embeddings
        shown = SHOWN
        while True:
            before, behind = text[max(0, start - shown) : start], text[end : end + shown]
            content = (
                f"{self._instruction}\n\nWrite the text again; change only the part between {OPEN} and {CLOSE}.\n\n"
                f"{before}{OPEN}{text[start:end]}{CLOSE}{behind}"
            )
            ids = self._front.encode_chat([{"role": "user", "content": content}])
            if len(ids) + LEAD + self._room + self._view <= context:
                return ids
            if not shown:
                raise PromptError(f"The instruction and the span have {len(ids)} tokens; they do not fit {context}.")
            shown //= 2
