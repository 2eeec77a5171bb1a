"""The front door, on a random model with the embedded tokenizer: settings, prompts, text and stops."""

import copy
import dataclasses
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import redraft
from random_model import write_random_model
from redraft.config import GENERATION_PRESETS, GenerationSettings, resolve_settings, settings_from_dict
from redraft.engine.settings import EngineSettings
from redraft.errors import ConstraintError, InputError, PromptError, SettingError
from redraft.llm import LLM
from redraft.model.packed.build import pack
from redraft.model.packed.transformer import PackedTransformer

CANVAS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the embedded model's tokenizer and template and a very small random network."""
    return write_random_model(tmp_path_factory.mktemp("random"), canvas=CANVAS, context=192)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return redraft.load(folder, device="cpu", dtype="float32")


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


@pytest.mark.parametrize(
    ("each", "said"),
    [
        ({"seed": 1}, "each must be a list with the settings of each prompt"),
        ([{}, 5], "each must be a list with the settings of each prompt"),
        ([{}], "each has 1 entries for 2 prompts"),
        ([{}, {"timeout": 1}], "timeout is not a setting of an answer"),
        ([{}, {"raw": True}], "raw is the same for all prompts"),
        ([{}, {"steps": 0}], "steps is 0"),
    ],
)
def test_wrong_settings_of_each_are_named(llm: LLM, each: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        llm.generate_batch(["a", "b"], each=each)


@pytest.mark.parametrize("name", ["seeds", "each"])
def test_what_only_a_batch_takes_is_unknown_to_a_single_answer(llm: LLM, name: str) -> None:
    for call in (llm.generate, llm.stream, llm.chat):
        with pytest.raises(SettingError, match=f"Unknown setting '{name}'"):
            call([{"role": "user", "content": "x"}], **{name: [1]})


def test_one_seed_for_all_contradicts_one_for_each(llm: LLM) -> None:
    with pytest.raises(SettingError, match="seed and seeds are both given") as caught:
        llm.generate_batch(["a"], seed=1, seeds=[2])
    assert caught.value.field == "seed"


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


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"canvas_length": 7}, "canvas_length is 7; it must be between 16 and 512"),
        ({"preset": ["fast"]}, r"preset is \['fast'\];"),
        ({"preset": "turbo"}, "preset is 'turbo'; it must be one of fast, balanced, careful"),
        ({"temperature": 1.0}, "Unknown setting 'temperature'"),
        ({"regexp": "a"}, "'regexp'; did you mean 'regex'[?] Known settings are .*preset.*choices"),
        ({"steps": "many"}, "steps is 'many'; it must be of type int"),
        ({"steps": True}, "steps is True; it must be of type int"),
        ({"t_min": 0.9}, "t_max is 0.8; it must be above t_min"),
        ({"entropy_bound": 0}, "entropy_bound is 0; it must be above 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 10_000}, "max_tokens is 10000, but after a prompt of"),
        ({"stop": [""]}, "stop has an empty string"),
        ({"stop": ["a" * 4097]}, "stop has a string of more than 4,096 characters"),
        ({"stop": ["a", "b\ud800"]}, "stop holds a character that UTF-8 cannot express at index 1"),
        ({"stop": 3}, "stop must be a string or a list of strings"),
        ({"seed": -1}, "seed is -1"),
        ({"timeout": 1.0}, "timeout is not a setting of an answer"),
        ({"request_id": 1, "drafts": True}, "drafts is not a setting of an answer"),
        ({"t_max": math.inf}, "t_max is too large or not a number; it may be at most 1,000,000"),
        ({"t_max": 1e39}, "t_max is too large"),
        ({"t_max": 10**400}, "t_max is too large"),
        ({"t_max": 1e-300, "t_min": 0}, "t_max is 1e-300; it must be at least 1e-06"),
        ({"t_min": math.nan}, "t_min is nan"),
        ({"t_min": math.inf}, "t_min is inf; it must be at least 0 and finite"),
        ({"entropy_bound": 10**400}, "entropy_bound is too large"),
        ({"confidence_threshold": math.inf}, "confidence_threshold is too large"),
        ({"latency_budget_ms": math.inf}, "latency_budget_ms is too large or not a number"),
        ({"latency_budget_ms": math.nan}, "latency_budget_ms is nan"),
        ({"latency_budget_ms": 10**400}, "latency_budget_ms is too large"),
        ({"schedule_steps": 10**400}, "schedule_steps is too large or not a number; it may be at most 2,147,483,647"),
        ({"stability_threshold": 10**400}, "stability_threshold is too large"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_named(llm: LLM, settings: dict, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence) as caught:
        llm.generate("Hello", **settings)
    assert isinstance(caught.value, ValueError)


def test_the_lowest_and_the_highest_temperature_can_be_honoured(llm: LLM) -> None:
    for t_max in (1e-6, 1e6):
        result = llm.generate("Hello", t_max=t_max, t_min=0, max_tokens=8)
        assert all(math.isfinite(token.entropy) for token in result.tokens)


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("", "prompt is empty"),
        ([], "must be a non-empty"),
        (b"hi", "must be a non-empty"),
        (["hi", "there"], "give it to generate_batch"),
        ([5, 99_999], "99999"),
        ([-1], "-1"),
        (list(range(5, 190)), "must have at most 176"),
        ([{"role": "nobody", "content": "x"}], "role"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}], "is an empty assistant message"),
        ([{"role": "assistant", "content": "y"}], "there must be a message that it answers"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_named(llm: LLM, prompt: object, sentence: str) -> None:
    with pytest.raises(PromptError, match=sentence):
        llm.generate(prompt)  # type: ignore[arg-type]


def test_a_canvas_that_the_context_cannot_hold_is_refused(llm: LLM) -> None:
    context = llm.model.config.max_position_embeddings
    with pytest.raises(SettingError, match=f"A canvas of {context} tokens leaves no room for a prompt"):
        llm.generate("Hello", canvas_length=context)


def test_a_prompt_that_has_no_room_is_refused_before_its_constraint_is_compiled(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redraft.llm.build", lambda *given, **wanted: pytest.fail("the constraint is compiled"))
    with pytest.raises(PromptError, match="must have at most 176"):
        llm.generate(list(range(5, 190)), regex="a+")
    with pytest.raises(SettingError, match="has room for"):
        llm.generate([5], regex="a+", max_tokens=100_000)


def test_prompts_and_messages_come_in_lists(llm: LLM) -> None:
    with pytest.raises(PromptError, match="must be a list of prompts"):
        llm.generate_batch("hi")
    for messages in ({"role": "user", "content": "x"}, "hi", None, [], iter([])):
        with pytest.raises(PromptError, match="must be a list with at least one message"):
            llm.chat(messages)  # type: ignore[arg-type]
    for seeds in (5, [1, None]):
        with pytest.raises(
            SettingError, match=re.escape(f"seeds is {seeds}; it must be a list with one seed for each")
        ):
            llm.generate_batch(["x", "y"], seeds=seeds)  # type: ignore[arg-type]


def test_streaming_complains_before_it_starts(llm: LLM) -> None:
    with pytest.raises(SettingError):
        llm.stream("Hello", steps=0)


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


def test_settings_made_directly_are_checked_alike() -> None:
    for wrong in ({"steps": 2.5}, {"max_tokens": True}, {"seed": "x"}, {"canvas_length": 16.5}, {"steps": None}):
        name, value = next(iter(wrong.items()))
        with pytest.raises(SettingError, match=re.escape(f"{name} is {value!r}; it must be of type int")):
            GenerationSettings(**wrong)
    with pytest.raises(SettingError, match="stop must be a string or a list of strings"):
        GenerationSettings(stop=7)  # type: ignore[arg-type]
    assert GenerationSettings(stop="abc").stop == ("abc",)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "default"), [("stability_threshold", 1), ("confidence_threshold", 0.005)])
