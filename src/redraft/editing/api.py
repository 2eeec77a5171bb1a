"""`edit`: change a span of a text as an instruction says, and nothing else.

The model reads the instruction and the text in its chat format and then writes the text again; without an instruction
it reads only the text. Everything up to the span is given, the span's canvas begins as its own tokens with noise where
they are doubted, and the text after it is pinned. A span that fills more than half a canvas is edited part by part, cut
at line ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from redraft.config import GenerationSettings, plain
from redraft.diffusion.prefill import prefill
from redraft.editing.drafts import draft_probabilities, drafts_of, keeping, mending
from redraft.editing.reading import SHOWN, ChatModel, as_read, context_ids
from redraft.editing.result import EditResult
from redraft.editing.spans import Span, check_span, check_text, cut
from redraft.engine.request import TokenConfidence
from redraft.errors import ConstraintError, PromptError, SettingError
from redraft.filling.api import HOLE_SETTINGS, check_given, fill_settings
from redraft.filling.context import VIEW, Context
from redraft.filling.hole import Draft, Hole
from redraft.filling.lengths import (
    SCORED_TOKENS,
    Candidate,
    Choice,
    OnRecord,
    Prior,
    check_on_record,
    find,
    with_what_follows,
)
from redraft.filling.obeying import CONSTRAINTS, check_language, constraints_of
from redraft.filling.scoring import causal_scores
from redraft.filling.seams import LONGEST
from redraft.model.interruption import check_interrupted
from redraft.text.line_ends import with_line_ends

DEFAULT_STEPS = 16
"""Step cap when none is given."""
EDIT_SETTINGS = (*HOLE_SETTINGS, *CONSTRAINTS, "strength")
"""The names of an edit's settings."""
CHANGE = 2.0
"""Nats that every changed token must gain: of two almost equally likely edits, the smaller one is meant."""
SLIP = 3.0
"""Nats that every byte of a changed character must gain without an instruction; see `mending`."""


def edit(
    llm: ChatModel,
    text: str,
    span: Span,
    instruction: str | None = None,
    *,
    strength: float = 0.0,
    max_tokens: int | None = None,
    on_record: OnRecord | None = None,
    **given: Any,
) -> EditResult:
    """Change the characters `span` of a text as `instruction` says; everything else stays the same, byte for byte.

    Without an instruction only what does not fit the text around it is changed: a slip is repaired.

    strength    the minimum share of the span that begins as noise: 0 renoises only what the model doubts and prefers
                small edits; 1 keeps nothing and rewrites
    max_tokens  the most tokens of the new span (of each part, if it is long); by default twice the old span's plus 16
    on_record   called with the steps of each part's finalists, as for `LLM.fill`
    given       settings of `generate`, except for those that belong to an answer (`stop`, `stop_at_eos`,
                `forbid_empty`, `fit_canvas`, `latency_budget_ms`, `logprobs`), which are refused; and its constraints
                (`redraft.filling.CONSTRAINTS`) on the new span: with must_include=["total"] and forbidden=["count"] a
                rename is done whatever the model thinks of it
    The span's trailing newline is kept unless the whole line is deleted or it is the entire span, and no blank lines
    are added at the end of the text; a constraint alone decides both. Lines keep their kinds of line ends, and new ones
    take that of the line before; the model and constraints see newlines.
    Raises `PromptError`, `SettingError` and `ConstraintError` before any compute.
    """
    started = time.perf_counter()
    check_given(given, EDIT_SETTINGS)
    task = task_of(llm, instruction, strength=strength, max_tokens=max_tokens, on_record=on_record, **given)
    start, end = check_span(text, span)
    if instruction is not None:
        check_text(instruction, "instruction")
        if not instruction.strip():
            raise PromptError("The instruction is empty.", "instruction")
    edited, read = as_read(text, (start, end))
    at = read[0]
    for length in task.parts(edited, read):
        edited, at = task.run(edited, (at, at + length), read[0])
    before, old, behind = text[:start], text[start:end], text[end:]
    new, offsets = with_line_ends(edited[read[0] : at], task.offsets, before, old, behind)
    return EditResult(
        span=(start, end),
        old=old,
        text=new,
        full_text=before + new + behind,
        tokens=tuple(task.tokens),
        offsets=offsets,
        steps=task.steps,
        forwards=task.forwards,
        seconds=time.perf_counter() - started,
    )


