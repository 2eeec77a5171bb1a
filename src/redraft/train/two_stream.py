"""The training forward pass: a clean stream that is encoded once, and many canvases denoised against it in one pass.

(a) encode the packed clean rows causally, keeping every layer's keys and values; (b) without gradients, denoise the
first rows to get soft embeddings: the share `objective.self_conditioning` of all, which come in random order;
(c) denoise all rows with gradients, the others unconditioned, exactly as on the first step of sampling. Gradients flow
from the canvases into the encoder through its keys and values, and through the soft embeddings into the embeddings that
they average, but not into the pass (b) that says with which probabilities.

Shapes: B rows, T clean tokens, N canvases, C canvas tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from redraft.train.layer_pass import LayerPass
from redraft.train.losses import soft_embeddings
from redraft.train.masks import Mask, MaskBuilder, Visibility, denoise_visibility, encode_visibility
from redraft.train.objective import BatchLosses, Objective
from redraft.train.recipe import ObjectiveSettings

KeysValues = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What the layers need to know of the tokens of a stream, clean rows or canvases, besides their hidden states."""

    rope: RopeTables
    masks: Mapping[str, Callable[[int], Mask]]
    """By kind of layer the mask of the first rows, from their number."""
    used: Tensor
    """Which tokens do not only fill up the stream, bool [B,T] or [B,N*C]."""
    past: KeysValues | None
    """Every layer's keys and values of the clean rows, which canvases come after; None for the clean rows."""

    def first(self, rows: int) -> Stream:
        """The first rows of the canvases, without gradients for their past."""
        assert self.past is not None
        return Stream(
            rope={kind: (cos[:rows], sin[:rows]) for kind, (cos, sin) in self.rope.items()},
            masks=self.masks,
            used=self.used[:rows],
            past=[(k.detach()[:rows], v.detach()[:rows]) for k, v in self.past],
        )


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
        encoded, past, balance_encode = self._run(self._embed(batch.tokens), self._clean(batch))
        self.mark("encode")
        canvases = self._canvases(batch, past)
        soft, noise = self.first_pass(batch, noise, canvases, generator, conditioned)
        self.mark("first pass")
        x = self._canvas_input(noise.tokens, soft)
        if soft is None and self.touches_all:
            x = x + 0.0 * sum(weight.sum() for weight in self.model.self_conditioning.parameters())
        denoised, _, balance_denoise = self._run(x, canvases)
        self.mark("second pass")
        outcome = self.objective.losses(
            batch, noise, encoded, denoised, (balance_encode + balance_denoise) / 2, self.model.embedding.weight,
            generator,
        )  # fmt: skip
        self.mark("losses")
        return outcome

    def first_pass(
        self, batch: Batch, noise: Corruption, canvases: Stream, generator: torch.Generator, rows: int
    ) -> tuple[Tensor | None, Corruption]:
        """Soft embeddings [b,N*C,D] for the first b = `rows` rows, and the canvases that the second pass begins with.

        Given text (outside the noise region) is used for conditioning as a certainty, like pinned text in sampling.
        """
        if rows == 0:
            return None, noise
        with torch.no_grad():
            hidden, _, _ = self._run(self._canvas_input(noise.tokens[:rows], None), canvases.first(rows))
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

    def _run(self, x: Tensor, stream: Stream) -> tuple[Tensor, KeysValues, Tensor]:
        """All layers over x [B,T,D]: hidden states, every layer's keys and values, and the balance loss."""
        kv: KeysValues = []
        balance = torch.zeros((), device=x.device)
        here = {kind: mask(len(x)) for kind, mask in stream.masks.items()}
        for number, layer in enumerate(self.model.layers):
            assert isinstance(layer, Layer)
            past = None if stream.past is None else stream.past[number]
            inputs = (x, stream.rope[layer.kind], here[layer.kind], past, stream.used)
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

    def _canvas_input(self, tokens: Tensor, soft: Tensor | None) -> Tensor:
        """Noisy canvases `tokens` [B,N,C] as one stream [B,N*C,D]; rows beyond those of `soft` are unconditioned."""
        embedded, module = self._embed(tokens.flatten(1)), self.model.self_conditioning
        if soft is None:
            return self.condition(module, embedded, None)
        rest = self.condition(module, embedded[len(soft) :], None)
        return torch.cat((self.condition(module, embedded[: len(soft)], soft), rest))

    def _clean(self, batch: Batch) -> Stream:
        """The clean rows, to be encoded."""
        return self._stream(batch, batch.position, encode_visibility, batch.document >= 0, None)

    def _canvases(self, batch: Batch, past: KeysValues) -> Stream:
        """All canvases of a row one after the other, to be denoised."""
        length = batch.canvas_target.shape[2]
        offsets = torch.arange(length, device=batch.canvas_start.device, dtype=torch.int32)
        positions = (batch.canvas_start[..., None] + offsets).flatten(1)  # [B,N*C]
        used = (batch.canvas_document >= 0).repeat_interleave(length, 1)
        return self._stream(batch, positions, denoise_visibility, used, past)

    def _stream(
        self, batch: Batch, positions: Tensor, see: Callable[[Batch, int | None], Visibility], used: Tensor,
        past: KeysValues | None,
    ) -> Stream:  # fmt: skip
        """Tokens at `positions` of their documents, of which each sees what `see` says."""
        config = self.model.config
        windows = {"sliding_attention": config.sliding_window, "full_attention": None}
        widths = {"sliding_attention": config.head_dim, "full_attention": config.global_head_dim}
        return Stream(
            rope={kind: rope_table(positions, f, self.dtype) for kind, f in self.frequencies.items()},
            masks={kind: self.masks.build(see(batch, windows[kind]), widths[kind]) for kind in self.frequencies},
            used=used,
            past=past,
        )
