"""What a run reports: losses by noise level, for replaced and kept positions, and by source, summed on the device.

Sums stay on the device until a report is due, so that measuring never waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redraft.train.batch import Batch
from redraft.train.two_stream import Outcome

BUCKETS = 10
LEVELS = tuple(f"t{bucket / BUCKETS:.1f}" for bucket in range(BUCKETS))
"""Names of the buckets of noise levels, by their lower bounds."""


class Meters:
    """Running sums over canvas tokens, and over steps, since the last `report`."""

    def __init__(self, sources: Sequence[str], device: torch.device) -> None:
        self.sources, self.device = list(sources), device
        self.groups = [*LEVELS, "replaced", "kept", *self.sources]
        self._tokens = torch.zeros(len(self.groups), 3, device=device)  # weight, loss, hits
        self._steps = torch.zeros(6, device=device)

    @torch.no_grad()
    def add(self, outcome: Outcome, batch: Batch, norm: Tensor) -> None:
        """Count one step."""
        weight = batch.canvas_weight.flatten()  # [B*N*C]
        values = torch.stack((weight, weight * outcome.token_loss.flatten(), weight * outcome.token_hit.flatten()), -1)
        shape = batch.canvas_target.shape
        bucket = (outcome.noise.level * BUCKETS).long().clamp(max=BUCKETS - 1)[..., None].expand(shape)
        kept = torch.where(outcome.noise.replaced, BUCKETS, BUCKETS + 1)
        source = (BUCKETS + 2 + batch.source)[:, None, None].expand(shape)
        for group in (bucket, kept, source):
            self._tokens.index_add_(0, group.flatten(), values)
        one = torch.ones_like(outcome.loss)
        parts = (outcome.loss, outcome.decoder, outcome.encoder, outcome.balance, norm, one)
        self._steps += torch.stack([part.detach().float() for part in parts])

    def report(self) -> dict[str, float]:
        """Means since the last report, by name; groups that no token fell into are absent. Waits for the device."""
        steps, tokens = self._steps.tolist(), self._tokens.tolist()
        self._steps.zero_()
        self._tokens.zero_()
        count = max(steps[5], 1.0)
        out = {name: steps[i] / count for i, name in enumerate(("loss", "decoder", "encoder", "balance", "norm"))}
        for name, (weight, loss, hits) in zip(self.groups, tokens, strict=True):
            if weight > 0:
                out[f"loss_{name}"], out[f"hit_{name}"] = loss / weight, hits / weight
        return out

    def names(self) -> list[str]:
        """Every name `report` may use, in a fixed order."""
        fixed = ["loss", "decoder", "encoder", "balance", "norm"]
        return fixed + [f"{kind}_{group}" for kind in ("loss", "hit") for group in self.groups]
