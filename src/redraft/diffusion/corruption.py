"""Corruption: how training turns a clean canvas into a noisy one.

Every canvas draws one noise level t; every token of its noise region is then replaced, with probability t, by a uniform
token of the whole vocabulary (possibly the token itself) or, for research, by one mask token. These are pure functions
of their inputs and a generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
    return torch.Generator(device=device).manual_seed(seed_for(*key))


def seed_for(*key: int) -> int:
    """The seed of `generator_for`."""
    mixed = 0
    for part in key:
        mixed = (mixed * 6_364_136_223_846_793_005 + part + 1_442_695_040_888_963_407) % 2**64
        mixed ^= mixed >> 29
    return mixed % 2**63


NoiseSpread = Literal["uniform", "high", "low"]
LEVELS: dict[NoiseSpread, Callable[[Tensor], Tensor]] = {
    "uniform": lambda u: u,
    "high": lambda u: u.sqrt(),
    "low": lambda u: 1.0 - (1.0 - u).sqrt(),
}
"""How noise levels are spread: evenly, or with a density that rises or falls towards full noise."""


def noise_levels(full_noise: Tensor, eps: float, generator: torch.Generator, spread: NoiseSpread = "uniform") -> Tensor:
    """t in (eps, 1 - eps) per canvas, except that with probability `full_noise` [...] it is exactly 1."""
    draws = torch.rand((2, *full_noise.shape), generator=generator, device=full_noise.device)
    return torch.where(draws[1] < full_noise, 1.0, eps + (1.0 - 2.0 * eps) * LEVELS[spread](draws[0]))


def noise_tokens(like: Tensor, vocab_size: int, generator: torch.Generator, mask_token: int | None = None) -> Tensor:
    """Fresh noise of the shape of `like`: uniform tokens, or the mask token everywhere."""
    if mask_token is not None:
        return torch.full_like(like, mask_token)
    return torch.randint(vocab_size, like.shape, generator=generator, device=like.device, dtype=like.dtype)


def corrupt(
    clean: Tensor, region: Tensor, level: Tensor, vocab_size: int, generator: torch.Generator,
    mask_token: int | None = None,
) -> Corruption:  # fmt: skip
    """Corrupt canvases `clean` [..., C] inside `region` [..., C] (bool) at noise `level` [...]."""
    chosen = torch.rand(clean.shape, generator=generator, device=clean.device) < level[..., None]
    noise = noise_tokens(clean, vocab_size, generator, mask_token)
    replaced = chosen & region
    return Corruption(tokens=torch.where(replaced, noise, clean), level=level, replaced=replaced)
