"""Model folders for tests: the embedded model's tokenizer and chat template around a very small random network."""

import dataclasses
import shutil
from importlib.resources import files
from pathlib import Path

import torch

import redraft
from redraft.model import Transformer
from redraft.model.presets import preset


def write_random_model(where: Path, *, canvas: int, context: int, layers: int = 3, vocabulary: int = 16384) -> Path:
    """Fill the folder `where` with a model of canvases of `canvas` positions in a context of `context`."""
    assets = Path(str(files("redraft") / "assets" / "tiny"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(assets / name, where / name)
    config = dataclasses.replace(
        preset("nano"), vocab_size=vocabulary, canvas_length=canvas, max_position_embeddings=context, eos_token_id=(1,),
        layer_types=preset("nano").layer_types[-layers:],
    )  # fmt: skip
    torch.manual_seed(0)
    network = Transformer(config)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    redraft.save_model(network, where)
    (where / "generation_config.json").write_text('{"eos_token_id": [1], "max_denoising_steps": 4}')
    return where