def test_a_threshold_of_null_is_not_given(name: str, default: float) -> None:
    written = {"max_denoising_steps": 6, "stability_threshold": 0, "confidence_threshold": 100.0}
    given, null = settings_from_dict(written), settings_from_dict(written | {name: None})
    assert getattr(null, name) == default
    assert dataclasses.replace(null, **{name: written[name]}) == given


def test_text_that_utf8_cannot_express_is_named(llm: LLM) -> None:
    said = "messages[0].content holds a character that UTF-8 cannot express at index 1"
    with pytest.raises(PromptError, match=re.escape(said)):
        llm.generate("a\ud800")


@pytest.mark.parametrize(
    ("place", "ask"),
    [
        ("instruction", lambda llm: llm.edit("abc", (0, 1), "\ud800")),
        ("text", lambda llm: llm.edit("\ud800", (0, 1), "x")),
        ("recent_edits[1].new", lambda llm: llm.next_edit("abc", 1, [("a", "b"), {"old": "b", "new": "\ud800"}])),
        ("choices[0]", lambda llm: llm.decide("q", ["\ud800", "a"])),
        ("template", lambda llm: llm.decide("q", {"a": ["b", "c"]}, template="\ud800{a}")),
        ("question", lambda llm: llm.decide("\ud800", ["a", "b"])),
    ],
)
def test_the_argument_that_utf8_cannot_express_is_named(llm: LLM, place: str, ask: Callable[[LLM], Any]) -> None:
    with pytest.raises((PromptError, SettingError), match=re.escape(f"{place} holds a character that UTF-8")) as caught:
        ask(llm)
    assert caught.value.field == place


