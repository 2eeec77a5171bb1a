"""Scores of packed weights, with the cache in pages as on a GPU, against those of plain ones."""

import pytest
import torch

from redraft.config import ModelConfig
from redraft.diffusion.causal import TokenScore
from redraft.model import Transformer
from redraft.model.packed.transformer import PackedTransformer
from redraft.scoring import score_tokens
from redraft.text.placing import EncodedPrompt

pytestmark = pytest.mark.usefixtures("inference")


@pytest.fixture(scope="module")
def config(all_experts: ModelConfig) -> ModelConfig:
    return all_experts


def numbers(scores: list[list[TokenScore]]) -> list[float]:
    return [logprob for text in scores for token in text for logprob in (token.logprob, *dict(token.top).values())]


@pytest.mark.parametrize("in_pages", [False, True])
def test_they_are_those_of_plain_weights(
    plain: Transformer, packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch, in_pages: bool
) -> None:
    """A text of several chunks, and two that share a prompt, which ends in the middle of a page."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(256, (700,), generator=draw).tolist()
    shared = EncodedPrompt(tuple(ids[:21]))
    pairs = [(shared, tuple(ids[30:40])), (EncodedPrompt((2,)), tuple(ids)), (shared, tuple(ids[50:57])), (shared, ())]
    if in_pages:
        monkeypatch.setattr(type(packed), "_in_pages", True)
    expected, found = (score_tokens(model, pairs, 2) for model in (plain, packed))
    assert [len(text) for text in found] == [10, 700, 7, 0]
    assert numbers(found) == pytest.approx(numbers(expected), abs=2e-4)


def test_fp8_is_close(plain: Transformer, fp8: PackedTransformer) -> None:
    """Every number of the vocabulary is rounded, too."""
    pairs = [(EncodedPrompt((2, 40, 41)), tuple(range(60, 90)))]
    expected, found = (numbers(score_tokens(model, pairs)) for model in (plain, fp8))
    assert expected != found
    assert found == pytest.approx(expected, abs=0.5)