def task_of(
    llm: ChatModel,
    instruction: str | None,
    *,
    strength: float = 0.0,
    max_tokens: int | None = None,
    on_record: OnRecord | None = None,
    **given: Any,
) -> _Task:
    """The task that the keywords of `edit` describe. Raises `SettingError` for any that cannot be honoured."""
    settings = fill_settings(llm.defaults, given, DEFAULT_STEPS)
    check_on_record(on_record)
    return _Task(llm, instruction, settings, strength, plain(max_tokens), constraints_of(given), on_record)


class _Task:
    """One instruction, carried out part by part."""

    def __init__(
        self,
        llm: ChatModel,
        instruction: str | None,
        settings: GenerationSettings,
        strength: float,
        max_tokens: int | None,
        constraints: dict[str, Any],
        on_record: OnRecord | None,
    ) -> None:
        self._llm, self._instruction, self._settings, self._on_record = llm, instruction, settings, on_record
        canvas = settings.canvas_length or llm.model.config.canvas_length
        self._view = min(VIEW, canvas // 4)
        self._room = canvas - self._view
        if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 <= strength <= 1:
            raise SettingError(f"strength is {strength!r}; it must be between 0 and 1.", "strength")
        if max_tokens is not None and (type(max_tokens) is not int or not 1 <= max_tokens <= self._room):
            raise SettingError(
                f"max_tokens is {max_tokens!r}; it must be from 1 to {self._room}, as a canvas of {canvas} keeps "
                f"{self._view} positions for the text after the span.",
                "max_tokens",
            )
        self._strength, self._max_tokens, self._constraints = strength, max_tokens, constraints
        self.tokens: list[TokenConfidence] = []
        self.offsets: list[tuple[int, int]] = []
        self.steps = self.forwards = 0

    def parts(self, text: str, span: Span) -> list[int]:
        """The lengths in characters of the parts in which the span is edited, after checking that each one fits."""
        parts = self._parts(text[span[0] : span[1]])
        if self._constraints and len(parts) > 1:
            raise ConstraintError(
                f"The span does not fit in half a canvas and is edited in {len(parts)} parts, to which "
                f"{next(iter(self._constraints))} cannot be applied; choose a shorter span.",
                "span",
            )
        edges = accumulate(map(len, parts), initial=span[0])
        for part in pairwise(edges):
            check_interrupted()
            self._context(text, part, ())
        draft = self._llm.tokenizer.encode_exact(parts[0])
        check_language(self._llm.tokenizer, self._constraints, 1, self._longest(len(draft)))
        return [len(part) for part in parts]

    def run(self, text: str, span: Span, zero: int) -> tuple[str, int]:
        """Edit one part; returns the new text and where the part now ends. Offsets count from `zero`."""
        start, end = span
        kept = end > start + 1 and text[end - 1] == "\n" and not self._constraints
        end -= kept
        near = max(0, start - SHOWN)
        here = cut(self._llm.tokenizer, text[near : end + SHOWN], (start - near, end - near))
        longest = self._longest(len(here.draft))
        hole = replace(here.hole, most=longest).obeying(self._constraints, longest)
        ids = self._context(text, (start, end), here.before)
        model = self._llm.model
        cache = model.new_cache(1, len(ids) + self._room + hole.extra_positions + SCORED_TOKENS)
        last = prefill(model, cache, [ids])
        context = Context(
            model=model,
            cache=cache,
            last_hidden=last,
            view=self._view,
            canvas=self._room + self._view,
            settings=self._settings,
        )
        drafts, prior = self._drafts(context, here.draft, hole), self._prior(text[start:end], here.draft, hole)
        choice = find(context, hole, drafts, self._on_record, prior)
        self.forwards += 1 + bool(here.draft) + choice.forwards
        if self._stays(context, hole, here.draft, choice):
            return text, end + kept
        before, old, behind = text[:start], text[start:end], text[end:]
        new = choice.best.hole.text(choice.best.tokens)
        if not behind.strip("\n") and not self._constraints:
            new = _without_blank_lines(new, before, old)
        if kept and not new and (not before or before.endswith("\n")):
            behind, kept = behind[1:], False  # the lines are gone with their ends
        self._note(choice.best, start - zero, len(new))
        return before + new + behind, start + len(new) + kept

    def _context(self, text: str, span: Span, before: Sequence[int]) -> list[int]:
        room = self._room + self._view + LONGEST + SCORED_TOKENS
        return context_ids(self._llm, self._instruction, text, span, before, room)

    def _stays(self, context: Context, hole: Hole, draft: Sequence[int], choice: Choice) -> bool:
        """Whether the old text stays: it is likelier than any draft, so there is no slip, or no draft is accepted.

        Counts the pass that the comparison takes.
        """
        if self._constraints:
            return False
        if not choice.best.accepted:
            return True
        if self._instruction is not None or self._strength == 1:
            return False
        self.forwards += 1
        old = with_what_follows(hole, draft)
        (logprobs,) = causal_scores(context.model, context.cache.copy([0]), context.last_hidden, [old])
        return sum(logprobs) >= choice.best.score

    def _prior(self, old: str, draft: Sequence[int], hole: Hole) -> Prior:
        """The cost of changing tokens, or, where slips are repaired, of changing the bytes of characters."""
        if self._instruction is not None:
            return partial(keeping, draft, CHANGE * (1 - self._strength))
        return lambda tokens: mending(old, SLIP * (1 - self._strength), hole.text(tokens))

    def _note(self, best: Candidate, at: int, size: int) -> None:
        """Record a candidate's steps, and its confidence in the first `size` characters, for the result."""
        for token, (first, last) in zip(*best.told, strict=True):
            if first < size:
                self.tokens.append(token)
                self.offsets.append((at + first, at + min(last, size)))
        self.steps += len(best.records)

    def _longest(self, draft: int) -> int:
        """The most tokens that may replace `draft` tokens."""
        return self._max_tokens or min(self._room, 2 * draft + 16)

    def _drafts(self, context: Context, draft: Sequence[int], hole: Hole) -> list[Draft]:
        sure = draft_probabilities(context, hole, draft) if draft else []
        longest = self._longest(len(draft)) + hole.extra_positions
        drafts = drafts_of(draft, sure, self._strength, longest)
        possible = [one for one in drafts if hole.possible(len(one))]
        return possible or [(None,) * length for length in range(1, longest + 1) if hole.possible(length)]

    def _parts(self, text: str) -> list[str]:
        """The text in parts that each fit a canvas twice, cut at line ends if possible."""
        check_interrupted()
        if len(text) < 2 or len(self._llm.tokenizer.encode_exact(text)) <= max(1, self._room // 2):
            return [text]
        half = len(text) // 2
        ends = [at for at in range(1, len(text)) if text[at - 1] == "\n"] or [half]
        middle = min(ends, key=lambda at: abs(at - half))
        return [*self._parts(text[:middle]), *self._parts(text[middle:])]


def _without_blank_lines(new: str, before: str, old: str) -> str:
    """The new text without newlines at its end, as far as the text up to there ended with fewer before."""
    surplus = _newlines_at_end(before + new) - _newlines_at_end(before + old)
    return new[: len(new) - max(0, min(surplus, _newlines_at_end(new)))]


def _newlines_at_end(text: str) -> int:
    return len(text) - len(text.rstrip("\n"))
