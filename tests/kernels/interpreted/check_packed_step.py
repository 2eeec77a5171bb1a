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
from redraft.kernels.triton import head
from redraft.kernels.triton.quantize import quantize_rows_eager
from redraft.model.packed.build import pack
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.presets import preset
from redraft.settings import Bias, GenerationSettings

CONFIG = replace(
    preset("nano"),
    hidden_size=128,
    moe_intermediate_size=64,
    num_experts=4,
    layer_types=(SLIDING, FULL),
    vocab_size=256,
)
LIMITS = Limits(slots=2, full_pages=4, sliding_pages=4, window=8, context=512, canvas=16, forward=512)


def _canvas(slot: int, start: int, step: int, bias: Bias) -> Denoise:
    return Denoise(
        slot=slot, start=start, length=16, canvas_index=0, step=step, seed=3, temperature=0.7, last=False,
        eos_ids=(1, 16),
        **rule_fields(GenerationSettings(entropy_bound=2.0, stop_at_eos=True, logit_bias=bias)),
    )  # fmt: skip


def _work(step: int) -> list[Segment]:
    prompts = [Encode(slot=0, start=0, token_ids=tuple(range(20, 40))), Encode(slot=1, start=0, token_ids=(5, 6, 7))]
    canvases: list[Segment] = [_canvas(0, 20, step, ()), _canvas(1, 3, step, ((3, 4.0), (9, -4.0)))]
    return [*prompts, *canvases] if step == 0 else canvases


@pytest.mark.parametrize("fp8", [False, True])
def test_two_steps(fp8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a canvas, and of one with a bias. FP8 rows are rounded by the twin, because the interpreter misrounds them."""
    monkeypatch.setattr(head, "quantize_rows", quantize_rows_eager)
    source = random_source(CONFIG, torch.device("cpu"), torch.float32)
    packed = pack(CONFIG, source, device=torch.device("cpu"), dtype=torch.float32, fp8_vocabulary=fp8)
    fast, plain = (GraphRunner(PackedTransformer(packed), LIMITS) for _ in range(2))
    for runner in (fast, plain):
        runner.assign(0, (3, 1), (0, 2))
        runner.assign(1, (2,), (3,))
    for step in (0, 1):
        ours = fast.run(_work(step))
        with kernels.force("eager"):
            theirs = plain.run(_work(step))
        for found, expected in zip(ours, theirs, strict=True):
            for name in ("canvas", "argmax_canvas", "accepted"):
                assert np.array_equal(getattr(found, name), getattr(expected, name)), name
            np.testing.assert_allclose(found.entropy, expected.entropy, atol=1e-4, rtol=1e-4)
