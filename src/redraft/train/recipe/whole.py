"""A whole recipe: all its tables, and the constraints between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.train.recipe.checks import check
from redraft.train.recipe.data import DataSettings, SourceSettings
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
        for name in ("bos_token_id", "pad_token_id"):
            token = getattr(self.model, name)
            check(0 <= token < self.model.vocab_size, f"model.{name}", token, "a token in the vocabulary")
        if self.objective.corruption == "absorbing":
            vocabulary = f"below the vocabulary size of {self.model.vocab_size}"
            mask = self.objective.mask_token
            check(mask < self.model.vocab_size, "objective.mask_token", mask, vocabulary)
        self._check_rollouts()
        for source in self.data.sources:
            if not self.objective.encoder_weight and source.prompt_weight != SourceSettings.prompt_weight:
                raise SettingError(
                    f"source {source.name}: prompt_weight has no effect without objective.encoder_weight; remove it."
                )
        if self.run.curve_every and not self.data.tokenizer:
            raise SettingError("run.curve_every asks the model questions, so it needs data.tokenizer.")
        if self.run.shard and self.optimizer.average:
            raise SettingError(
                "optimizer.average cannot be combined with run.shard; set average to 0 or shard to false."
            )
        if self.lora is not None and not self.run.init:
            raise SettingError("run.init is missing; LoRA needs a model to adapt.")
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

    def _check_rollouts(self) -> None:
        if not self.data.rolls_out and self.objective.rollout_bound != ObjectiveSettings.rollout_bound:
            raise SettingError("objective.rollout_bound has no effect without rollout in a source; remove it.")
        for source in self.data.sources:
            if source.rollout and not self.objective.self_conditioning:
                raise SettingError(
                    f"source {source.name}: rollout has no effect without objective.self_conditioning; remove it."
                )
            if source.rollout and self.objective.loss != "base":
                raise SettingError(
                    f"source {source.name}: rollout cannot be combined with objective.loss {self.objective.loss!r}, "
                    "which depends on the noise level; the model's own drafts have none."
                )
