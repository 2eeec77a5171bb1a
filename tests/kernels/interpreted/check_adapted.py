"""What follows attention in a layer of a quantized model in which an adapter has changed one weight."""

from dataclasses import replace

import pytest
import torch
from making import normal

from random_adapter import random_adapter
from redraft import kernels
from redraft.config import FULL
from redraft.kernels.packed import Rows8
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.model.layouts import Weight
from redraft.model.packed.build import pack
from redraft.model.packed.layers import after_attention, feed_forward
from redraft.model.packed.weights import PackedModel
from redraft.model.presets import preset
from redraft.model.quantize import weight_format
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import quantize_int4

CONFIG = replace(
    preset("nano"), hidden_size=128, moe_intermediate_size=64, num_experts=2, layer_types=(FULL,), vocab_size=64
)
ROWS = 16


def adapted(stored: str, changed: str) -> PackedModel:
    """A model of one layer, quantized except for what shares a product with the weight that is `changed`."""
    model = Transformer(CONFIG)
    initialise(model, 3)
    state = model.state_dict()

    def read(name: str) -> Weight:
        format = weight_format(name, stored)
        return state[name] if format is None else (quantize_int4 if format == "int4" else quantize_fp8)(state[name])

    source = random_adapter(model, 1, changed, size=0.02).applied(read)
    return pack(CONFIG, source, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("stored", ["fp8", "int4"])
@pytest.mark.parametrize("changed", ["experts.gate_up", "experts.down", "mlp.gate", "mlp.down"])
def test_a_layer_of_which_one_weight_is_changed(stored: str, changed: str) -> None:
    (share,) = adapted(stored, changed).shards
    x = normal(ROWS, CONFIG.hidden_size)
    _, rows = after_attention(0, share, x, [normal(ROWS, CONFIG.hidden_size, seed=1)])
    assert isinstance(rows.mlp, Rows8) == (changed != "mlp.gate")
    assert isinstance(rows.experts, Rows8) == changed.startswith("mlp")
    ours = feed_forward(0, share, rows, None)
    with kernels.force("eager"):
        theirs = feed_forward(0, share, rows, None)
    for found, expected in zip(ours, theirs, strict=True):
        assert float((found - expected).norm() / expected.norm()) < 0.06
