"""Soft-capped logits over a temperature; kernels use units of ln 2, because their exponentials are powers of 2."""

from __future__ import annotations

from torch import Tensor

from redraft.kernels.triton.language import jit, reciprocal, tl


def tempered(logits: Tensor, cap: float | None, temperature: Tensor) -> Tensor:
    """Raw logits [R,V] -> soft-capped logits over their segment's temperature, fp32; not capped without a cap."""
    heat = temperature.repeat_interleave(logits.shape[0] // len(temperature))[:, None]  # [R,1]
    return (logits.float() if cap is None else (logits.float() / cap).tanh() * cap) / heat


@jit
def capped(logit, cap, heat):
    """cap * tanh(logit / cap) / heat in units of ln 2: tanh(z) = 1 - 2 / (e^2z + 1). Without a cap logit / heat."""
    if cap is None:
        x = logit * (1.4426950408889634 / heat)
    else:
        x = bounded(logit, cap, cap * 1.4426950408889634 / heat, cap * -2.8853900817779268 / heat)
    return x


@jit
def bounded(logit, cap, one, two):
    """one + two / (e^(2 logit / cap) + 1): what `capped` computes, with its factors given."""
    return one + two * reciprocal(tl.exp2(logit * (2.885390081777927 / cap)) + 1.0)
