"""A whole recipe: all its tables, and the constraints between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.train.recipe.checks import Checks, check
from redraft.train.recipe.data import DataSettings
from redraft.train.recipe.lora import LoraSettings
from redraft.train.recipe.objective import ObjectiveSettings
from redraft.train.recipe.optimizer import OptimizerSettings
from redraft.train.recipe.run import RunSettings

_LARGEST_BATCH = 2**31
"""More tokens than any machine has memory for, and few enough for numpy to say so."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run."""

    model: ModelConfig
    data: DataSettings
    optimizer: OptimizerSettings
    run: RunSettings
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    lora: LoraSettings | None = None
    """If None, all weights are trained."""

    def __post_init__(self) -> None:
        self._check_tokens()
        self._check_effects()
        self._check_size()
        if self.run.curve_every and not self.data.tokenizer:
            raise SettingError("run.curve_every asks the model questions, so it needs data.tokenizer.")
        if self.run.shard and self.optimizer.average:
            raise SettingError(
                "optimizer.average cannot be combined with run.shard; set average to 0 or shard to false."
            )
        if self.lora is not None and not self.run.init:
            raise SettingError("run.init is missing; LoRA needs a model to adapt.")

    def _check_tokens(self) -> None:
        vocabulary = self.model.vocab_size
        for name in ("bos_token_id", "pad_token_id"):
            token = getattr(self.model, name)
            check(0 <= token < vocabulary, f"model.{name}", token, "a token in the vocabulary")
        if (mask := self.objective.absorbing_token) is not None:
            check(mask < vocabulary, "objective.mask_token", mask, f"below the vocabulary size of {vocabulary}")

    def _check_effects(self) -> None:
        """Refuse settings of sources that the objective leaves without effect, and the other way round."""
        objective = self.objective
        Checks(objective, "objective.").has_effect(self.data.rolls_out, "rollout_bound", "without rollout in a source")
        for source in self.data.sources:
            checks = Checks(source, f"source {source.name}: ")
            checks.has_effect(objective.encoder_weight > 0, "prompt_weight", "without objective.encoder_weight")
            checks.has_effect(objective.self_conditioning > 0, "rollout", "without objective.self_conditioning")
            if source.rollout and objective.loss != "base":
                raise SettingError(
                    f"source {source.name}: rollout cannot be combined with objective.loss {objective.loss!r}, "
                    "which depends on the noise level; the model's own drafts have none."
                )

    def _check_size(self) -> None:
        batch = self.data.rows * (self.data.tokens + self.data.canvases * self.model.canvas_length)
        if batch >= _LARGEST_BATCH:
            raise SettingError(
                f"data: a batch would have {batch:,} tokens; give fewer or shorter rows or fewer canvases."
            )
        longest = self.data.tokens + self.model.canvas_length
        if longest > self.model.max_position_embeddings:
            raise SettingError(
                f"data.tokens and a canvas take {longest} positions together; the model has "
                f"{self.model.max_position_embeddings}."
            )
