"""Model folders for tests: the embedded model's tokenizer and chat template around a very small random network."""

import dataclasses
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

import redraft
from redraft.config import ModelConfig
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.vision import VisionTower


def write_random_model(
    where: Path, *, canvas: int, context: int, layers: int = 3, vocabulary: int = 16384, sees: bool = False
) -> Path:
    """Fill the folder `where` with a model of canvases of `canvas` positions in a context of `context`.

    With `sees` it has a vision tower; the tokenizer's marks of images are those of its config.
    """
    assets = Path(str(files("redraft") / "assets" / "tiny"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(assets / name, where / name)
    config = dataclasses.replace(
        preset("nano"), vocab_size=vocabulary, canvas_length=canvas, max_position_embeddings=context, eos_token_id=(1,),
        layer_types=preset("nano").layer_types[-layers:], extra=dict(preset("nano").extra),
    )  # fmt: skip
    torch.manual_seed(0)
    network = Transformer(config)
    if sees:
        network.vision = tower_of(config)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    redraft.save_model(network, where)
    (where / "generation_config.json").write_text('{"eos_token_id": [1], "max_denoising_steps": 4}')
    return where


def save_blocky_model(where: Path, vocabulary: int, **numbers: Any) -> None:
    """A random model whose every row can be coded in blocks of 256 numbers, with all scalars and norms different.

    `numbers` are others of its config. There are no files beside it.
    """
    config = dataclasses.replace(
        preset("nano"), vocab_size=vocabulary, hidden_size=256, intermediate_size=256, moe_intermediate_size=256,
        head_dim=64, global_head_dim=128, canvas_length=16, eos_token_id=(1,), **numbers,
    )  # fmt: skip
    model = Transformer(config)
    initialise(model, 0)
    for number, tensor in enumerate(model.state_dict().values()):
        if tensor.ndim == 1:
            tensor.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(number))
    redraft.save_model(model, where)


def tower_of(config: ModelConfig) -> VisionTower:
    """A random vision tower of two layers for a model, described in its config from now on."""
    shape = {
        "model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16,
        "position_embedding_size": 256,
    }  # fmt: skip
    config.extra["vision_config"] = shape  # type: ignore[index]
    tower = VisionTower.of(config)
    for parameter in tower.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return tower
