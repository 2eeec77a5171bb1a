"""Collecting a model's own answers: which are kept, and that a recipe can train on them."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import redraft
from redraft.cli.main import main
from redraft.errors import InputError, SettingError, TrainingError
from redraft.train.distill import Collected, collect, prompts_of
from redraft.train.jsonl import Limits, read_jsonl


@dataclass
class Stats:
    steps: tuple[int, ...]


@dataclass
class Answer:
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: Stats


@dataclass
class Fake:
    """Answers of a script, in order, and what it was asked."""

    tokenizer: object
    answers: list[Answer]
    asked: list[list[int]] = field(default_factory=list)
    template: object = None
    eos_ids: tuple[int, ...] = (1,)

    def generate_batch(self, prompts, **settings):
        self.asked += prompts
        self.settings = settings
        return [self.answers.pop(0) for _ in prompts]


@pytest.fixture(scope="module")
def llm() -> redraft.LLM:
    return redraft.load("tiny", device="cpu")


def test_only_answers_that_settled_by_themselves_are_kept(llm: redraft.LLM, tmp_path: Path) -> None:
    call = "<|tool_call>call:f{}<tool_call|>"
    fake = Fake(llm.tokenizer, [
        Answer("good", (40, 41), "stop", Stats((3,))),
        Answer("cut off", (42,), "length", Stats((3,))),
        Answer("not settled", (43,), "stop", Stats((4, 8))),
        Answer(call, (45,), "stop", Stats((5, 2))),
    ])  # fmt: skip
    out = tmp_path / "own.jsonl"
    turn = llm.tokenizer.special_id("<|turn>")
    prompts = [[2, turn, n] for n in range(50, 54)]
    result = collect(fake, prompts, out, steps=8, batch_size=2, seed=3, t_max=0.7)
    assert (result.asked, result.kept, result.mean_steps) == (4, 2, pytest.approx(10 / 3))
    assert fake.asked == prompts
    assert fake.settings == {"seed": 3, "steps": 8, "t_max": 0.7}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    turn_end, response = llm.tokenizer.turn_end_id, llm.tokenizer.special_id("<|tool_response>")
    assert lines == [
        {"prompt_ids": [2, turn, 50], "answer_ids": [40, 41, turn_end]},
        {"prompt_ids": [2, turn, 53], "answer_ids": [45, response]},
    ]
    limits = Limits(tokens=64, canvas=16, canvases=0)
    shard = read_jsonl(out, text=False, tokenizer=llm.tokenizer, template=None, limits=limits)
    assert shard.tokens.tolist() == [2, turn, 50, 40, 41, turn_end, 2, turn, 53, 45, response]
    with pytest.raises(SettingError, match="at least 2"):
        collect(fake, prompts, out, steps=1)


def test_an_answer_to_plain_text_ends_as_text(llm: redraft.LLM, tmp_path: Path) -> None:
    fake, out = Fake(llm.tokenizer, [Answer("good", (40,), "stop", Stats((3,)))]), tmp_path / "own.jsonl"
    collect(fake, [[2, 50]], out, steps=8)  # type: ignore[arg-type]
    assert json.loads(out.read_text())["answer_ids"] == [40, llm.tokenizer.eos_id]


def test_an_answer_that_says_more_behind_a_call_ends_its_turn(llm: redraft.LLM, tmp_path: Path) -> None:
    text = "<|tool_call>call:f{}<tool_call|> Done."
    fake, out = Fake(llm.tokenizer, [Answer(text, (45, 46), "stop", Stats((3,)))]), tmp_path / "own.jsonl"
    collect(fake, [[2, llm.tokenizer.special_id("<|turn>"), 50]], out, steps=8)  # type: ignore[arg-type]
    assert json.loads(out.read_text())["answer_ids"] == [45, 46, llm.tokenizer.turn_end_id]


def test_nothing_to_learn_makes_no_file(llm: redraft.LLM, tmp_path: Path) -> None:
    fake = Fake(llm.tokenizer, [Answer("cut off", (42,), "length", Stats((3,)))])
    with pytest.raises(TrainingError, match=r"None of 1 answers settled within 8 steps"):
        collect(fake, [[2, 50]], tmp_path / "own.jsonl", steps=8)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_prompts_are_those_of_the_file_without_their_answers(llm: redraft.LLM, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    messages = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."}]
    file.write_text(json.dumps({"messages": messages}) + "\n" + json.dumps({"prompt": "a b", "completion": "c"}) + "\n")
    first, second = prompts_of(file, llm)
    assert first == llm.encode_chat(messages[:1])
    assert second == llm.prompt_ids("a b", raw=True)
    file.write_text(json.dumps({"prefix": "a", "middle": "b", "suffix": "c"}) + "\n")
    with pytest.raises(InputError, match="texts with holes"):
        list(prompts_of(file, llm))


def test_every_answer_of_a_conversation_and_token_ids_are_asked_for_too(llm: redraft.LLM, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    messages = [
        {"role": role, "content": text}
        for role, text in (("user", "Hello!"), ("assistant", "Hi."), ("user", "Bye!"), ("assistant", "Bye."))
    ]
    lines = [{"messages": messages}, {"prompt_ids": [2, 50], "answer_ids": [51]}]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    assert list(prompts_of(file, llm)) == [llm.encode_chat(messages[:1]), llm.encode_chat(messages[:3]), [2, 50]]


def test_an_answer_that_is_left_out_may_be_of_any_length(llm: redraft.LLM, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"prompt": "a b", "completion": "c " * 5000}) + "\n")
    assert list(prompts_of(file, llm)) == [llm.prompt_ids("a b", raw=True)]


def test_the_command_writes_answers_of_the_model(tmp_path: Path, capsys) -> None:
    file, out = tmp_path / "p.jsonl", tmp_path / "data" / "own.jsonl"  # a folder that is not there yet
    messages = [{"role": "user", "content": "How many days are in a week?"}, {"role": "assistant", "content": "?"}]
    file.write_text(json.dumps({"messages": messages}) + "\n")
    arguments = [
        "distill",
        str(file),
        str(out),
        "--device",
        "cpu",
        "--max-tokens",
        "32",
        "--canvas-length",
        "32",
        "--json",
    ]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["asked"] == 1
    assert result["kept"] == len(out.read_text().splitlines())
    assert main(arguments) == 2
    assert "already exists" in capsys.readouterr().err
    arguments[2] = str(tmp_path)
    assert main(arguments) == 2
    assert "already exists" in capsys.readouterr().err


def test_the_steps_are_those_of_the_preset(tmp_path: Path, monkeypatch) -> None:
    seen: dict[str, object] = {}
    monkeypatch.setattr(
        "redraft.train.distill.collect",
        lambda *_, **given: seen.update(given) or Collected(asked=0, kept=0, mean_steps=0),
    )
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hi", "completion": "x"}\n')
    arguments = ["distill", str(prompts), str(tmp_path / "own.jsonl"), "--device", "cpu", "--preset", "careful"]
    assert main(arguments) == 0
    assert (seen["steps"], seen["preset"]) == (32, "careful")  # tiny takes 16
    assert main([*arguments, "--steps", "3"]) == 0
    assert seen["steps"] == 3


@pytest.mark.parametrize("words", [2000, 5000])  # 5,000 are more than the context
def test_a_prompt_that_cannot_be_asked_is_refused_before_any_is(words, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("redraft.LLM.generate_batch", lambda *_, **__: pytest.fail("something was asked"))
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "new" / "own.jsonl"
    prompts.write_text(
        '{"prompt": "hi", "completion": "x"}\n' + json.dumps({"prompt": "hi " * words, "completion": "x"})
    )
    assert main(["distill", str(prompts), str(out), "--batch-size", "1", "--device", "cpu"]) == 2
    assert "with a canvas of 128 it must have at most 3968." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [prompts]


def test_who_stops_it_hears_where_the_answers_so_far_are(tmp_path: Path, monkeypatch, capsys) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("redraft.LLM.generate_batch", stop)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "own.jsonl"
    prompts.write_text('{"prompt": "hi", "completion": "x"}\n')
    assert main(["distill", str(prompts), str(out), "--device", "cpu"]) == 130
    assert "the answers so far are in" in capsys.readouterr().err
    assert (tmp_path / "own.jsonl.partial").exists()
    assert not out.exists()
