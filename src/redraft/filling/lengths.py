"""How long a hole is: many lengths begin, few are finished, the likeliest text wins.

All lengths take a step, in batches. The causal pass compares the drafts, together with the text that follows: unlike
the entropy of a canvas, the likelihood of a text is comparable across lengths. The best go on for some steps and are
compared again; the best of these go on until they settle, and the likeliest of them is the filling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, takewhile

from redraft.diffusion.causal import causal_scores
from redraft.diffusion.records import DenoiseStep, TokenConfidence
from redraft.filling.context import Context
from redraft.filling.hole import Draft, Hole
from redraft.filling.reporting import Reports
from redraft.filling.result import confidence
from redraft.filling.settle import Guess, Settling

STAGES = ((1, 12), (2, 5))
"""(steps, how many of the best go on after them): first for all lengths, then for those that are left."""
OWN = STAGES[-1][1]
"""The rank of a draft whose length the model chooses itself: after those of all finalists."""
SCORED_BEHIND = 6
"""Given tokens after the hole that are scored with it: the filling must lead into what follows."""
SCORED_TOKENS = SCORED_BEHIND + 1
"""The most tokens that scoring adds to a hole's own: these and an end."""
SCORED_AT_ONCE = 16
"""Texts that are scored together: each needs its own keys and values, so fewer where memory is short."""
WIDTH = 8
"""Lengths 1-8, 9-16 and so on share one canvas length."""

Prior = Callable[[tuple[int, ...]], float]


@dataclass(eq=False, slots=True)
class Candidate:
    """One draft of a hole: its records so far, and its score, which is that of the text `judged` plus its `credit`."""

    hole: Hole
    length: int
    guess: Guess
    records: list[DenoiseStep] = field(default_factory=list)
    credit: float = 0.0
    score: float = float("-inf")
    judged: tuple[int, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens in the hole."""
        return self.records[-1].argmax_canvas[: self.length]

    @property
    def accepted(self) -> bool:
        """Whether the hole may hold these tokens."""
        return self.hole.accepts(self.tokens)

    @property
    def confidence(self) -> tuple[tuple[TokenConfidence, ...], tuple[tuple[int, int], ...]]:
        """How sure the model was of each token that holds text of the filling, and the characters that it covers."""
        places, offsets = self.hole.holding(self.tokens), self.hole.offsets(self.tokens)
        return confidence(self.records, places), tuple(offsets[at] for at in places)

    @property
    def whole(self) -> tuple[int, ...]:
        """The hole's tokens and the first given ones after it."""
        return with_what_follows(self.hole, self.tokens)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best candidate, the lengths that were finished, and how many passes over canvases and texts that took."""

    best: Candidate
    lengths: tuple[int, ...]
    forwards: int


def find(
    context: Context,
    hole: Hole,
    drafts: Sequence[Draft],
    reports: Reports,
    prior: Prior = lambda tokens: 0.0,
    finished: Sequence[Candidate] = (),
) -> Choice:
    """The best filling that begins as any of `drafts`, or is one of those already `finished`.

    Those that the hole accepts come before others at every stage, and one that it does not accept is the best only if
    no finished draft is accepted. `prior` is added to the log-likelihood of a filling's tokens. `reports` are told of
    the finalists' steps; rank 0 is the one that was the best when they were chosen.
    """
    batches = [_Batch(context, hole, group) for group in _groups(context, hole, drafts)]
    candidates = [candidate for batch in batches for candidate in batch.candidates]
    left, texts = candidates, 0
    for steps, count in STAGES:
        for batch in batches:
            batch.run(steps)
        texts += judge(context, left, prior)
        left = sorted(left, key=lambda one: (not one.accepted, -one.score))[:count]
        for batch in batches:
            batch.keep(left)
    for batch in batches:
        batch.finish(left, reports)
    left = [*left, *finished]
    texts += judge(context, left, prior)
    best = max(left, key=lambda one: (one.accepted, one.score))
    forwards = sum(len(candidate.records) for candidate in candidates) + texts
    return Choice(best, tuple(sorted({candidate.length for candidate in left})), forwards)


def with_what_follows(hole: Hole, tokens: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a filling and the first given ones after the hole: the text that is scored."""
    given = takewhile(lambda token: token is not None, hole.behind)
    behind = [token for token in islice(given, SCORED_BEHIND) if token is not None]
    ends = len(behind) == len(hole.behind) < SCORED_BEHIND
    return (*tokens, *behind, *([hole.tokenizer.eos_id] if ends else []))


def judge(context: Context, candidates: Sequence[Candidate], prior: Prior) -> int:
    """Score the drafts that have changed: causal log-likelihood including the first given tokens after them, and prior.

    Returns how many there were.
    """
    changed = [candidate for candidate in candidates if candidate.judged != candidate.whole]
    left = iter(changed)
    while part := list(islice(left, context.model.requests_at_once(SCORED_AT_ONCE, context.canvas))):
        texts = [candidate.whole for candidate in part]
        last = context.last_hidden.expand(len(part), -1)
        scores = causal_scores(context.model, context.cache.copy([0] * len(part)), last, texts)
        for candidate, text, logprobs in zip(part, texts, scores, strict=True):
            candidate.score, candidate.judged = sum(logprobs) + prior(candidate.tokens) + candidate.credit, text
    return len(changed)


class _Batch:
    """Candidates that are denoised together."""

    def __init__(self, context: Context, hole: Hole, drafts: Sequence[Draft]) -> None:
        self.candidates = [
            Candidate(hole, len(draft), hole.guess(draft, _canvas_length(context, draft))) for draft in drafts
        ]
        guesses = [candidate.guess for candidate in self.candidates]
        cache = context.cache.select([0] * len(guesses))
        self._settling = Settling(context.model, cache, guesses, context.settings)

    def run(self, steps: int) -> None:
        """Up to `steps` more steps for all open candidates."""
        for _ in range(steps):
            if not self._settling.open:
                return
            for record in self._settling.step():
                self.candidates[record.request_id].records.append(record)

    def keep(self, chosen: Sequence[Candidate]) -> None:
        """Let only the chosen ones go on."""
        self._settling.keep([row for row, candidate in enumerate(self.candidates) if candidate in chosen])

    def finish(self, finalists: Sequence[Candidate], reports: Reports) -> None:
        """Finish all that are left; `reports` are told of all their steps, from the first."""
        ranks = [(finalists.index(one), one) for one in self.candidates if one in finalists]
        reported = dict.fromkeys((rank for rank, _ in ranks), 0)
        while True:
            for rank, one in ranks:
                reports.steps(one.records[reported[rank] :], one.hole, one.length, rank)
                reported[rank] = len(one.records)
            if not self._settling.open:
                return
            self.run(1)


def _groups(context: Context, hole: Hole, drafts: Sequence[Draft]) -> list[list[Draft]]:
    """The possible drafts, grouped by the rows that a forward takes for their canvases."""

    def rows(draft: Draft) -> int:
        return context.model.canvas_rows(_canvas_length(context, draft))

    possible = [draft for draft in drafts if hole.possible(len(draft))]
    return [list(group) for _, group in groupby(sorted(possible, key=rows), rows)]


def _canvas_length(context: Context, draft: Draft) -> int:
    """The length of the canvas that begins with a draft."""
    rounded = -(-len(draft) // WIDTH) * WIDTH
    return max(min(rounded + context.view, context.canvas), len(draft))
