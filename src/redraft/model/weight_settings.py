"""Where a model's weights are to be and in which formats: frozen, validated settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from redraft.errors import SettingError, one_of
from redraft.model.placement import Dtype, resolve_devices, resolve_dtype
from redraft.model.quantize import Quantization, check_format

VocabularyDtype = Literal["auto", "model", "fp8"]
VOCABULARIES: tuple[VocabularyDtype, ...] = get_args(VocabularyDtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSettings:
    """See `redraft.load` for each; `devices` are those that `device` and `gpus` stand for.

    Raises `SettingError` for names and devices that do not exist, so before a model is downloaded. Whether settings
    suit the model is checked by its loaders.
    """

    device: str | torch.device = "auto"
    gpus: int = 1
    dtype: Dtype | torch.dtype = "auto"
    quantization: Quantization | None = None
    vocabulary_dtype: VocabularyDtype = "auto"
    devices: tuple[torch.device, ...] = field(init=False)

    def __post_init__(self) -> None:
        check_format(self.quantization)
        if self.vocabulary_dtype not in VOCABULARIES:
            sentence = f"vocabulary_dtype is {self.vocabulary_dtype!r}; it must be {one_of(VOCABULARIES)}."
            raise SettingError(sentence, "vocabulary_dtype")
        object.__setattr__(self, "devices", resolve_devices(self.device, self.gpus))
        resolve_dtype(self.dtype, self.devices[0], torch.bfloat16)
