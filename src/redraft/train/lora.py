"""LoRA training: frozen weights with trainable low-rank factors beside them, used by both passes.

`adapt` replaces the chosen modules of a model in place. The frozen weights keep their names, so the forward pass and
the tables of names do not know the difference; `collect` reads the factors out as an `Adapter`.

Shapes: T tokens, r rank, I input, O output, E experts.
"""

from __future__ import annotations

import math
from fnmatch import fnmatch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redraft.errors import SettingError
from redraft.kernels import eager
from redraft.model import Transformer
from redraft.model.adapters import Adapter, Factors
from redraft.model.moe import Experts
from redraft.train.recipe import LoraSettings

GROUPS = {
    "attention": "layers.*.attention.?_proj",
    "mlp": "layers.*.mlp.*_proj",
    "self_conditioning": "self_conditioning.*_proj",
    "router": "layers.*.router.proj",
    "experts": "layers.*.experts",
}
"""Names for usual targets, and the patterns of our modules that they stand for."""


class LoraLinear(nn.Module):
    """x W^T + scale * dropout(x) A^T B^T, with W frozen. B begins at zero, so that nothing changes at first."""

    def __init__(self, base: nn.Linear, settings: LoraSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = base.weight.requires_grad_(False)
        outputs, inputs = base.weight.shape
        self.lora_a = nn.Parameter(_random((settings.rank, inputs), generator))
        self.lora_b = nn.Parameter(torch.zeros(outputs, settings.rank))
        self.scale, self.dropout = settings.scale, settings.dropout

    def forward(self, x: Tensor) -> Tensor:
        down = F.dropout(x, self.dropout, self.training) @ self.lora_a.t()  # [...,r]
        return F.linear(x, self.weight) + (down @ self.lora_b.t()) * self.scale


class LoraExperts(nn.Module):
    """Frozen experts with factors of their own each."""

    def __init__(self, base: Experts, settings: LoraSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.gate_up_proj = base.gate_up_proj.requires_grad_(False)
        self.down_proj = base.down_proj.requires_grad_(False)
        self.gate_up_a, self.gate_up_b = _factors(base.gate_up_proj, settings.rank, generator)
        self.down_a, self.down_b = _factors(base.down_proj, settings.rank, generator)
        self.scale = settings.scale

    def weights(self) -> tuple[Tensor, Tensor]:
        """The weights [E,O,I] with their changes added."""
        return (
            self.gate_up_proj + (self.gate_up_b @ self.gate_up_a) * self.scale,
            self.down_proj + (self.down_b @ self.down_a) * self.scale,
        )

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        return eager.experts(x, index, weight, *self.weights())


def _factors(weight: Tensor, rank: int, generator: torch.Generator) -> tuple[nn.Parameter, nn.Parameter]:
    """Fresh factors [E,r,I] and [E,O,r] of experts' weights [E,O,I]."""
    count, outputs, inputs = weight.shape
    return nn.Parameter(_random((count, rank, inputs), generator)), nn.Parameter(torch.zeros(count, outputs, rank))


def adapt(model: Transformer, settings: LoraSettings, seed: int) -> list[str]:
    """Freeze `model` and add factors to the modules that `settings.targets` name; returns those modules' names.

    Raises `SettingError` for a target that fits no module that can be adapted.
    """
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    chosen = _chosen(model, settings.targets)
    for name in chosen:
        parent, _, last = name.rpartition(".")
        module = model.get_submodule(name)
        if isinstance(module, Experts):
            adapted: nn.Module = LoraExperts(module, settings, generator)
        else:
            assert isinstance(module, nn.Linear)
            adapted = LoraLinear(module, settings, generator)
        setattr(model.get_submodule(parent), last, adapted.to(model.device))
    return chosen


def _chosen(model: Transformer, targets: tuple[str, ...]) -> list[str]:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Experts)]
    chosen: set[str] = set()
    for target in targets:
        found = {name for name in names if fnmatch(name, GROUPS.get(target, target))}
        if not found:
            raise SettingError(
                f"lora.targets: {target!r} fits no module; use {', '.join(GROUPS)} or a pattern like {names[0]!r}."
            )
        chosen |= found
    return [name for name in names if name in chosen]


def collect(model: Transformer, settings: LoraSettings) -> Adapter:
    """The factors of an adapted model."""
    factors: dict[str, Factors] = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            factors[f"{name}.weight"] = Factors(module.lora_a.detach(), module.lora_b.detach())
        elif isinstance(module, LoraExperts):
            factors[f"{name}.gate_up_proj"] = Factors(module.gate_up_a.detach(), module.gate_up_b.detach())
            factors[f"{name}.down_proj"] = Factors(module.down_a.detach(), module.down_b.detach())
    return Adapter(factors=factors, alpha=settings.alpha, rank=settings.rank)


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform factors A with the spread that PEFT and the JAX recipe use: bounds of 1 / sqrt(I)."""
    bound = 1.0 / math.sqrt(shape[-1])
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
