"""A narrow model of the 26B model's head sizes on a CUDA device, its runners, and work for them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from redraft.config import FULL, SLIDING, ModelConfig
from redraft.diffusion.constraint import TabledConstraint
from redraft.diffusion.schedule import temperature
from redraft.diffusion.step import rule_fields
from redraft.engine.graph_runner import GraphRunner
from redraft.engine.work import Denoise, Encode, Limits, Segment
from redraft.model import Transformer
from redraft.model.packed.build import pack
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.presets import preset
from redraft.settings import Bias, GenerationSettings

# The head sizes of the 26B model; everything else narrow.
CONFIG = replace(
    preset("26b-a4b"),
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=448,
    moe_intermediate_size=256,
    num_experts=16,
    top_k_experts=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_global_key_value_heads=1,
    layer_types=(SLIDING, SLIDING, FULL),
)
PAGES = 10
FORMATS = pytest.mark.parametrize("quantization", [None, "fp8", "int4"])


def by_gpus(*counts: int) -> pytest.MarkDecorator:
    """Runs a test with each number of CUDA devices that there are."""

    def if_there(count: int) -> Any:
        lacking = pytest.mark.skipif(torch.cuda.device_count() < count, reason=f"needs {count} CUDA devices")
        return pytest.param(count, marks=lacking)

    return pytest.mark.parametrize("gpus", list(map(if_there, counts)))


def randomized(config: ModelConfig) -> Transformer:
    """Random fp32 weights that keep every activation near unit size."""
    model = Transformer(config).to("cuda")
    generator = torch.Generator("cuda").manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            drawn = torch.randn(tensor.shape, generator=generator, device="cuda")
            if tensor.dim() > 1:
                tensor.copy_(drawn * tensor.shape[-1] ** -0.5)
            else:
                scale = tensor.shape[0] ** -0.25 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
                tensor.copy_(scale * (1 + 0.1 * drawn))
        model.embedding.weight.mul_(3)
    return model.eval()


def packed(
    plain: Transformer, quantization: str | None, dtype: torch.dtype | None = None, *, gpus: int = 1
) -> PackedTransformer:
    """With the vocabulary in `dtype`, by default the model's; divided among the current device and those after it."""
    source = plain.state_dict().__getitem__
    given = {"quantization": quantization, "fp8_vocabulary": dtype is not None}
    first, *other_devices = (torch.device("cuda", torch.cuda.current_device() + number) for number in range(gpus))
    return PackedTransformer(
        pack(plain.config, source, device=first, other_devices=other_devices, dtype=torch.bfloat16, **given)
    )


def runner_of(model: PackedTransformer, *, graphs: bool, dtype: torch.dtype | None = None) -> GraphRunner:
    """With pages in `dtype`, by default the model's."""
    slots = 4
    limits = Limits(
        slots=slots, full_pages=slots * PAGES, sliding_pages=slots * PAGES, window=1024, context=256 * PAGES,
        canvas=256, forward=32 * 256,
    )  # fmt: skip
    runner = GraphRunner(model, limits, graphs=graphs, kv_dtype=dtype)
    for slot in range(slots):
        own = range(slot * PAGES, (slot + 1) * PAGES)
        runner.assign(slot, list(own), list(reversed(own)))
    return runner


def ids(seed: int, count: int) -> tuple[int, ...]:
    drawn = torch.randint(CONFIG.vocab_size, (count,), generator=torch.Generator().manual_seed(seed))
    return tuple(drawn.tolist())


def prompt(slot: int, count: int) -> list[Segment]:
    whole = ids(slot, count)
    return [Encode(slot=slot, start=at, token_ids=whole[at : at + 256]) for at in range(0, count, 256)]


def step_of(
    slot: int, start: int, step: int, *, length: int = 256, canvas_index: int = 0,
    constraint: TabledConstraint | None = None, logit_bias: Bias = (),
) -> Denoise:  # fmt: skip
    never_done = {"entropy_bound": 30.0, "stability_threshold": 1_000_000}
    rules = rule_fields(GenerationSettings(**never_done, logit_bias=logit_bias))  # type: ignore[arg-type]
    return Denoise(
        slot=slot, start=start, length=length, canvas_index=canvas_index, step=step, seed=slot,
        temperature=temperature(step, t_min=0.4, t_max=0.8, steps=48), last=False, eos_ids=(1, 106),
        constraint=constraint, **rules,
    )  # fmt: skip
