"""Experts that stay in INT4 where a model answers on a CPU: 17 GB for the 26B model instead of 50.

They are read from a checkpoint that has them in INT4, such as one that `redraft quantize --format int4` wrote, or
rounded while another one is read, in groups of 64 inputs, or of 32 if a width is not a multiple of 64. The rest of the
model is in the working dtype. Products use the unpacked numbers, in fp32 (`kernels.experts`).
"""

from __future__ import annotations

from math import gcd
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from redraft import kernels
from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.kernels.cpu import input_major
from redraft.kernels.packed import PANEL, PanelInt4
from redraft.model.checkpoint import Checkpoint
from redraft.model.layouts import Weight, by_parts
from redraft.model.moe import Experts
from redraft.quant.int4 import INT4_GROUP, Int4Weight, quantize_int4
from redraft.quant.prepare import in_panels


class Int4Experts(nn.Module):
    """`Experts` with both weights in INT4, on a CPU. They can be neither trained nor saved."""

    gate_up_codes: Tensor
    gate_up_scale: Tensor
    down_codes: Tensor
    down_scale: Tensor

    def __init__(self, gate_up: PanelInt4, down: PanelInt4) -> None:
        super().__init__()
        self._gate_up_group, self._down_group = gate_up.group, down.group
        for name, weight in (("gate_up", gate_up), ("down", down)):
            self.register_buffer(f"{name}_codes", weight.codes, persistent=False)
            self.register_buffer(f"{name}_scale", weight.scale, persistent=False)

    @property
    def gate_up(self) -> PanelInt4:
        """[E,2I,D], gate rows first."""
        return PanelInt4(self.gate_up_codes, self.gate_up_scale, self._gate_up_group)

    @property
    def down(self) -> PanelInt4:
        """[E,D,I]"""
        return PanelInt4(self.down_codes, self.down_scale, self._down_group)

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        return kernels.experts(x, index, weight, self.gate_up, self.down)

    def widened(self, config: ModelConfig, dtype: torch.dtype) -> Experts:
        """The same experts with plain weights, which can be changed."""
        with torch.device("meta"):
            experts = Experts(config)
        for name, weight in (("gate_up_proj", self.gate_up), ("down_proj", self.down)):
            plain = input_major(torch.empty(weight.shape, dtype=dtype))
            for expert in range(len(plain)):
                plain[expert] = weight[expert].dequantize(dtype)
            setattr(experts, name, nn.Parameter(plain, requires_grad=False))
        return experts

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> NoReturn:
        raise SettingError("These experts stay in INT4, so there are no full weights to save or compare with.")


def int4_layers(checkpoint: Checkpoint, *, asked: bool) -> list[int]:
    """The layers whose experts can stay in INT4: those stored that way, or all if `asked`.

    Raises `SettingError` if it is asked for and widths are not multiples of 32.
    """
    config, formats = checkpoint.config, checkpoint.formats
    fits = config.hidden_size % PANEL == config.moe_intermediate_size % PANEL == 0
    if asked and not fits:
        raise SettingError(
            f"quantization is 'int4'; on a CPU the width and the experts' width must be multiples of {PANEL}, and this "
            f"model's are {config.hidden_size} and {config.moe_intermediate_size}."
        )
    layers = range(config.num_hidden_layers) if fits else ()
    return [layer for layer in layers if asked or all(formats.get(name) == "int4" for name in _names(layer))]


def read_experts(checkpoint: Checkpoint, layer: int) -> Int4Experts:
    """The experts of a layer, rounded to INT4 if they are stored in another format.

    Groups are the same for both weights, as the product requires; stored ones are divided if necessary.
    """
    config = checkpoint.config
    even = config.hidden_size % INT4_GROUP == config.moe_intermediate_size % INT4_GROUP == 0
    group = INT4_GROUP if even else PANEL
    gate_up, down = (_in_int4(checkpoint.weight(name), group) for name in _names(layer))
    common = gcd(gate_up.group, down.group)
    return Int4Experts(*(in_panels(weight.in_groups_of(common)) for weight in (gate_up, down)))


def _names(layer: int) -> tuple[str, str]:
    return f"layers.{layer}.experts.gate_up_proj", f"layers.{layer}.experts.down_proj"


def _in_int4(weight: Weight, group: int) -> Int4Weight:
    if isinstance(weight, Int4Weight):
        return weight
    rounded = by_parts(weight, lambda part: quantize_int4(_plain(part), group))
    assert isinstance(rounded, Int4Weight)
    return rounded


def _plain(weight: Weight) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.dequantize(torch.float32)
