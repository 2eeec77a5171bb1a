"""How fast a model of a given shape trains on this machine, with random weights and random data: `redraft bench train`.

Where the time of a recipe's own step goes is for `profile.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.model import Transformer
from redraft.train.batch import Batch
from redraft.train.distributed import World
from redraft.train.flops import active_parameters, share_of_peak, step_flops
from redraft.train.lora import adapt
from redraft.train.optimizer import Masters
from redraft.train.passes import WARM_UP, Pass, pass_for
from redraft.train.quantized import quantize_in_place
from redraft.train.recipe import (
    DataSettings,
    LoraSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Recipe,
    RunSettings,
    SourceSettings,
)
from redraft.train.segments import Arrays
from redraft.train.two_stream import TwoStream

STD = 0.02
WARM = WARM_UP + 1
"""The minimum number of steps before the timed ones; the last of them captures."""


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Shape of the measured steps. `rank` 0 trains all weights; `quantization` is that of `LoraSettings`."""

    rank: int = 16
    quantization: str = ""
    rows: int = 1
    tokens: int = 2048
    canvases: int = 8
    steps: int = 5
    recompute: bool = True
    compile: bool = True
    capture: bool = True

    def __post_init__(self) -> None:
        for name in ("rows", "tokens", "canvases", "steps"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.rank < 0:
            raise SettingError(f"rank is {self.rank}; it must be at least 0.")
        if self.quantization and not self.rank:
            raise SettingError("quantization is only for LoRA; give a rank above 0.")


def measure(config: ModelConfig, settings: BenchSettings, *, device: str = "auto") -> dict[str, Any]:
    """Train a few steps and return the record: seconds, tokens/s, memory, and the share of the device's peak.

    Under torchrun, every process trains on its own rows and the figures are totals over all of them.
    """
    world = World.from_environment()
    target = world.device(device)
    dtype = torch.bfloat16 if target.type == "cuda" else torch.float32
    recipe = _recipe(config, settings)
    with world.joined(target):
        model = _random_model(config, target, dtype)
        if recipe.lora is not None:
            if recipe.lora.quantization:
                quantize_in_place(model, recipe.lora.quantization)
            adapt(model, recipe.lora, 0)
        elif dtype != torch.float32:
            model.float()
        masters = Masters(model, dtype, recipe.optimizer, world)
        stream = TwoStream(
            model, recipe.objective, compiled=settings.compile and target.type == "cuda", recompute=settings.recompute
        )
        seconds, losses = _timed(pass_for(stream, recipe), masters, recipe, settings.steps, target, world)
    return _record(config, settings, recipe, target, world, seconds, losses)


def _recipe(config: ModelConfig, settings: BenchSettings) -> Recipe:
    toy = SourceSettings(name="random", kind="reverse", share=1.0)
    return Recipe(
        model=config,
        data=DataSettings(rows=settings.rows, tokens=settings.tokens, canvases=settings.canvases, sources=(toy,)),
        objective=ObjectiveSettings(encoder_share=0.5),
        optimizer=OptimizerSettings(steps=settings.steps + WARM, learning_rate=1e-4),
        run=RunSettings(
            out="unused",
            init="random" if settings.rank else "",
            dtype="bfloat16",
            compile=settings.compile,
            recompute=settings.recompute,
            capture=settings.capture,
        ),
        lora=LoraSettings(rank=settings.rank, quantization=settings.quantization) if settings.rank else None,
    )


def _random_model(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    model = model.to(dtype).to_empty(device=device)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.ndim >= 2:
                tensor.normal_(0, STD)
            else:
                tensor.fill_(1.0)
    return model


def random_batch(recipe: Recipe, seed: int) -> Batch:
    """Random tokens in four equal documents per row, and canvases that begin at random places in them."""
    rng, data, model = np.random.default_rng(seed), recipe.data, recipe.model
    rows, length, shape = data.rows, data.tokens, (data.rows, data.canvases, model.canvas_length)
    part = max(2, length // 4)
    column = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    arrays: Arrays = {
        "tokens": rng.integers(0, model.vocab_size, (rows, length), dtype=np.int32),
        "document": column // part,
        "position": column % part,
        "encoder_weight": (column % part < part - 1).astype(np.float32),
        "canvas_target": rng.integers(0, model.vocab_size, shape, dtype=np.int32),
        "canvas_document": rng.integers(0, 4, shape[:2], dtype=np.int32),
        "canvas_start": rng.integers(1, part, shape[:2], dtype=np.int32),
        "noise_region": np.ones(shape, bool),
        "canvas_weight": np.ones(shape, np.float32),
        "full_noise": np.zeros(shape[:2], np.float32),
        "source": np.zeros(rows, np.int64),
    }
    if data.rolls_out:
        arrays["rollout"] = np.full(rows, max(source.rollout for source in data.sources), np.float32)
    return Batch.from_arrays(arrays)


def _timed(
    batch_pass: Pass, masters: Masters, recipe: Recipe, steps: int, device: torch.device, world: World
) -> tuple[float, list[float]]:
    """Mean seconds of a step after the warm-up, and the losses of the timed steps."""
    batches = [random_batch(recipe, 2 * world.rank + seed).to(device) for seed in range(2)]

    def step(number: int) -> Tensor:
        masters.refresh()
        outcome = batch_pass.gradients(batches[number % 2], 0, number)
        masters.accumulate()
        masters.step(number)
        return outcome.loss.clone()

    first = 0
    while first < WARM or not all(batch_pass.is_settled(recipe.data.rows, 0, first + i) for i in range(steps)):
        step(first)
        first += 1
    wait(device)
    world.wait()
    started = time.perf_counter()
    losses = [step(number) for number in range(first, first + steps)]
    values = [float(loss) for loss in losses]  # waits for the device
    return (time.perf_counter() - started) / steps, values


def wait(device: torch.device) -> None:
    """Until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _record(
    config: ModelConfig, settings: BenchSettings, recipe: Recipe, device: torch.device, world: World, seconds: float,
    losses: list[float],
) -> dict[str, Any]:  # fmt: skip
    clean = settings.rows * settings.tokens * world.size
    canvas = settings.rows * settings.canvases * config.canvas_length * world.size
    share = share_of_peak(recipe, seconds, device)
    return {
        "bench": "train",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "devices": world.size,
        **vars(settings),
        "active_parameters": active_parameters(config),
        "seconds_per_step": round(seconds, 4),
        "clean_tokens_per_second": round(clean / seconds),
        "all_tokens_per_second": round((clean + canvas) / seconds),
        "tflops_per_device": round(step_flops(recipe) / seconds / 1e12, 2),
        "share_of_peak": None if share is None else round(share, 4),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if device.type == "cuda" else None,
        "losses": [round(loss, 4) for loss in losses],
    }
