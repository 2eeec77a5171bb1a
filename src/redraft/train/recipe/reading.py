"""From a TOML file to a recipe, completed from the model folder that the run begins with."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redraft.errors import CheckpointError, InputError, SettingError, why
from redraft.model.folders import check_config, read_config, resolve_folder
from redraft.train.recipe.tables import from_table
from redraft.train.recipe.whole import Recipe


def read_recipe(path: Path | str) -> Recipe:
    """Read a TOML recipe. Raises `SettingError` for a missing or malformed file and for any wrong setting."""
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise SettingError(f"There is no recipe at {str(path)!r}.") from None
    except OSError as error:
        raise SettingError(f"The recipe {str(path)!r} cannot be read: {why(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{str(path)!r} is not valid TOML: {why(error)}.") from error
    return recipe_from_dict(raw)


def recipe_from_dict(raw: Mapping[str, Any]) -> Recipe:
    """Build a recipe from parsed TOML; missing parts of [model] and data.tokenizer are taken from `run.init`.

    Raises `SettingError`.
    """
    run = raw.get("run")
    init = run.get("init") if isinstance(run, Mapping) else None
    if init and isinstance(init, str) and _leaves_something_out(raw):
        raw = _completed(raw, _folder_of(init, "run.init"))
    raw = _with_tokenizer(raw)
    if "model" not in raw:
        raise SettingError("recipe: model is missing; give the table [model], or a model folder as run.init.")
    try:
        recipe: Recipe = from_table(Recipe, raw, "recipe")
        check_config(recipe.model, "the recipe")
        return recipe
    except CheckpointError as error:
        raise SettingError(f"recipe: [model] {error}") from error
    except ArithmeticError as error:
        raise SettingError(f"recipe: [model] holds an invalid number: {error}.") from error


def _folder_of(model: str, where: str) -> Path:
    try:
        return resolve_folder(model, weights=False)
    except InputError as error:  # a damaged folder, or a hub that does not have it
        raise SettingError(f"{where}: {error}") from error


def _with_tokenizer(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recipe with the folder of its tokenizer, which may be named as models are: `tiny`, a GGUF file ..."""
    data = raw.get("data")
    named = data.get("tokenizer") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not named or not isinstance(named, str):
        return raw
    return {**raw, "data": {**data, "tokenizer": str(_folder_of(named, "data.tokenizer"))}}


def _leaves_something_out(raw: Mapping[str, Any]) -> bool:
    data = raw.get("data")
    return "model" not in raw or (isinstance(data, Mapping) and "tokenizer" not in data)


def _completed(raw: Mapping[str, Any], init: Path) -> Mapping[str, Any]:
    """A recipe with the model of the folder `init`, and its tokenizer if the recipe names none."""
    data = raw.get("data")
    if "model" not in raw:
        raw = {**raw, "model": read_config(init)}
    if isinstance(data, Mapping) and "tokenizer" not in data and (init / "tokenizer.json").is_file():
        raw = {**raw, "data": {**data, "tokenizer": str(init)}}
    return raw
