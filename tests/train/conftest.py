"""Small shapes and batches for the training tests."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from redraft.config import FULL, SLIDING, ModelConfig
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.train.batch import Batch
from redraft.train.recipe import DataSettings, OptimizerSettings, Recipe, RunSettings, SourceSettings


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def config() -> ModelConfig:
    return ModelConfig(
        vocab_size=48, hidden_size=32, intermediate_size=24, moe_intermediate_size=16, num_experts=4, top_k_experts=2,
        num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, head_dim=8, global_head_dim=16,
        layer_types=(FULL, SLIDING, FULL), sliding_window=6, max_position_embeddings=512, canvas_length=8,
    )  # fmt: skip


@pytest.fixture
def model(config: ModelConfig) -> Transformer:
    model = Transformer(config)
    initialise(model, 3)
    return model


@pytest.fixture
def batch(config: ModelConfig) -> Batch:
    """Two rows: three documents and padding; one document with overlapping canvases, a hole, and an empty slot."""
    rng = np.random.default_rng(0)
    document = np.array([[0] * 9 + [1] * 7 + [2] * 4 + [-1] * 4, [0] * 24], np.int32)
    position = np.array([[*range(9), *range(7), *range(4), *range(20, 24)], range(24)], np.int32)
    last = document != np.roll(document, -1, 1)
    last[:, -1] = True
    region = np.ones((2, 4, 8), bool)
    region[1, 2, 3:] = region[1, 2, 0] = False
    region[1, 3] = False
    return Batch.from_arrays({
        "tokens": rng.integers(0, 48, (2, 24)),
        "document": document,
        "position": position,
        "encoder_weight": np.where(last | (document < 0), 0.0, 1.0).astype(np.float32),
        "canvas_target": rng.integers(0, 48, (2, 4, 8)),
        "canvas_document": np.array([[0, 1, 1, 2], [0, 0, 0, -2]], np.int32),
        "canvas_start": np.array([[9, 3, 7, 4], [12, 15, 20, 0]], np.int32),
        "noise_region": region,
        "canvas_weight": (region * rng.uniform(0.5, 1.5, region.shape)).astype(np.float32),
        "full_noise": np.zeros((2, 4), np.float32),
        "source": np.zeros(2, np.int64),
    })  # fmt: skip


@pytest.fixture
def recipe(config: ModelConfig, tmp_path: Path) -> Recipe:
    """A run of 20 steps on the toy task; about a second."""
    return Recipe(
        model=dataclasses.replace(config, canvas_length=16),
        data=DataSettings(
            rows=4, tokens=48, canvases=3,
            sources=(SourceSettings(name="reverse", kind="reverse", share=1.0, prompt_weight=0.2),),
        ),
        optimizer=OptimizerSettings(steps=20, learning_rate=3e-3, warmup=5, weight_decay=0.1),
        run=RunSettings(out=str(tmp_path / "run"), seed=5, log_every=5),
    )  # fmt: skip
