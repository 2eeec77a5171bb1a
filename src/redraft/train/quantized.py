"""A model for LoRA training with frozen weights in FP8 or INT4, read, quantized and placed one at a time."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from redraft.model import Transformer
from redraft.model.checkpoint import Checkpoint
from redraft.model.folders import resolve_folder
from redraft.model.layouts import Weight, by_parts
from redraft.model.moe import Experts
from redraft.model.packed.upload import upload
from redraft.model.quantize import weight_format
from redraft.model.transformer import Layer
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import quantize_int4
from redraft.train.experts import FrozenExperts
from redraft.train.frozen import Frozen, FrozenLinear


def load_quantized(model: str | Path, format: str, *, device: torch.device, dtype: torch.dtype) -> Transformer:
    """The text model of a folder with what `redraft quantize` would quantize in `format`, the rest in `dtype`.

    Weights that are already stored quantized stay as they are, except for the embedding. Raises `CheckpointError` for
    damaged files and `SettingError` for weights that int4 groups do not divide.
    """
    checkpoint = Checkpoint(resolve_folder(model), vision=False)
    with torch.device("meta"):
        network = Transformer(checkpoint.config)
    for name in checkpoint.names():
        place(network, name, _in_format(checkpoint.weight(name), weight_format(name, format), device), dtype)
    _join_experts(network)
    return network.requires_grad_(False)


def quantize_in_place(model: Transformer, format: str) -> None:
    """The same for a model that is already loaded."""
    for name, weight in list(model.named_parameters()):
        if kept_as := weight_format(name, format):
            place(model, name, _in_format(weight.detach(), kept_as, weight.device), weight.dtype)
    _join_experts(model)


def _in_format(weight: Weight, kept_as: str | None, device: torch.device) -> Weight:
    """A weight on the device, quantized if it should be and is not yet."""
    weight = upload(weight, device)
    if kept_as is None or not isinstance(weight, Tensor):
        return weight
    quantize = quantize_fp8 if kept_as == "fp8" else quantize_int4
    if weight.ndim == 2:
        return quantize(weight)
    return by_parts(weight, quantize)  # type: ignore[arg-type]


def place(model: Transformer, name: str, weight: Weight, dtype: torch.dtype) -> None:
    """Put a weight in the place that `name` says, in `dtype` or, if its module only multiplies, as a `Frozen` one."""
    module_name, _, last = name.rpartition(".")
    module = model.get_submodule(module_name)
    if isinstance(weight, Tensor):
        value = weight.to(dtype)
        setattr(module, last, value if last in module._buffers else nn.Parameter(value))
    elif isinstance(module, Experts):
        delattr(module, last)
        setattr(module, last, Frozen(weight))
    elif isinstance(module, nn.Linear):
        parent, _, child = module_name.rpartition(".")
        setattr(model.get_submodule(parent), child, FrozenLinear(Frozen(weight)))
    else:  # the embedding: rows of it are looked up, and losses read all of it
        setattr(module, last, nn.Parameter(weight.dequantize(dtype)))


def _join_experts(model: Transformer) -> None:
    """Turn experts whose two weights are quantized into a module that computes with them."""
    for layer in model.layers:
        assert isinstance(layer, Layer)
        gate_up, down = (getattr(layer.experts, name) for name in ("gate_up_proj", "down_proj"))
        if isinstance(gate_up, Frozen) and isinstance(down, Frozen):
            layer.experts = FrozenExperts(gate_up, down)  # type: ignore[assignment]
