"""Denoising free positions alone is the ordinary loop with pins, only cheaper."""

import dataclasses

import numpy as np
import pytest

from redraft.constraints.pins import Allowed
from redraft.diffusion.prefill import prefill
from redraft.diffusion.records import DenoiseStep
from redraft.filling import settle as settling
from redraft.filling.hole import Hole, HoleConstraint
from redraft.filling.seams import Seams
from redraft.filling.settle import Guess, Settling
from redraft.llm import LLM
from redraft.settings import GenerationSettings
from steps import take_steps

SETTINGS = GenerationSettings(steps=5, seed=11, confidence_threshold=5.0, stability_threshold=2)
PINS = {0: 70, 3: 71, 4: 72, 12: 73, 15: 74}
FREE = tuple(at for at in range(16) if at not in PINS)
NEVER = (5, 6, 7)


def guess(**more: object) -> Guess:
    tokens = tuple(PINS.get(at, 0) for at in range(16))
    fields = {
        "tokens": tokens,
        "free": FREE,
        "noisy": (True,) * len(FREE),
        "limit": HoleConstraint(NEVER, {}),
    }
    return Guess(**fields | more)  # type: ignore[arg-type]


def settle(llm: LLM, guesses: list[Guess], settings: GenerationSettings = SETTINGS) -> list[DenoiseStep]:
    cache = llm.model.new_cache(1, 40)
    prefill(llm.model, cache, [[2, *range(100, 130)]])
    batch = Settling(llm.model, cache.select([0] * len(guesses)), guesses, settings)
    records = []
    while batch.open:
        records += batch.step()
    return records


def test_it_takes_the_steps_of_a_whole_canvas_with_pins(llm: LLM) -> None:
    pins = Allowed(16, PINS, {at: NEVER for at in FREE})
    prompt = [2, *range(100, 130)]
    (expected,) = take_steps(llm.model, [prompt], SETTINGS, seeds=[11], length=16, constraints=[pins])
    found = settle(llm, [guess()])
    assert len(found) == len(expected) > 1
    for mine, whole in zip(found, expected, strict=True):
        assert mine.entropy == pytest.approx(whole.entropy, abs=1e-4)
        for name in ("canvas", "argmax_canvas", "accepted", "converged"):
            assert np.array_equal(getattr(mine, name), getattr(whole, name)), name


def test_pins_never_move(llm: LLM) -> None:
    for record in settle(llm, [guess()]):
        for at, token in PINS.items():
            assert record.canvas[at] == record.argmax_canvas[at] == token
            assert record.accepted[at]
            assert record.entropy[at] == 0
        assert not set(NEVER) & set(record.argmax_canvas)


def test_guesses_do_not_notice_each_other(llm: LLM) -> None:
    other = guess(free=FREE[:2], noisy=(True,) * 2, tokens=(90,) * 16)
    alone = settle(llm, [guess()])
    together = [record for record in settle(llm, [other, guess()]) if record.request_id == 1]
    assert [dataclasses.replace(record, request_id=0) for record in together] == alone


@pytest.mark.parametrize("most", [1, 20, 1000])
def test_guesses_of_many_lengths_share_a_forward(llm: LLM, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    guesses = [
        guess(),
        guess(tokens=(90,) * 23, free=(0, 1, 20, 22), noisy=(True,) * 4),
        guess(tokens=(80,) * 7, free=tuple(range(6)), noisy=(True,) * 6, limit=None),
    ]
    alone = [settle(llm, [one]) for one in guesses]
    monkeypatch.setattr(settling, "rows_at_once", lambda model: most)
    together = settle(llm, guesses)
    for number, expected in enumerate(alone):
        found = [record for record in together if record.request_id == number]
        assert len(found) == len(expected)
        for mine, other in zip(found, expected, strict=True):
            assert mine.entropy == pytest.approx(other.entropy, abs=1e-4)
            for name in ("canvas", "argmax_canvas", "accepted", "converged"):
                assert getattr(mine, name) == getattr(other, name), name


def test_a_draft_enters_the_first_step(llm: LLM) -> None:
    tokens, noisy = tuple(range(200, 216)), tuple(at % 2 == 0 for at in range(len(FREE)))
    first = settle(llm, [guess(tokens=tokens, noisy=noisy, limit=None)])[0]
    for at, noise in zip(FREE, noisy, strict=True):
        assert (first.canvas[at] == tokens[at]) is not noise


def test_only_some_tokens_at_some_positions(llm: LLM) -> None:
    limit = HoleConstraint(NEVER, {1: (300, 301), 4: (302,)})
    for record in settle(llm, [guess(limit=limit)]):
        assert record.argmax_canvas[FREE[1]] in (300, 301)
        assert record.argmax_canvas[FREE[4]] == 302


def test_those_that_are_given_up_stop(llm: LLM) -> None:
    cache = llm.model.new_cache(1, 40)
    prefill(llm.model, cache, [[2, 3]])
    settling = Settling(llm.model, cache.select([0, 0, 0]), [guess()] * 3, SETTINGS)
    assert [record.request_id for record in settling.step()] == [0, 1, 2]
    settling.keep([1])
    assert [record.request_id for record in settling.step()] == [1]
    assert settling.open == [1]


def test_all_guesses_of_a_hole_share_what_a_device_holds_of_its_tokens(llm: LLM) -> None:
    """A copy for each of them, at every step, would make the host wait."""
    first = Seams.of(llm.tokenizer).before(llm.tokenizer.encode("x\n    retu"))[-1]
    hole = Hole(tokenizer=llm.tokenizer, behind=(5,), first=first, last=None)
    one, other = (hole.guess((None,) * length, 16).limit for length in (3, 4))
    assert isinstance(one, HoleConstraint)
    assert isinstance(other, HoleConstraint)
    assert one._never is other._never
    assert one._only[0] is other._only[0]
