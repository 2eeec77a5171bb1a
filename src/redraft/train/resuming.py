"""How a run is stopped and resumed: what its checkpoint says about it, and whether it belongs to this run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redraft.errors import CheckpointError, SettingError, why
from redraft.model.files import described, fingerprint
from redraft.model.folders import resolve_folder
from redraft.train.checkpoint import FILE, load_checkpoint, save_checkpoint
from redraft.train.distributed import World
from redraft.train.recipe import Recipe
from redraft.train.sharded_checkpoint import FOLDER, OLD, load_meta, load_sharded, save_sharded
from redraft.train.sharding import ShardedWeights, TrainedWeights

_RESUMED = ("data", "objective", "optimizer")
"""The tables of a recipe that may differ when a run is resumed."""
_NEWER = ("lora_alpha", "lora_base_sampled")
"""What older checkpoints do not record."""
_OUTDATED = ("lora_base", "spare_holes")
"""What only older checkpoints record, and what is no longer compared: a base's first rows, and what a model was taught.
"""
_SHOWN = {"lora_rank": "lora.rank", "lora_alpha": "lora.alpha", "lora_targets": "lora.targets",
          "lora_quantization": "lora.quantization", "lora_base_sampled": "model under its adapter"}  # fmt: skip
"""What the parts of an adapter's identity are called in messages."""


def check_begins_in(folder: Path) -> None:
    """Raise `SettingError` if `folder`, which may not exist yet, already contains a run or cannot be read."""
    try:
        taken = any((folder / name).exists() for name in (FILE, FOLDER, OLD))
    except OSError as error:
        raise _cannot_be_made(folder, error) from error
    if taken:
        raise SettingError(f"{str(folder)!r} already holds a run; resume it or choose another folder.")


def _cannot_be_made(folder: Path, error: Exception) -> SettingError:
    return SettingError(f"run.out: the folder {str(folder)!r} cannot be made: {why(error)}.")


class RunCheckpoint:
    """The checkpoint of a recipe's run: one file or, for sharded weights, a folder that all processes write."""

    def __init__(self, recipe: Recipe, world: World) -> None:
        """Raises `CheckpointError` if the model under an adapter cannot be read."""
        self._world, self._sharded = world, recipe.run.shard
        self._folder = Path(recipe.run.out)
        self._identity = {"seed": recipe.run.seed, "model": _shape(recipe)}
        self._settings = {table: dataclasses.asdict(getattr(recipe, table)) for table in _RESUMED}
        if recipe.data.tokenizer:
            self._settings["data"]["tokenizer"] = str(described(Path(recipe.data.tokenizer)))

    def begin(self) -> None:
        """Create the folder of a new run. Raises `SettingError` if it already contains a run or cannot be created."""
        check_begins_in(self._folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # a name with a null character is a ValueError
            raise _cannot_be_made(self._folder, error) from error

    def load(self) -> dict[str, Any]:
        """The saved state of the run. It includes weights that are one file; sharded ones are read by `restore`.

        Raises `SettingError` if there is no checkpoint, `CheckpointError` if it is damaged or another run's.
        """
        state = load_meta(self._folder) if self._sharded else load_checkpoint(self._folder)
        if other := self._differences(state):
            raise CheckpointError(
                f"The checkpoint in {str(self._folder)!r} belongs to a run with another {', another '.join(other)}."
            )
        for name in ("step",) if self._sharded else ("step", "weights"):
            if name not in state:
                raise CheckpointError(f"The checkpoint in {str(self._folder)!r} is incomplete: it has no {name!r}.")
        return state

    def _differences(self, state: Mapping[str, Any]) -> list[str]:
        """What is not the same of seed, model and adapter; older checkpoints do not record their `alpha` or base."""
        saved, model = state.get("model"), self._identity["model"]
        if not isinstance(saved, dict):
            return ["model"]
        names = [name for name in model | saved if name not in _OUTDATED and saved.get(name) != model.get(name)]
        other = [_SHOWN.get(name, f"model.{name}") for name in names if name in saved or name not in _NEWER]
        return other + ["seed"] * (state.get("seed") != self._identity["seed"])

    def changed(self, state: Mapping[str, Any]) -> list[str]:
        """The settings of data, objective and optimizer that differ from those that `state` was saved with."""
        saved = state.get("settings", {})  # older checkpoints do not record them
        return [
            f"{table}.{name}"
            for table, settings in self._settings.items()
            for name, value in settings.items()
            if name in saved.get(table, {}) and saved[table][name] != value
        ]

    def restore(self, state: dict[str, Any], weights: TrainedWeights) -> None:
        """Restore the weights of a checkpoint that `load` returned. Every process has to call it."""
        if isinstance(weights, ShardedWeights):
            load_sharded(self._folder, weights.state())
        else:
            weights.load_state(state["weights"])

    def save(self, weights: TrainedWeights, *, step: int, batches: int, steps: int, seconds: float) -> None:
        """Replace the checkpoint: one process writes it, or each writes its part of sharded weights.

        The run is at `step` of `steps` steps, for which all processes together have trained on `batches` batches. It
        has taken `seconds`, including earlier starts.
        Every process waits for all the others, and raises `TrainingError` if it cannot be written; the previous one is
        then kept.
        """
        meta = {"step": step, "batches": batches, "steps": steps, "seconds": seconds, **self._identity}
        meta["settings"] = self._settings
        if isinstance(weights, ShardedWeights):
            save_sharded(self._folder, meta, weights.state(), self._world)
            return
        with self._world.writing(f"The checkpoint {str(self._folder / FILE)!r}"):
            if self._world.is_main:
                save_checkpoint(self._folder, meta | {"weights": weights.state()})


def _shape(recipe: Recipe) -> dict[str, Any]:
    """The numbers of model and adapter as plain values, for comparing a checkpoint with a recipe.

    An adapter's base is identified by its weights, wherever they are stored: the checkpoint contains only the factors.
    """
    model = recipe.model
    shape: dict[str, Any] = {f.name: getattr(model, f.name) for f in dataclasses.fields(model) if f.compare}
    if recipe.lora is not None:
        shape |= {"lora_rank": recipe.lora.rank, "lora_alpha": recipe.lora.alpha, "lora_targets": recipe.lora.targets}
        shape["lora_base_sampled"] = fingerprint(resolve_folder(recipe.run.init))
        if recipe.lora.quantization:
            shape["lora_quantization"] = recipe.lora.quantization
    return {name: list(value) if isinstance(value, tuple) else value for name, value in shape.items()}
