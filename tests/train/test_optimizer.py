"""The masters against plain AdamW on the same gradients, and what a resumed optimizer takes from the recipe."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

from redraft.train.optimizer import Masters, learning_rate
from redraft.train.recipe import OptimizerSettings

SETTINGS = OptimizerSettings(
    steps=8, learning_rate=0.1, warmup=2, betas=(0.5, 0.7), eps=1e-3, weight_decay=0.5, average=0.2
)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_updates_are_plain_adamws_and_the_average_follows_them(clip: float) -> None:
    torch.manual_seed(0)
    settings, plain = dataclasses.replace(SETTINGS, clip=clip), nn.Linear(4, 3)
    working = copy.deepcopy(plain)
    masters = Masters(working, torch.float32, settings)
    groups = [{"params": [plain.weight], "weight_decay": 0.5}, {"params": [plain.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=settings.betas, eps=settings.eps)
    average = [weight.detach().clone() for weight in plain.parameters()]
    for number in range(4):
        batches = torch.randn(2, 5, 4)
        masters.refresh()
        for batch in batches:
            working(batch).square().sum().backward()
            masters.accumulate(share=0.5)
        norm = masters.step(number)
        optimizer.zero_grad()
        (plain(batches).square().sum() / 2).backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain.parameters(), clip or math.inf))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, number)
        optimizer.step()
        decay = min(0.2, (1 + number) / (10 + number))
        average = [a.lerp(weight.detach(), 1 - decay) for a, weight in zip(average, plain.parameters(), strict=True)]
        torch.testing.assert_close(masters.masters, list(plain.parameters()))
        torch.testing.assert_close(list(masters.trained().values()), average)


def test_a_resumed_optimizer_follows_the_recipe_and_a_new_average_begins_at_the_weights() -> None:
    earlier = Masters(nn.Linear(4, 3), torch.float32, dataclasses.replace(SETTINGS, average=0.0))
    changed = dataclasses.replace(SETTINGS, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.3)
    resumed = Masters(nn.Linear(4, 3), torch.float32, changed)
    resumed.load_state(earlier.state())
    names = ("betas", "eps", "weight_decay")
    found = [tuple(group[name] for name in names) for group in resumed.optimizer.param_groups]
    assert found == [((0.8, 0.9), 1e-5, 0.3), ((0.8, 0.9), 1e-5, 0.0)]
    torch.testing.assert_close(resumed.trained(), earlier.trained())
