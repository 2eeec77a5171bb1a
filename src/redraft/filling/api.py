"""`fill`: the text that belongs in the holes of a text, with lengths that are found, not given."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from redraft.checks import check_names, plain
from redraft.errors import SettingError, check_utf8
from redraft.filling.context import VIEW, Context, open_seam
from redraft.filling.hole import GAP, Hole
from redraft.filling.lengths import SCORED_TOKENS, Choice, find
from redraft.filling.obeying import CONSTRAINTS, check_language, constraints_of
from redraft.filling.reporting import OnProgress, OnRecord, Reports, check_on_record, reporting
from redraft.filling.result import Filling, FillResult
from redraft.filling.seams import LONGEST, Seam, Seams
from redraft.filling.spare import draft_of_own_length
from redraft.model import Model
from redraft.settings import MAX_CANVAS, SETTINGS, GenerationSettings, resolve_settings
from redraft.text.line_ends import with_newlines
from redraft.text.pieces import join_pieces, split_pieces
from redraft.text.tokenizer import Tokenizer

DEFAULT_HOLE = 32
"""The longest filling tried when max_tokens is not given; half a canvas if that is less."""
DEFAULT_STEPS = 12
"""Step cap when none is given: the right length settles early; wrong ones may never settle and must not cost 48."""
WIDEST = 16
"""The most characters per token, on average, that are read of the text before a hole."""
EMPTY = -1e6
"""The score of a filling without text, in nats."""

ANSWER_ONLY = ("stop", "stop_at_eos", "forbid_empty", "fit_canvas", "latency_budget_ms", "logprobs", "logit_bias")
"""Settings that do not apply to a hole: how an answer ends, how long its canvases are, and what the engine measures;
and a bias, as the texts of a hole are compared by likelihoods that know of none."""
HOLE_SETTINGS = (*(name for name in SETTINGS if name not in ANSWER_ONLY), "on_record")
"""Settings of both a fill and an edit, besides `CONSTRAINTS`."""
FILL_SETTINGS = (*HOLE_SETTINGS, *CONSTRAINTS, "length", "on_progress")
"""The names of a fill's settings."""


class FillingLLM(Protocol):
    """The part of `redraft.llm.LLM` that filling needs."""

    @property
    def model(self) -> Model: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def defaults(self) -> GenerationSettings: ...


def fill(
    llm: FillingLLM,
    text: str | Sequence[str],
    suffix: str | None = None,
    *,
    max_tokens: int | None = None,
    length: int | None = None,
    on_record: OnRecord | None = None,
    on_progress: OnProgress | None = None,
    **keywords: Any,
) -> FillResult:
    """Fill the holes of a text, from left to right, with at most `max_tokens` tokens each. See `split_pieces`.

    Given text never changes. A hole sees as much of the text before it as fits the context, including earlier fillings,
    and the nearest text after it, pinned in its canvas; text further away is not seen. `on_record` is called with the
    `HoleStep`s of each hole's finalists, whose rank is the `request_id`: 0 is the likeliest length, and a draft whose
    length the model itself chooses comes last in rank, but first in time; then with the `Commit` of the hole's text,
    whose `request_id` is 0. `on_progress` is called with how many holes are filled of how many, before each and after
    the last. `length` sets the number of tokens instead of finding it; see docs/filling.md for what counts at a seam.
    New lines end as the given ones do.
    The keywords `CONSTRAINTS` say what every filling must be, as for an answer (`redraft.constraints.build`), with
    newlines as line ends.
    Raises `PromptError` if there is nothing to fill or a text is not Unicode, `SettingError` for a hole that fits no
    canvas, and `ConstraintError` for a constraint that no filling of these lengths obeys.
    """
    started = time.perf_counter()
    check_keywords(keywords, FILL_SETTINGS)
    settings, constraints = fill_settings(llm.defaults, keywords), constraints_of(keywords)
    check_on_record(on_record)
    report = reporting(on_progress)
    pieces = split_pieces(text, suffix)
    for index, piece in enumerate(pieces):
        check_utf8(piece, f"text[{index}]")
    sizes = _sizes(llm.model, plain(max_tokens), plain(length), settings.canvas_length)
    check_language(llm.tokenizer, constraints, sizes.shortest, sizes.longest)
    filler = _Filler(llm=llm, settings=settings, constraints=constraints, sizes=sizes)
    read = [with_newlines(piece) for piece in pieces]
    written: list[Filling] = []
    fillings: list[Filling] = []
    for number in range(1, len(pieces)):
        report(len(written), len(pieces) - 1)
        before, reports = join_pieces(read[:number], [one.text for one in written]), Reports(on_record, number - 1)
        written.append(filler.fill_hole(before, read[number:], reports))
        fillings.append(written[-1].placed("".join(pieces[:number]), "", "".join(pieces[number:])))
        reports.commit(fillings[-1])
    report(len(written), len(written))
    texts = [filling.text for filling in fillings]
    return FillResult.of(join_pieces(pieces, texts), fillings, time.perf_counter() - started)


