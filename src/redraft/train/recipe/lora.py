"""The table [lora]: training factors alongside frozen weights."""

from __future__ import annotations

from dataclasses import dataclass

from redraft.errors import one_of
from redraft.model.quantize import QUANTIZATIONS
from redraft.train.recipe.checks import Checks


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Low-rank training: the weights of `run.init` stay as they are, and only factors alongside them are trained."""

    rank: int
    alpha: float = 0.0
    """The change is scaled by alpha / rank; 0 means alpha = rank."""
    dropout: float = 0.0
    """Dropout on the inputs of the factors of linear modules."""
    targets: tuple[str, ...] = ("attention", "mlp", "self_conditioning")
    """Groups (also `router` and `experts`), or patterns of module names such as `layers.1?.attention.q_proj`."""
    quantization: str = ""
    """Number format of the frozen weights: `fp8`, or `int4` for the experts and FP8 for attention and dense MLP; empty
    keeps them in `run.dtype`."""

    def __post_init__(self) -> None:
        checks = Checks(self, "lora.")
        checks.at_least(1, "rank")
        checks.at_least(0, "alpha")
        checks.below_one("dropout")
        checks.that(len(self.targets) > 0, "targets", "at least one group or pattern")
        known = self.quantization in ("", *QUANTIZATIONS)
        checks.that(known, "quantization", one_of(QUANTIZATIONS, "empty"))
        if self.alpha == 0:
            object.__setattr__(self, "alpha", float(self.rank))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank
