"""What a run delivers: a model folder in the Hugging Face layout, in bf16, or an adapter folder."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from redraft.errors import SettingError
from redraft.model import Transformer
from redraft.model.adapters import save_adapter
from redraft.model.checkpoint import Checkpoint
from redraft.model.folders import resolve_folder, write_json
from redraft.model.weights import load_vision, save_model
from redraft.train.distributed import World
from redraft.train.lora import collect
from redraft.train.recipe import Recipe
from redraft.train.sharding import ShardedWeights, TrainedWeights

GENERATION = "generation_config.json"
"""Sampling defaults of a model folder."""
MODEL, ADAPTER, CURVE = "model", "adapter", "curve"
"""Names of the folders within the run's folder; `CURVE` has what is measured while training."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""What Transformers reads to prepare images."""


def exported(recipe: Recipe) -> Path:
    """Where the run's model or adapter is written in the end."""
    return Path(recipe.run.out) / (MODEL if recipe.lora is None else ADAPTER)


def check_apart(recipe: Recipe) -> None:
    """Raise `SettingError` if the run would write over what it begins with or takes its tokenizer from."""
    folders = [exported(recipe), *[Path(recipe.run.out) / CURVE] * bool(recipe.run.curve_every)]
    for setting, read in (("run.init", recipe.run.init), ("data.tokenizer", recipe.data.tokenizer)):
        for folder in folders:  # os.path, since Path raises for overlong names
            if os.path.exists(read) and os.path.exists(folder) and os.path.samefile(read, folder):
                raise SettingError(
                    f"{setting} is {read!r}, the folder that the run writes to; choose another run.out, or move it."
                )


def export_trained(recipe: Recipe, model: Transformer, weights: TrainedWeights, folder: Path, world: World) -> None:
    """Write what the recipe trains to `folder`: its adapter, or else its model. Every process takes part; one writes.

    `model` is the working copy, just refreshed from `weights`. Raises `TrainingError` in every process if it cannot be
    written.
    """
    if recipe.lora is not None:
        adapter = collect(weights.trained(), recipe.lora)
        with world.writing(f"The adapter {str(folder)!r}"):
            if world.is_main:
                save_adapter(adapter, folder, base_model=recipe.run.init, dropout=recipe.lora.dropout)
        return
    whole = weights.whole(torch.bfloat16) if isinstance(weights, ShardedWeights) else None
    with world.writing(f"The model {str(folder)!r}"):
        if world.is_main:
            if whole is not None:
                model = Transformer(model.config).to(torch.bfloat16)
                model.load_state_dict(whole)
            spare = any(source.spare_holes for source in recipe.data.sources)
            export_model(model, folder, tokenizer=recipe.data.tokenizer, init=recipe.run.init, spare_holes=spare)


def export_model(model: Transformer, folder: Path, *, tokenizer: str, init: str, spare_holes: bool = False) -> Path:
    """Save `model` in bf16, with generation defaults and, if `tokenizer` names a folder, its tokenizer files.

    The defaults (including schedule and end-of-text ids) stay those of the model `init` that training began with, and
    so do its vision tower, which is not trained, and the files that say how images are prepared. The configuration says
    if training taught `spare_holes`.
    """
    saved = copy.deepcopy(model).to(torch.bfloat16)
    saved.config = dataclasses.replace(model.config, spare_holes=spare_holes or model.config.spare_holes)
    if init:
        begun = Checkpoint(resolve_folder(init))
        saved.vision = load_vision(begun, begun.weight, torch.device("cpu"), torch.bfloat16)
    with TemporaryDirectory() as beside:  # to `folder` they move with the weights, when all are written
        _describe(Path(beside), model, tokenizer=tokenizer, init=init)
        save_model(saved, folder, like=Path(beside))
    return folder


def _describe(folder: Path, model: Transformer, *, tokenizer: str, init: str) -> None:
    """Write what a model folder has besides config.json and the weights."""
    write_json(folder / GENERATION, _generation_config(model))
    if init:
        _copy(resolve_folder(init), folder, (GENERATION, *_PROCESSOR_FILES))
    if tokenizer:
        _copy(Path(tokenizer), folder, _TOKENIZER_FILES)


def _copy(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy those of the named files that there are."""
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _generation_config(model: Transformer) -> dict[str, object]:
    """The reference sampler's settings, in the layout that Transformers reads."""
    return {
        "max_new_tokens": model.config.canvas_length,
        "max_denoising_steps": 48,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
        "t_min": 0.4,
        "t_max": 0.8,
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
        "pad_token_id": model.config.pad_token_id,
        "eos_token_id": list(model.config.eos_token_id),
    }
