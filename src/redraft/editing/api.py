"""`edit`: change a span of a text as an instruction says, and nothing else.

The model reads the instruction and the text in its chat format and then writes the text again; without an instruction
it reads only the text. Everything up to the span is given, the span's canvas begins as its own tokens with noise where
they are doubted, and the text after it is pinned. A span that fills more than half a canvas is edited part by part, cut
at line ends.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

from redraft.checks import plain
from redraft.diffusion.causal import causal_scores
from redraft.diffusion.prefill import prefill
from redraft.diffusion.records import TokenConfidence
from redraft.editing.drafts import draft_probabilities, drafts_of, keeping, mending
from redraft.editing.reading import SHOWN, EditingLLM, as_read, context_ids
from redraft.editing.result import EditResult
from redraft.editing.spans import Span, check_span, check_text, cut
from redraft.errors import ConstraintError, PromptError, SettingError
from redraft.filling.api import HOLE_SETTINGS, check_keywords, fill_settings
from redraft.filling.context import VIEW, Context
from redraft.filling.hole import Draft, Hole
from redraft.filling.lengths import SCORED_TOKENS, Prior, find, with_what_follows
from redraft.filling.obeying import CONSTRAINTS, check_language, constraints_of
from redraft.filling.reporting import OnProgress, OnRecord, Reports, check_on_record, reporting
from redraft.filling.result import WrittenText
from redraft.filling.seams import LONGEST
from redraft.interruption import check_interrupted
from redraft.settings import GenerationSettings

DEFAULT_STEPS = 16
"""Step cap when none is given."""
EDIT_SETTINGS = (*HOLE_SETTINGS, *CONSTRAINTS, "strength", "on_progress")
"""The names of an edit's settings."""
CHANGE = 2.0
"""Nats that every changed token must gain: of two almost equally likely edits, the smaller one is meant."""
SLIP = 3.0
"""Nats that every byte of a changed character must gain without an instruction; see `mending`."""


def edit(
    llm: EditingLLM,
    text: str,
    span: Span,
    instruction: str | None = None,
    *,
    strength: float | None = 0.0,
    max_tokens: int | None = None,
    on_record: OnRecord | None = None,
    on_progress: OnProgress | None = None,
    **keywords: Any,
) -> EditResult:
    """Change the characters `span` of a text as `instruction` says; everything else stays the same, byte for byte.

    Without an instruction only what does not fit the text around it is changed: a slip is repaired.

    strength    the minimum share of the span that begins as noise: 0 renoises only what the model doubts and prefers
                small edits; 1 keeps nothing and rewrites
    max_tokens  the most tokens of the new span (of each part, if it is long); by default twice the old span's plus 16
    on_record   called with the steps of each part's finalists and its text, as for `LLM.fill`
    on_progress called with how many parts are done of how many, before each and after the last
    keywords    settings of `generate`, except for those that belong to an answer (`stop`, `stop_at_eos`,
                `forbid_empty`, `fit_canvas`, `latency_budget_ms`, `logprobs`, `logit_bias`), which are refused; and its
                constraints (`redraft.filling.CONSTRAINTS`) on the new span: with must_include=["total"] and
                forbidden=["count"] a rename is done whatever the model thinks of it
    A newline at the end of the span stays, except where whole lines are deleted, or where it is all of the span. The
    text gets no further blank lines at its end. A constraint alone decides both. Lines keep their kinds of line ends,
    and new ones take that of the line before; the model and constraints see newlines.
    Raises `PromptError`, `SettingError` and `ConstraintError` before any compute.
    """
    started = time.perf_counter()
    check_keywords(keywords, EDIT_SETTINGS)
    report = reporting(on_progress)
    editor = Editor.of(llm, instruction, strength=strength, max_tokens=max_tokens, on_record=on_record, **keywords)
    start, end = check_span(text, span)
    if instruction is not None:
        check_text(instruction, "instruction")
        if not instruction.strip():
            raise PromptError("The instruction is empty.", "instruction")
    edited, read = as_read(text, (start, end))
    at, parts = read[0], list[WrittenText]()
    lengths = editor.parts(edited, read)
    for length in lengths:
        report(len(parts), len(lengths))
        reports = Reports(on_record, len(parts))
        part = editor.edit_part(edited, (at, at + length), reports)
        reports.commit(part)
        edited = edited[:at] + part.text + edited[at + length :]
        parts.append(part)
        at += len(part.text)
    report(len(parts), len(lengths))
    return EditResult.of(text, (start, end), WrittenText.joined(parts), time.perf_counter() - started)


