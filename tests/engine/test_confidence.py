"""How sure the model was of what it wrote, and drafts: only for those who ask."""

import dataclasses
import math

from asking import CANVAS, SETTINGS, Make, ask, end_of, run, untimed

from redraft.diffusion.records import Commit, DenoiseStep
from redraft.engine.request import Finished


def test_tokens_say_how_sure_the_model_was(make: Make) -> None:
    settings = dataclasses.replace(SETTINGS, logprobs=3)
    events = run(make(), [ask(1, settings=settings)])[1]
    end = end_of(events)
    last = {event.canvas_index: event for event in events if isinstance(event, DenoiseStep)}
    assert tuple(token.token_id for token in end.tokens) == end.token_ids
    for i, token in enumerate(end.tokens):
        step = last[i // CANVAS]
        assert token.entropy == step.entropy[i % CANVAS]
        assert token.logprob is not None
        assert token.top[0] == (token.token_id, token.logprob)
        assert [p for _, p in token.top] == sorted((p for _, p in token.top), reverse=True)
        assert sum(math.exp(p) for _, p in token.top) <= 1.0001
        drafts = [e.argmax_canvas[i % CANVAS] for e in events if isinstance(e, DenoiseStep)
                  and e.canvas_index == i // CANVAS]  # fmt: skip
        assert set(drafts[token.settled_step :]) == {token.token_id}
        assert token.settled_step == 0 or drafts[token.settled_step - 1] != token.token_id


def test_logprobs_only_when_asked_and_they_change_nothing(make: Make) -> None:
    plain = run(make(), [ask(1)])[1]
    asked = run(make(), [ask(1, settings=dataclasses.replace(SETTINGS, logprobs=0))])[1]
    assert end_of(plain).tokens[0].logprob is None
    assert end_of(asked).tokens[0].top == ()
    assert end_of(asked).tokens[0].logprob is not None
    assert untimed(plain[:-1]) == untimed(asked[:-1])


def test_drafts_only_when_wanted(make: Make) -> None:
    events = run(make(), [ask(1, drafts=False)])[1]
    assert [type(event) for event in events] == [Commit, Commit, Commit, Finished]
    assert end_of(events).token_ids == end_of(run(make(), [ask(1)])[1]).token_ids
