"""Uniform corruption: how training makes a noisy canvas out of a clean one.

Every canvas draws one noise level t; every token of its noise region is then replaced, with probability t, by a uniform
token of the whole vocabulary (which may be the token itself). Pure functions of their inputs and a generator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """Noisy canvases `tokens` [..., C], their noise `level` [...] and the mask of `replaced` positions [..., C]."""

    tokens: Tensor
    level: Tensor
    replaced: Tensor


def generator_for(device: torch.device | str, *key: int) -> torch.Generator:
    """A generator that depends on `key` alone, such as (seed, step), so that a resumed run draws the same numbers."""
    mixed = 0
    for part in key:
        mixed = (mixed * 6_364_136_223_846_793_005 + part + 1_442_695_040_888_963_407) % 2**64
        mixed ^= mixed >> 29
    return torch.Generator(device=device).manual_seed(mixed % 2**63)


def noise_levels(full_noise: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    """t ~ U(eps, 1 - eps) per canvas, except that with probability `full_noise` [...] it is exactly 1."""
    draws = torch.rand((2, *full_noise.shape), generator=generator, device=full_noise.device)
    return torch.where(draws[1] < full_noise, 1.0, eps + (1.0 - 2.0 * eps) * draws[0])


def corrupt(clean: Tensor, region: Tensor, level: Tensor, vocab_size: int, generator: torch.Generator) -> Corruption:
    """Corrupt canvases `clean` [..., C] inside `region` [..., C] (bool) at noise `level` [...]."""
    chosen = torch.rand(clean.shape, generator=generator, device=clean.device) < level[..., None]
    noise = torch.randint(vocab_size, clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
    replaced = chosen & region
    return Corruption(tokens=torch.where(replaced, noise, clean), level=level, replaced=replaced)
