"""A filling whose length the model chooses itself, because its hole has spare room.

A model that knows such holes (`spare_holes` in its configuration) has learned to put padding after a text that is
shorter than its hole. One canvas then settles what the text is and where it ends, seeing both sides, while all other
lengths are tried one by one and compared by the causal pass alone.
"""

from __future__ import annotations

from itertools import takewhile

from redraft.diffusion.records import DenoiseStep
from redraft.filling.context import Context
from redraft.filling.hole import Hole
from redraft.filling.lengths import OWN, Candidate
from redraft.filling.reporting import Reports
from redraft.filling.settle import Settling

CREDIT = 8.0
"""The bonus for the model's own choice of a length, in nats: the causal pass favours short texts, whose likelihood has
fewer factors. Chosen on 50 lines of Python (docs/filling.md)."""


def draft_of_own_length(context: Context, hole: Hole, longest: int, reports: Reports) -> tuple[list[Candidate], int]:
    """The draft of a hole with room for `longest` tokens and padding; none if no text ends there as it must.

    Also returns how many passes over a canvas it took; `reports` are told of each at once.
    """
    room = longest + 1
    guess = hole.guess((None,) * room, max(room, context.canvas), padded=True)
    settling = Settling(context.model, context.cache.select([0]), [guess], context.settings)
    records, text, pad = list[DenoiseStep](), list[int](), hole.tokenizer.pad_id
    while settling.open:
        records += settling.step()
        text = list(takewhile(lambda token: token != pad, records[-1].argmax_canvas[:room]))
        reports.steps(records[-1:], hole, len(text), OWN)
    ends = len(text) < room and hole.fits(text)
    return [Candidate(hole, len(text), guess, records, credit=CREDIT)] if ends else [], len(records)