@dataclass(frozen=True, kw_only=True, slots=True)
class Editor:
    """Edits spans as one call of `edit` asks. Raises `SettingError` for what cannot be honoured."""

    llm: EditingLLM
    instruction: str | None
    settings: GenerationSettings
    constraints: dict[str, Any]
    strength: float
    max_tokens: int | None
    on_record: OnRecord | None

    @classmethod
    def of(
        cls,
        llm: EditingLLM,
        instruction: str | None,
        *,
        strength: float | None = 0.0,
        max_tokens: int | None = None,
        on_record: OnRecord | None = None,
        **keywords: Any,
    ) -> Editor:
        """From the keywords of `edit`."""
        return cls(
            llm=llm,
            instruction=instruction,
            settings=fill_settings(llm.defaults, keywords, DEFAULT_STEPS),
            constraints=constraints_of(keywords),
            strength=0.0 if strength is None else strength,
            max_tokens=plain(max_tokens),
            on_record=on_record,
        )

    def __post_init__(self) -> None:
        check_on_record(self.on_record)
        check_strength(self.strength)
        most = self.max_tokens
        if most is not None and (type(most) is not int or not 1 <= most <= self._room):
            raise SettingError(
                f"max_tokens is {most!r}; it must be from 1 to {self._room}, as a canvas of {self._canvas} keeps "
                f"{self._view} positions for the text after the span.",
                "max_tokens",
            )

    def parts(self, text: str, span: Span) -> list[int]:
        """The lengths in characters of the parts in which the span is edited, after checking that each one fits."""
        parts = self._parts(text[span[0] : span[1]])
        if self.constraints and len(parts) > 1:
            raise ConstraintError(
                f"The span does not fit in half a canvas and is edited in {len(parts)} parts, to which "
                f"{next(iter(self.constraints))} cannot be applied; choose a shorter span.",
                "span",
            )
        edges = accumulate(map(len, parts), initial=span[0])
        for part in pairwise(edges):
            check_interrupted()
            self._context_ids(text, part, ())
        draft = self.llm.tokenizer.encode_exact(parts[0])
        check_language(self.llm.tokenizer, self.constraints, 1, self._longest(len(draft)))
        return [len(part) for part in parts]

    def edit_part(self, text: str, span: Span, reports: Reports) -> WrittenText:
        """What one part becomes."""
        start, end = span
        kept = end > start + 1 and text[end - 1] == "\n" and not self.constraints
        end -= kept
        near = max(0, start - SHOWN)
        here = cut(self.llm.tokenizer, text[near : end + SHOWN], (start - near, end - near))
        longest = self._longest(len(here.draft))
        hole = replace(here.hole, most=longest).obeying(self.constraints, longest)
        context = self._context(text, (start, end), here.before, hole)
        drafts, prior = self._drafts(context, here.draft, hole), self._prior(text[start:end], here.draft, hole)
        choice = find(context, hole, drafts, reports, prior)
        best, stays = choice.best, not choice.best.accepted and not self.constraints
        repairs = best.accepted and not self.constraints and self.instruction is None and self.strength < 1
        if repairs:  # a slip is where a draft is likelier than the old text
            stays = _likelihood(context, with_what_follows(hole, here.draft)) >= best.score
        forwards = 1 + bool(here.draft) + choice.forwards + repairs
        if stays:
            return WrittenText(text=text[slice(*span)], forwards=forwards)
        before, old, behind = text[:start], text[start:end], text[end:]
        new = hole.text(best.tokens)
        if not behind.strip("\n") and not self.constraints:
            new = _without_blank_lines(new, before, old)
        if not new and (not before or before.endswith("\n")):
            kept = False  # the lines are gone with their ends
        tokens, offsets = _within(len(new), *best.confidence)
        return WrittenText(
            text=new + "\n" * kept, tokens=tokens, offsets=offsets, steps=len(best.records), forwards=forwards
        )

    @property
    def _canvas(self) -> int:
        return self.settings.canvas_length or self.llm.model.config.canvas_length

    @property
    def _view(self) -> int:
        """Positions of the canvas for the text after the span."""
        return min(VIEW, self._canvas // 4)

    @property
    def _room(self) -> int:
        """Positions of the canvas for the span."""
        return self._canvas - self._view

    def _context(self, text: str, span: Span, before: Sequence[int], hole: Hole) -> Context:
        """What the model reads before the span, encoded."""
        ids, model = self._context_ids(text, span, before), self.llm.model
        cache = model.new_cache(1, len(ids) + self._room + hole.extra_positions + SCORED_TOKENS)
        return Context(
            model=model,
            cache=cache,
            last_hidden=prefill(model, cache, [ids]),
            view=self._view,
            canvas=self._canvas,
            settings=self.settings,
        )

    def _context_ids(self, text: str, span: Span, before: Sequence[int]) -> list[int]:
        room = self._canvas + LONGEST + SCORED_TOKENS
        return context_ids(self.llm, self.instruction, text, span, before, room)

    def _prior(self, old: str, draft: Sequence[int], hole: Hole) -> Prior:
        """The cost of changing tokens, or, where slips are repaired, of changing the bytes of characters."""
        if self.instruction is not None:
            return partial(keeping, draft, CHANGE * (1 - self.strength))
        return lambda tokens: mending(old, SLIP * (1 - self.strength), hole.text(tokens))

    def _longest(self, draft: int) -> int:
        """The most tokens that may replace `draft` tokens."""
        return self.max_tokens or min(self._room, 2 * draft + 16)

    def _drafts(self, context: Context, draft: Sequence[int], hole: Hole) -> list[Draft]:
        sure = draft_probabilities(context, hole, draft) if draft else []
        longest = self._longest(len(draft)) + hole.extra_positions
        drafts = drafts_of(draft, sure, self.strength, longest)
        possible = [draft for draft in drafts if hole.possible(len(draft))]
        return possible or [(None,) * length for length in range(1, longest + 1) if hole.possible(length)]

    def _parts(self, text: str) -> list[str]:
        """The text in parts that each fit a canvas twice, cut at line ends if possible."""
        check_interrupted()
        if len(text) < 2 or len(self.llm.tokenizer.encode_exact(text)) <= max(1, self._room // 2):
            return [text]
        half = len(text) // 2
        ends = [at for at in range(1, len(text)) if text[at - 1] == "\n"] or [half]
        middle = min(ends, key=lambda at: abs(at - half))
        return [*self._parts(text[:middle]), *self._parts(text[middle:])]


def check_strength(strength: object) -> None:
    """Raise `SettingError` for what is no number from 0 to 1."""
    if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 <= strength <= 1:
        raise SettingError(f"strength is {strength!r}; it must be between 0 and 1.", "strength")


def _likelihood(context: Context, tokens: Sequence[int]) -> float:
    """log p of tokens after the context, by the causal pass, in nats; one pass."""
    (logprobs,) = causal_scores(context.model, context.cache.copy([0]), context.last_hidden, [tokens])
    return sum(logprobs)


def _within(
    size: int, tokens: Sequence[TokenConfidence], offsets: Sequence[Span]
) -> tuple[tuple[TokenConfidence, ...], tuple[Span, ...]]:
    """Those tokens that cover any of the first `size` characters, and which of these."""
    count = bisect_left(offsets, size, key=itemgetter(0))
    return tuple(tokens[:count]), tuple((start, min(end, size)) for start, end in offsets[:count])


def _without_blank_lines(new: str, before: str, old: str) -> str:
    """The new text without newlines at its end, as far as the text up to there ended with fewer before."""
    surplus = _newlines_at_end(before + new) - _newlines_at_end(before + old)
    return new[: len(new) - max(0, min(surplus, _newlines_at_end(new)))]


def _newlines_at_end(text: str) -> int:
    return len(text) - len(text.rstrip("\n"))
