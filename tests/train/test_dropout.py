"""Which inputs a run drops is part of what its seed decides."""

import dataclasses
from pathlib import Path

import torch

from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.model.weights import save_model
from redraft.train.batch import Batch
from redraft.train.recipe import LoraSettings, Recipe
from redraft.train.trainer import Trainer


def test_runs_of_two_seeds_drop_other_inputs(recipe: Recipe, tmp_path: Path) -> None:
    base = Transformer(recipe.model)
    initialise(base, 9)
    save_model(base, tmp_path / "base")
    lora = LoraSettings(rank=4, dropout=0.5, targets=("attention",))
    drawn = []
    for seed in (1, 2, 1):
        settings = dataclasses.replace(recipe.run, init=str(tmp_path / "base"), seed=seed)
        trainer = Trainer(dataclasses.replace(recipe, run=settings, lora=lora), device="cpu", quiet=True)
        trainer.build()
        trainer.train_step(Batch.from_arrays(trainer.packer.batch(0)).to(trainer.device))
        drawn.append(torch.rand(8).tolist())  # what the global generator holds next
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2]
