"""The reference of `reference_model.py`, its folder, and our model of it."""

from pathlib import Path

import pytest
import torch
from reference_model import randomise, reference_config
from transformers.models.diffusion_gemma import DiffusionGemmaForBlockDiffusion

from redraft.model.transformer import Transformer
from redraft.model.weights import load_model


@pytest.fixture(scope="session")
def reference() -> DiffusionGemmaForBlockDiffusion:
    torch.manual_seed(0)
    model = DiffusionGemmaForBlockDiffusion(reference_config()).eval()
    randomise(model)
    return model


@pytest.fixture(scope="session")
def reference_folder(reference: DiffusionGemmaForBlockDiffusion, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    reference.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(reference_folder: Path) -> Transformer:
    return load_model(reference_folder, "cpu", "float32")
