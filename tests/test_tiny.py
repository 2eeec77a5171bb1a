"""The embedded model as it is shipped: it loads everywhere, and it does what its card says, on a few items."""

from pathlib import Path

import pytest
import torch

import redraft
from redraft.eval import sudoku
from redraft.eval.files import DATA
from redraft.llm import LLM


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return redraft.load("tiny", device="cpu", dtype="float32")


def test_the_weights_fit_the_package(tiny: LLM) -> None:
    assert (tiny.path / "model.safetensors").stat().st_size <= 80_000_000
    assert 20e6 <= sum(parameter.numel() for parameter in tiny.model.parameters()) <= 40e6


def test_transformers_computes_the_same(tiny: LLM) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(tiny.path, dtype=torch.float32).eval()
    prompt = torch.tensor([tiny.prompt_ids("What is the capital of France?")])
    canvas = torch.arange(300, 300 + tiny.model.config.canvas_length)[None]
    cache = tiny.model.new_cache(1, 256)
    with torch.inference_mode():
        past = theirs.model.encoder(input_ids=prompt).past_key_values
        positions = torch.arange(prompt.shape[1], prompt.shape[1] + canvas.shape[1])[None]
        expected = theirs(decoder_input_ids=canvas, past_key_values=past, decoder_position_ids=positions).logits
        tiny.model.encode(prompt, cache)
        torch.testing.assert_close(tiny.model.logits(tiny.model.denoise(canvas, cache)), expected, atol=1e-3, rtol=0)


def test_it_solves_sudoku(tiny: LLM) -> None:
    items = sudoku.read_sudoku_csv(DATA / "sudoku_36.csv")[:6]
    result = sudoku.TASK.evaluate(tiny, items, batch_size=6, max_tokens=128)
    assert result.solved >= 4
    assert result.mean_steps <= 16


def test_it_answers_in_english(tiny: LLM) -> None:
    result = tiny.generate("My name is Ana. What is my name?", seed=0, max_tokens=128)
    assert "Ana" in result.text
    assert result.finish_reason == "stop"


def test_it_fills_code_from_both_sides(tiny: LLM) -> None:
    prefix = "def mean(values):\n    total = 0\n    for value in values:\n"
    suffix = "\n    return total / len(values)\n"
    result = tiny.fill(prefix, suffix, max_tokens=10, seed=0)
    assert result.full_text == prefix + result.text + suffix
    assert "total" in result.text


def test_the_folder_is_an_ordinary_one(tiny: LLM, tmp_path: Path) -> None:
    redraft.save_model(tiny.model, tmp_path)
    again = redraft.load_model(tmp_path, device="cpu", dtype="float32")
    for name, tensor in tiny.model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
