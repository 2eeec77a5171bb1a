"""Noise for training: how much of a canvas is replaced, where, and by what."""

import torch

from redraft.diffusion.corruption import corrupt, generator_for, noise_levels


def test_corruption_replaces_at_its_level_inside_its_region() -> None:
    clean = torch.full((400, 32), 7)
    region = torch.zeros(400, 32, dtype=torch.bool)
    region[:, 8:] = True
    full = torch.zeros(400)
    full[200:] = 1.0
    generator = generator_for("cpu", 1, 2)
    level = noise_levels(full, 1e-3, generator)
    assert (level[200:] == 1).all()
    assert level[:200].min() >= 1e-3
    assert abs(float(level[:200].mean()) - 0.5) < 0.06
    noise = corrupt(clean, region, level, 50, generator)
    assert (noise.tokens[:, :8] == 7).all()
    assert noise.replaced[200:, 8:].all()
    assert abs(float((noise.replaced[:200, 8:].float().mean(1) - level[:200]).mean())) < 0.02
    assert noise.tokens[200:, 8:].unique().numel() == 50
    again = noise_levels(full, 1e-3, generator_for("cpu", 1, 2))
    assert torch.equal(again, level)
    assert not torch.equal(noise_levels(full, 1e-3, generator_for("cpu", 1, 3)), level)
