"""What a run reports: losses by noise level, for replaced and kept positions, and by source, summed on the device.

Sums stay on the device until a report is due, so measuring never waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redraft.train.batch import Batch
from redraft.train.distributed import World
from redraft.train.objective import BatchLosses
from redraft.train.recipe.data import BUCKETS, REPORTED

_MEANS = ("loss", "decoder", "encoder", "balance")
NORM = "norm"
"""The name of the gradients' norm in reports."""


class Meters:
    """Running sums over canvas tokens, and over steps, since the last `report`."""

    def __init__(self, sources: Sequence[str], device: torch.device) -> None:
        self.sources, self.device = list(sources), device
        self.groups = [*REPORTED, *self.sources]
        self._tokens = torch.zeros(len(self.groups), 3, device=device)  # weight, loss, hits
        self._batches = torch.zeros(len(_MEANS) + 1, device=device)  # and how many
        self._norms = torch.zeros(2, device=device)  # sum and count

    @torch.no_grad()
    def add(self, outcome: BatchLosses, batch: Batch) -> None:
        """Count one batch."""
        weight = batch.canvas_weight.flatten()  # [B*N*C]
        values = torch.stack((weight, weight * outcome.token_loss.flatten(), weight * outcome.token_hit.flatten()), -1)
        shape = batch.canvas_target.shape
        bucket = (outcome.noise.level * BUCKETS).long().clamp(max=BUCKETS - 1)[..., None].expand(shape)
        kept = torch.where(outcome.noise.replaced, BUCKETS, BUCKETS + 1)
        source = (len(REPORTED) + batch.source)[:, None, None].expand(shape)
        for group in (bucket, kept, source):
            self._tokens.index_add_(0, group.flatten(), values)
        one = torch.ones_like(outcome.loss)
        parts = (outcome.loss, outcome.decoder, outcome.encoder, outcome.balance, one)
        self._batches += torch.stack([part.detach().float() for part in parts])

    @torch.no_grad()
    def add_norm(self, norm: Tensor) -> None:
        """Count the norm of one step's gradients."""
        self._norms += torch.stack((norm.detach().float(), torch.ones_like(norm, dtype=torch.float32)))

    def report(self, world: World) -> dict[str, float]:
        """Means over all processes since the last report, by name, without groups that no token fell into and without
        the norm of gradients if there were none.

        Waits for the device.
        """
        sums = (self._batches, self._norms, self._tokens)
        batches, norms, tokens = (world.sum_(part).tolist() for part in sums)
        for part in sums:
            part.zero_()
        out = {name: batches[i] / max(batches[-1], 1.0) for i, name in enumerate(_MEANS)}
        if norms[1] > 0:
            out[NORM] = norms[0] / norms[1]
        for name, (weight, loss, hits) in zip(self.groups, tokens, strict=True):
            if weight > 0:
                out[f"loss_{name}"], out[f"hit_{name}"] = loss / weight, hits / weight
        return out

    def names(self) -> list[str]:
        """Every name `report` may use, in a fixed order."""
        return [*_MEANS, NORM] + [f"{kind}_{group}" for kind in ("loss", "hit") for group in self.groups]
