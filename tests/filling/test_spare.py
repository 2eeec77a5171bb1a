"""Holes with spare room: the text ends where padding begins, and competes with the lengths that are searched."""

from collections.abc import Sequence
from typing import Any

import pytest

from redraft.diffusion.records import DenoiseStep
from redraft.filling import spare
from redraft.filling.hole import Hole
from redraft.filling.seams import Seams
from redraft.filling.settle import Guess
from redraft.llm import LLM
from told import Told

TEXT = " 1 + 1"


def settle_at(monkeypatch: pytest.MonkeyPatch, llm: LLM, text: str | None) -> list[Guess]:
    """Let holes with spare room settle at `text` and padding, or where it is None without any; returns what began."""
    begun: list[Guess] = []

    class Settled:
        def __init__(self, model: Any, cache: Any, guesses: Sequence[Guess], settings: Any) -> None:
            begun.extend(guesses)
            self.open = [0]

        def step(self) -> list[DenoiseStep]:
            self.open = []
            canvas = list(begun[-1].tokens)
            room = canvas.index(llm.tokenizer.encode("\n", special=False)[0])
            ids = llm.tokenizer.encode("x" * room if text is None else text, special=False)
            canvas[:room] = (ids + [llm.tokenizer.pad_id if text is not None else ids[0]] * room)[:room]
            return [DenoiseStep(request_id=0, canvas_index=0, step=0, canvas=tuple(canvas), argmax_canvas=tuple(canvas),
                                accepted=(True,) * len(canvas), entropy=(0.0,) * len(canvas), temperature=0.8,
                                converged=True)]  # fmt: skip

    monkeypatch.setattr(spare, "Settling", Settled)
    return begun


def fill(llm: LLM, **settings: Any) -> Any:
    return llm.fill("x\n", "\ny", max_tokens=6, steps=2, **settings)


@pytest.fixture(scope="module")
def searched(llm: LLM) -> Any:
    """What lengths that are searched alone come to."""
    return fill(llm)


def test_the_model_s_own_length_wins_where_it_is_worth_enough(
    searched: Any, knowing: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = settle_at(monkeypatch, knowing, TEXT)
    monkeypatch.setattr(spare, "CREDIT", 1e4)
    told = Told()
    result = fill(knowing, on_record=told.append)
    first, *others = told.steps
    assert first.request_id > max(record.request_id for record in others), "told as it settles, but last in rank"
    assert "".join(first.pieces) == TEXT
    assert (result.full_text, result.steps) == ("x\n" + TEXT + "\ny", 1)
    assert len(knowing.tokenizer.encode(TEXT, special=False)) in result.lengths
    monkeypatch.setattr(spare, "CREDIT", -1e4)
    result = fill(knowing)
    assert result.text == searched.text != TEXT
    assert result.forwards == searched.forwards + 2  # a pass, and a score
    assert len(begun) == 2


@pytest.mark.parametrize("text", [None, ""])
def test_a_hole_without_padding_or_without_text_says_nothing(
    searched: Any, knowing: LLM, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    begun = settle_at(monkeypatch, knowing, text)
    monkeypatch.setattr(spare, "CREDIT", 1e4)
    result = fill(knowing)
    assert result.text == searched.text
    assert result.forwards == searched.forwards + 1  # it was tried
    assert len(begun) == 1


def test_it_is_asked_only_where_a_length_is_looked_for(knowing: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = settle_at(monkeypatch, knowing, TEXT)
    knowing.fill("x\n", "\ny", length=3, steps=1)
    fill(knowing, regex="[a-z]+")
    assert begun == []


def test_a_length_that_is_given_is_kept_beside_a_seam(knowing: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = settle_at(monkeypatch, knowing, TEXT)
    found = knowing.fill("x = ", "\ny", length=3, steps=1).fillings[0]
    assert begun == []
    assert 1 <= len(found.token_ids) <= 3  # given text at both seams


def test_other_models_are_not_asked(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = settle_at(monkeypatch, llm, TEXT)
    fill(llm)
    assert begun == []


def test_the_hole_holds_padding_and_no_other_special_token(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    guess = Hole(tokenizer=tokenizer, behind=(70, 71), first=None, last=None).guess((None,) * 4, 16, padded=True)
    assert (guess.free, guess.tokens[4:6], len(guess.tokens)) == ((0, 1, 2, 3), (70, 71), 16)
    assert guess.limit is not None
    chances = guess.limit.restrict(llm.model.logits(llm.model.embed(llm.model.embedding.weight.new_zeros(4).long())))
    likely = {id for id in tokenizer.special_ids.values() if (chances.probabilities[:, id] > 0).any()}
    assert likely == {tokenizer.pad_id}


def test_a_text_ends_as_the_seam_behind_it_wants(llm: LLM) -> None:
    seam = Seams.of(llm.tokenizer).behind(llm.tokenizer.encode("n x", special=False))
    assert seam is not None
    hole = Hole(tokenizer=llm.tokenizer, behind=(70,), first=None, last=seam)
    other = next(id for id in range(100, 200) if id not in seam.tokens)
    assert hole.fits([other, seam.tokens[0]])
    assert not hole.fits([seam.tokens[0], other])
    assert not hole.fits([])
    assert Hole(tokenizer=llm.tokenizer, behind=(70,), first=None, last=None).fits([other])
