"""`llm.decide`: what a canvas of pinned text says of a choice, averaged, calibrated, and read again when unsure."""

import math

import pytest
import torch

import redraft
from redraft.cache import KVCache
from redraft.deciding import Reading, fit_temperature
from redraft.deciding.calibration import calibrated
from redraft.deciding.form import Form
from redraft.deciding.read import branch_logprobs, rows_of
from redraft.diffusion.prefill import prefill
from redraft.errors import TOO_LONG, PromptError, SettingError
from redraft.interruption import interruptible
from redraft.keywords import DecideKeywords
from redraft.llm import LLM

CHOICES = ["yes", "no", "not at all", "I do not know"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return redraft.load("tiny", device="cpu", dtype="float32")


def test_probabilities_are_a_distribution(llm: LLM) -> None:
    decision = llm.decide("Is it?", CHOICES, seed=1)
    assert sum(decision.probabilities.values()) == pytest.approx(1)
    assert list(decision.probabilities) == CHOICES
    assert decision.choice == decision.text == max(CHOICES, key=decision.probabilities.__getitem__)
    assert decision.confidence == decision.probabilities[decision.choice]
    reading = decision.readings[0]
    assert reading.entropy == pytest.approx(-sum(p * math.log(p) for p in reading.probabilities.values()))
    assert decision.to_dict()["readings"][0]["choice"] == decision.choice


def test_one_read_of_single_tokens_is_one_forward_and_what_the_model_says(llm: LLM) -> None:
    """By hand: the prompt, a canvas with noise at the label and everything else pinned, the odds at that place."""
    decision = llm.decide("Is it?", ["yes", "no"], reads=1, seed=3)
    assert decision.forwards == 1
    prompt = llm.prompt_ids("Is it?\n\nAnswer with one of these: yes | no")
    cache = llm.model.new_cache(1, len(prompt))
    prefill(llm.model, cache, [prompt])
    noise = redraft.diffusion.rng.draw(torch.tensor([3]), 0, 0, 16, llm.model.config.vocab_size, "initial").tokens
    canvas = torch.tensor([[int(noise[0, 0]), llm.tokenizer.turn_end_id, *[llm.tokenizer.eos_id] * 14]])
    with torch.inference_mode():
        logits = llm.model.logits(llm.model.denoise(canvas, cache))[0, 0]
    labels = [llm.tokenizer.encode(word)[0] for word in ("yes", "no")]
    expected = logits[labels].softmax(-1).tolist()
    assert list(decision.probabilities.values()) == pytest.approx(expected, rel=1e-4)


def test_pinned_text_is_the_same_in_all_that_is_read(llm: LLM) -> None:
    """What all choices of a branch agree on stands in its canvas, before the branch and behind it."""
    strings = Form.of({"a": ["cat", "dog"], "b": ["x", "y"]}, "The {a} is {b}.").strings(llm.tokenizer, [])
    (row,) = rows_of(0, strings, None)
    assert len(row.canvas) == 16
    held = [token for token in row.canvas if token is not None]
    assert llm.tokenizer.decode(held) == "The is "
    assert row.canvas[row.branch.at] is None


QUESTIONS = ["Is it?", "Was it, or will it be? I would like to know.", [{"role": "user", "content": "Hi"}], [2, 40, 41]]


@pytest.mark.parametrize("held", [1, 3, 100])
def test_several_questions_are_what_each_is_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """However many are held at a time, at most."""
    made, new_cache = list[tuple[int, int]](), llm.model.new_cache

    def noted(*shape: int) -> KVCache:
        made.append(shape)
        return new_cache(*shape)

    monkeypatch.setattr(llm.model, "new_cache", noted)
    llm.decide(QUESTIONS, CHOICES, reads=1)
    ((count, longest),) = made
    assert count == 4
    made.clear()
    size = llm.model.cache_bytes(longest)
    monkeypatch.setattr("redraft.diffusion.prefill.CACHE_BYTES", held * size)
    together = llm.decide(QUESTIONS, CHOICES, reads=2, sure=1.0)
    assert isinstance(together, list)
    assert [shape[0] for shape in made] == {1: [1, 1, 1, 1], 3: [3, 1], 100: [4]}[held]
    for question, decision in zip(QUESTIONS, together, strict=True):
        alone = llm.decide(question, CHOICES, reads=2, sure=1.0)
        assert alone.probabilities == pytest.approx(decision.probabilities, rel=1e-4)
        assert alone.forwards == decision.forwards


def test_choices_are_tokenised_once_for_many_questions(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    spelled, strings = [], Form.strings
    monkeypatch.setattr(Form, "strings", lambda form, *given: spelled.append(given) or strings(form, *given))
    llm.decide([f"Is it {i}?" for i in range(5)], CHOICES, reads=2, sure=1.0)
    assert len(spelled) == 2  # once to see whether there is room


def test_it_reads_again_only_what_is_not_sure(llm: LLM) -> None:
    assert llm.decide("Is it?", CHOICES, sure=0.0).readings[0].reads == 1
    unsure = llm.decide("Is it?", CHOICES, sure=1.0, reads=3)
    assert unsure.readings[0].reads == 3
    assert unsure.forwards == 3 * llm.decide("Is it?", CHOICES, sure=0.0).forwards
    assert unsure.readings[0].agreement in (1 / 3, 2 / 3, 1.0)


def test_what_calibration_reads_is_counted(llm: LLM) -> None:
    given = {"reads": 3, "sure": 1.0}
    calibrated, plain = (llm.decide("Is it?", CHOICES, calibrate=on, **given) for on in (True, False))
    assert calibrated.forwards == 2 * plain.forwards


def test_reads_are_averaged_as_probabilities(llm: LLM) -> None:
    singles = [llm.decide("Is it?", CHOICES, reads=1, seed=seed) for seed in (5, 6)]
    both = llm.decide("Is it?", CHOICES, reads=2, sure=1.0, seed=5)
    for choice in CHOICES:
        mean = sum(single.probabilities[choice] for single in singles) / 2
        assert both.readings[0].raw[choice] == pytest.approx(mean, rel=1e-4)


def test_calibration_takes_off_what_is_said_of_nothing(llm: LLM) -> None:
    """A question without content has no preference left."""
    blank = llm.decide("N/A", CHOICES, calibrate=True, reads=2)
    assert list(blank.probabilities.values()) == pytest.approx([0.25] * 4, rel=1e-4)
    asked = llm.decide("Is it?", CHOICES, calibrate=True, reads=2, sure=1.0)
    bias = llm.decide("N/A", CHOICES, reads=2, sure=1.0).readings[0].raw
    weights = {choice: asked.readings[0].raw[choice] / bias[choice] for choice in CHOICES}
    expected = {choice: weight / sum(weights.values()) for choice, weight in weights.items()}
    assert asked.probabilities == pytest.approx(expected, rel=1e-3)


def test_slots_are_filled_from_left_to_right(llm: LLM) -> None:
    slots = {"animal": ["cat", "dog"], "size": ["big", "very small"]}
    decision = llm.decide("What is it?", slots, template="The {animal} is {size}.")
    assert decision.text == f"The {decision.values['animal']} is {decision.values['size']}."
    assert [reading.name for reading in decision.readings] == ["animal", "size"]
    with pytest.raises(SettingError, match="2 slots"):
        _ = decision.choice


def test_a_tool_is_chosen_without_writing_the_call(llm: LLM) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": {"type": "object"}}}
        for name, text in (("get_weather", "Weather of a city"), ("play_song", "Play a song"))
    ]
    question = [{"role": "user", "content": "Play a song, please."}]
    template = "<|tool_call>call:{choice}{{"
    decision = llm.decide(question, ["get_weather", "play_song"], template=template, tools=tools, ends=False)
    assert decision.choice in ("get_weather", "play_song")
    assert decision.text == f"<|tool_call>call:{decision.choice}{{"


def test_temperature_flattens(llm: LLM) -> None:
    sharp, flat = (llm.decide("Is it?", CHOICES, temperature=t, reads=1) for t in (0.5, 5.0))
    assert sharp.choice == flat.choice
    assert sharp.confidence > flat.confidence


def test_what_is_none_is_not_given(llm: LLM) -> None:
    names = DecideKeywords.__optional_keys__
    assert llm.decide("Is it?", CHOICES, **dict.fromkeys(names)) == llm.decide("Is it?", CHOICES)  # type: ignore[call-overload]


def test_a_fitted_temperature_undoes_overconfidence() -> None:
    """Readings that say 0.99 and are right three times of four want 0.75: the log-odds divided by log 99 / log 3."""
    readings = [
        Reading(name="choice", choice="a", probabilities={"a": 0.99, "b": 0.01}, raw={}, reads=1, agreement=1.0)
    ] * 4
    found = fit_temperature(readings, ["a", "a", "a", "b"])
    assert found == pytest.approx(math.log(99) / math.log(3), rel=1e-3)
    assert calibrated([math.log(0.99), math.log(0.01)], None, found) == pytest.approx([0.75, 0.25], rel=1e-3)


@pytest.mark.parametrize(
    ("question", "settings", "error", "sentence"),
    [
        ("", {}, PromptError, "question is empty"),
        ([], {}, PromptError, "non-empty str"),
        (None, {}, PromptError, "non-empty str"),
        (b"Is it?", {}, PromptError, "The question must be a non-empty str"),
        ([2, 99_999], {}, PromptError, "99999"),
        ("x", {"reads": 0}, SettingError, "reads is 0"),
        ("x", {"steps": 4}, SettingError, "Unknown setting 'steps'; known settings are template, ends,"),
        ("x", {"step": None}, SettingError, "Unknown setting 'step'"),
        ("x", {"template": 5}, SettingError, "The template is 5; it must be a string"),
        ("x", {"reads": True}, SettingError, "reads is True"),
        ("x", {"temperature": 0}, SettingError, "temperature is 0"),
        ("x", {"temperature": 10**400}, SettingError, "it must be above 0 and at most 2,147,483,647"),
        ("x", {"sure": "much"}, SettingError, "sure is 'much'"),
        ("x", {"calibrate": 1}, SettingError, "calibrate is 1"),
        ("x", {"ends": "no"}, SettingError, "ends is 'no'; it must be True or False"),
        ("x", {"seed": -1}, SettingError, "seed is -1"),
        ([2, 5], {"calibrate": True}, SettingError, "calibrate needs a question"),
        ([2, 5], {"tools": []}, SettingError, "tools belong to"),
        ("word " * 5000, {}, PromptError, "do not fit the context of 4096"),
        ("x", {"template": "word " * 600 + "{choice}"}, SettingError, "a canvas has at most 512"),
    ],
)
def test_bad_input(llm: LLM, question: object, settings: dict, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        llm.decide(question, CHOICES, **settings)  # type: ignore[call-overload]


def test_of_several_questions_the_one_at_fault_is_named(llm: LLM) -> None:
    cases = {"": r"^question\[1\]: The question is empty", "\ud800": r"^question\[1\] holds", "w " * 5000: "do not fit"}
    for question, sentence in cases.items():
        with pytest.raises(PromptError, match=sentence) as caught:
            llm.decide(["Is it?", question], CHOICES)
        assert caught.value.field == "question[1]"
    assert caught.value.code == TOO_LONG


def test_an_answer_that_is_too_long_with_some_choices_is_refused_before_any_compute(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether both long ones come together is known only when the first slot has been read."""
    monkeypatch.setattr(type(llm.model), "encode", None)
    with pytest.raises(SettingError, match="a canvas has at most 512"):
        llm.decide("x", {"first": ["a", "w " * 300], "second": ["w " * 300, "b"]}, template="{first}: {second}")


def test_bad_examples() -> None:
    reading = Reading(name="x", choice="a", probabilities={"a": 0.5, "b": 0.5}, raw={}, reads=1, agreement=1.0)
    with pytest.raises(SettingError, match="1 readings and 0 answers"):
        fit_temperature([reading], [])
    with pytest.raises(SettingError, match="'c' is not one of the choices a, b"):
        fit_temperature([reading], ["c"])
    for readings, answers in ((reading, ["a"]), ([reading], "a"), (3, 3)):
        with pytest.raises(SettingError, match="Give a list of readings and a list with the answer of each"):
            fit_temperature(readings, answers)  # type: ignore[arg-type]


def test_rows_of_different_lengths_are_read_in_batches(llm: LLM) -> None:
    """In any company a row gives the same odds."""
    cache = llm.model.new_cache(2, 8)
    prefill(llm.model, cache, [[2, 40, 41], [2, 50]])
    rows = [
        row
        for question, words in ((0, ["yes", "no"]), (1, ["cat", "dog and " * 12 + "cat"]))
        for row in rows_of(question, Form.of(words).strings(llm.tokenizer, []), llm.tokenizer.eos_id)
    ]
    together = branch_logprobs(llm.model, cache, rows, 0)
    for row, odds in zip(rows, together, strict=True):
        assert branch_logprobs(llm.model, cache, [row], 0)[0] == pytest.approx(odds, abs=1e-4)


def test_a_certain_choice_has_an_entropy_of_nothing() -> None:
    reading = Reading(name="x", choice="a", probabilities={"a": 1.0, "b": 0.0}, raw={}, reads=1, agreement=1.0)
    assert str(reading.to_dict()["entropy"]) == "0.0"


def test_many_slots_let_others_in_while_they_are_checked(llm: LLM) -> None:
    turns: list[int] = []
    choices = {f"slot{number}": ["yes", "no"] for number in range(9)}
    with interruptible(lambda: turns.append(1)):
        forwards = llm.decide("Is it?", choices, reads=1).forwards
    assert len(turns) >= forwards + len(choices)
