"""A random model whose self-conditioning is damped, so that rounding noise would not grow from step to step."""

import dataclasses
import time
from collections.abc import Callable

import pytest
import torch
from asking import CANVAS, Make

from redraft.engine.build import limits_for
from redraft.engine.engine import Engine
from redraft.engine.runner import EagerRunner
from redraft.engine.settings import EngineSettings
from redraft.model import Transformer
from redraft.model.presets import preset
from spelled import Spelled


@pytest.fixture(scope="session")
def model() -> Transformer:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = Transformer(dataclasses.replace(preset("nano"), sliding_window=300, max_position_embeddings=9216))
    network.eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
        else:
            torch.nn.init.uniform_(parameter, 0.7, 1.3)
    network.self_conditioning.down_proj.weight.mul_(0.05)
    return network


@pytest.fixture
def make(model: Transformer) -> Make:
    """Make an engine on the model; keywords are `EngineSettings`, `clock`, `weights` and `eos_ids`."""

    def make_engine(
        *,
        clock: Callable[[], float] = time.perf_counter,
        weights: Callable[[], object] = lambda: None,
        eos_ids: tuple[int, ...] = (),
        **given: object,
    ) -> Engine:
        settings = EngineSettings(**{"slots": 8, "prompt_tokens": 256, **given})  # type: ignore[arg-type]
        budget = int((settings.memory_gb or 1) * 1e9)
        runner = EagerRunner(model, limits_for(model.config, settings, budget, 4))
        return Engine(
            runner,
            Spelled(),
            vocab_size=256,
            canvas_length=CANVAS,
            eos_ids=eos_ids,
            settings=settings,
            weights=weights,
            clock=clock,
        )

    return make_engine
