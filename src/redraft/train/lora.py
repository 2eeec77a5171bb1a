"""LoRA training: frozen weights with trainable low-rank factors alongside, used by both passes.

`adapt` replaces the chosen modules of a model in place. The frozen weights keep their names, so the forward pass and
the tables of names do not notice the difference; `collect` makes an `Adapter` from the factors.

Shapes: T tokens, r rank, I input, O output, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.model import Transformer
from redraft.model.adapters import Adapter, Factors
from redraft.model.moe import Experts
from redraft.train.adapted import adapted_product
from redraft.train.experts import FrozenExperts, LowRank, routed_experts
from redraft.train.frozen import FrozenLinear, linear
from redraft.train.recipe import LoraSettings

GROUPS = {
    "attention": "layers.*.attention.?_proj",
    "mlp": "layers.*.mlp.*_proj",
    "self_conditioning": "self_conditioning.*_proj",
    "router": "layers.*.router.proj",
    "experts": "layers.*.experts",
}
"""Names for common targets, and the patterns of our modules that they stand for."""
_ADAPTABLE = nn.Linear | FrozenLinear | Experts | FrozenExperts


class LoraLinear(nn.Module):
    """x W^T + scale * dropout(x) A^T B^T, with W frozen. B starts at zero, so nothing changes at first."""

    def __init__(self, base: nn.Linear | FrozenLinear, settings: LoraSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = base.weight
        outputs, inputs = base.weight.shape
        self.lora_a = nn.Parameter(_random((settings.rank, inputs), generator))
        self.lora_b = nn.Parameter(torch.zeros(outputs, settings.rank))
        self.scale, self.dropout = settings.scale, settings.dropout

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        return self._product(rows).unflatten(0, x.shape[:-1])

    def _product(self, rows: Tensor) -> Tensor:
        dropped = self.dropout > 0 and self.training
        if isinstance(self.weight, Tensor) and not dropped:
            return adapted_product(rows, self.weight, self.lora_a, self.lora_b, self.scale)
        low = F.dropout(rows, self.dropout, self.training) @ self.lora_a.t()  # [T,r]
        return torch.addmm(linear(rows, self.weight), low, self.lora_b.t(), alpha=self.scale)


class LoraExperts(nn.Module):
    """Frozen experts, each with its own factors."""

    def __init__(self, base: Experts | FrozenExperts, settings: LoraSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = base.gate_up_proj, base.down_proj
        self.gate_up_a, self.gate_up_b = _factors(base.gate_up_proj.shape, settings.rank, generator)
        self.down_a, self.down_b = _factors(base.down_proj.shape, settings.rank, generator)
        self.scale = settings.scale

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        change = LowRank(self.gate_up_a, self.gate_up_b, self.down_a, self.down_b, self.scale)
        return routed_experts(x, index, weight, self.gate_up_proj, self.down_proj, change)


def _factors(shape: Sequence[int], rank: int, generator: torch.Generator) -> tuple[nn.Parameter, nn.Parameter]:
    """Fresh factors [E,r,I] and [E,O,r] of experts' weights [E,O,I]."""
    count, outputs, inputs = shape
    return nn.Parameter(_random((count, rank, inputs), generator)), nn.Parameter(torch.zeros(count, outputs, rank))


def adapted_modules(config: ModelConfig, settings: LoraSettings) -> list[str]:
    """Names of the modules that `adapt` would add factors to in a model of this shape, without its weights.

    Raises `SettingError` as `adapt` does.
    """
    with torch.device("meta"):
        return _modules(Transformer(config), settings)


def adapt(model: Transformer, settings: LoraSettings, seed: int) -> list[str]:
    """Freeze `model` and add factors to the modules that `settings.targets` name; returns those modules' names.

    Raises `SettingError` for a target that matches no adaptable module, a rank that is too high for all of them, and
    dropout if they are all experts.
    """
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    chosen = _modules(model, settings)
    for name in chosen:
        parent, _, last = name.rpartition(".")
        module = model.get_submodule(name)
        if isinstance(module, Experts | FrozenExperts):
            adapted: nn.Module = LoraExperts(module, settings, generator)
        else:
            assert isinstance(module, nn.Linear | FrozenLinear)
            adapted = LoraLinear(module, settings, generator)
        setattr(model.get_submodule(parent), last, adapted.to(model.device))
    return chosen


def _modules(model: Transformer, settings: LoraSettings) -> list[str]:
    chosen = _chosen(model, settings.targets)
    _check_rank(model, chosen, settings.rank)
    if settings.dropout and all(isinstance(model.get_submodule(name), Experts | FrozenExperts) for name in chosen):
        raise SettingError("lora.dropout has no effect on experts; remove it.")
    return chosen


def _check_rank(model: Transformer, chosen: Sequence[str], rank: int) -> None:
    """Raise `SettingError` for a rank that exceeds what every weight of the chosen modules can use."""
    sides = [min(shape[-2:]) for name in chosen for shape in _shapes(model.get_submodule(name))]
    if rank > max(sides):
        raise SettingError(f"lora.rank is {rank}; no targeted weight has a rank above {max(sides)}.")


def _shapes(module: nn.Module) -> list[Sequence[int]]:
    if isinstance(module, Experts | FrozenExperts):
        return [module.gate_up_proj.shape, module.down_proj.shape]
    assert isinstance(module, nn.Linear | FrozenLinear)
    return [module.weight.shape]


def _chosen(model: Transformer, targets: tuple[str, ...]) -> list[str]:
    names = [name for name, module in model.named_modules() if isinstance(module, _ADAPTABLE)]
    chosen: set[str] = set()
    for target in targets:
        found = {name for name in names if fnmatch(name, GROUPS.get(target, target))}
        if not found:
            raise SettingError(
                f"lora.targets: {target!r} matches no module; use {', '.join(GROUPS)} or a pattern like {names[0]!r}."
            )
        chosen |= found
    return [name for name in names if name in chosen]


def collect(trained: Mapping[str, Tensor], settings: LoraSettings) -> Adapter:
    """The adapter made of an adapted model's factors, given by their names in it."""
    factors: dict[str, Factors] = {}
    for name, tensor in trained.items():
        if not name.endswith("_a"):
            continue
        stem = name.removesuffix("_a")
        weight = stem.removesuffix(".lora") + ".weight" if stem.endswith(".lora") else stem + "_proj"
        factors[weight] = Factors(tensor.detach(), trained[stem + "_b"].detach())
    return Adapter(factors=factors, alpha=settings.alpha, rank=settings.rank)


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform factors A with the range that PEFT and the JAX recipe use: bounds of 1 / sqrt(I)."""
    bound = 1.0 / math.sqrt(shape[-1])
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
