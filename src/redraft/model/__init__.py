"""The DiffusionGemma model: one weight stack, used causally (`encode`) and two-sided (`denoise`)."""

from redraft.model.base import Model
from redraft.model.transformer import Transformer

__all__ = ["Model", "Transformer"]
