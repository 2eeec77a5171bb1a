"""Biases on tokens in whole answers of the embedded model: bans, favours, constraints, streams and company."""

import math
from typing import Any

import pytest

import redraft
from redraft.engine.request import Request
from redraft.errors import PromptError, SettingError
from redraft.llm import LLM
from redraft.settings import HIGHEST_BIAS, MOST_BIASED, GenerationSettings

CAPITAL = "What is the capital of France?"
SHORT: dict[str, Any] = {"max_tokens": 32, "canvas_length": 32, "seed": 0}


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return redraft.load("tiny", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def paris(tiny: LLM) -> dict[int, float]:
    """The tokens that this word begins with, with or without a space before it, banned."""
    return {tiny.tokenizer.encode(text, special=False)[0]: -100.0 for text in ("Paris", " Paris")}


def test_a_ban_holds_in_every_canvas(tiny: LLM, paris: dict[int, float]) -> None:
    """The last canvas' tokens behind the end of the text are not part of an answer."""
    plain = tiny.generate(CAPITAL, **SHORT)
    assert "Paris" in plain.text
    story = dict(SHORT, max_tokens=96)
    frequent = {token: -100.0 for token in tiny.generate("Tell me about cows.", **story).token_ids}
    for asked, given, bias in ((CAPITAL, SHORT, paris), ("Tell me about cows.", story, frequent)):
        answer = tiny.generate(asked, logit_bias=bias, **given)
        assert answer.token_ids
        assert not bias.keys() & set(answer.token_ids)


def test_what_is_favoured_is_written(tiny: LLM) -> None:
    yes, no = (tiny.tokenizer.encode(text, special=False)[0] for text in ("Yes", "No"))
    answer = tiny.generate("Is the sky green?", logit_bias={yes: 100, no: 100}, logprobs=2, **SHORT)
    assert len(answer.token_ids) == 32
    assert set(answer.token_ids) <= {yes, no}
    for token in answer.tokens:
        assert {other for other, _ in token.top} == {yes, no}
        assert sum(math.exp(logprob) for _, logprob in token.top) == pytest.approx(1.0, abs=1e-4)
    milder = tiny.generate("Is the sky green?", logit_bias={no: 12}, **SHORT)
    assert 0 < milder.token_ids.count(no) < len(milder.token_ids)


def test_special_tokens_can_be_biased(tiny: LLM) -> None:
    ends = tiny.eos_ids
    assert tiny.generate(CAPITAL, logit_bias=dict.fromkeys(ends, 100), **SHORT).token_ids == ()
    endless = tiny.generate(CAPITAL, logit_bias=dict.fromkeys(ends, -100), **SHORT)
    assert (endless.finish_reason, len(endless.token_ids)) == ("length", 32)
    both = tiny.generate(CAPITAL, logit_bias=dict.fromkeys(ends, 100), forbid_empty=True, **SHORT)
    assert len(both.token_ids) == 1


def test_constraints_come_first(tiny: LLM, paris: dict[int, float]) -> None:
    """Of what they allow, a bias chooses; where only banned tokens can stand, one stands."""
    cities = ["Paris", "Rome", "London"]
    assert tiny.generate(CAPITAL, choices=cities, **SHORT).text == "Paris"
    assert tiny.generate(CAPITAL, choices=cities, logit_bias=paris, **SHORT).text in ("Rome", "London")
    spelled = [tiny.tokenizer.decode([token]) for token in range(tiny.tokenizer.vocab_size)]
    every = {token: -100.0 for token, text in enumerate(spelled) if text and "Paris".startswith(text)}
    for only in (paris, every):  # the word can be spelled by other tokens, or cannot
        answer = tiny.generate(CAPITAL, choices=["Paris"], logit_bias=only, **SHORT)
        assert answer.text == "Paris"
        assert bool(only.keys() & set(answer.token_ids)) is (only is not paris)
    rome = {tiny.tokenizer.encode("Rome", special=False)[0]: 100}
    assert tiny.generate(CAPITAL, choices=cities, logit_bias=rome, **SHORT).text == "Rome"
    told = tiny.generate(CAPITAL, regex="The capital of [A-Z][a-z]+ is [A-Z][a-z]+\\.", logit_bias=paris, **SHORT)
    assert told.text.startswith("The capital of ")
    assert not paris.keys() & set(told.token_ids)


def test_streams_and_company_change_nothing(tiny: LLM, paris: dict[int, float]) -> None:
    each: list[dict[str, Any]] = [{}, {"logit_bias": paris}, {"logit_bias": {9: 4.0}}, {"choices": ["Paris", "Rome"]}]
    each += [each[1] | each[3], {"logit_bias": {}}]
    alone = [tiny.generate(CAPITAL, **SHORT, **given) for given in each]
    together = tiny.generate_batch([CAPITAL] * len(each), each=each, **SHORT)
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert alone[5] == alone[0] != alone[1]
    events = list(tiny.stream(CAPITAL, logit_bias=paris, **SHORT))
    steps = [event for event in events if isinstance(event, redraft.DenoiseStep)]
    assert not paris.keys() & {token for step in steps for token in step.argmax_canvas}
    texts = [event.text for event in events if isinstance(event, redraft.Commit)]
    assert "".join(texts) == alone[1].text


WRONG: list[tuple[Any, str]] = [
    ([5], "logit_bias is [5]; it must be of type dict, from token ids to numbers."),
    ((5,), "logit_bias is (5,); it must be of type dict"),
    ({"5": 1}, "logit_bias has the token id '5'; it must be a whole number of at least 0."),
    ({True: 1}, "logit_bias has the token id True; it must be a whole number"),
    ({-1: 1}, "logit_bias has the token id -1; it must be a whole number of at least 0."),
    ({5: "1"}, "logit_bias has '1' for token 5; it must be a number from -100 to 100."),
    ({5: True}, "logit_bias has True for token 5; it must be a number from -100 to 100."),
    ({5: None}, "logit_bias has None for token 5; it must be a number from -100 to 100."),
    ({5: 100.5}, "logit_bias has 100.5 for token 5; it must be a number from -100 to 100."),
    ({5: math.nan}, "logit_bias has nan for token 5; it must be a number from -100 to 100."),
    ({5: -math.inf}, "logit_bias has -inf for token 5; it must be a number from -100 to 100."),
    (dict.fromkeys(range(MOST_BIASED + 1), 1), "logit_bias has 1,025 entries; at most 1,024 are allowed."),
]


@pytest.mark.parametrize(("bias", "said"), WRONG)
def test_a_wrong_bias_is_refused_in_a_sentence(llm: LLM, bias: Any, said: str) -> None:
    for ask in (lambda: llm.generate("a", logit_bias=bias), lambda: GenerationSettings(logit_bias=bias)):
        with pytest.raises(SettingError) as caught:
            ask()
        assert str(caught.value).startswith(said)
        assert caught.value.field == "logit_bias"


def test_a_token_that_the_vocabulary_does_not_have_is_refused(llm: LLM) -> None:
    """By the front door, and by an engine that is given a request made by hand."""
    vocab = llm.model.config.vocab_size
    said = f"logit_bias has the token id {vocab}; the vocabulary has {vocab} tokens."
    with pytest.raises(SettingError, match=said):
        llm.request("a", logit_bias={3: 1, vocab: -100})
    made = Request(request_id=1, prompt=(2,), settings=GenerationSettings(logit_bias=((vocab, 1.0),)))
    with pytest.raises(SettingError, match=said):
        llm.new_engine().add(made, lambda event: None)
    assert llm.request("a", logit_bias={vocab - 1: 1}).settings.logit_bias == ((vocab - 1, 1.0),)


def test_a_bias_is_kept_in_one_form() -> None:
    given = GenerationSettings(logit_bias={9: 1, 3: -HIGHEST_BIAS, 5: 0})  # type: ignore[arg-type]
    assert given.logit_bias == ((3, -100.0), (9, 1.0))
    assert hash(given) == hash(GenerationSettings(logit_bias=given.logit_bias))


def test_fillings_and_edits_take_none(llm: LLM) -> None:
    for ask in (
        lambda: llm.fill("a", "b", logit_bias={5: 1}),  # type: ignore[call-arg]
        lambda: llm.edit("abc", (0, 1), "x", logit_bias={5: 1}),  # type: ignore[call-arg]
        lambda: llm.next_edit("abc", 1, [("a", "b")], logit_bias={5: 1}),  # type: ignore[call-arg]
    ):
        with pytest.raises((SettingError, PromptError), match="logit_bias is a setting for answers; a filling or"):
            ask()
