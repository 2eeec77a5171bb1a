"""The training forward pass: a clean stream that is encoded once, and many canvases denoised against it in one pass.

(a) encode the packed clean rows causally, keeping every layer's keys and values; (b) without gradients, denoise the
first rows to get soft embeddings: the share `objective.self_conditioning` of all, which come in random order;
(c) denoise all rows with gradients, the others unconditioned, exactly as on the first step of sampling. Gradients flow
from the canvases into the encoder through its keys and values, and through the soft embeddings into the embeddings that
they average, but not into the pass (b) that says with which probabilities.

Shapes: B rows, T clean tokens, N canvases, C canvas tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from redraft.diffusion.corruption import Corruption, generator_for
from redraft.model import Transformer
from redraft.model.attention import RMSNorm
from redraft.model.rope import inverse_frequencies, rope_table
from redraft.model.self_conditioning import SelfConditioning
from redraft.model.transformer import Layer, RopeTables
from redraft.train.batch import Batch
from redraft.train.compiling import compiled_if
from redraft.train.layer_pass import LayerPass, Phase
from redraft.train.losses import soft_embeddings
from redraft.train.masks import Mask, MaskBuilder, denoise_visibility, encode_visibility
from redraft.train.objective import BatchLosses, Objective
from redraft.train.recipe import ObjectiveSettings

KeysValues = list[tuple[Tensor, Tensor]]
RowMasks = dict[str, Callable[[int], Mask]]


def condition(module: SelfConditioning, embedded: Tensor, soft: Tensor | None) -> Tensor:
    """The canvas input of the layers from embedded tokens and soft embeddings, [B,L,D] each."""
    return module.combine(embedded, soft)


def final_norm(norm: RMSNorm, x: Tensor) -> Tensor:
    """The norm after the last layer."""
    return norm(x)


def _no_mark(_: str) -> None:
    return None


class TwoStream(nn.Module):
    """Runs a `Transformer` on training batches. `compiled` compiles the layer parts once per shape and layer kind."""

    def __init__(
        self, model: Transformer, objective: ObjectiveSettings, *, compiled: bool, sparse: bool | None = None,
        recompute: bool = False, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.compiled, self.recompute = model, compiled, recompute
        config = model.config
        self.objective = Objective(objective, config, compiled)
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
        wanted = rows * self.objective.settings.self_conditioning
        whole = int(wanted)
        draw = torch.rand((), generator=generator_for("cpu", seed, step, 1))  # not the numbers of the noise
        return whole + (float(draw) < wanted - whole)

    def noised(self, batch: Batch, generator: torch.Generator, conditioned: int) -> BatchLosses:
        """The losses of `batch`; `generator` draws the random numbers on the device."""
        return self.losses(batch, self.objective.noisy(batch, generator), generator, conditioned)

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
        outcome = self.objective.losses(
            batch, noise, encoded, denoised, (balance_encode + balance_denoise) / 2, self.model.embedding.weight,
            generator,
        )  # fmt: skip
        self.mark("losses")
        return outcome

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
        low = self.objective.settings.temperature_low
        temperature = low + (1.0 - low) * torch.rand(rows, generator=generator, device=hidden.device)
        temperature = temperature.repeat_interleave(hidden.shape[1])
        cap = self.model.config.final_logit_softcapping
        soft, argmax, entropy = soft_embeddings(
            hidden.flatten(0, 1), self.model.embedding.weight, temperature, cap, compiled=self.compiled
        )
        shape = batch.canvas_target[:rows].shape
        noise = self.objective.rolled_out(batch, noise, argmax.view(shape), entropy.view(shape), generator)
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
