"""What the front door refuses, and what it says."""

import copy
import dataclasses
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import redraft
from redraft.engine.settings import EngineSettings
from redraft.errors import ConstraintError, InputError, PromptError, SettingError
from redraft.llm import LLM
from redraft.model.packed.build import pack
from redraft.model.packed.transformer import PackedTransformer
from redraft.settings import GenerationSettings


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


def test_a_length_of_the_schedule_is_refused_beside_a_stretched_one(llm: LLM) -> None:
    with pytest.raises(SettingError, match="schedule_steps has no effect with stretch_schedule"):
        llm.request("a", schedule_steps=7, stretch_schedule=True)
    assert llm.request("a", schedule_steps=7, stretch_schedule=False).settings.temperature_steps == 7
    assert llm.request("a", preset="careful", steps=9, stretch_schedule=True).settings.temperature_steps == 9


@pytest.mark.parametrize("name", ["seeds", "each"])
def test_what_only_a_batch_takes_is_unknown_to_a_single_answer(llm: LLM, name: str) -> None:
    for call in (llm.generate, llm.stream, llm.chat):
        with pytest.raises(SettingError, match=f"Unknown setting '{name}'"):
            call([{"role": "user", "content": "x"}], **{name: [1]})


def test_one_seed_for_all_contradicts_one_for_each(llm: LLM) -> None:
    with pytest.raises(SettingError, match="seed and seeds are both given") as caught:
        llm.generate_batch(["a"], seed=1, seeds=[2])
    assert caught.value.field == "seed"


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
        ({"t_min": 0.9}, r"^t_min is 0.9; it must be below t_max \(0.8\)\.$"),
        ({"t_min": 1, "preset": "careful"}, r"^t_min is 1; it must be below t_max \(1.0\)\.$"),
        ({"t_max": 0.3}, r"^t_max is 0.3; it must be above t_min \(0.4\)\.$"),
        ({"t_min": 0.9, "t_max": 0.5}, r"^t_max is 0.5; it must be above t_min \(0.9\)\.$"),
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


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("", "prompt is empty"),
        ([], "must be a non-empty"),
        (b"hi", "must be a non-empty"),
        (["hi", "there"], "generate_batch and score_batch take such"),
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


def test_of_several_prompts_the_one_at_fault_is_named(llm: LLM) -> None:
    with pytest.raises(PromptError, match=r"^prompts\[1\]: The prompt is empty\.$"):
        llm.generate_batch(["Hello", ""])
    with pytest.raises(SettingError, match=r"^prompts\[1\]: steps is 0"):
        llm.generate_batch(["Hello", "Hello"], each=[{}, {"steps": 0}])


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


def test_settings_made_directly_are_checked_alike() -> None:
    for wrong in ({"steps": 2.5}, {"max_tokens": True}, {"seed": "x"}, {"canvas_length": 16.5}, {"steps": None}):
        name, value = next(iter(wrong.items()))
        with pytest.raises(SettingError, match=re.escape(f"{name} is {value!r}; it must be of type int")):
            GenerationSettings(**wrong)
    with pytest.raises(SettingError, match="stop must be a string or a list of strings"):
        GenerationSettings(stop=7)  # type: ignore[arg-type]
    assert GenerationSettings(stop="abc").stop == ("abc",)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(GenerationSettings)])
def test_no_setting_is_left_unchecked(name: str) -> None:
    """Neither a wrong type nor a number that GPU buffers cannot hold."""
    with pytest.raises(SettingError, match=rf"^{name} (is .*; it )?must be (of type|a string or)"):
        GenerationSettings(**{name: b"8"})  # type: ignore[arg-type]
    if isinstance(getattr(GenerationSettings(), name), int | float | None):
        with pytest.raises(SettingError, match=rf"\b{name}\b"):
            GenerationSettings(**{name: 2**63})


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


def test_a_model_shows_what_it_is(llm: LLM) -> None:
    assert repr(llm) == f"LLM({str(llm.path)!r}, device='cpu', dtype=torch.float32)"


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_model_is_not_pickled_or_copied_with_its_weights(llm: LLM, copied: Callable[[LLM], Any]) -> None:
    with pytest.raises(TypeError, match="An LLM cannot be pickled or copied with its weights"):
        copied(llm)
    view = copy.copy(llm)
    assert view.engine is llm.engine


def test_a_constraint_that_cannot_fit_counts_as_refused(llm: LLM) -> None:
    engine = llm.new_engine()
    with pytest.raises(ConstraintError):
        engine.add(llm.request("Hi", choices=["a choice of very many tokens indeed"], max_tokens=2), print)
    assert engine.stats().counters.refused == 1


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


def test_more_ends_than_a_gpu_tells_apart_are_refused(llm: LLM) -> None:
    given = {"device": torch.device("cpu"), "dtype": torch.float32}
    packed = PackedTransformer(pack(llm.model.config, llm.model.state_dict().__getitem__, **given))
    many = LLM(packed, llm.tokenizer, llm.template, path=llm.path, eos_ids=tuple(range(9)))
    with pytest.raises(SettingError, match="There are 9 end-of-text ids; on a GPU there may be at most 8"):
        many.generate("Hello")
