"""What `--check` says of an epoch, against what the batches of its steps hold."""

import dataclasses
import json
from pathlib import Path

import pytest

from redraft.cli.train import show_data
from redraft.model.folders import resolve_folder
from redraft.train.check import figures
from redraft.train.packing import Packer
from redraft.train.recipe import DataSettings, Recipe, SourceSettings

TINY = resolve_folder("tiny")
TOKENS, CANVASES, CANVAS = 128, 3, 16


def written(path: Path, *records: object) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def answer(tokens: int) -> dict[str, list[int]]:
    return {"prompt_ids": [50] * 5, "answer_ids": [60] * tokens}


@pytest.fixture
def finite(recipe: Recipe, tmp_path: Path) -> Recipe:
    """Answers of one to three canvases and plain text, of each of which some is held out, and endless symbols."""
    chats = written(tmp_path / "chats.jsonl", *(answer(n) for n in [1, 16, 17, 32, 48] * 12), answer(999 % 40))
    text = written(tmp_path / "text.jsonl", *({"text": "a b c d e f g " * n} for n in range(1, 40)))
    sources = (
        SourceSettings(name="chats", kind="chat", share=1.0, path=chats, heldout=0.01),
        SourceSettings(name="text", kind="text", share=2.0, path=text, heldout=0.02),
        SourceSettings(name="endless", kind="reverse", share=1.0),
    )
    data = DataSettings(rows=8, tokens=TOKENS, canvases=CANVASES, accumulate=2, sources=sources, tokenizer=str(TINY))
    model = dataclasses.replace(recipe.model, vocab_size=16_384, canvas_length=CANVAS)
    return dataclasses.replace(recipe, model=model, data=data)


def test_an_epoch_has_as_many_canvases_as_answers_and_as_many_tokens_as_text(finite: Recipe) -> None:
    packer = Packer(finite)
    chats, text, endless = figures(finite, packer)
    assert (chats.documents, chats.tokens) == (60, 12 * (5 * 5 + 1 + 16 + 17 + 32 + 48))
    assert chats.answer_canvases == 12 * (1 + 1 + 2 + 2 + 3)
    assert (text.documents, text.answer_canvases) == (38, 0)
    assert endless.documents is endless.tokens is endless.epoch_steps is None
    for number, part in enumerate((chats, text)):
        assert part.epoch_steps is not None
        rounds = 40  # because an epoch of so few documents ends within a step
        batches = [packer.batch(index) for index in range(round(part.epoch_steps * rounds) * finite.data.accumulate)]
        mine = [batch["source"] == number for batch in batches]
        trained = sum(int((b["canvas_document"][m] >= 0).sum()) for b, m in zip(batches, mine, strict=True))
        shown = sum(int((b["document"][m] >= 0).sum()) for b, m in zip(batches, mine, strict=True))
        has, held = (trained, part.answer_canvases) if number == 0 else (shown, part.tokens)
        assert held is not None
        assert has == pytest.approx(held * rounds, rel=0.05)


def test_the_check_prints_what_an_epoch_takes(finite: Recipe, monkeypatch, capsys) -> None:
    monkeypatch.setattr("redraft.cli.train._read", lambda *_, **__: finite)
    show_data("any.toml")
    shown = capsys.readouterr().out
    assert "in all 60 documents to train on, 1,668 tokens, 108 canvases of answers: an epoch takes 9.0 steps" in shown
    assert "optimizer.steps = 20 are 2.2 epochs" in shown
    assert shown.count("in all") == 2
    show_data("any.toml", as_json=True)
    (chats, _, endless) = json.loads(capsys.readouterr().out)["sources"]
    assert (chats["epoch_steps"], endless["epoch_steps"]) == (9.0, None)