def check_keywords(keywords: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise `SettingError` for a keyword that is not one of the `known` ones, or that only an answer has."""
    check_names([name for name in keywords if name not in ANSWER_ONLY], known)
    if unread := next((name for name in ANSWER_ONLY if keywords.get(name) is not None), None):
        raise SettingError(f"{unread} is a setting for answers; a filling or an edit cannot take it.", unread)


def fill_settings(
    defaults: GenerationSettings, keywords: Mapping[str, Any], steps: int = DEFAULT_STEPS
) -> GenerationSettings:
    """The settings of a fill with these keywords; also used for an edit, with another step cap.

    Raises `SettingError` for a value that is not possible.
    """
    settings = {name: value for name, value in keywords.items() if name not in CONSTRAINTS}
    return resolve_settings(dataclasses.replace(defaults, steps=min(defaults.steps, steps)), **settings)


def longest_filling(canvas_length: int) -> int:
    """The longest filling, in tokens, that leaves the text after it its view; at least half the canvas."""
    return min(max(canvas_length - VIEW, canvas_length // 2), MAX_CANVAS // 2)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The filling lengths to try, the positions for the text after it, and the longest canvas."""

    shortest: int
    longest: int
    view: int
    canvas: int

    @property
    def open(self) -> bool:
        """Whether the length has to be found."""
        return self.shortest < self.longest


def _sizes(model: Model, max_tokens: int | None, length: int | None, canvas_length: int | None) -> _Sizes:
    whole = canvas_length or model.config.canvas_length
    if length is not None and max_tokens is not None:
        sentence = "length and max_tokens were both given; length is not looked for, so leave max_tokens out."
        raise SettingError(sentence, "max_tokens")
    name, longest = ("length", length) if length is not None else ("max_tokens", max_tokens)
    if longest is None:
        longest = min(DEFAULT_HOLE, whole // 2)
    most = min(MAX_CANVAS // 2, whole - 1)
    if type(longest) is not int or not 1 <= longest <= most:
        sentence = f"{name} is {longest!r}; on a canvas of {whole} a filling may have 1 to {most} tokens."
        raise SettingError(sentence, name)
    # A given length or canvas length leaves the rest of the canvas to the text after the hole.
    known = canvas_length is not None or length is not None
    view = whole - longest if known else min(VIEW, whole - longest)
    return _Sizes(1 if length is None else length, longest, view, whole)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Filler:
    """Fills holes as one call of `fill` asks."""

    llm: FillingLLM
    settings: GenerationSettings
    constraints: dict[str, Any]
    sizes: _Sizes

    def fill_hole(self, before: str, pieces: Sequence[str], reports: Reports) -> Filling:
        """What belongs in the hole between a text and the pieces that follow, which have holes between them."""
        model, tokenizer, sizes = self.llm.model, self.llm.tokenizer, self.sizes
        behind_it = sizes.canvas + LONGEST + SCORED_TOKENS  # positions that the canvas or a score takes
        room = model.config.max_position_embeddings - behind_it
        if room < 1:
            raise SettingError(
                f"A canvas of {sizes.canvas} leaves no room in the context of {model.config.max_position_embeddings}.",
                "canvas_length",
            )
        left = [tokenizer.bos_id, *tokenizer.encode(before[-room * WIDEST :], special=False)[-room:]]
        kept, first, cache, last_hidden, passes = open_seam(model, Seams.of(tokenizer), left, behind_it)
        last, behind = _behind(tokenizer, pieces, sizes.canvas)
        hole = Hole(tokenizer=tokenizer, behind=behind, first=first, last=last, most=sizes.longest)
        hole = hole.obeying(self.constraints, sizes.longest)
        context = Context(
            model=model,
            cache=cache,
            last_hidden=last_hidden,
            view=sizes.view,
            canvas=sizes.canvas,
            settings=self.settings,
        )
        longest = sizes.longest + hole.extra_positions
        drafts = [(None,) * length for length in range(sizes.shortest, longest + 1)]
        spare = model.config.spare_holes and sizes.open and hole.language is None
        own, tried = draft_of_own_length(context, hole, longest, reports) if spare else ([], 0)
        choice = find(context, hole, drafts, reports, partial(_not_empty, hole), own)
        return filling_of(hole, choice, kept - 1, passes + tried)  # <bos> was not given


def _not_empty(hole: Hole, tokens: tuple[int, ...]) -> float:
    """A hole is there because something is missing: writing nothing is the last resort."""
    return 0.0 if hole.text(tokens) else EMPTY


def _behind(tokenizer: Tokenizer, pieces: Sequence[str], most: int) -> tuple[Seam | None, tuple[int | None, ...]]:
    """The seam after a hole and about `most` given tokens after that, with a gap for every later hole."""
    ids = tokenizer.encode(pieces[0], special=False)
    seam = Seams.of(tokenizer).behind(ids)
    behind: list[int | None] = [*(ids[1:] if seam else ids)]
    for piece in pieces[1:]:
        if len(behind) >= most:
            break
        behind += [*[None] * GAP, *tokenizer.encode(piece, special=False)]
    return seam, tuple(behind)


def filling_of(hole: Hole, choice: Choice, before: int, passes: int) -> Filling:
    """The result of a hole; `passes` are those that it took besides the choice's."""
    best = choice.best
    tokens, offsets = best.confidence
    pinned = len(best.guess.tokens) - len(best.guess.free)  # after a short text, end tokens fill up the canvas
    return Filling(
        text=hole.text(best.tokens),
        tokens=tokens,
        offsets=offsets,
        lengths=choice.lengths,
        steps=len(best.records),
        forwards=choice.forwards + passes,
        before=before,
        behind=min(pinned, sum(token is not None for token in hole.behind)),
    )
