"""Soft-capped logits over a temperature; kernels use units of ln 2, because their exponentials are powers of 2."""

from __future__ import annotations

from torch import Tensor

from redraft.kernels.triton.language import jit, reciprocal, tl


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
        x = logit * (1.4426950408889634 / temperature)
    else:
        x = bounded(logit, cap, cap * 1.4426950408889634 / temperature, cap * -2.8853900817779268 / temperature)
    return x


@jit
def bounded(logit, cap, one, two):
    """one + two / (e^(2 logit / cap) + 1): what `capped` computes, with its factors given."""
    return one + two * reciprocal(tl.exp2(logit * (2.885390081777927 / cap)) + 1.0)
