"""fp32 master weights around a working copy in the compute dtype, AdamW on the masters, and the learning rate.

The forward pass and the exported model use the working copy. Before every step it is refreshed from the masters; after
every backward pass its gradients are widened and added to theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from redraft.train.distributed import World
from redraft.train.recipe import OptimizerSettings


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """The learning rate of step `step` (from 0): linear warm-up to the peak, then the schedule.

    The last step, number `steps` - 1, has the final rate, and so would any after it; if the warm-up, or a run's only
    step, is the last, that has the peak.
    """
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    peak = max(0, settings.warmup - 1)
    falling = max(1, settings.steps - 1 - peak)
    done = min(1.0, (step - peak) / falling)
    if settings.schedule == "cosine":
        fall = 0.5 * (1.0 - math.cos(math.pi * done))
    else:
        start = max(0.0, 1.0 - settings.decay_share * settings.steps / falling)
        fall = 0.0 if done <= start else (done - start) / (1.0 - start)
    return settings.learning_rate * (settings.final_share + (1.0 - settings.final_share) * (1.0 - fall))


class Masters:
    """Master weights, optimizer and running average of a working model's trained parameters."""

    def __init__(
        self, model: nn.Module, dtype: torch.dtype, settings: OptimizerSettings, world: World | None = None
    ) -> None:
        """`model` holds its weights on the training device, the trained ones in fp32; it becomes the working copy."""
        self.settings, self.world = settings, world or World()
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.masters: list[Tensor] = [p.detach().to(torch.float32, copy=True) for _, p in trained]
        model.to(dtype)
        self.working = [p for p in model.parameters() if p.requires_grad]
        self.average = [m.clone() for m in self.masters] if settings.average else None
        device = self.masters[0].device
        # One flat vector holds all gradients, so the processes of a run exchange them at once.
        self._gradients = torch.zeros(sum(m.numel() for m in self.masters), device=device)
        for master, part in zip(self.masters, self._gradients.split([m.numel() for m in self.masters]), strict=True):
            master.requires_grad_()
            master.grad = part.view_as(master)
        self.optimizer = torch.optim.AdamW(
            decay_groups(self.masters, settings.weight_decay),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            fused=True if device.type == "cuda" else None,
        )

    @torch.no_grad()
    def refresh(self, *, averaged: bool = False) -> None:
        """Copy the masters, or with `averaged` their running average if there is one, into the working model."""
        source = self.average if averaged and self.average is not None else self.masters
        torch._foreach_copy_(self.working, source)  # type: ignore[attr-defined]

    def trained(self) -> dict[str, Tensor]:
        """The trained weights in fp32 by name: their running average if there is one."""
        return {name: m.detach() for name, m in zip(self.names, self.average or self.masters, strict=True)}

    @torch.no_grad()
    def accumulate(self) -> None:
        """Add the working model's gradients to those of this step, and clear them."""
        gradients = [m.grad for m, w in zip(self.masters, self.working, strict=True) if w.grad is not None]
        fresh = [w.grad.float() for w in self.working if w.grad is not None]
        torch._foreach_add_(gradients, fresh)  # type: ignore[attr-defined]
        for working in self.working:
            working.grad = None

    @torch.no_grad()
    def finite(self) -> bool:
        """Whether the weights are finite numbers."""
        return all(bool(master.isfinite().all()) for master in self.masters)

    def step(self, number: int, batches: int = 1) -> Tensor:
        """Apply the gradients accumulated over `batches` batches, as their mean over these and the processes.

        This is step `number`; returns their unclipped norm. A parameter that no token reached this time still takes
        part, with a zero gradient.
        """
        self.world.mean_(self._gradients)
        if batches > 1:
            self._gradients.div_(batches)
        norm = update(self.optimizer, self.masters, self.settings, number)
        self._gradients.zero_()
        if self.average is not None:
            # Early on the average follows faster, to forget the initial weights.
            decay = min(self.settings.average, (1 + number) / (10 + number))
            torch._foreach_lerp_(self.average, self.masters, 1.0 - decay)  # type: ignore[attr-defined]
        return norm

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs."""
        return {
            "masters": dict(zip(self.names, (m.detach() for m in self.masters), strict=True)),
            "average": None if self.average is None else dict(zip(self.names, self.average, strict=True)),
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; names and shapes must be those of this model."""
        torch._foreach_copy_(self.masters, [state["masters"][name] for name in self.names])  # type: ignore[attr-defined]
        if self.average is not None:
            kept = state["average"] or state["masters"]
            torch._foreach_copy_(self.average, [kept[name] for name in self.names])  # type: ignore[attr-defined]
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:  # what the recipe says now, not what it said when saved
            group["betas"], group["eps"] = self.settings.betas, self.settings.eps
            group["weight_decay"] = self.settings.weight_decay if group["decays"] else 0.0


def update(
    optimizer: torch.optim.Optimizer, weights: Iterable[Tensor], settings: OptimizerSettings, number: int
) -> Tensor:
    """Apply the gradients of `weights`, clipped, as step `number`; returns their norm before clipping."""
    norm = nn.utils.clip_grad_norm_(weights, settings.clip or math.inf, foreach=True)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(settings, number)
    optimizer.step()
    return norm


def decay_groups(weights: Sequence[Tensor], decay: float) -> list[dict[str, Any]]:
    """The optimizer's groups: matrices, which decay, and the rest, which do not."""
    return [
        {"params": [w for w in weights if w.ndim >= 2], "weight_decay": decay, "decays": True},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0, "decays": False},
    ]
