"""Answers that obey a constraint: the engine asks it for every canvas, and refuses what it cannot meet."""

import dataclasses
from collections.abc import Callable, Sequence

import pytest
from asking import SETTINGS, Make, add, ask, end_of, run

from redraft.constraints.pins import Allowed
from redraft.diffusion.records import DenoiseStep
from redraft.engine.work import Denoise, DenoiseResult, Segment
from redraft.errors import SettingError


class Even:
    """A constraint for tests: only even tokens, whole after 20 of them; notes how it is asked."""

    min_tokens = 20

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.length = 0

    def check(self, max_tokens: int) -> None:
        if max_tokens < self.min_tokens:
            raise SettingError(f"The shortest valid answer has {self.min_tokens} tokens.")

    def begin(self) -> "Even":
        return self

    @property
    def closed(self) -> bool:
        return self.length >= self.min_tokens

    def canvas(self, length: int, tokens_left: int) -> Allowed:
        self.calls.append(("canvas", tokens_left))
        return Allowed(length, forbidden={position: range(1, 256, 2) for position in range(length)})

    def advance(self, token_ids: Sequence[int]) -> None:
        self.calls.append(("advance", len(token_ids)))
        self.length += len(token_ids)


def test_a_constraint_holds_and_hears_of_every_canvas(make: Make) -> None:
    rule = Even()
    end = end_of(run(make(), [ask(1, constraint=rule)])[1])
    assert not any(token % 2 for token in end.token_ids)
    assert end.finish_reason == "stop", "a whole answer at max_tokens is not cut off"
    assert [call for call in rule.calls if call[0] == "canvas"] == [("canvas", n) for n in (40, 24, 8)]
    assert [call for call in rule.calls if call[0] == "advance"] == [("advance", n) for n in (16, 16, 8)]


def test_a_constraint_does_not_hear_of_what_max_tokens_cuts_off(make: Make) -> None:
    """An end-of-text behind that would make a whole answer of it."""
    free = [event for event in run(make(), [ask(1, constraint=Even())])[1] if isinstance(event, DenoiseStep)]
    written = [token for step in free[4::5] for token in step.argmax_canvas]
    eos = next(token for token in written[41:] if token not in written[:41])
    rule = Even()
    end = end_of(run(make(eos_ids=(eos,)), [ask(1, constraint=rule)])[1])
    assert (end.token_ids, rule.length) == (tuple(written[:40]), 40)


def test_one_that_cannot_be_met_is_refused(make: Make) -> None:
    with pytest.raises(SettingError, match="shortest valid answer has 20 tokens"):
        add(make(), ask(1, constraint=Even(), settings=dataclasses.replace(SETTINGS, max_tokens=19)))


def test_the_first_position_can_be_kept_from_ending_the_answer(make: Make) -> None:
    endings = tuple(range(200))
    settings = dataclasses.replace(SETTINGS, forbid_empty=True, steps=2)
    for i in range(4):
        assert end_of(run(make(eos_ids=endings), [ask(i, settings=settings)])[i]).token_ids[0] >= 200
    assert len(end_of(run(make(eos_ids=()), [ask(1, settings=settings)])[1]).token_ids) == 40


def test_later_canvases_may_begin_with_the_end(make: Make) -> None:
    engine, forbidden = make(eos_ids=(1,)), dict[int, tuple[int, ...]]()
    add(engine, ask(1, settings=dataclasses.replace(SETTINGS, forbid_empty=True)))
    run_forward = engine.runner.run

    def watched(work: Sequence[Segment], meanwhile: Callable[[], None]) -> list[DenoiseResult]:
        forbidden.update({one.canvas_index: one.not_first for one in work if isinstance(one, Denoise)})
        return run_forward(work, meanwhile)

    engine.runner.run = watched  # type: ignore[method-assign]
    while engine.busy:
        engine.step()
    assert forbidden == {0: (1,), 1: (), 2: ()}


def test_the_longest_canvas_is_rehearsed_and_answered(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, rehearsed = make(), list[int]()
    monkeypatch.setattr(engine.runner, "limits", dataclasses.replace(engine.runner.limits, canvas=64))
    monkeypatch.setattr(engine.runner, "rehearse", lambda constraint, length, *_, **__: rehearsed.append(length))
    longest, longer = (dataclasses.replace(SETTINGS, canvas_length=length, steps=1) for length in (64, 65))
    assert len(end_of(run(engine, [ask(1, constraint=Even(), settings=longest)])[1]).token_ids) == 40
    assert rehearsed == [64]
    with pytest.raises(SettingError, match="canvas_length is 65; this engine's canvases have at most 64 positions"):
        add(engine, ask(1, settings=longer))
