"""The masters against plain AdamW on the same gradients, the learning rate, and what a resumed optimizer takes from
the recipe."""

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
            masters.accumulate()
        norm = masters.step(number, batches=2)
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


def test_low_precision_working_weights_follow_fp32_masters() -> None:
    model = nn.Linear(4, 4, bias=False)
    masters = Masters(model, torch.bfloat16, OptimizerSettings(steps=10, learning_rate=1e-5))
    start = masters.masters[0].detach().clone()
    for number in range(3):
        masters.refresh()
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        masters.accumulate()
        masters.step(number)
    moved = start - masters.masters[0].detach()
    torch.testing.assert_close(moved, torch.full_like(moved, 3e-5), rtol=0.05, atol=1e-7)
    assert model.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(("schedule", "expected"), [
    ("cosine", {0: 0.25, 3: 1.0, 11: 0.55, 19: 0.1, 20: 0.1, 30: 0.1}),
    ("wsd", {0: 0.25, 4: 1.0, 15: 1.0, 17: 0.55, 19: 0.1, 20: 0.1, 30: 0.1}),
])  # fmt: skip
def test_the_learning_rate_warms_up_and_falls(schedule: str, expected: dict[int, float]) -> None:
    settings = OptimizerSettings(steps=20, learning_rate=2.0, schedule=schedule, warmup=4)
    for step, share in expected.items():
        assert learning_rate(settings, step) == pytest.approx(2.0 * share), step


def test_a_fall_longer_than_what_the_warm_up_leaves_begins_at_the_peak() -> None:
    settings = OptimizerSettings(steps=20, learning_rate=2.0, schedule="wsd", warmup=4, decay_share=1.0)
    assert [learning_rate(settings, step) for step in (3, 11, 19)] == pytest.approx([2.0, 1.1, 0.2])


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize("warmup", [0, 1, 2, 5])
@pytest.mark.parametrize("final", [0.0, 0.1, 0.3])
def test_the_last_step_has_the_final_rate_and_none_exceeds_the_peak(schedule: str, warmup: int, final: float) -> None:
    settings = OptimizerSettings(steps=6, learning_rate=2.0, schedule=schedule, warmup=warmup, final_share=final)
    rates = [learning_rate(settings, step) for step in range(6)]
    assert rates[-1] == 2.0 * final
    assert max(rates) == rates[max(0, warmup - 1)] == pytest.approx(2.0)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (4, 4)])
def test_a_run_without_steps_behind_its_peak_ends_with_it(steps: int, warmup: int) -> None:
    settings = OptimizerSettings(steps=steps, learning_rate=2.0, warmup=warmup, final_share=0.0)
    assert learning_rate(settings, steps - 1) == 2.0
