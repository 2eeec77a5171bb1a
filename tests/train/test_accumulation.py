"""Batches that a step accumulates learn as one batch of all their rows, however unevenly their tokens are spread."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from redraft.diffusion.corruption import Corruption, corrupt, generator_for
from redraft.model import Transformer
from redraft.train.batch import Batch, in_one_step
from redraft.train.distributed import World
from redraft.train.objective import BatchLosses
from redraft.train.recipe import ObjectiveSettings, Recipe
from redraft.train.trainer import Trainer
from redraft.train.two_stream import TwoStream

ROWS = 4


@pytest.fixture
def uneven(batch: Batch) -> Batch:
    """Four rows with all, some, few and none of their tokens learned."""
    rows = {name: torch.cat((tensor, tensor.flip(0))) for name, tensor in batch.tensors().items()}
    rows["canvas_weight"][1, :, 4:] = 0.0
    rows["canvas_weight"][2].flatten()[5:] = 0.0
    rows["encoder_weight"][2, 6:] *= 0.1
    for name in ("canvas_weight", "encoder_weight"):
        rows[name][3] = 0.0
    return Batch(**rows)


def row_by_row(batch: Batch) -> list[Batch]:
    return [Batch(**{name: tensor[row : row + 1] for name, tensor in batch.tensors().items()}) for row in range(ROWS)]


def gradients(model: Transformer, outcomes: Sequence[BatchLosses]) -> dict[str, Tensor]:
    """Those of the mean loss."""
    weights = dict(model.named_parameters())
    loss = torch.stack([outcome.loss for outcome in outcomes]).mean()
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {name: g for name, g in zip(weights, found, strict=True) if g is not None}


@pytest.mark.parametrize("conditioned", [0.0, 1.0])
@pytest.mark.parametrize(
    "settings",
    [{}, {"kept_weight": 0.3}, {"loss": "reweighted", "weight_clip": 4.0}, {"loss": "loo", "encoder_weight": 0.7}],
)
def test_gradients_and_losses_of_many_batches_are_those_of_one(
    model: Transformer, uneven: Batch, settings: dict[str, object], conditioned: float
) -> None:
    objective = ObjectiveSettings(balance_weight=0.0, self_conditioning=conditioned, **settings)  # type: ignore[arg-type]
    stream = TwoStream(model, objective, compiled=False)
    level = torch.linspace(0.1, 1.0, ROWS * 4).view(ROWS, 4)
    noise = corrupt(uneven.canvas_target, uneven.noise_region, level, 48, generator_for("cpu", 1))
    noises = [
        Corruption(**{name: getattr(noise, name)[row : row + 1] for name in ("tokens", "level", "replaced")})
        for row in range(ROWS)
    ]

    def losses(batch: Batch, noise: Corruption) -> BatchLosses:
        return stream.losses(batch, noise, generator_for("cpu", 2), round(conditioned) * len(batch.tokens))

    whole = losses(uneven, noise)
    parts = [losses(*pair) for pair in zip(in_one_step(row_by_row(uneven), World()), noises, strict=True)]
    for name in ("loss", "decoder", "encoder"):
        mean = torch.stack([getattr(part, name) for part in parts]).mean()
        torch.testing.assert_close(mean, getattr(whole, name), atol=1e-6, rtol=1e-6)
    expected, found = gradients(model, [whole]), gradients(model, parts)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_a_step_and_its_report_are_those_of_one_batch(recipe: Recipe, uneven: Batch) -> None:
    """With masks everywhere there is nothing random; the large eps lets the size of gradients matter."""
    objective = ObjectiveSettings(
        corruption="absorbing", noise_eps=1e-9, self_conditioning=0.0, balance_weight=0.0, encoder_weight=0.5
    )
    optimizer = dataclasses.replace(recipe.optimizer, warmup=0, eps=1e-2, clip=0.0)
    model = dataclasses.replace(recipe.model, canvas_length=8)
    recipe = dataclasses.replace(recipe, objective=objective, optimizer=optimizer, model=model)
    uneven = dataclasses.replace(uneven, full_noise=torch.ones_like(uneven.full_noise))
    trained, reports, losses = [], [], []
    for batches in ([uneven], row_by_row(uneven)):
        trainer = Trainer(recipe, device="cpu", quiet=True)
        trainer.build()
        losses.append(trainer.train_step(*batches))
        trained.append(trainer.masters.trained())
        report = trainer.meters.report(trainer.world)
        reports.append({name: report[name] for name in ("loss", "decoder", "encoder", "norm", "loss_replaced")})
    assert reports[1] == pytest.approx(reports[0], rel=1e-5)
    torch.testing.assert_close(losses[1], losses[0], atol=1e-6, rtol=1e-6)
    assert float(losses[0]) == pytest.approx(reports[0]["loss"])
    torch.testing.assert_close(trained[1], trained[0], atol=1e-7, rtol=1e-5)


def test_a_batch_counts_the_same_whichever_of_its_positions_are_drawn(model: Transformer, uneven: Batch) -> None:
    """The weights of all positions decide, not those of the share with an encoder loss."""
    stream = TwoStream(model, ObjectiveSettings(encoder_share=0.3), compiled=False)
    alone = row_by_row(uneven)
    sums = torch.stack([batch.encoder_weight.sum() for batch in alone])
    for own, part, weight in zip(alone, in_one_step(alone, World()), sums / sums.mean(), strict=True):
        torch.testing.assert_close(stream(part, 1, 2).encoder, stream(own, 1, 2).encoder * weight)


def test_a_step_that_learns_nothing_has_no_loss(model: Transformer, uneven: Batch) -> None:
    empty = row_by_row(uneven)[3]
    stream = TwoStream(model, ObjectiveSettings(balance_weight=0.0), compiled=False)
    losses = [float(stream(part, 1, 2).loss.detach()) for part in in_one_step([empty, empty], World())]
    assert losses == [0.0, 0.0]
