"""A shape small enough for a CPU, and models of it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from redraft.config import ModelConfig
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.model.packed.build import pack
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.presets import preset


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return replace(preset("nano"), num_experts=8, top_k_experts=3)


@pytest.fixture(scope="session")
def all_experts() -> ModelConfig:
    """Every token takes all experts: a choice among near equals could turn out either way."""
    return replace(preset("nano"), num_experts=3, top_k_experts=3, max_position_embeddings=8192)


@pytest.fixture
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def plain(config: ModelConfig) -> Transformer:
    model = Transformer(config)
    initialise(model, 5)
    with torch.no_grad():  # surer of itself, so that canvases settle
        model.embedding.weight.mul_(3)
    return model.eval()


@pytest.fixture(scope="module")
def packed(plain: Transformer) -> PackedTransformer:
    source = plain.state_dict().__getitem__
    return PackedTransformer(pack(plain.config, source, device=torch.device("cpu"), dtype=torch.float32))


@pytest.fixture(scope="module")
def fp8(plain: Transformer) -> PackedTransformer:
    """With the vocabulary in FP8."""
    source, given = plain.state_dict().__getitem__, {"device": torch.device("cpu"), "dtype": torch.float32}
    return PackedTransformer(pack(plain.config, source, fp8_vocabulary=True, **given))
