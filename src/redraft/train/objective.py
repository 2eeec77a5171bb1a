"""What a batch's loss is: noise and the model's own drafts as input, and how much every position counts.

How the hidden states come about is `two_stream`'s business; the loss of a position and its gradient are `losses`'.

Shapes: B rows, T clean tokens, N canvases, C canvas tokens, D width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.config import ModelConfig
from redraft.diffusion.corruption import Corruption, corrupt, noise_levels, noise_tokens
from redraft.diffusion.sampler import accept, renoise
from redraft.train.batch import Batch
from redraft.train.losses import Seen, linear_cross_entropy
from redraft.train.recipe import ObjectiveSettings


@dataclass(frozen=True, kw_only=True)
class BatchLosses:
    """Losses of one batch. Only `loss` carries gradients; means are in nats per weighted token, times the batch's
    `scale`."""

    loss: Tensor
    decoder: Tensor
    encoder: Tensor
    balance: Tensor
    token_loss: Tensor
    """Unweighted loss of every canvas token, fp32 [B,N,C]."""
    token_hit: Tensor
    """Whether the target was the most likely token, bool [B,N,C]."""
    noise: Corruption


@dataclass(frozen=True)
class Objective:
    """The objective of a recipe for a model of some shape. `compiled` compiles the loss."""

    settings: ObjectiveSettings
    config: ModelConfig
    compiled: bool = False

    def noisy(self, batch: Batch, generator: torch.Generator) -> Corruption:
        """The canvases of `batch` with noise."""
        settings = self.settings
        level = noise_levels(batch.full_noise, settings.noise_eps, generator, settings.levels)
        return corrupt(
            batch.canvas_target, batch.noise_region, level, self.config.vocab_size, generator, settings.absorbing_token
        )

    def rolled_out(
        self, batch: Batch, noise: Corruption, argmax: Tensor, entropy: Tensor, generator: torch.Generator
    ) -> Corruption:
        """Some of the first b rows' canvases replaced by the model's own next drafts; argmax and entropy [b,N,C].

        The target stays the same: the model learns to continue from its own mistakes. `batch.rollout` says how many.
        """
        if batch.rollout is None:
            return noise
        rows, settings = len(argmax), self.settings
        low, high = (math.log(bound) for bound in settings.rollout_bound)
        draws = torch.rand((2, *entropy.shape[:2]), generator=generator, device=entropy.device)
        bound = (low + (high - low) * draws[0]).exp()
        target, region = batch.canvas_target[:rows], batch.noise_region[:rows]
        accepted = accept(entropy.masked_fill(~region, 0.0) / bound[..., None], 1.0)
        fresh = noise_tokens(target, self.config.vocab_size, generator, settings.absorbing_token)
        draft = torch.where(region, renoise(argmax, accepted, fresh), target)
        chosen = (draws[1] < batch.rollout[:rows, None])[..., None]
        tokens, replaced = noise.tokens.clone(), noise.replaced.clone()
        tokens[:rows] = torch.where(chosen, draft, tokens[:rows])
        replaced[:rows] = torch.where(chosen, draft != target, replaced[:rows])
        return Corruption(tokens=tokens, level=noise.level, replaced=replaced)

    def losses(
        self, batch: Batch, noise: Corruption, encoded: Tensor, denoised: Tensor, balance: Tensor, embedding: Tensor,
        generator: torch.Generator,
    ) -> BatchLosses:  # fmt: skip
        """The losses of `batch` from the hidden states of its clean rows, `encoded` [B,T,D], and of its canvases with
        `noise`, `denoised` [B,N*C,D], by the head `embedding` [V,D]; `balance` is the balance loss of both passes.
        """
        decoder_weight = self._decoder_weight(batch, noise)
        hidden, target, weight = self._encoder_tokens(batch, encoded, generator)
        total, losses, hits = linear_cross_entropy(
            torch.cat((denoised.flatten(0, 1), hidden)),
            embedding,
            torch.cat((batch.canvas_target.flatten(), target)),
            torch.cat((decoder_weight, weight * self.settings.encoder_weight)),
            self.config.final_logit_softcapping,
            seen=self._seen(noise, len(target)),
            compiled=self.compiled,
        )
        count = decoder_weight.numel()
        return BatchLosses(
            loss=total + self.settings.balance_weight * balance,
            decoder=(losses[:count] * decoder_weight).sum(),
            encoder=(losses[count:] * weight).sum(),
            balance=balance.detach(),
            token_loss=losses[:count].view(batch.canvas_target.shape),
            token_hit=hits[:count].view(batch.canvas_target.shape),
            noise=noise,
        )

    def _decoder_weight(self, batch: Batch, noise: Corruption) -> Tensor:
        """Loss weights of all canvas tokens [B*N*C]; those of the data sum to 1, or to the batch's `scale`, before the
        loss variant's factors.
        """
        weight, settings = _normalised(batch.canvas_weight, batch, 0), self.settings
        if settings.kept_weight != 1:
            weight = torch.where(noise.replaced, weight, weight * settings.kept_weight)
        if settings.loss.startswith("reweighted"):
            weight = weight * (1.0 / (1.0 - noise.level)).clamp(max=settings.weight_clip)[..., None]
        return weight.flatten()

    def _seen(self, noise: Corruption, encoder_tokens: int) -> Seen | None:
        """For the `loo` losses the shown tokens and log(1 + V alpha / (1 - alpha)) with alpha = 1 - t, else None.

        A kept token gives itself away; its own logit is raised by how much likelier that makes it. Zero for the tokens
        of the encoder loss, which come after those of the canvases.
        """
        if "loo" not in self.settings.loss:
            return None
        odds = (1.0 - noise.level) / noise.level  # [B,N]
        raised = torch.log1p(self.config.vocab_size * odds)[..., None].expand(noise.tokens.shape)
        return F.pad(noise.tokens.flatten(), (0, encoder_tokens)), F.pad(raised.flatten(), (0, encoder_tokens))

    def _encoder_tokens(
        self, batch: Batch, encoded: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states [t,D], next tokens [t] and normalised weights [t] of the positions with an encoder loss.

        The mean of a share of them stands for that of all, so what the batch counts in its step does not depend on
        which are drawn.
        """
        target = F.pad(batch.tokens[:, 1:], (0, 1)).flatten()
        weight, hidden = batch.encoder_weight.flatten(), encoded.flatten(0, 1)
        if self.settings.encoder_weight == 0:
            return hidden[:0], target[:0], weight[:0]
        if self.settings.encoder_share < 1:
            count = max(1, round(self.settings.encoder_share * target.numel()))
            key = torch.rand(target.shape, generator=generator, device=target.device)
            chosen = torch.where(weight > 0, key, 2.0).argsort()[:count]
            target, weight, hidden = target[chosen], weight[chosen], hidden[chosen]
        return hidden, target, _normalised(weight, batch, 1)


def _normalised(weight: Tensor, batch: Batch, part: int) -> Tensor:
    """Weights of the decoder (part 0) or encoder (part 1) loss; they sum to 1, or to the batch's `scale`."""
    weight = weight / weight.sum().clamp(min=1e-6)
    return weight if batch.scale is None else weight * batch.scale[part]