@pytest.mark.parametrize(
    ("field", "ask"),
    [
        ("temperature", lambda llm: llm.generate("x", temperature=1)),
        ("lenght", lambda llm: llm.fill("a", "b", lenght=1)),
        ("raw", lambda llm: llm.generate([2], raw=True)),
        ("prompts", lambda llm: llm.generate_batch("x")),
        ("seeds", lambda llm: llm.generate_batch(["x"], seeds=[1, 2])),
        ("each", lambda llm: llm.generate_batch(["x"], each=[])),
        ("prompt", lambda llm: llm.generate_batch([[]])),
        ("timeout", lambda llm: llm.generate_batch(["x"], timeout=1)),
        ("name", lambda llm: llm.with_adapter("none")),
        ("on_record", lambda llm: llm.fill("a", "b", on_record=1)),
        ("recent_edits", lambda llm: llm.next_edit("abc", 1, "ab")),
        ("recent_edits[0]", lambda llm: llm.next_edit("abc", 1, ["ab"])),
        ("regex", lambda llm: llm.next_edit("abc", 1, [("a", "b")], regex="a")),
        ("question", lambda llm: llm.decide("", ["a", "b"])),
        ("question", lambda llm: llm.decide(5, ["a", "b"])),
        ("question", lambda llm: llm.decide([2] * 999, ["a", "b"])),
        ("choices", lambda llm: llm.decide("q", ["a"])),
        ("choices", lambda llm: llm.decide("q", ["a", "a"])),
        ("choices", lambda llm: llm.decide("q", ["no", "no more"], ends=False)),
        ("template", lambda llm: llm.decide("q", ["a", "b"], template="{")),
        ("template", lambda llm: llm.decide("q", ["a", "b"], template="{other}")),
        ("ends", lambda llm: llm.decide("q", ["a", "b"], ends=1)),
        ("reads", lambda llm: llm.decide("q", ["a", "b"], reads=0)),
        ("steps", lambda llm: llm.decide("q", ["a", "b"], steps=4)),
        ("calibrate", lambda llm: llm.decide([2, 5], ["a", "b"], calibrate=True)),
        ("tools", lambda llm: llm.decide([2, 5], ["a", "b"], tools=[])),
        ("prompt", lambda llm: llm.room("x")),
        ("canvas_length", lambda llm: llm.room(5, "x")),
        ("policy", lambda llm: EngineSettings(policy="fair")),
        ("slots", lambda llm: redraft.load(llm.path, slots=0)),
        ("memory_gb", lambda llm: redraft.load(llm.path, memory_gb=0)),
        ("kv_cache_dtype", lambda llm: redraft.load(llm.path, kv_cache_dtype="int8")),
        ("device", lambda llm: redraft.load(llm.path, device="tpu")),
        ("device", lambda llm: redraft.load(llm.path, device=5.0)),
        ("dtype", lambda llm: redraft.load(llm.path, dtype="float16")),
        ("quantization", lambda llm: redraft.load(llm.path, quantization="fp4")),
        ("vocabulary_dtype", lambda llm: redraft.load(llm.path, vocabulary_dtype="int4")),
        ("vocabulary_dtype", lambda llm: redraft.load(llm.path, device="cpu", vocabulary_dtype="fp8")),
    ],
)
def test_the_argument_at_fault_is_named(llm: LLM, field: str, ask: Callable[[LLM], Any]) -> None:
    with pytest.raises(InputError) as caught:
        ask(llm)
    assert caught.value.field == field


