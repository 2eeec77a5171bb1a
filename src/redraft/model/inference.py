"""Loading an open model folder into the form that runs fastest on its device."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import torch

from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.model.adapters import Adapter, merge, with_adapter
from redraft.model.base import Model
from redraft.model.checkpoint import Checkpoint
from redraft.model.packed.build import pack, repack, repacked_bytes
from redraft.model.packed.requirements import check_fit, check_room_for_copies, misfit
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.placement import lacks_fp8, resolve_dtype
from redraft.model.quantize import Quantization
from redraft.model.transformer import Transformer
from redraft.model.weight_settings import WeightSettings
from redraft.model.weights import filled, load_for_cpu, load_vision


def load_for_inference(checkpoint: Checkpoint, settings: WeightSettings, *, adapter: Adapter | None = None) -> Model:
    """The model in the form that runs fastest: packed on a GPU or if quantized, else plain.

    On a GPU, fp32 stays plain, and so do shapes that the kernels do not support. On a CPU, INT4 experts stay in INT4
    and the rest is plain; `quantization` "fp8" computes what a GPU would, slowly. An `adapter` is folded into the
    weights. Raises what `load_packed` raises, and `SettingError` for several `gpus` and a model that does not run on
    the kernels.
    """
    target = settings.devices[0]
    dtype, on_cpu = resolve_dtype(settings.dtype, target, checkpoint.dtype), target.type == "cpu"
    if settings.quantization == "fp8" if on_cpu else _packs_on_gpu(checkpoint.config, dtype, settings.quantization):
        return load_packed(checkpoint, settings, adapter=adapter)
    if settings.gpus > 1:
        raise SettingError(
            f"gpus is {settings.gpus}; only a model in bfloat16 whose shape the kernels support is divided.", "gpus"
        )
    if settings.vocabulary_dtype == "fp8":
        sentence = "vocabulary_dtype is 'fp8'; that needs a GPU and bfloat16, or quantization 'fp8'."
        raise SettingError(sentence, "vocabulary_dtype")
    if on_cpu:
        return load_for_cpu(checkpoint, dtype, int4=settings.quantization == "int4", adapter=adapter)
    plain = filled(checkpoint, target, dtype)
    if adapter is not None:
        merge(plain, adapter)
    return plain


def load_packed(
    checkpoint: Checkpoint, settings: WeightSettings, *, adapter: Adapter | None = None
) -> PackedTransformer:
    """A folder's model, packed on its device, or with its layers divided among several GPUs; see `pack`.

    Never holds a second copy of the weights: each one is read, changed by the `adapter` if there is one, quantized if
    requested (or as `default_quantization` says), and placed before the next. Raises `CheckpointError` for an adapter's
    change that is not finite, and `SettingError` for settings that the model or the device does not allow, such as a
    GPU that is too old or too small.
    """
    config, (target, *other_devices) = checkpoint.config, settings.devices
    if settings.quantization is None:
        settings = replace(settings, quantization=default_quantization(checkpoint, target))
    fp8 = check_fit(config, settings, checkpoint, changed=set() if adapter is None else adapter.factors.keys())
    dtype = resolve_dtype(settings.dtype, target, checkpoint.dtype)
    read = checkpoint.weight if adapter is None else adapter.applied(checkpoint.weight)
    given = {"dtype": dtype, "quantization": settings.quantization, "fp8_vocabulary": fp8}
    packed = pack(config, read, device=target, other_devices=other_devices, **given)
    tower = load_vision(checkpoint, read, target, dtype)
    return PackedTransformer(packed, tower, () if adapter is None else (adapter,))


def default_quantization(checkpoint: Checkpoint, device: torch.device) -> Quantization | None:
    """The quantization of packed weights for which none is asked: FP8 for a GGUF file's quantized ones on a GPU.

    No kernel takes these types. As with NVFP4, FP8 adds little to their own error and takes half of bf16's bytes; INT4
    would round them visibly again, so it must be asked for. Weights of folders keep their formats (None).
    """
    return "fp8" if checkpoint.coded and device.type == "cuda" and not lacks_fp8(device) else None


def loaded_with(model: Model, checkpoint: Checkpoint, adapter: Adapter) -> Model:
    """`model`, loaded from `checkpoint` by `load_for_inference`, with one more adapter; unchanged weights are shared.

    If the model is packed, changed weights are read from the folder again and its earlier adapters reapplied first.
    Raises `SettingError`, before anything is read, if a GPU has too little free memory for the changed weights.
    """
    check_room_for_copies(_copied_bytes(model, adapter.factors.keys()))
    if isinstance(model, Transformer):
        return with_adapter(model, adapter)
    assert isinstance(model, PackedTransformer)
    folded, vision = (*model.folded, adapter), model.vision
    source = checkpoint.weight
    for one in folded:
        source = one.applied(source)
    if any(name.startswith("vision.") for name in adapter.factors):
        vision = load_vision(checkpoint, source, model.device, model.dtype)
    return PackedTransformer(repack(model.packed, source, set(adapter.factors)), vision, folded)


def _copied_bytes(model: Model, changed: Set[str]) -> dict[torch.device, int]:
    """The bytes that `loaded_with` takes on each device for an adapter that changes these weights."""
    if not isinstance(model, PackedTransformer):
        return {model.device: sum(weight.nbytes for name, weight in model.named_parameters() if name in changed)}
    found = repacked_bytes(model.packed, changed)
    if model.vision is not None and any(name.startswith("vision.") for name in changed):
        found[model.device] += sum(weight.nbytes for weight in model.vision.state_dict().values())
    return found


def _packs_on_gpu(config: ModelConfig, dtype: torch.dtype, quantization: str | None) -> bool:
    """Whether a model runs on the kernels; raises `SettingError` if it does not but the request requires them."""
    if dtype == torch.float32:
        if quantization is not None:
            raise SettingError(
                f"quantization is {quantization!r} and dtype is float32; on a GPU, dtype must be bfloat16.", "dtype"
            )
        return False
    wrong = misfit(config)
    if wrong is not None and quantization is not None:
        raise SettingError(f"quantization is {quantization!r}; on a GPU {wrong}.", "quantization")
    return wrong is None
