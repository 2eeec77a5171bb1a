"""Builds a runner from a model and a memory budget: how many pages there are, and which kind of runner it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from redraft.cache.fp8 import FP8
from redraft.cache.paged import page_bytes
from redraft.cache.pages import PAGE, pages_for
from redraft.config import ModelConfig
from redraft.engine.adapters import RunnerByAdapter
from redraft.engine.graph_runner import BUCKETS, GraphRunner, most_segments
from redraft.engine.graph_step import working_bytes
from redraft.engine.runner import EagerRunner
from redraft.engine.settings import EngineSettings, KvCacheDtype
from redraft.engine.work import Limits, Runner
from redraft.errors import SettingError
from redraft.model import Model, Transformer
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.placement import lacks_fp8
from redraft.model.spans import key_units
from redraft.settings import MAX_CANVAS, MIN_CANVAS

CPU_BYTES = 2 << 30
"""The most that pages on a CPU take unless a budget is given; memory that is never written is never used."""

CUDA_SHARE = 0.8
"""Share of the memory left once the model is loaded that pages take; the rest is for the tensors of a forward."""

FORWARD_TOKENS = 8192

PROMPT_TOKENS = 4096
"""Prompt tokens in a GPU forward that no canvas waits for: larger products waste less. At most a page per slot, or what
the settings say if that is more, because graphs reserve memory for every segment of a forward."""

VISION_BYTES = 512 << 20
"""Temporary memory for encoding the largest image, on top of the embeddings kept for a forward's images."""


def new_runner(model: Model, settings: EngineSettings, adapters: Mapping[str, Model] = MappingProxyType({})) -> Runner:
    """The runner for the model's device, with as many pages as the budget allows and the slots can use.

    `adapters` are copies of the model with one adapter each, by name.
    """
    stored = kv_dtype(model, settings.kv_cache_dtype)
    paged = model.packed.shards[0].config if isinstance(model, PackedTransformer) else model.config
    limits = limits_for(paged, settings, memory_bytes(model, settings), stored.itemsize)
    if isinstance(model, PackedTransformer):  # its buffers hold whole canvases of the model's own length
        canvas = -(-model.config.canvas_length // MIN_CANVAS) * MIN_CANVAS  # kernels look at every 16th row
        most = min(limits.forward, BUCKETS[-1] * canvas)
        limits = replace(limits, canvas=canvas, forward=most, prompt=_prompt_tokens(model, settings))
        runner: EagerRunner | GraphRunner = GraphRunner(model, limits, kv_dtype=stored)
    else:
        assert isinstance(model, Transformer)
        runner = EagerRunner(model, limits, kv_dtype=stored)
    if not adapters:
        return runner
    return RunnerByAdapter(runner, {name: runner.for_model(other) for name, other in adapters.items()})  # type: ignore[arg-type]


def _prompt_tokens(model: PackedTransformer, settings: EngineSettings) -> int:
    """The most prompt tokens of a forward that no canvas waits for."""
    alone = min(PROMPT_TOKENS, settings.slots * PAGE) if model.device.type == "cuda" else 0
    return max(alone, pages_for(settings.prompt_tokens) * PAGE)


def kv_dtype(model: Model, name: KvCacheDtype) -> torch.dtype:
    """The dtype of pages, from its name in the settings. Raises `SettingError` for FP8 on a GPU that lacks it."""
    if name == "auto":
        return model.dtype
    if lacks_fp8(model.device):
        sentence = "kv_cache_dtype is 'fp8'; that needs a GPU of compute capability 8.9 or more, or a CPU."
        raise SettingError(sentence, "kv_cache_dtype")
    return FP8


def stored_units(model: Model, settings: EngineSettings) -> tuple[float, ...]:
    """The units of keys in FP8 pages, which depend on the weights; see `cache.fp8.key_unit`."""
    if settings.kv_cache_dtype != "fp8" or not isinstance(model, Transformer):  # packed weights never change
        return ()
    return tuple(key_units(model))


def memory_bytes(model: Model, settings: EngineSettings) -> int:
    """Bytes that pages may take on each device of a model; the first has to hold the sampler's tensors, too."""
    if settings.memory_gb is not None:
        return int(settings.memory_gb * 1e9)
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # releases the pages of a previous engine
        devices = model.packed.devices if isinstance(model, PackedTransformer) else (model.device,)
        free = min(torch.cuda.mem_get_info(device)[0] for device in devices)
        if isinstance(model, PackedTransformer):
            segments = most_segments(settings.slots, _prompt_tokens(model, settings), model.config.canvas_length)
            fp8 = model.packed.vocabulary.transposed is not None
            free -= working_bytes(model.config, segments, model.dtype.itemsize, fp8_vocabulary=fp8)
        if model.vision is not None:
            free -= VISION_BYTES + FORWARD_TOKENS * model.config.hidden_size * model.dtype.itemsize
        return int(CUDA_SHARE * max(free, 0))
    return CPU_BYTES


def limits_for(config: ModelConfig, settings: EngineSettings, budget: int, item: int) -> Limits:
    """Divide `budget` bytes over the two spaces; numbers take `item` bytes each.

    Enough for every slot to hold a whole context, plus as much sliding space again for prefixes, or else what the
    budget allows: half of it each, and what one space does not need for the other. Raises `SettingError` if that is
    less than one page of each.
    """
    full_bytes, sliding_bytes = page_bytes(config, item)
    window = pages_for(config.sliding_window - 1 + settings.prompt_tokens + 2 * MAX_CANVAS) + 1
    whole = pages_for(config.max_position_embeddings)
    full, sliding = settings.slots * whole, 2 * settings.slots * min(window, whole)
    if full * full_bytes + sliding * sliding_bytes > budget:
        half = min(sliding, max(1, budget // 2 // max(sliding_bytes, 1)))
        full = min(full, (budget - half * sliding_bytes) // max(full_bytes, 1))
        sliding = min(sliding, (budget - full * full_bytes) // max(sliding_bytes, 1))
    if full < 1 or sliding < 1:
        raise SettingError(
            f"A page of {PAGE} tokens takes {full_bytes + sliding_bytes} bytes; the memory for pages is only {budget}.",
            "memory_gb",
        )
    return Limits(
        slots=settings.slots,
        full_pages=full,
        sliding_pages=sliding,
        window=config.sliding_window,
        context=config.max_position_embeddings,
        canvas=MAX_CANVAS,
        forward=FORWARD_TOKENS,
    )
