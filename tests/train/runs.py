"""Short runs on a CPU, for the tests that look at what they leave."""

import dataclasses

from redraft.train.recipe import Recipe
from redraft.train.trainer import train


def changed(recipe: Recipe, **run: object) -> Recipe:
    return dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, **run))


def run(recipe: Recipe, **options: bool) -> list[float]:
    return train(recipe, device="cpu", quiet=True, **options).losses
