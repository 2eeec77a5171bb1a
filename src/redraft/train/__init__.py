"""Training: recipes, packed batches, the two-stream objective, and the loop around them.

`train(read_recipe(path))` runs a recipe. Names are loaded on first use, because running a model does not need the
training code.

recipe                                    a run's settings, read from TOML
sources, shards, jsonl, forms, sudoku     documents
packing, segments, canvases, holes,
batch, loader                             batches of clean rows and canvases, packed ahead
objective, losses                         what is learned: noise, weights of positions, the loss of each
two_stream, layer_pass, masks,
parted_attention, experts, rows           the forward pass over both streams, which gives what the loss is of
passes, compiling                         how forward and backward run: as written, compiled, or as CUDA graphs
initial, lora, adapted, frozen,
quantized                                 the model that a run begins with, and which part of it is trained
optimizer, sharding, distributed          fp32 weights and their updates, in one process or several
trainer, limits, history                  the loop, what ends it, and its record of past steps
meters, flops, progress, curve            what a run reports
checkpoint, sharded_checkpoint,
resuming, export                          what it leaves behind
check, bench, profile, distill            a look at the data, two at the speed; own answers as data
build                                     the data that the embedded model is trained on
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redraft.train.recipe import Recipe, read_recipe
    from redraft.train.trainer import Trainer, TrainingResult, train

__all__ = ["Recipe", "Trainer", "TrainingResult", "read_recipe", "train"]
_HOMES = {"Recipe": "recipe", "read_recipe": "recipe", "Trainer": "trainer", "TrainingResult": "trainer",
          "train": "trainer"}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
