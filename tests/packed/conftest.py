"""A shape small enough for a CPU."""

from dataclasses import replace

import pytest

from redraft.config import ModelConfig
from redraft.model.presets import preset


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return replace(preset("nano"), num_experts=8, top_k_experts=3)
