"""Recipes: everything a training run depends on, as one TOML file read into frozen, validated settings.

Every table of the file is one dataclass; an unknown key, a wrong type or an impossible value is a `SettingError` that
names it. Paths in a recipe are relative to the folder where the command runs.

data, objective, optimizer, lora, run   the settings of one table each
whole                                   all of them together, and constraints between them
reading                                 from a TOML file             tables   from a table to its dataclass
checks                                  the sentence for a wrong value
"""

from redraft.train.recipe.data import DataSettings, SourceSettings
from redraft.train.recipe.lora import LoraSettings
from redraft.train.recipe.objective import ObjectiveSettings
from redraft.train.recipe.optimizer import OptimizerSettings
from redraft.train.recipe.reading import read_recipe, recipe_from_dict
from redraft.train.recipe.run import RunSettings
from redraft.train.recipe.whole import Recipe

__all__ = [
    "DataSettings",
    "LoraSettings",
    "ObjectiveSettings",
    "OptimizerSettings",
    "Recipe",
    "RunSettings",
    "SourceSettings",
    "read_recipe",
    "recipe_from_dict",
]
