"""Folders in compressed-tensors' `pack-quantized` layout, written from its definition, beside a plain twin.

A matrix [N,K] is whole numbers from 0 to 15, eight in a word with the first one in the lowest bits, along the inputs;
a scale for each group of inputs; and, if it is asymmetric, a number from 0 to 15 that stands for zero in each group,
packed in the same way but along the outputs. A symmetric matrix has 8 for zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

EVERYTHING = r".*\.(self_attn\.[qkvo]_proj|mlp\.\w+_proj|experts\.\d+\.\w+_proj)"
"""Names of all matrices that community checkpoints have in 4 bits."""


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How matrices are stored; those that have fewer inputs than `group` have one group, as with a scale per row."""

    group: int = 32
    symmetric: bool = True
    scales: torch.dtype = torch.bfloat16

    def tensors(self, matrix: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The tensors of a matrix [N,K] by suffix, and what they stand for, fp32."""
        group = min(self.group, matrix.shape[1])
        grouped = matrix.float().unflatten(1, (-1, group))  # [N,G,group]
        low, high = (
            end.clamp(*bound) for end, bound in zip(grouped.aminmax(dim=-1), ((None, 0), (0, None)), strict=True)
        )
        scale = ((high - low) / 15 if not self.symmetric else torch.maximum(high, -low) / 7.5).clamp(min=1e-6)
        scale = scale.to(self.scales)
        step = scale.float()
        zero = torch.full_like(step, 8) if self.symmetric else (-low / step).round().clamp(0, 15)
        codes = ((grouped / step[..., None]).round() + zero[..., None]).clamp(0, 15)
        meant = ((codes - zero[..., None]) * step[..., None]).flatten(1)
        stored = {
            ".weight_packed": words(codes.flatten(1).long()),
            ".weight_scale": scale,
            ".weight_shape": torch.tensor(matrix.shape),
        }
        return stored | ({} if self.symmetric else {".weight_zero_point": words(zero.long().T).T.contiguous()}), meant

    def described(self) -> dict[str, Any]:
        """The `quantization_config` of compressed-tensors."""
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": self.group,
                   "symmetric": self.symmetric, "dynamic": False}  # fmt: skip
        group = {"weights": weights, "input_activations": None, "targets": ["Linear"], "format": "pack-quantized"}
        return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group},
                "ignore": ["lm_head", "re:.*router.*", "re:.*vision.*", "re:.*self_conditioning.*"]}  # fmt: skip


def words(numbers: Tensor) -> Tensor:
    """Numbers from 0 to 15 [R,C] as words [R,C/8], filled up with zeros."""
    padded = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % 8)).unflatten(1, (-1, 8))
    unsigned = sum(padded[..., place] * 16**place for place in range(8))
    assert isinstance(unsigned, Tensor)
    return (unsigned - 2**32 * (unsigned >= 2**31)).to(torch.int32)


def store(folder: Path, target: Path, scheme: Scheme, names: str = EVERYTHING, **others: Scheme) -> Path:
    """Write a plain folder's twin to `target` with matrices whose names match `names` stored as `scheme` says.

    `others` are schemes for matrices whose names end with these words. Returns a plain folder with the same numbers.
    """
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, matrix in _single(load_file(folder / "model.safetensors")):
        base = name.removesuffix(".weight")
        if re.fullmatch(names, base):
            chosen = next((other for end, other in others.items() if base.endswith(end)), scheme)
            tensors, matrix = chosen.tensors(matrix)
            stored |= {base + suffix: tensor for suffix, tensor in tensors.items()}
        else:
            stored[name] = matrix.contiguous()
        meant[name] = matrix.contiguous()
    plain = target.with_name(target.name + "-plain")
    config = json.loads((folder / "config.json").read_text())
    for place, tensors, more in ((target, stored, {"quantization_config": scheme.described()}), (plain, meant, {})):
        place.mkdir()
        save_file(tensors, place / "model.safetensors")
        (place / "config.json").write_text(json.dumps(config | more))
    return plain


def _single(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Tensors by name, with experts one by one."""
    for name, tensor in tensors.items():
        if ".experts." not in name:
            yield name, tensor
            continue
        kinds = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
        for expert, block in enumerate(tensor):
            for kind, matrix in zip(kinds, block.chunk(len(kinds)), strict=True):
                yield f"{name.rpartition('.')[0]}.{expert}.{kind}.weight", matrix
