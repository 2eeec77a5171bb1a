"""One training batch: packed clean rows, and the canvases that are denoised against them.

Shapes: B rows, T clean tokens per row, N canvases per row, C tokens per canvas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from redraft.train.distributed import World


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Tensors of one batch. A canvas sees the clean tokens of its document before `canvas_start`, and itself.

    Rows are in random order, so any first part of a batch is a fair sample of it.
    """

    tokens: Tensor
    """Clean token ids, int64 [B,T]."""
    document: Tensor
    """Number of the token's document within its row, counting up from 0; -1 for padding. int32 [B,T]."""
    position: Tensor
    """Position within the document, int32 [B,T]; continues through padding."""
    encoder_weight: Tensor
    """Weight of predicting the next clean token from this one, fp32 [B,T]; 0 where there is none."""
    canvas_target: Tensor
    """The clean canvases, int64 [B,N,C]."""
    canvas_document: Tensor
    """The document of each canvas, int32 [B,N]; -2 for an empty one, which sees no clean token."""
    canvas_start: Tensor
    """Position of the first canvas token within the document, int32 [B,N]."""
    noise_region: Tensor
    """Where corruption may happen, bool [B,N,C]; the rest of a canvas is given, like the suffix of a hole."""
    canvas_weight: Tensor
    """Loss weights of canvas positions, fp32 [B,N,C]; 0 in empty ones."""
    full_noise: Tensor
    """Probability that the noise level of a canvas is exactly 1, fp32 [B,N]."""
    source: Tensor
    """Which source a row was drawn from, int64 [B]; for reports only."""
    rollout: Tensor | None = None
    """Share of a row's canvases that continue from the model's own draft where it has one, fp32 [B]; None if no source
    of the recipe has such canvases, and then nothing is drawn for it."""
    scale: Tensor | None = None
    """What its mean decoder and encoder losses are multiplied by among the batches of its step (see `in_one_step`),
    fp32 [2]; None for a batch on its own."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Batch:
        """Wrap numpy arrays by the names of their fields."""
        return cls(**{name: torch.from_numpy(array) for name, array in arrays.items()})

    def to(self, device: torch.device) -> Batch:
        """Move to `device`; for a GPU through pinned memory and without waiting. Ids become int64."""
        wide = {"tokens", "canvas_target", "source"}
        moved = {name: _move(tensor, device) for name, tensor in self.tensors().items()}
        return Batch(**{name: tensor.long() if name in wide else tensor for name, tensor in moved.items()})

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are present, by name."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: tensor for name, tensor in fields.items() if tensor is not None}


def in_one_step(batches: Sequence[Batch], world: World) -> list[Batch]:
    """The batches of one step of this process, whose losses are then means over all tokens of the step.

    Losses are means within a batch, weighted by token, and a step takes the mean over its batches and processes. With
    the sum of a batch's weights over that of the mean batch as its `scale`, every token counts what it would count in a
    single batch of all rows. Every process has to call it; it does not wait for the device.
    """
    sums = torch.stack([torch.stack((batch.canvas_weight.sum(), batch.encoder_weight.sum())) for batch in batches])
    mean = world.mean_(sums.mean(0)).clamp(min=1e-6)
    return [dataclasses.replace(batch, scale=part) for batch, part in zip(batches, sums / mean, strict=True)]


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
