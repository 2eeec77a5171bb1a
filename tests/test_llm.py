"""The front door, on a random model with the embedded tokenizer: settings, prompts, text and stops."""

import dataclasses
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import redraft
from redraft.config import PRESETS
from redraft.constraints.fill import causal_score
from redraft.diffusion.autoregression import prefill
from redraft.errors import CheckpointError, HubError, PromptError, SettingError
from redraft.llm import LLM
from redraft.model import Transformer
from redraft.model.presets import preset

CANVAS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the embedded model's tokenizer and template and a very small random network."""
    where = tmp_path_factory.mktemp("random")
    assets = Path(str(files("redraft") / "assets" / "tiny"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(assets / name, where / name)
    config = dataclasses.replace(
        preset("nano"), vocab_size=16384, canvas_length=CANVAS, max_position_embeddings=192, eos_token_id=(1,)
    )
    torch.manual_seed(0)
    network = Transformer(config)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    redraft.save_model(network, where)
    (where / "generation_config.json").write_text('{"eos_token_id": [1], "max_denoising_steps": 4}')
    return where


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
    assert result.stats.forwards == sum(result.stats.steps) + result.stats.canvases - 1
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


def test_a_batch_gives_what_each_prompt_gives_alone(llm: LLM) -> None:
    prompts = ["Hello", "A much longer prompt, with many more words than its neighbour has.", [2, 5, 9], "x"]
    together = llm.generate_batch(prompts, max_tokens=32, seeds=[1, 2, 3, 4])
    for prompt, seed, result in zip(prompts, [1, 2, 3, 4], together, strict=True):
        alone = llm.generate(prompt, max_tokens=32, seed=seed)
        assert (alone.token_ids, alone.text) == (result.token_ids, result.text)
        assert alone.stats.steps == result.stats.steps


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


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs(llm: LLM, name: str) -> None:
    assert llm.generate("Hello", max_tokens=CANVAS, preset=name, steps=2).stats.canvases == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"canvas_length": 7}, "canvas_length is 7; it must be between 16 and 512"),
        ({"preset": "turbo"}, "preset is 'turbo'; it must be one of fast, balanced, careful"),
        ({"temperature": 1.0}, "Unknown setting 'temperature'"),
        ({"steps": "many"}, "steps is 'many'; it must be of type int"),
        ({"steps": True}, "steps is True; it must be of type int"),
        ({"t_min": 0.9}, "t_max is 0.8; it must be above t_min"),
        ({"entropy_bound": 0}, "entropy_bound is 0; it must be above 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 10_000}, "max_tokens is 10000; behind a prompt of"),
        ({"stop": [""]}, "stop holds an empty string"),
        ({"stop": 3}, "stop must be a string or a list of strings"),
        ({"seed": -1}, "seed is -1"),
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
        ([5, 99_999], "99999"),
        ([-1], "-1"),
        (list(range(5, 190)), "must have at most 176"),
        ([{"role": "nobody", "content": "x"}], "role"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_named(llm: LLM, prompt: object, sentence: str) -> None:
    with pytest.raises(PromptError, match=sentence):
        llm.generate(prompt)  # type: ignore[arg-type]


def test_streaming_complains_before_it_starts(llm: LLM) -> None:
    with pytest.raises(SettingError):
        llm.stream("Hello", steps=0)


def test_a_chat_reply_is_taken_apart(llm: LLM) -> None:
    reply = llm.chat([{"role": "user", "content": "Hi"}], max_tokens=CANVAS, seed=1)
    assert reply.result.stats.canvases == 1
    assert isinstance(reply.content, str)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="quantization is 'int3'"):
        redraft.load("tiny", quantization="int3")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        redraft.load(tmp_path)


def test_an_unreachable_hub_is_one_sentence() -> None:
    with pytest.raises(HubError, match="someone/some-model"):
        redraft.load("someone/some-model")


class TestFill:
    def test_both_sides_come_back_byte_exact(self, llm: LLM) -> None:
        prefix, suffix = "def f(x):\r\n\treturn ", "  # ünïcode 🙂\n\n\n"
        result = llm.fill(prefix, suffix, max_tokens=4, seed=2)
        assert result.full_text == prefix + result.text + suffix
        assert 1 <= len(result.token_ids) <= 4
        assert len(result.token_ids) in result.lengths

    def test_the_hole_holds_no_special_tokens(self, llm: LLM) -> None:
        result = llm.fill("a", "b", max_tokens=6, seed=1)
        assert not set(result.token_ids) & set(llm.tokenizer.special_ids.values())

    def test_one_empty_side_is_fine_and_two_are_not(self, llm: LLM) -> None:
        assert llm.fill("x = ", "", max_tokens=2).full_text.startswith("x = ")
        assert llm.fill("", "\nx", max_tokens=2).full_text.endswith("\nx")
        with pytest.raises(PromptError, match="both empty"):
            llm.fill("", "")

    def test_the_default_hole_fits_a_short_canvas(self, llm: LLM) -> None:
        assert len(llm.fill("x = ", "\n").token_ids) <= CANVAS // 2

    def test_every_pass_is_counted(self, llm: LLM) -> None:
        records: list[redraft.DenoiseStep] = []
        result = llm.fill("x = ", "\ny", max_tokens=5, seed=2, on_record=records.append)
        assert {record.request_id for record in records} == set(range(len(result.lengths))) == set(range(5))
        assert result.forwards == 5 + len(records) + 5
        drafts = {record.request_id: record.argmax_canvas[: len(result.token_ids)] for record in records}
        assert result.token_ids in drafts.values()

    def test_scores_are_those_of_each_filling_alone(self, llm: LLM) -> None:
        """Scored together on a copy of the prefix that is longer than the window, and once more from the start."""
        prefix = [2, *range(40, 100)]
        cache = llm.model.new_cache(1, 100)
        last = prefill(llm.model, cache, [prefix])
        canvases, counts = torch.arange(3 * CANVAS).view(3, CANVAS) + 200, [3, CANVAS, 1]
        with torch.inference_mode():
            together = causal_score(llm.model, cache.copy([0, 0, 0]), last.expand(3, -1), canvases, counts)
            for row, count in enumerate(counts):
                alone = llm.model.new_cache(1, 100)
                hidden = llm.model.encode(torch.tensor([[*prefix, *canvases[row].tolist()]]), alone)[0]
                before = hidden[len(prefix) - 1 :][:count]
                logprobs = llm.model.logits(before).log_softmax(-1)
                expected = float(logprobs.gather(1, canvases[row, :count, None]).sum())
                assert together[row] == pytest.approx(expected, rel=1e-4)
        assert cache.lengths == [len(prefix)]

    def test_impossible_holes(self, llm: LLM) -> None:
        with pytest.raises(SettingError, match="max_tokens is 0"):
            llm.fill("a", "b", max_tokens=0)
        with pytest.raises(SettingError, match="longer than the hole"):
            llm.fill("a", "b", max_tokens=20, canvas_length=16)
        with pytest.raises(PromptError, match="prefix has"):
            llm.fill("word " * 500, "b")
