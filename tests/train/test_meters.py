"""What a run reports, against sums over single tokens."""

import dataclasses

import torch

from redraft.diffusion.corruption import Corruption
from redraft.train.batch import Batch
from redraft.train.distributed import World
from redraft.train.meters import Meters
from redraft.train.objective import BatchLosses


def test_means_are_those_of_the_tokens_of_each_group(batch: Batch) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = batch.canvas_target.shape
    batch = dataclasses.replace(batch, source=torch.tensor([1, 0]))
    level = torch.tensor([[0.05, 0.1, 0.55, 1.0], [0.99, 0.58, 0.12, 0.3]])
    hit, replaced = (torch.rand(shape, generator=generator) < share for share in (0.4, 0.6))
    loss, nothing = torch.rand(shape, generator=generator), torch.zeros(())
    outcome = BatchLosses(
        loss=torch.tensor(3.0), decoder=torch.tensor(2.0), encoder=torch.tensor(1.0), balance=nothing,
        token_loss=loss, token_hit=hit, noise=Corruption(tokens=batch.canvas_target, level=level, replaced=replaced),
    )  # fmt: skip
    meters = Meters(["one", "two"], torch.device("cpu"))
    meters.add(outcome, batch)
    meters.add(dataclasses.replace(outcome, loss=torch.tensor(4.0)), batch)
    meters.add_norm(torch.tensor(5.0))
    found = meters.report(World())
    expected = {"loss": 3.5, "decoder": 2.0, "encoder": 1.0, "balance": 0.0, "norm": 5.0}
    whole = torch.ones(shape, dtype=torch.bool)
    groups = {"replaced": replaced, "kept": ~replaced, "one": whole & (batch.source == 0)[:, None, None],
              "two": whole & (batch.source == 1)[:, None, None]}  # fmt: skip
    for name, low, high in (("t0.0", 0, 0.1), ("t0.1", 0.1, 0.2), ("t0.3", 0.3, 0.4), ("t0.5", 0.5, 0.6),
                            ("t0.9", 0.9, 2)):  # fmt: skip
        groups[name] = whole & ((level >= low) & (level < high))[..., None]
    for name, inside in groups.items():
        weight = batch.canvas_weight * inside
        if weight.sum() > 0:  # the last canvas of the second row is empty
            expected[f"loss_{name}"] = float((weight * loss).sum() / weight.sum())
            expected[f"hit_{name}"] = float((weight * hit).sum() / weight.sum())
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert meters.report(World()) == dict.fromkeys(("loss", "decoder", "encoder", "balance"), 0.0)
