"""Every recipe of the repository can be read, and says where its data come from."""

import tomllib
from pathlib import Path

import pytest

from redraft.train.recipe import recipe_from_dict

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid(path: Path) -> None:
    """Where a recipe begins with a model that has to be fetched, the embedded one stands for it."""
    text = path.read_text(encoding="utf-8").replace("models/diffusiongemma-26B-A4B-it", "tiny")
    raw = tomllib.loads(text)
    if "model" in raw and "init" in raw["run"]:
        raw["run"].pop("init")
        if "lora" in raw:
            raw["run"]["init"] = "tiny"
    recipe = recipe_from_dict(path.stem, raw)
    assert text.startswith("# ")
    assert recipe.run.out.startswith("runs/")
    assert all(source.path or source.kind == "reverse" for source in recipe.data.sources)


def test_there_is_one_for_every_use() -> None:
    names = {path.stem for path in RECIPES}
    assert names >= {"chat_sft", "tool_calling", "code_infill", "sudoku", "sudoku_lora", "lora_26b", "distill"}
