"""The table [objective]: noise, the loss, and its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from redraft.diffusion.corruption import LEVELS, NoiseSpread
from redraft.errors import SettingError
from redraft.train.recipe.checks import Checks

CorruptionKind = Literal["uniform", "absorbing"]
CORRUPTIONS: tuple[CorruptionKind, ...] = get_args(CorruptionKind)
Loss = Literal["base", "reweighted", "loo", "reweighted-loo"]
LOSSES: tuple[Loss, ...] = get_args(Loss)


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The loss. The defaults are the open objective of DiffusionGemma, with balanced experts added."""

    noise_eps: float = 1e-4
    levels: NoiseSpread = "uniform"
    """The distribution of noise levels: `uniform`, or with more `high` or `low` ones."""
    corruption: CorruptionKind = "uniform"
    """`uniform` draws tokens, like the sampler; `absorbing` puts a mask token, for research."""
    mask_token: int = 4
    """The token that absorbing corruption puts in."""
    loss: Loss = "base"
    """`base` cross-entropy; `reweighted` by 1 / (1 - t); `loo`, which reads the logits as those of a predictor that has
    not seen the position's own token; or `reweighted-loo`."""
    weight_clip: float = 10.0
    """The largest factor of a reweighted loss."""
    kept_weight: float = 1.0
    """Weight of canvas positions whose token was kept."""
    encoder_weight: float = 1.0
    encoder_share: float = 1.0
    """Share of the clean positions with an encoder loss, redrawn every step among those with a weight."""
    balance_weight: float = 0.01
    self_conditioning: float = 0.5
    """Share of the rows that are conditioned on a first pass."""
    temperature_low: float = 1.0
    """First-pass logits are divided by a temperature drawn per row from [temperature_low, 1]."""
    rollout_bound: tuple[float, float] = (0.1, 2.0)
    """Minimum and maximum entropy bound of the canvases that continue from the model's own draft (`rollout` of a
    source), in nats; drawn uniformly on a logarithmic scale."""

    def __post_init__(self) -> None:
        checks = Checks(self, "objective.")
        checks.one_of(LEVELS, "levels")
        checks.one_of(CORRUPTIONS, "corruption")
        checks.one_of(LOSSES, "loss")
        checks.that(self.mask_token >= 0, "mask_token", "a token id")
        if self.corruption == "absorbing" and "loo" in self.loss:
            raise SettingError("objective.loss 'loo' is defined only for uniform corruption, not for absorbing.")
        checks.at_least(1, "weight_clip")
        checks.that(0 < self.noise_eps < 0.5, "noise_eps", "between 0 and 0.5")
        checks.at_least(0, "encoder_weight", "balance_weight", "kept_weight")
        checks.shares("self_conditioning")
        rising = len(self.rollout_bound) == 2 and 0 < self.rollout_bound[0] <= self.rollout_bound[1]
        checks.that(rising, "rollout_bound", "two numbers above 0, the smaller one first")
        checks.positive_shares("encoder_share", "temperature_low")
        checks.has_effect(self.self_conditioning > 0, "temperature_low", "without self_conditioning")
        checks.has_effect(self.corruption == "absorbing", "mask_token", f"with corruption {self.corruption!r}")
        checks.has_effect("reweighted" in self.loss, "weight_clip", f"with loss {self.loss!r}")
        checks.has_effect(self.encoder_weight > 0, "encoder_share", "without encoder_weight")

    @property
    def absorbing_token(self) -> int | None:
        """The token that corruption puts everywhere; None if it draws tokens."""
        return self.mask_token if self.corruption == "absorbing" else None
