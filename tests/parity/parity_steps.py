"""What comparisons of whole generations with `transformers` share: its settings, and its draws in our engine."""

import types
from typing import Any

import pytest
import torch

from redraft.diffusion import sampler
from redraft.diffusion.rng import Draws
from redraft.engine import runner as eager
from redraft.engine.build import new_runner
from redraft.engine.engine import Engine
from redraft.engine.settings import EngineSettings
from redraft.model import Transformer


def their_config(canvas: int, **changes: Any) -> Any:
    """Settings of a generation of theirs: three canvases in 12 steps each, unless changed."""
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
        DiffusionGemmaGenerationConfig,
        EntropyBoundSamplerConfig,
    )

    bound = EntropyBoundSamplerConfig(entropy_bound=changes.pop("entropy_bound", 0.1))
    fields = {
        "max_new_tokens": 3 * canvas, "max_denoising_steps": 12, "t_min": 0.4, "t_max": 0.8, "stability_threshold": 1,
        "confidence_threshold": 0.005, "pad_token_id": 0, "sampler_config": bound,
    }  # fmt: skip
    return DiffusionGemmaGenerationConfig(**fields | changes)


def new_engine(model: Transformer, eos_ids: tuple[int, ...]) -> Engine:
    """An engine of one slot whose answers have no text."""
    settings = EngineSettings(slots=1)
    tokenizer = types.SimpleNamespace(decode=lambda token_ids: "", special_ids={})
    return Engine(
        new_runner(model, settings),
        tokenizer,
        vocab_size=model.config.vocab_size,
        canvas_length=model.config.canvas_length,
        eos_ids=eos_ids,
        settings=settings,
    )


def replay_their_draws(monkeypatch: pytest.MonkeyPatch, vocab_size: int) -> None:
    """Initial canvas by randint, then per step multinomial for the candidates and randint for the noise."""

    def draw(seeds: Any, canvas: int, step: int, length: int, vocab: int, purpose: str) -> Draws:
        tokens = torch.randint(vocab, (1, length)) if purpose == "initial" else torch.zeros(1, length).long()
        return Draws(torch.zeros(1, length, dtype=torch.float64), tokens)

    def multinomial(seen: sampler.Distribution, uniform: Any) -> Any:
        return torch.multinomial(seen.probabilities, 1)[:, 0]

    def renoise(candidate: Any, accepted: Any, noise: Any) -> Any:
        return torch.where(accepted, candidate, torch.randint(vocab_size, candidate.shape))

    monkeypatch.setattr(eager, "draw", draw)
    monkeypatch.setattr(sampler.Distribution, "pick", multinomial)
    monkeypatch.setattr(sampler, "renoise", renoise)
