"""What packed weights require of a device and of a model's shape, checked before anything is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch

from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.model import accounting
from redraft.model.checkpoint import Checkpoint
from redraft.model.names import EXPERTS
from redraft.model.packed.tensor_parallel import SHARDED, check_tensor_parallel
from redraft.model.packed.weights import products
from redraft.model.placement import OLDEST, OLDEST_FP8, lacks_fp8
from redraft.model.quantize import QUANTIZATIONS, check_requantization, requantization_refusal, weight_format
from redraft.model.transformer import Transformer
from redraft.model.weight_settings import WeightSettings
from redraft.quant.int4 import INT4_GROUP
from redraft.quant.prepare import takes_int4_group

MULTIPLE = 16
"""A vocabulary in FP8 must be a multiple of this many tokens: rows of the transposed table are copied in bulk."""

MOST_EXPERTS = 256
"""The router's product takes all experts in one tile."""

WORKING_BYTES = 1_500_000_000
"""What a step of one canvas takes besides the weights: logits, activations, some pages, and the libraries' memory."""


def check_fit(
    config: ModelConfig,
    settings: WeightSettings,
    checkpoint: Checkpoint | None = None,
    *,
    changed: Set[str] = frozenset(),
) -> bool:
    """Raise `SettingError` if a model cannot be packed as asked; returns whether its vocabulary is kept in FP8.

    Without an open folder its weights are in full, and it has no vision tower. `changed` are the names of weights that
    an adapter changes.
    """
    target, stored = settings.devices[0], {} if checkpoint is None else _formats(checkpoint)
    check_tensor_parallel(config, len(settings.devices))
    quantized = resulting_format(stored, settings.quantization) != "bf16"
    check_device(target, settings.quantization)
    if target.type == "cuda" and (wrong := misfit(config)):
        raise SettingError(f"The model's weights cannot be packed for a GPU: {wrong}.")
    fp8 = fp8_vocabulary(config, settings.vocabulary_dtype, target, quantized=quantized)
    given: dict[str, Any] = {"stored": stored, "changed": changed, "fp8_products": not lacks_fp8(target)}
    if checkpoint is not None:
        given |= {"vision": checkpoint.has_vision, "scales": _more_scales(checkpoint, stored, changed)}
    check_room(config, settings.quantization, settings.devices, **given)
    return fp8


def misfit(config: ModelConfig) -> str | None:
    """Which part of a model's shape the GPU kernels do not support, as the end of a sentence; None if they do."""
    heads = config.head_dim, config.global_head_dim
    if not all(16 <= dim <= 512 and dim & (dim - 1) == 0 for dim in heads):
        return f"head dimensions must be powers of two from 16 to 512, and this model's are {heads[0]} and {heads[1]}"
    for name, size, step in (
        ("the width", config.hidden_size, 128),
        ("experts' width", config.moe_intermediate_size, 64),
        ("the vocabulary", config.vocab_size, 8),
    ):
        if size % step:
            return f"{name} must be a multiple of {step}, and this model's is {size}"
    if config.num_experts > MOST_EXPERTS:
        return f"there must be at most {MOST_EXPERTS} experts, and this model has {config.num_experts}"
    return None


def check_device(device: torch.device, asked: str | None) -> None:
    """Raise `SettingError` for a CUDA device without bf16 products, or without FP8 products if FP8 is `asked` for."""
    if device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    needed, what, instead = OLDEST, "Redraft needs", "device='cpu' runs everywhere"
    if asked == "fp8" and capability >= OLDEST:
        needed, what, instead = OLDEST_FP8, "FP8 weights need", "quantization='int4' works here"
    if capability < needed:
        name = torch.cuda.get_device_name(device)
        raise SettingError(
            f"{name} has compute capability {capability[0]}.{capability[1]}; {what} {needed[0]}.{needed[1]} or newer "
            f"({instead})."
        )


def fp8_vocabulary(config: ModelConfig, name: str, device: torch.device, *, quantized: bool) -> bool:
    """Whether packed weights keep their vocabulary in FP8, from its name in the settings.

    "auto": if weights on a GPU with FP8 are `quantized` and the vocabulary is a multiple of 16 tokens. "model": never.
    "fp8": always; raises `SettingError` if that is impossible, on a GPU without FP8 or with another vocabulary.
    """
    odd = config.vocab_size % MULTIPLE != 0
    if name == "auto":
        return quantized and device.type == "cuda" and not odd and not lacks_fp8(device)
    if name == "fp8" and odd:
        raise SettingError(
            f"vocabulary_dtype is 'fp8'; that needs a multiple of {MULTIPLE} tokens, and the model has "
            f"{config.vocab_size}."
        )
    if name == "fp8" and lacks_fp8(device):
        raise SettingError("vocabulary_dtype is 'fp8'; that needs a GPU of compute capability 8.9 or more.")
    return name == "fp8"


