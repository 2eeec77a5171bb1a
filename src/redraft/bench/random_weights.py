"""Models of any shape with random weights, which are created where they are used and one at a time.

Matrices are drawn from N(0, 0.02), norms and scales are 1: with router weights drawn like that, a random canvas of the
26B model touches every expert of every layer, which is the most that a step can have to read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.kernels.packed import PackedFp8, values_and_scale
from redraft.llm import LLM
from redraft.model.accounting import bytes_in, text_parts
from redraft.model.folders import resolve_folder, shape_of
from redraft.model.layouts import EXPERTS_AT_A_TIME, Source, Weight, join
from redraft.model.packed.build import pack
from redraft.model.packed.requirements import check_fit
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.packed.vocabulary import Vocabulary, fill_transposed
from redraft.model.packed.weights import tensors
from redraft.model.placement import machine_memory
from redraft.model.transformer import Transformer
from redraft.model.weight_settings import WeightSettings
from redraft.quant.int4 import quantize_int4
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer

STD = 0.02
LIKELY_TOKENS, LIKELIER = 32, 40.0
"""For sharp distributions: how many tokens get longer embeddings, and by what factor; these share all the mass."""


def random_source(config: ModelConfig, device: torch.device, dtype: torch.dtype, *, seed: int = 0) -> Source:
    """Weights by name; the same name always gives the same numbers on the same kind of device."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Transformer(config).state_dict().items()}

    def weight(name: str) -> Tensor:
        shape = shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=dtype, device=device)
        generator = torch.Generator(device).manual_seed(seed ^ zlib.crc32(name.encode()))
        return torch.empty(shape, dtype=dtype, device=device).normal_(0, STD, generator=generator)

    return weight


def random_model(shape: str, settings: WeightSettings, group: int | None = None) -> PackedTransformer:
    """A packed model of a preset's shape, or a folder's, in bfloat16 whatever the settings' dtype.

    Experts in INT4 share a scale among `group` inputs, if given, which changes nothing else.
    Raises `SettingError` for settings that do not fit the device, or a device that does not fit the shape.
    """
    config, (first, *other_devices) = shape_of(shape), settings.devices
    fp8 = check_fit(config, settings)
    if first.type == "cpu":
        check_memory(shape, config, settings.quantization or "bf16")
    source = random_source(config, first, torch.bfloat16)
    if group is not None:
        source = _experts_in_groups(source, group)
    given = {"dtype": torch.bfloat16, "quantization": settings.quantization, "fp8_vocabulary": fp8}
    return PackedTransformer(pack(config, source, device=first, other_devices=other_devices, **given))


def _experts_in_groups(source: Source, group: int) -> Source:
    """A source whose experts are in INT4, a scale for every `group` inputs."""

    def weight(name: str) -> Weight:
        full = source(name)
        if ".experts." not in name:
            return full
        assert isinstance(full, Tensor)
        return join([quantize_int4(part, group) for part in full.split(EXPERTS_AT_A_TIME)], torch.cat)

    return weight


def check_memory(shape: str, config: ModelConfig, format: str) -> None:
    """Raise `SettingError` if this machine's memory cannot hold the text model's weights in a format.

    The system would kill the process.
    """
    needed, room = bytes_in(text_parts(config), format), machine_memory()
    if room is not None and needed > room:
        raise SettingError(
            f"On a CPU the weights of {shape} take {needed / 1e9:.0f} GB and this machine has {room / 1e9:.0f}; "
            "name a smaller shape, such as tiny."
        )


def random_llm(shape: str, tokenizer: Path, **given: Any) -> LLM:
    """A `random_model`, `given` its settings, with a tokenizer.json and the chat template of `tiny`."""
    words, model = tokenizer_for(tokenizer, shape), random_model(shape, WeightSettings(**given))
    return LLM(model, words, ChatTemplate.find(resolve_folder("tiny")), path=tokenizer.parent)


def tokenizer_for(file: Path, model: str) -> Tokenizer:
    """A tokenizer.json for a model or a shape. Raises `SettingError` if it has tokens that the model does not know."""
    words, size = Tokenizer.from_file(file), shape_of(model).vocab_size
    if words.vocab_size > size:
        raise SettingError(f"{file} has {words.vocab_size} tokens; the model knows only {size}.")
    return words


@contextmanager
def sharpened(model: PackedTransformer) -> Iterator[None]:
    """Make a random model's distributions sharp inside a `with` block."""
    copies = list({id(shard.vocabulary): shard.vocabulary for shard in model.packed.shards}.values())
    kept = [tensor.to("cpu", copy=True) for tensor in tensors(copies[0])]  # not on the card, whose memory is measured
    for vocabulary in copies:
        _lengthen(vocabulary, slice(None, None, model.config.vocab_size // LIKELY_TOKENS), LIKELIER)
    try:
        yield
    finally:
        for vocabulary in copies:
            for tensor, old in zip(tensors(vocabulary), kept, strict=True):
                tensor.copy_(old)


def _lengthen(vocabulary: Vocabulary, tokens: slice, factor: float) -> None:
    """Multiply some tokens' embeddings by `factor`, in place."""
    head, transposed = vocabulary.head, vocabulary.transposed
    if isinstance(head, Tensor) or transposed is None:
        values_and_scale(head)[0][tokens] *= factor
        return
    head.scale[tokens] *= factor
    fill_transposed(transposed, lambda part: PackedFp8(head.values[part], head.scale[part]).dequantize(torch.float32))
