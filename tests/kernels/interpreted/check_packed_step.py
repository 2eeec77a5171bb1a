"""All kernels together: a packed model's whole step under the interpreter equals the one by their eager twins."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from redraft import kernels
from redraft.bench.random_weights import random_source
from redraft.config import FULL, SLIDING
from redraft.diffusion.step import rule_fields
from redraft.engine.graph_runner import GraphRunner
from redraft.engine.work import Denoise, Encode, Limits, Segment
from redraft.model.packed.build import pack
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.presets import preset
from redraft.settings import GenerationSettings

CONFIG = replace(
    preset("nano"),
    hidden_size=128,
    moe_intermediate_size=64,
    num_experts=4,
    layer_types=(SLIDING, FULL),
    vocab_size=256,
)
LIMITS = Limits(slots=2, full_pages=4, sliding_pages=4, window=8, context=512, canvas=16, forward=512)


def _work(step: int) -> list[Segment]:
    canvas = Denoise(
        slot=0, start=20, length=16, canvas_index=0, step=step, seed=3, temperature=0.7, last=False, eos_ids=(1, 16),
        **rule_fields(GenerationSettings(entropy_bound=2.0, stop_at_eos=True)),
    )  # fmt: skip
    prompts = [Encode(slot=0, start=0, token_ids=tuple(range(20, 40))), Encode(slot=1, start=0, token_ids=(5, 6, 7))]
    return [*prompts, canvas] if step == 0 else [canvas]


@pytest.mark.parametrize("fp8", [False, True])
def test_two_steps(fp8: bool) -> None:
    source = random_source(CONFIG, torch.device("cpu"), torch.float32)
    packed = pack(CONFIG, source, device=torch.device("cpu"), dtype=torch.float32, fp8_vocabulary=fp8)
    fast, plain = (GraphRunner(PackedTransformer(packed), LIMITS) for _ in range(2))
    for runner in (fast, plain):
        runner.assign(0, (3, 1), (0, 2))
        runner.assign(1, (2,), (3,))
    for step in (0, 1):
        (found,) = fast.run(_work(step))
        with kernels.force("eager"):
            (expected,) = plain.run(_work(step))
        for name in ("canvas", "argmax_canvas", "accepted"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        torch.testing.assert_close(torch.tensor(found.entropy), torch.tensor(expected.entropy), atol=2e-3, rtol=2e-3)
