"""The oracle: DiffusionGemma in plain fp32, one request, no cache, no batch. Slow, complete, and short enough to check.

Every fast path must equal this file. It reads the weights of a `Transformer` but shares none of its code; only the
random numbers come from `diffusion.rng`, because they are part of what must be equal. Equations: the technical report
(arXiv 2608.00146) and the Transformers implementation. Shapes: P committed tokens, L canvas, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from redraft.diffusion.records import DenoiseStep
from redraft.diffusion.rng import draw
from redraft.model import Transformer
from redraft.settings import GenerationSettings

KeysValues = list[tuple[Tensor, Tensor]]
Images = Sequence[tuple[int, Tensor]]
"""Where in the prompt an image begins, and its embeddings from the vision tower, [N,D]."""


class Reference:
    """`generate` takes the lettered steps of `diffusion.step` for one prompt of token ids."""

    def __init__(self, model: Transformer) -> None:
        self.config = model.config
        self.w = {name: tensor.detach().float().cpu() for name, tensor in model.state_dict().items()}

    def generate(
        self,
        prompt: list[int],
        settings: GenerationSettings,
        *,
        length: int,
        eos_ids: tuple[int, ...] = (),
        images: Images = (),
    ) -> Iterator[DenoiseStep]:
        """Every step of every canvas; stops after the canvas that holds an end-of-text or reaches max_tokens."""
        committed = list(prompt)
        for index in range(math.ceil(settings.max_tokens / length)):
            _, past = self.encode(torch.tensor(committed), images)  # prefill, or commit of the canvas before
            final: DenoiseStep | None = None
            for final in self._canvas(past, len(committed), index, settings, length):
                yield final
            assert final is not None
            committed += final.argmax_canvas
            if set(final.argmax_canvas) & set(eos_ids):
                return

    def _canvas(
        self, past: KeysValues, start: int, index: int, settings: GenerationSettings, length: int
    ) -> Iterator[DenoiseStep]:
        vocab, seed = self.config.vocab_size, torch.tensor([settings.seed])
        canvas = draw(seed, index, 0, length, vocab, "initial").tokens[0]
        bias = torch.zeros(vocab)
        for token, added in settings.logit_bias:
            bias[token] = added
        q: Tensor | None = None
        previous: list[Tensor] = []
        for step in range(settings.steps):
            logits = self.head(self.denoise(canvas, past, start, q)) + bias  # i. [L,V]
            remaining = max(settings.temperature_steps - step, 1)
            temperature = settings.t_min + (settings.t_max - settings.t_min) * remaining / settings.temperature_steps
            q = logits / temperature  # ii.
            p = q.softmax(-1)
            entropy = -torch.xlogy(p, p).sum(-1)
            argmax = q.argmax(-1)
            noise = draw(seed, index, step, length, vocab, "step")
            cumulative = p.double().cumsum(-1)
            candidate = torch.searchsorted(cumulative, noise.uniform[0, :, None] * cumulative[:, -1:], right=True)[:, 0]
            order = entropy.argsort(stable=True)  # iii.
            before = entropy[order].cumsum(0) - entropy[order]
            accepted = torch.zeros(length, dtype=torch.bool)
            accepted[order[before <= settings.entropy_bound]] = True
            needed = settings.stability_threshold  # iv.
            stable = len(previous) >= needed and all(
                torch.equal(argmax, old) for old in previous[-needed or len(previous) :]
            )
            done = stable and bool(entropy.mean() < settings.confidence_threshold)
            yield DenoiseStep(
                request_id=0,
                canvas_index=index,
                step=step,
                canvas=tuple(canvas.tolist()),
                argmax_canvas=tuple(argmax.tolist()),
                accepted=tuple(accepted.tolist()),
                entropy=tuple(entropy.tolist()),
                temperature=temperature,
                converged=done,
            )
            if done:
                return
            previous.append(argmax)
            canvas = torch.where(accepted, candidate, noise.tokens[0])

    def encode(self, tokens: Tensor, images: Images = ()) -> tuple[Tensor, KeysValues]:
        """Causal pass over all committed tokens [P] -> hidden [P,D] and every layer's keys and values [G,P,H].

        The embeddings of `images` replace those of their tokens, and their positions see each other in every layer.
        """
        positions = torch.arange(len(tokens))
        causal = positions[None] <= positions[:, None]
        window = positions[None] > positions[:, None] - self.config.sliding_window
        past: KeysValues = []
        x = self._embed(tokens)
        together = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
        for start, embeddings in images:
            stop = start + len(embeddings)
            x[start:stop], together[start:stop, start:stop] = embeddings, True
        for layer in range(self.config.num_hidden_layers):
            seen = (causal & window if self.config.is_sliding(layer) else causal) | together
            x, kv = self._layer(x, layer, positions, None, seen, "encode_scalar")
            past.append(kv)
        return _rms(x, self.w["norm.weight"], self.config.rms_norm_eps), past

    def denoise(self, canvas: Tensor, past: KeysValues, start: int, previous_q: Tensor | None) -> Tensor:
        """Two-sided pass over a canvas [L] after `start` committed tokens -> hidden [L,D].

        Full layers see all of the past, sliding layers its last `sliding_window - 1` tokens, whatever the position.
        """
        sc, eps = "self_conditioning.", self.config.rms_norm_eps
        x = self._embed(canvas)
        if previous_q is not None:
            soft = previous_q.softmax(-1) @ self.w["embedding.weight"] * self.config.hidden_size**0.5
            x = x + self._mlp(_rms(soft, self.w[sc + "pre_norm.weight"], eps), sc)
        x = _rms(x, None, eps)
        positions = start + torch.arange(len(canvas))
        for layer in range(self.config.num_hidden_layers):
            k, v = past[layer]
            keep = min(start, self.config.sliding_window - 1) if self.config.is_sliding(layer) else start
            x, _ = self._layer(
                x, layer, positions, (k[:, start - keep :], v[:, start - keep :]), None, "denoise_scalar"
            )
        return _rms(x, self.w["norm.weight"], eps)

    def head(self, hidden: Tensor) -> Tensor:
        """Soft-capped logits [L,V] of the tied head."""
        cap = self.config.final_logit_softcapping
        return cap * torch.tanh(hidden @ self.w["embedding.weight"].T / cap)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.w["embedding.weight"][tokens] * self.config.hidden_size**0.5

    def _layer(
        self,
        x: Tensor,
        layer: int,
        positions: Tensor,
        past: tuple[Tensor, Tensor] | None,
        seen: Tensor | None,
        scalar: str,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        name, eps = f"layers.{layer}.", self.config.rms_norm_eps

        def norm(y: Tensor, which: str) -> Tensor:
            return _rms(y, self.w[f"{name}{which}_norm.weight"], eps)

        a, kv = self._attention(norm(x, "pre_attention"), layer, positions, past, seen)
        x = x + norm(a, "post_attention")
        dense = norm(self._mlp(norm(x, "pre_mlp"), name + "mlp."), "post_mlp")
        sparse = norm(self._experts(norm(x, "pre_experts"), x, name), "post_experts")
        return (x + norm(dense + sparse, "post_feedforward")) * self.w[name + scalar], kv

    def _attention(
        self, x: Tensor, layer: int, positions: Tensor, past: tuple[Tensor, Tensor] | None, seen: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        name, eps = f"layers.{layer}.attention.", self.config.rms_norm_eps
        dim = self.config.layer_head_dim(layer)

        def heads(which: str) -> Tensor:
            return (x @ self.w[f"{name}{which}_proj.weight"].T).view(len(x), -1, dim).transpose(0, 1)  # [N,L,H]

        raw_k = heads("k")
        raw_v = heads("v") if self.config.is_sliding(layer) else raw_k
        q = self._rotate(_rms(heads("q"), self.w[name + "q_norm.weight"], eps), layer, positions)
        k = self._rotate(_rms(raw_k, self.w[name + "k_norm.weight"], eps), layer, positions)
        v = _rms(raw_v, None, eps)
        own = (k, v)
        if past is not None:
            k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)
        repeat = q.shape[0] // k.shape[0]
        scores = q @ k.repeat_interleave(repeat, 0).transpose(1, 2)  # scale 1
        if seen is not None:
            scores = scores.masked_fill(~seen, -torch.inf)
        out = scores.softmax(-1) @ v.repeat_interleave(repeat, 0)  # [N,L,H]
        return out.transpose(0, 1).flatten(1) @ self.w[name + "o_proj.weight"].T, own

    def _rotate(self, x: Tensor, layer: int, positions: Tensor) -> Tensor:
        sliding, half = self.config.is_sliding(layer), x.shape[-1] // 2
        theta = self.config.rope_theta if sliding else self.config.global_rope_theta
        rotated = half if sliding else int(self.config.partial_rotary_factor * half)
        j = torch.arange(half)
        omega = torch.where(j < rotated, theta ** (-2.0 * j / x.shape[-1]), 0.0)
        angle = positions[:, None].float() * omega  # [L,H/2]
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate, up = x @ self.w[name + "gate_proj.weight"].T, x @ self.w[name + "up_proj.weight"].T
        return (_gelu(gate) * up) @ self.w[name + "down_proj.weight"].T

    def _experts(self, x: Tensor, residual: Tensor, name: str) -> Tensor:
        g = _rms(residual, None, self.config.rms_norm_eps) * self.w[name + "router.scale"] * x.shape[-1] ** -0.5
        p = (g @ self.w[name + "router.proj.weight"].T).softmax(-1)
        weight, index = p.topk(self.config.top_k_experts, -1)
        weight = weight / weight.sum(-1, keepdim=True) * self.w[name + "router.per_expert_scale"][index]
        out = torch.zeros_like(x)
        for rank in range(index.shape[1]):
            gate_up = self.w[name + "experts.gate_up_proj"][index[:, rank]]  # [L,2I,D]
            down = self.w[name + "experts.down_proj"][index[:, rank]]  # [L,D,I]
            gate, up = torch.einsum("lid,ld->li", gate_up, x).chunk(2, -1)
            out += weight[:, rank, None] * torch.einsum("ldi,li->ld", down, _gelu(gate) * up)
        return out


def _rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
