"""LoRA adapters for tests: random factors for some of a model's weights."""

import re

import torch

from redraft.model import Model
from redraft.model.adapters import Adapter, Factors

DENSE = r"(attention\.[qkvo]|mlp\.(gate|up|down)|self_conditioning\.(gate|up|down))_proj\.weight"


def random_adapter(model: Model, seed: int, names: str = DENSE, *, rank: int = 2, size: float = 0.1) -> Adapter:
    """Changes, of about `size`, of every weight whose name matches `names` somewhere."""
    generator = torch.Generator().manual_seed(seed)
    factors = {}
    for name, weight in model.named_parameters():
        if re.search(names, name):
            *lead, outputs, inputs = weight.shape
            a = torch.randn(*lead, rank, inputs, generator=generator)
            factors[name] = Factors(a, torch.randn(*lead, outputs, rank, generator=generator) * size)
    return Adapter(factors=factors, alpha=float(rank), rank=rank)
