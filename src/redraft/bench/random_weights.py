"""Random weights of any shape, created where they are used and one at a time.

Matrices are drawn from N(0, 0.02), norms and scales are 1: with router weights drawn like that, a random canvas of the
26B model touches every expert of every layer, which is the most that a step can have to read.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from redraft.config import ModelConfig
from redraft.model.layouts import Source
from redraft.model.transformer import Transformer

STD = 0.02


def random_source(config: ModelConfig, device: torch.device, dtype: torch.dtype, *, seed: int = 0) -> Source:
    """Weights by name; the same name always gives the same numbers on the same kind of device."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Transformer(config).state_dict().items()}

    def weight(name: str) -> Tensor:
        shape = shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=dtype, device=device)
        generator = torch.Generator(device).manual_seed(seed ^ zlib.crc32(name.encode()))
        return torch.empty(shape, dtype=dtype, device=device).normal_(0, STD, generator=generator)

    return weight
