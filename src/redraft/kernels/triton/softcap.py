"""Soft-capped logits over a temperature; kernels use units of ln 2, because their exponentials are powers of 2."""

from __future__ import annotations

from torch import Tensor

from redraft.kernels.triton.instructions import reciprocal
from redraft.kernels.triton.language import LOG2E, jit, tl


def tempered(logits: Tensor, cap: float | None, temperatures: Tensor) -> Tensor:
    """Raw logits [R,V] -> soft-capped logits over their segment's temperature, fp32; not capped without a cap."""
    temperature = temperatures.repeat_interleave(logits.shape[0] // len(temperatures))[:, None]  # [R,1]
    return (logits.float() if cap is None else (logits.float() / cap).tanh() * cap) / temperature


@jit
def capped(logit, cap, temperature):
    """cap * tanh(logit / cap) / temperature, without a cap logit / temperature, in units of ln 2.

    tanh(z) = 1 - 2 / (e^2z + 1).
    """
    if cap is None:
        x = logit * (LOG2E / temperature)
    else:
        x = bounded(logit, cap, cap * LOG2E / temperature, cap * (-2.0 * LOG2E) / temperature)
    return x


@jit
def bounded(logit, cap, one, two):
    """one + two / (e^(2 logit / cap) + 1): what `capped` computes, with its factors given."""
    return one + two * reciprocal(tl.exp2(logit * (2.0 * LOG2E / cap)) + 1.0)
