"""The training forward pass: a clean stream that is encoded once, and many canvases denoised against it in one pass.

(a) encode the packed clean rows causally, keeping every layer's keys and values; (b) without gradients, denoise the
first rows to get soft embeddings: the share `objective.self_conditioning` of all, which come in random order;
(c) denoise all rows with gradients, the others unconditioned, exactly as on the first step of sampling. Gradients flow
from the canvases into the encoder through its keys and values, and through the soft embeddings into the embeddings that
they average, but not into the pass (b) that says with which probabilities.

Shapes: B rows, T clean tokens, N canvases, C canvas tokens, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from redraft.diffusion.corruption import Corruption, corrupt, generator_for, noise_levels, noise_tokens
from redraft.diffusion.sampler import accept, renoise
from redraft.model import Transformer
from redraft.model.attention import RMSNorm
from redraft.model.rope import inverse_frequencies, rope_table
from redraft.model.self_conditioning import SelfConditioning
from redraft.model.transformer import Layer, RopeTables
from redraft.train.batch import Batch
from redraft.train.compiling import compiled_if
from redraft.train.layer_pass import LayerPass, Phase
from redraft.train.losses import Seen, linear_cross_entropy, soft_embeddings
from redraft.train.masks import Mask, MaskBuilder, denoise_visibility, encode_visibility
from redraft.train.recipe import ObjectiveSettings

KeysValues = list[tuple[Tensor, Tensor]]
RowMasks = dict[str, Callable[[int], Mask]]


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


def condition(module: SelfConditioning, embedded: Tensor, soft: Tensor | None) -> Tensor:
    """The canvas input of the layers from embedded tokens and soft embeddings, [B,L,D] each."""
    return module.combine(embedded, soft)


def final_norm(norm: RMSNorm, x: Tensor) -> Tensor:
    """The norm after the last layer."""
    return norm(x)


def noise_of(batch: Batch, settings: ObjectiveSettings, vocab: int, generator: torch.Generator) -> Corruption:
    """The canvases of `batch` with the noise that `settings` ask for."""
    level = noise_levels(batch.full_noise, settings.noise_eps, generator, settings.levels)
    return corrupt(batch.canvas_target, batch.noise_region, level, vocab, generator, settings.absorbing_token)


def _no_mark(_: str) -> None:
    return None


class TwoStream(nn.Module):
    """Runs a `Transformer` on training batches. `compiled` compiles the layer parts once per shape and layer kind."""

    def __init__(
        self, model: Transformer, objective: ObjectiveSettings, *, compiled: bool, sparse: bool | None = None,
        recompute: bool = False, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.objective, self.compiled, self.recompute = model, objective, compiled, recompute
        config = model.config
        self.masks = MaskBuilder(sparse=model.device.type == "cuda" if sparse is None else sparse, compiled=compiled)
        self.frequencies = {
            kind: inverse_frequencies(config, sliding=kind == "sliding_attention").to(model.device)
            for kind in set(config.layer_types)
        }
        # As a number, not as the model's tensor property, whose creation waits for the device.
        self.dtype = dtype or model.dtype
        """The dtype of computation; that of the weights unless they are converted on the way, as sharded ones are."""
        self.scale = float(torch.tensor(config.hidden_size**0.5, dtype=self.dtype))
        self.passes = nn.ModuleList(LayerPass(cast(Layer, layer), compiled=compiled) for layer in model.layers)
        self.condition, self.final_norm = compiled_if(condition, compiled), compiled_if(final_norm, compiled)
        self.has_dropout = any(getattr(module, "dropout", 0.0) > 0 for module in model.modules())
        self.touches_all = False
        """Whether every weight gets a gradient in every pass. Sharded weights need that, since all processes sum them
        up at once.

        Otherwise self-conditioning gets no gradients from a batch without a conditioned row.
        """
        self.mark: Callable[[str], None] = _no_mark
        """Called with the name of a part of a step when its work has been queued; `profile.py` records events here."""

    def forward(self, batch: Batch, seed: int, step: int) -> BatchLosses:
        """The losses of `batch` with the noise of (seed, step)."""
        conditioned = self.conditioned_rows(len(batch.tokens), seed, step)
        return self.noised(batch, generator_for(batch.tokens.device, seed, step), conditioned)

    def conditioned_rows(self, rows: int, seed: int, step: int) -> int:
        """How many of `rows` have a first pass: their share, rounded up or down at random if it is not whole."""
        wanted = rows * self.objective.self_conditioning
        whole = int(wanted)
        draw = torch.rand((), generator=generator_for("cpu", seed, step, 1))  # not the numbers of the noise
        return whole + (float(draw) < wanted - whole)

    def noised(self, batch: Batch, generator: torch.Generator, conditioned: int) -> BatchLosses:
        """The losses of `batch`; `generator` draws the random numbers on the device."""
        noise = noise_of(batch, self.objective, self.model.config.vocab_size, generator)
        return self.losses(batch, noise, generator, conditioned)

    def losses(self, batch: Batch, noise: Corruption, generator: torch.Generator, conditioned: int) -> BatchLosses:
        """The losses of `batch` for given noisy canvases, with a first pass of `conditioned` rows."""
        encoded, kv, balance_encode = self.encode(batch)
        self.mark("encode")
        masks, rope = self._masks(batch, "denoise"), self._rope(_canvas_positions(batch))
        soft, noise = self.first_pass(batch, noise, kv, masks, rope, generator, conditioned)
        self.mark("first pass")
        x = self._canvas_input(noise.tokens, soft)
        if soft is None and self.touches_all:
            x = x + 0.0 * sum(weight.sum() for weight in self.model.self_conditioning.parameters())
        denoised, _, balance_denoise = self._run(x, rope, masks, "denoise", kv, _canvas_used(batch))
        self.mark("second pass")
        return self._outcome(batch, noise, encoded, denoised, (balance_encode + balance_denoise) / 2, generator)

    def encode(self, batch: Batch) -> tuple[Tensor, KeysValues, Tensor]:
        """Hidden states [B,T,D] of the clean rows, every layer's keys and values, and the balance loss."""
        x = self._embed(batch.tokens)
        masks, used = self._masks(batch, "encode"), batch.document >= 0
        return self._run(x, self._rope(batch.position), masks, "encode", None, used)

    def first_pass(
        self, batch: Batch, noise: Corruption, kv: KeysValues, masks: RowMasks, rope: RopeTables,
        generator: torch.Generator, rows: int,
    ) -> tuple[Tensor | None, Corruption]:  # fmt: skip
        """Soft embeddings [b,N*C,D] for the first b = `rows` rows, and the canvases that the second pass begins with.

        Given text (outside the noise region) is used for conditioning as a certainty, like pinned text in sampling.
        """
        if rows == 0:
            return None, noise
        hidden = self._unconditioned(batch, noise, kv, masks, rope, rows)
        low = self.objective.temperature_low
        temperature = low + (1.0 - low) * torch.rand(rows, generator=generator, device=hidden.device)
        temperature = temperature.repeat_interleave(hidden.shape[1])
        cap = self.model.config.final_logit_softcapping
        soft, argmax, entropy = soft_embeddings(
            hidden.flatten(0, 1), self.model.embedding.weight, temperature, cap, compiled=self.compiled
        )
        shape = batch.canvas_target[:rows].shape
        noise = self._roll_out(batch, noise, argmax.view(shape), entropy.view(shape), generator)
        region = batch.noise_region[:rows].flatten(1)[..., None]
        soft = soft.view_as(hidden) * self.scale
        return torch.where(region, soft, self._embed(batch.canvas_target[:rows].flatten(1))), noise

    @torch.no_grad()
    def _unconditioned(
        self, batch: Batch, noise: Corruption, kv: KeysValues, masks: RowMasks, rope: RopeTables, rows: int
    ) -> Tensor:
        """Hidden states [b,N*C,D] of the first b = `rows` rows' canvases."""
        past = [(k.detach()[:rows], v.detach()[:rows]) for k, v in kv]
        cut = {kind: (cos[:rows], sin[:rows]) for kind, (cos, sin) in rope.items()}
        x = self._canvas_input(noise.tokens[:rows], None)
        hidden, _, _ = self._run(x, cut, masks, "denoise", past, _canvas_used(batch)[:rows])
        return hidden

    def _roll_out(
        self, batch: Batch, noise: Corruption, argmax: Tensor, entropy: Tensor, generator: torch.Generator
    ) -> Corruption:
        """Some of the first b rows' canvases replaced by the model's own next drafts; argmax and entropy [b,N,C].

        The target stays the same: the model learns to continue from its own mistakes. `batch.rollout` says how many.
        """
        if batch.rollout is None:
            return noise
        rows, settings = len(argmax), self.objective
        low, high = (math.log(bound) for bound in settings.rollout_bound)
        draws = torch.rand((2, *entropy.shape[:2]), generator=generator, device=entropy.device)
        bound = (low + (high - low) * draws[0]).exp()
        target, region = batch.canvas_target[:rows], batch.noise_region[:rows]
        accepted = accept(entropy.masked_fill(~region, 0.0) / bound[..., None], 1.0)
        fresh = noise_tokens(target, self.model.config.vocab_size, generator, settings.absorbing_token)
        draft = torch.where(region, renoise(argmax, accepted, fresh), target)
        chosen = (draws[1] < batch.rollout[:rows, None])[..., None]
        tokens, replaced = noise.tokens.clone(), noise.replaced.clone()
        tokens[:rows] = torch.where(chosen, draft, tokens[:rows])
        replaced[:rows] = torch.where(chosen, draft != target, replaced[:rows])
        return Corruption(tokens=tokens, level=noise.level, replaced=replaced)

    def _outcome(
        self, batch: Batch, noise: Corruption, encoded: Tensor, denoised: Tensor, balance: Tensor,
        generator: torch.Generator,
    ) -> BatchLosses:  # fmt: skip
        decoder_weight = self._decoder_weight(batch, noise)
        hidden, target, weight = self._encoder_tokens(batch, encoded, generator)
        total, losses, hits = linear_cross_entropy(
            torch.cat((denoised.flatten(0, 1), hidden)),
            self.model.embedding.weight,
            torch.cat((batch.canvas_target.flatten(), target)),
            torch.cat((decoder_weight, weight * self.objective.encoder_weight)),
            self.model.config.final_logit_softcapping,
            seen=self._seen(noise, len(target)),
            compiled=self.compiled,
        )
        count = decoder_weight.numel()
        self.mark("losses")
        return BatchLosses(
            loss=total + self.objective.balance_weight * balance,
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
        weight, settings = _normalised(batch.canvas_weight, batch, 0), self.objective
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
        if "loo" not in self.objective.loss:
            return None
        odds = (1.0 - noise.level) / noise.level  # [B,N]
        raised = torch.log1p(self.model.config.vocab_size * odds)[..., None].expand(noise.tokens.shape)
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
        if self.objective.encoder_weight == 0:
            return hidden[:0], target[:0], weight[:0]
        if self.objective.encoder_share < 1:
            count = max(1, round(self.objective.encoder_share * target.numel()))
            key = torch.rand(target.shape, generator=generator, device=target.device)
            chosen = torch.where(weight > 0, key, 2.0).argsort()[:count]
            target, weight, hidden = target[chosen], weight[chosen], hidden[chosen]
        return hidden, target, _normalised(weight, batch, 1)

    def _run(
        self, x: Tensor, rope: RopeTables, masks: RowMasks, phase: Phase, past: KeysValues | None, used: Tensor
    ) -> tuple[Tensor, KeysValues, Tensor]:
        """All layers over x [B,T,D], whose keys come after those of `past`; `used` [B,T] excludes filling."""
        kv: KeysValues = []
        balance = torch.zeros((), device=x.device)
        here = {kind: mask(len(x)) for kind, mask in masks.items()}
        for number, layer in enumerate(self.model.layers):
            assert isinstance(layer, Layer)
            inputs = (x, rope[layer.kind], here[layer.kind], phase, None if past is None else past[number], used)
            if self.recompute and torch.is_grad_enabled():
                x, k, v, part = checkpoint(
                    self.passes[number], *inputs, use_reentrant=False, preserve_rng_state=self.has_dropout
                )
            else:
                x, k, v, part = self.passes[number](*inputs)
            kv.append((k, v))
            balance = balance + part / len(self.model.layers)
        return self.final_norm(self.model.norm, x), kv, balance

    def _embed(self, token_ids: Tensor) -> Tensor:
        return self.model.embedding(token_ids) * self.scale

    def _canvas_input(self, canvases: Tensor, soft: Tensor | None) -> Tensor:
        """Noisy canvases [B,N,C] as one stream [B,N*C,D]; rows beyond those of `soft` are unconditioned."""
        embedded, module = self._embed(canvases.flatten(1)), self.model.self_conditioning
        if soft is None:
            return self.condition(module, embedded, None)
        rest = self.condition(module, embedded[len(soft) :], None)
        return torch.cat((self.condition(module, embedded[: len(soft)], soft), rest))

    def _rope(self, positions: Tensor) -> RopeTables:
        return {kind: rope_table(positions, f, self.dtype) for kind, f in self.frequencies.items()}

    def _masks(self, batch: Batch, phase: Phase) -> RowMasks:
        windows = {"sliding_attention": self.model.config.sliding_window, "full_attention": None}
        see = encode_visibility if phase == "encode" else denoise_visibility
        config = self.model.config
        widths = {"sliding_attention": config.head_dim, "full_attention": config.global_head_dim}
        return {kind: self.masks.build(see(batch, windows[kind]), widths[kind]) for kind in self.frequencies}


def _canvas_positions(batch: Batch) -> Tensor:
    """Positions of all canvas tokens within their documents, [B,N*C]."""
    offsets = torch.arange(batch.canvas_target.shape[2], device=batch.canvas_start.device, dtype=torch.int32)
    return (batch.canvas_start[..., None] + offsets).flatten(1)


def _canvas_used(batch: Batch) -> Tensor:
    """Which canvas tokens belong to non-empty canvases, bool [B,N*C]."""
    return (batch.canvas_document >= 0).repeat_interleave(batch.canvas_target.shape[2], 1)


def _normalised(weight: Tensor, batch: Batch, part: int) -> Tensor:
    """Weights of the decoder (part 0) or encoder (part 1) loss; they sum to 1, or to the batch's `scale`."""
    weight = weight / weight.sum().clamp(min=1e-6)
    return weight if batch.scale is None else weight * batch.scale[part]
