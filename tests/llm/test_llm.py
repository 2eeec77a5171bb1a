"""The front door, on a random model with the embedded tokenizer: settings, prompts, text and stops."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import redraft
from redraft.engine.settings import EngineSettings
from redraft.errors import ConstraintError, PromptError, SettingError
from redraft.keywords import EditKeywords
from redraft.llm import LLM
from redraft.settings import GENERATION_PRESETS, GenerationSettings, resolve_settings, settings_from_dict

CANVAS = 16


def test_defaults_come_from_the_folder(llm: LLM) -> None:
    assert llm.defaults.steps == llm.defaults.schedule_steps == 4
    assert llm.eos_ids == (1,)


def test_a_result_adds_up(llm: LLM) -> None:
    result = llm.generate("Hello", max_tokens=20, seed=3)
    assert len(result.token_ids) <= 20
    assert result.text == llm.tokenizer.decode(result.token_ids)
    assert result.stats.canvases == len(result.stats.steps)
    assert result.stats.canvases > 1
    assert result.stats.forwards == sum(result.stats.steps), "a commit shares the forward of a step"
    assert result.stats.tokens == len(result.token_ids)
    assert result.finish_reason in ("stop", "length")


def test_what_is_none_is_not_given(llm: LLM) -> None:
    nothing: dict[str, Any] = dict.fromkeys(EditKeywords.__optional_keys__)
    results = [llm.edit("a b c", (2, 3), **settings).to_dict() for settings in (nothing, {})]
    assert results[0] | {"seconds": 0} == results[1] | {"seconds": 0}
    llm.next_edit("a\n", 0, [], **nothing)
    with pytest.raises(SettingError, match="Unknown setting 'tone'"):
        llm.next_edit("a\n", 0, [], tone=None)  # type: ignore[call-arg]


def test_the_stream_is_the_answer(llm: LLM) -> None:
    result = llm.generate("Hello", max_tokens=40, seed=3)
    records = list(llm.stream("Hello", max_tokens=40, seed=3))
    commits = [record for record in records if isinstance(record, redraft.Commit)]
    assert "".join(commit.text for commit in commits) == result.text
    assert sum((commit.token_ids for commit in commits), ()) == result.token_ids
    assert commits[-1].finish_reason == result.finish_reason
    assert all(commit.finish_reason is None for commit in commits[:-1])


@pytest.mark.parametrize(
    "ask",
    [
        lambda llm: llm.generate("Hello", max_tokens=20),
        lambda llm: llm.chat([{"role": "user", "content": "Hello"}], max_tokens=20),
        lambda llm: llm.fill("a", "b", max_tokens=2, steps=1),
        lambda llm: llm.edit("abc", (0, 1), "x", max_tokens=2, steps=1),
        lambda llm: llm.next_edit("a b a", 0, [("a", "c")], steps=1),
        lambda llm: llm.decide("q", ["a", "b"]),
        lambda llm: llm.score("a", "q", top=2),
    ],
)
def test_the_same_call_has_an_equal_result(llm: LLM, ask: Callable[[LLM], Any]) -> None:
    assert ask(llm) == ask(llm)


def test_a_stream_stops_where_its_block_ends(llm: LLM) -> None:
    with llm.stream("Hello", max_tokens=40) as records:
        next(records)
        assert llm.engine.stats().running == 1
    assert llm.engine.stats().running == 0
    assert list(records) == []


def test_autocast_around_an_answer_changes_nothing(llm: LLM) -> None:
    alone = llm.generate("Hello", max_tokens=20)
    with torch.autocast("cpu"):
        assert llm.generate("Hello", max_tokens=20) == alone
        assert torch.is_autocast_enabled("cpu")


def test_a_batch_gives_what_each_prompt_gives_alone(llm: LLM) -> None:
    prompts = ["Hello", "A much longer prompt, with many more words than its neighbour has.", [2, 5, 9], "x"]
    together = llm.generate_batch(prompts, max_tokens=32, seeds=[1, 2, 3, 4])
    for prompt, seed, result in zip(prompts, [1, 2, 3, 4], together, strict=True):
        alone = llm.generate(prompt, max_tokens=32, seed=seed)
        assert (alone.token_ids, alone.text) == (result.token_ids, result.text)
        assert alone.stats.steps == result.stats.steps


def test_prompts_of_a_batch_may_have_settings_of_their_own(llm: LLM) -> None:
    each = [{"choices": ["yes", "no"]}, {}, {"regex": "[0-9]{3}", "seed": 5}]
    together = llm.generate_batch(["a", "b", "c"], max_tokens=16, seeds=[1, 2, 3], each=each)
    assert together[0].text in ("yes", "no")
    assert re.fullmatch("[0-9]{3}", together[2].text)
    for prompt, seed, own, result in zip("abc", [1, 2, 5], each, together, strict=True):
        assert llm.generate(prompt, max_tokens=16, **{"seed": seed, **own}).token_ids == result.token_ids


def test_kinds_of_prompt(llm: LLM) -> None:
    chat = llm.prompt_ids("Hi")
    assert chat == llm.prompt_ids([{"role": "user", "content": "Hi"}])
    assert chat == llm.prompt_ids(chat)
    assert llm.prompt_ids("Hi", raw=True) == [2, *llm.tokenizer.encode("Hi")]


def test_special_strings_in_raw_text_stay_text(llm: LLM) -> None:
    ids = llm.prompt_ids("<|turn>", raw=True)
    assert llm.tokenizer.special_id("<|turn>") not in ids
    assert llm.tokenizer.decode(ids[1:]) == "<|turn>"


def test_a_stop_string_ends_the_answer_before_itself(llm: LLM) -> None:
    whole = llm.generate("Hello", max_tokens=48, seed=3, stop=None)
    word = whole.text[len(whole.text) // 2 :][:3]
    result = llm.generate("Hello", max_tokens=48, seed=3, stop=word)
    assert result.finish_reason == "stop"
    assert result.text == whole.text[: whole.text.index(word)]
    assert llm.tokenizer.decode(result.token_ids).startswith(result.text)
    check_commits(llm, result, word)


def test_tokens_that_begin_a_stop_string_are_told_with_their_text(llm: LLM) -> None:
    """The stop string spans two canvases: what is held back of the first one never becomes part of a commit."""
    whole = llm.generate("Hello", max_tokens=48, seed=3)
    edge = len(llm.tokenizer.decode(whole.token_ids[:CANVAS]).rstrip("\ufffd"))
    word = whole.text[edge - 3 : edge + 3]
    result = llm.generate("Hello", max_tokens=48, seed=3, stop=word)
    assert len(result.text) <= edge - 3
    assert len(result.token_ids) <= CANVAS
    check_commits(llm, result, word)
    never = whole.text[edge - 3 : edge] + "never"
    assert llm.generate("Hello", max_tokens=48, seed=3, stop=never).token_ids == whole.token_ids
    check_commits(llm, whole, never)


def check_commits(llm: LLM, result: redraft.GenerateResult, stop: str) -> None:
    commits = [r for r in llm.stream("Hello", max_tokens=48, seed=3, stop=stop) if isinstance(r, redraft.Commit)]
    assert "".join(commit.text for commit in commits) == result.text
    assert sum((commit.token_ids for commit in commits), ()) == result.token_ids
    assert commits[-1].finish_reason == result.finish_reason


def test_an_answer_can_be_kept_from_being_empty(llm: LLM) -> None:
    """With every id but one forbidden from ending... the guard alone: position 0 never holds an end-of-text."""
    ended = dataclasses.replace(llm.defaults, forbid_empty=True, steps=2)
    guarded = LLM(llm.model, llm.tokenizer, llm.template, path=llm.path, defaults=ended, eos_ids=tuple(range(16000)))
    for seed in range(4):
        first = next(iter(guarded.stream("Hello", max_tokens=CANVAS, seed=seed)))
        assert isinstance(first, redraft.DenoiseStep)
        assert first.argmax_canvas[0] >= 16000


@pytest.mark.parametrize("name", GENERATION_PRESETS)
def test_every_preset_runs(llm: LLM, name: str) -> None:
    assert llm.generate("Hello", max_tokens=CANVAS, preset=name, steps=2).stats.canvases == 1


def test_presets_change_a_models_own_settings() -> None:
    """`fast` raises no cap; `careful` is what users measured, for the published settings."""
    own = GenerationSettings(steps=12, schedule_steps=20, t_max=0.4, t_min=0.1)
    assert resolve_settings(own, preset="fast").steps == 12
    assert resolve_settings(GenerationSettings(), preset="fast").steps == 16
    assert resolve_settings(own, preset="careful").t_max == pytest.approx(0.5)
    assert resolve_settings(own, preset="careful", steps=5).steps == 5
    careful = GenerationSettings(
        steps=96, schedule_steps=96, entropy_bound=0.02, t_max=1.0, t_min=0.5, forbid_empty=True
    )
    assert resolve_settings(GenerationSettings(), preset="careful") == careful


def test_the_lowest_and_the_highest_temperature_can_be_honoured(llm: LLM) -> None:
    for t_max in (1e-6, 1e6):
        result = llm.generate("Hello", t_max=t_max, t_min=0, max_tokens=8)
        assert all(math.isfinite(token.entropy) for token in result.tokens)


def test_a_chat_reply_is_taken_apart(llm: LLM) -> None:
    reply = llm.chat([{"role": "user", "content": "Hi"}], max_tokens=CANVAS, seed=1)
    assert reply.result.stats.canvases == 1
    assert isinstance(reply.content, str)


def test_results_inside_the_last_message_are_answered(llm: LLM) -> None:
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    answered = called | {"tool_responses": [{"name": "f", "response": "ok"}]}
    question = {"role": "user", "content": "x"}
    assert llm.encode_chat([question, answered])
    with pytest.raises(PromptError, match="calls tools; their results must follow"):
        llm.encode_chat([question, called])


def test_an_answer_that_has_begun_goes_on_behind_its_words(llm: LLM) -> None:
    question = {"role": "user", "content": "Why? <turn|>"}
    begun = [question, {"role": "assistant", "content": " Because <eos> of"}]
    before, whole = llm.encode_chat([question]), llm.encode_chat(begun)
    assert whole[: len(before)] == before
    assert llm.tokenizer.decode(whole[len(before) :]) == " Because <eos> of"
    assert not set(whole[len(before) :]) & set(llm.tokenizer.special_ids.values()), "words, whatever they spell"
    parts = [{"type": "text", "text": " Because <eos>"}, {"type": "text", "text": " of"}]
    assert llm.encode_chat([question, {"role": "assistant", "content": parts}]) == whole
    reply = llm.chat(begun, max_tokens=CANVAS, seed=1)
    assert reply.content == llm.generate(whole, max_tokens=CANVAS, seed=1).text, "white space at its ends included"


def test_a_begun_answer_holds_words_alone(llm: LLM) -> None:
    question = {"role": "user", "content": "x"}
    for more, sentence in (
        ({"reasoning": "hm"}, "may hold text, but no thoughts"),
        ({"content": [{"type": "image", "image": "x"}]}, "may hold text, but no image"),
        ({"content": 5}, r"messages\[1\] has content of type int"),
    ):
        with pytest.raises(PromptError, match=sentence):
            llm.encode_chat([question, {"role": "assistant", "content": "y"} | more])
    with pytest.raises(SettingError, match="cannot think before it"):
        llm.encode_chat([question, {"role": "assistant", "content": "y"}], thinking=True)


@pytest.mark.parametrize(("name", "default"), [("stability_threshold", 1), ("confidence_threshold", 0.005)])
def test_a_threshold_of_null_is_not_given(name: str, default: float) -> None:
    written = {"max_denoising_steps": 6, "stability_threshold": 0, "confidence_threshold": 100.0}
    given, null = settings_from_dict(written), settings_from_dict(written | {name: None})
    assert getattr(null, name) == default
    assert dataclasses.replace(null, **{name: written[name]}) == given


def test_whole_numbers_may_be_numpys(llm: LLM) -> None:
    given = {"max_tokens": 8, "steps": 2, "seed": 3, "entropy_bound": 1}
    theirs = {name: np.int64(value) for name, value in given.items()}
    assert llm.generate("x", **theirs).token_ids == llm.generate("x", **given).token_ids
    assert type(llm.request("x", seed=np.uint8(3)).settings.seed) is int
    assert llm.decide("q", ["a", "b"], reads=np.int32(2), sure=1.0).readings[0].reads == 2
    assert llm.fill("a", "b", max_tokens=np.int64(2), steps=1).full_text.startswith("a")
    assert llm.edit("abc", (np.int64(0), np.int64(1)), max_tokens=np.int64(2), steps=1).span == (0, 1)
    assert llm.room(np.int64(5)) == llm.room(5)
    assert EngineSettings(slots=np.int64(3)) == EngineSettings(slots=3)
    for value in (True, np.True_, np.float64(2.0), "2"):
        with pytest.raises(SettingError, match="must be of type int"):
            llm.generate("x", steps=value)


def test_tools_are_told_to_the_model_as_well(llm: LLM) -> None:
    tools = [{"type": "function", "function": {"name": "look", "description": "Looks", "parameters": {}}}]
    for prompt in ("Hi", [{"role": "user", "content": "Hi"}]):
        told = llm.request(prompt, tools=tools).prompt
        assert list(told) == llm.encode_chat([{"role": "user", "content": "Hi"}], tools=tools)
    ids = llm.prompt_ids("Hi")
    assert list(llm.request(ids, tools=tools).prompt) == ids
    with pytest.raises(SettingError, match="cannot think first"):
        llm.generate("Hi", thinking=True)
    with pytest.raises(ConstraintError, match="strict is 5; it must be True or False"):
        llm.generate("Hi", json_object=True, strict=5)


def test_prompts_may_come_from_a_generator(llm: LLM) -> None:
    prompts = ["Hello", "Hi"]
    again = llm.generate_batch((text for text in prompts), max_tokens=8, seeds=range(2))
    assert [one.text for one in again] == [one.text for one in llm.generate_batch(prompts, max_tokens=8, seeds=[0, 1])]


def test_how_much_an_engine_takes_is_said_when_a_model_is_loaded() -> None:
    small, large = (redraft.load(device="cpu", dtype="float32", memory_gb=size, slots=3) for size in (0.02, None))
    assert small.engine.stats().slots == 3
    assert small.engine.stats().full_pages < large.engine.stats().full_pages