def test_the_settings_that_are_listed_are_those_that_a_caller_gives(llm: LLM) -> None:
    with pytest.raises(SettingError, match="known settings are") as caught:
        llm.generate("x", temperature=1)
    listed = str(caught.value).removesuffix(".").split("settings are ")[1].split(", ")
    assert {"steps", "preset", "choices", "tool_choice"} <= set(listed)
    assert not {"thought_open", "allow_empty", "constraint", "raw"} & set(listed)


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


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_model_is_not_pickled_or_copied_with_its_weights(llm: LLM, copied: Callable[[LLM], Any]) -> None:
    with pytest.raises(TypeError, match="An LLM cannot be pickled or copied with its weights"):
        copied(llm)
    view = copy.copy(llm)
    assert view.engine is llm.engine


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


def test_a_constraint_that_cannot_fit_counts_as_refused(llm: LLM) -> None:
    engine = llm.new_engine()
    with pytest.raises(ConstraintError):
        engine.add(llm.request("Hi", choices=["a choice of very many tokens indeed"], max_tokens=2))
    assert engine.stats().refused == 1


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda llm: llm.generate("x", tools=5), PromptError, "tools must be a list of function declarations"),
        (lambda llm: llm.generate("x", constraint="y"), SettingError, "constraint is 'y'; it must be what"),
        (lambda llm: llm.generate_batch(5), PromptError, "The prompts must be a list"),
        (lambda llm: llm.generate_batch({"a": 1}), PromptError, "The prompts must be a list"),
        (lambda llm: llm.generate("x", raw="no"), SettingError, "raw is 'no'; it must be of type bool"),
        (lambda llm: llm.chat([{"role": "user", "content": "x"}], raw=True), PromptError, "raw=True needs a str."),
        (lambda llm: llm.with_adapter([]), SettingError, "There is no adapter []; there are none."),
        (lambda llm: llm.fill("a", "b", on_record=5), SettingError, "on_record is 5; it must be a function"),
        (lambda llm: llm.edit("a", (0, 1), on_record=5), SettingError, "on_record is 5; it must be a function"),
    ],
)
def test_wrong_types_are_a_sentence(llm: LLM, call: Callable[[LLM], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        call(llm)


def test_prompts_may_come_from_a_generator(llm: LLM) -> None:
    prompts = ["Hello", "Hi"]
    again = llm.generate_batch((text for text in prompts), max_tokens=8, seeds=range(2))
    assert [one.text for one in again] == [one.text for one in llm.generate_batch(prompts, max_tokens=8, seeds=[0, 1])]


def test_more_ends_than_a_gpu_tells_apart_are_refused(llm: LLM) -> None:
    given = {"device": torch.device("cpu"), "dtype": torch.float32}
    packed = PackedTransformer(pack(llm.model.config, llm.model.state_dict().__getitem__, **given))
    many = LLM(packed, llm.tokenizer, llm.template, path=llm.path, eos_ids=tuple(range(9)))
    with pytest.raises(SettingError, match="There are 9 end-of-text ids; on a GPU there may be at most 8"):
        many.generate("Hello")


def test_how_much_an_engine_takes_is_said_when_a_model_is_loaded() -> None:
    small, large = (redraft.load(device="cpu", dtype="float32", memory_gb=size, slots=3) for size in (0.02, None))
    assert small.engine.stats().slots == 3
    assert small.engine.stats().full_pages < large.engine.stats().full_pages
