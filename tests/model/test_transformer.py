"""What `Transformer` promises beside what the tests against Transformers in fp32 show."""

from dataclasses import replace

import pytest
import torch

from redraft.errors import PromptError
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.transformer import Transformer


@pytest.fixture(scope="module")
def wide() -> Transformer:
    """As wide as the 26B model, in bf16."""
    model = Transformer(replace(preset("nano"), hidden_size=2816)).requires_grad_(False)
    initialise(model, 0)
    return model.bfloat16()


def test_embeddings_in_bf16_are_scaled_by_the_rounded_root_of_the_width(wide: Transformer) -> None:
    ids = torch.tensor([[3, 255, 0]])
    scaled = wide.embedding.weight[ids] * 53.0
    assert torch.equal(wide.embed(ids), scaled)
    assert torch.equal(wide.mean_embeddings(torch.eye(256)[ids]), scaled)


def test_soft_embeddings_in_bf16_are_of_rounded_logits(wide: Transformer) -> None:
    logits = 40 * torch.randn(1, 16, 256, generator=torch.Generator().manual_seed(0))

    def mean(logits: torch.Tensor) -> torch.Tensor:
        return logits.float().softmax(-1) @ wide.embedding.weight.float() * 53.0

    soft = wide.soft_embeddings(logits).float()
    assert (soft - mean(logits.bfloat16())).abs().max() < 0.02
    assert (soft - mean(logits)).abs().max() > 0.1


@pytest.mark.parametrize("token", [-1, 256])
def test_ids_outside_the_vocabulary_are_refused_and_change_nothing(token: int) -> None:
    model = Transformer(preset("nano"))
    cache, ids = model.new_cache(1, 8), torch.tensor([[1, token]])
    for work in (model.encode, model.denoise):
        with pytest.raises(PromptError, match=f"Token id {token} is outside the vocabulary of 256"):
            work(ids, cache)
    assert cache.lengths == [0]