def check_room(
    config: ModelConfig,
    asked: str | None,
    devices: Sequence[torch.device],
    *,
    stored: Mapping[str, str] | None = None,
    vision: bool = False,
    changed: Set[str] = frozenset(),
    scales: int = 0,
    fp8_products: bool = True,
    free: int | None = None,
) -> None:
    """Raise `SettingError` if CUDA devices have too little free memory for the weights in a format and a step.

    Several have equal shards of the layers, and each must have room for what the first one holds besides.

    `asked` is the requested quantization, `stored` the number formats, by name, of weights that already have one,
    `vision` says whether they include a vision tower, `changed` is that of `check_fit`, and `scales` are the bytes that
    those of INT4 experts take beyond one for `INT4_GROUP` inputs. Without `fp8_products` everything but INT4 experts is
    kept in full. The message says how much is missing and which format would fit. `free` bytes default to what the
    device reports.
    """
    if devices[0].type != "cuda":
        return
    stored = stored or {}
    format = resulting_format(stored, asked)
    format = format if fp8_products or format != "fp8" else "bf16"
    free = min(torch.cuda.mem_get_info(device)[0] for device in devices) if free is None else free
    more = WORKING_BYTES + (accounting.bytes_in(accounting.vision_parts(config), "bf16") if vision else 0)
    needed: dict[str | None, int] = {
        name: _weight_bytes(config, name, len(devices), fp8_products) + more for name in (None, *QUANTIZATIONS)
    }
    needed[None] += (scales - _saved_bytes(config, stored, changed, fp8_products)) // len(devices)
    needed["int4"] += scales // len(devices)
    if needed[asked] <= free:
        return
    possible = [name for name in QUANTIZATIONS if not requantization_refusal(stored, name)]
    smaller = [name for name in possible if needed[name] <= min(free, needed[asked] - 1)]
    advice = f"quantization={smaller[0]!r} would fit" if smaller else "no format would fit"
    each, where = "", str(devices[0])
    if len(devices) > 1:
        each, where = " of each GPU", f"one of {', '.join(map(str, devices))}"
    raise SettingError(
        f"The model needs {_gigabytes(needed[asked])}{each} in {format} and {where} has {_gigabytes(free)} free, "
        f"{_gigabytes(needed[asked] - free)} too little; {advice}."
    )


def check_room_for_copies(needed: Mapping[torch.device, int]) -> None:
    """Raise `SettingError` if a CUDA device has too little free memory for an adapter's copies of weights, in bytes."""
    for device, size in needed.items():
        if device.type != "cuda":
            continue
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(device)[0]
        if size > free:
            raise SettingError(
                f"The adapter's copies of the weights that it changes need {_gigabytes(size)} and {device} has "
                f"{_gigabytes(free)} free, {_gigabytes(size - free)} too little."
            )


def resulting_format(stored: Mapping[str, str], asked: str | None) -> str:
    """The format that weights will have on the device, given their stored formats (by name) and the requested one.

    Raises `SettingError` if they cannot be converted.
    """
    check_requantization(stored, asked)
    experts = any(format == "int4" and ".experts." in name for name, format in stored.items())
    return asked or ("int4" if experts else "fp8" if stored else "bf16")


def _formats(checkpoint: Checkpoint) -> dict[str, str]:
    """The stored formats by name; INT4 in groups that the kernels cannot read counts as UINT4, which they cannot."""
    odd = {name: "uint4" for name, group in checkpoint.groups.items() if not takes_int4_group(group)}
    return checkpoint.formats | odd


def _more_scales(checkpoint: Checkpoint, stored: Mapping[str, str], changed: Set[str]) -> int:
    """The bytes by which the scales of INT4 experts in narrow groups exceed those of groups of `INT4_GROUP` inputs."""
    kept = {name: group for name, group in checkpoint.groups.items()
            if EXPERTS.fullmatch(name) and stored[name] == "int4" and name not in changed}  # fmt: skip
    sizes = {name: math.prod(checkpoint.shapes[name]) for name in kept}
    return sum(2 * (sizes[name] // min(group, INT4_GROUP) - sizes[name] // INT4_GROUP) for name, group in kept.items())


def _weight_bytes(config: ModelConfig, format: str | None, gpus: int, fp8_products: bool) -> int:
    """Bytes that the text model's weights take on the first of some GPUs that share its layers; None is bf16."""
    formats = accounting.MATRIX_FORMATS[format] if format else {}
    formats = {kind: name for kind, name in formats.items() if fp8_products or name != "fp8"}
    parts = [(part.bytes_as(formats), gpus if part.name in SHARDED else 1) for part in accounting.text_parts(config)]
    return sum(-(-size // among) for size, among in parts)


def _saved_bytes(config: ModelConfig, stored: Mapping[str, str], changed: Set[str], fp8_products: bool) -> int:
    """How many bytes less than in bf16 a model takes whose weights keep the number formats they are stored in.

    NVFP4 and UINT4, which no kernel takes, become FP8, and so does INT4 outside of experts, or beside them; without
    `fp8_products` what would be in FP8 is plain. Weights of one product are all plain if one of them is, or is changed.
    """
    with torch.device("meta"):
        weights = Transformer(config).state_dict() if stored else {}
    kept = {name for name in stored if weight_format(name, "fp8")} - changed
    layers = (products(config, number).values() for number in range(config.num_hidden_layers))
    saved = 0
    for names in (names for layer in layers for names in layer if kept.issuperset(names)):
        format = "int4" if all(stored[name] == "int4" and ".experts." in name for name in names) else "fp8"
        for name in names if fp8_products or format == "int4" else ():
            *lead, rows, inputs = weights[name].shape
            plain, small = 2 * weights[name].numel(), accounting.matrix_bytes(math.prod(lead) * rows, inputs, format)
            saved += plain - small
    return saved


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
