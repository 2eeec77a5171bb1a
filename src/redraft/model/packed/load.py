"""Loading a model folder into the form that runs fastest on its device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from redraft.errors import SettingError
from redraft.model.adapters import Adapter, merge, with_adapter
from redraft.model.checkpoint import Checkpoint
from redraft.model.folders import resolve_folder
from redraft.model.packed.build import check_format, pack, repack
from redraft.model.packed.demands import (
    check_device,
    check_room,
    check_vocabulary,
    fp8_vocabulary,
    misfit,
    resulting_format,
)
from redraft.model.packed.division import check_division
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.placement import resolve_devices, resolve_dtype
from redraft.model.transformer import Transformer
from redraft.model.weights import load_for_cpu, load_model, load_vision
from redraft.quant.prepare import check_int4_group


def load_packed(
    model: str | Path,
    *,
    device: str | torch.device = "auto",
    gpus: int = 1,
    dtype: str | torch.dtype = "auto",
    quantization: str | None = None,
    vocabulary_dtype: str = "auto",
    adapter: Adapter | None = None,
    vision: bool = True,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> PackedTransformer:
    """The model of `tiny`, a folder or a hub id, packed on `device`, or with its layers divided among several GPUs.

    See `pack` for `quantization` and `fp8_vocabulary` for `vocabulary_dtype`; `vision` False leaves the vision tower
    out.

    Never holds a second copy of the weights: each one is read, changed by the `adapter` if there is one, quantized if
    requested, and placed before the next. Raises what `load_model` raises, and `SettingError` for a GPU that is too old
    or too small.
    """
    check_format(quantization)
    check_vocabulary(vocabulary_dtype)
    target, *helpers = resolve_devices(device, gpus)
    resolve_dtype(dtype, target, torch.bfloat16)
    folder = resolve_folder(model)
    checkpoint = Checkpoint(folder, vision=vision)
    check_division(checkpoint.config, gpus)
    format = resulting_format(checkpoint.formats, quantization)
    check_device(target, quantized=format != "bf16")
    if target.type == "cuda" and (wrong := misfit(checkpoint.config)):
        raise SettingError(f"The model's weights cannot be packed for a GPU: {wrong}.")
    for group in sorted(checkpoint.int4_groups):
        check_int4_group(group)
    fp8 = fp8_vocabulary(checkpoint.config, vocabulary_dtype, target, quantized=format != "bf16")
    check_room(checkpoint.config, quantization, (target, *helpers), stored=checkpoint.formats, vision=checkpoint.sees)
    chosen = resolve_dtype(dtype, target, checkpoint.dtype)
    read = checkpoint.weight if adapter is None else adapter.applied(checkpoint.weight)
    packed = pack(
        checkpoint.config,
        read,
        device=target,
        helpers=helpers,
        dtype=chosen,
        quantization=quantization,
        fp8_vocabulary=fp8,
        progress=progress,
    )
    tower = load_vision(checkpoint, read, target, chosen)
    return PackedTransformer(packed, tower, () if adapter is None else (adapter,))


def load_for_inference(
    model: str | Path,
    *,
    device: str | torch.device = "auto",
    gpus: int = 1,
    dtype: str | torch.dtype = "auto",
    quantization: str | None = None,
    vocabulary_dtype: str = "auto",
    adapter: Adapter | None = None,
    vision: bool = True,
) -> Transformer:
    """The model in the form that runs fastest: packed on a GPU or if quantized, else plain.

    On a GPU, fp32 stays plain, and so do shapes that the kernels do not support. On a CPU, INT4 experts stay in INT4
    and the rest is plain; `quantization` "fp8" computes what a GPU would, slowly. An `adapter` is folded into the
    weights. `vision` False leaves the vision tower out. Raises what `load_packed` raises, and `SettingError` for
    several `gpus` and a model that does not run on the kernels.
    """
    check_format(quantization)
    check_vocabulary(vocabulary_dtype)
    target = resolve_devices(device, gpus)[0]
    resolve_dtype(dtype, target, torch.bfloat16)  # a wrong name fails before a long download
    folder = resolve_folder(model)
    on_cpu = target.type == "cpu"
    if quantization == "fp8" if on_cpu else _packs_on_gpu(folder, target, dtype, quantization):
        given = {"dtype": dtype, "quantization": quantization, "vocabulary_dtype": vocabulary_dtype}
        return load_packed(folder, device=device, gpus=gpus, adapter=adapter, vision=vision, **given)
    if gpus > 1:
        raise SettingError(
            f"gpus is {gpus}; only a model in bfloat16 whose shape the kernels support is divided.", "gpus"
        )
    if vocabulary_dtype == "fp8":
        sentence = "vocabulary_dtype is 'fp8'; that needs a GPU and bfloat16, or quantization 'fp8'."
        raise SettingError(sentence, "vocabulary_dtype")
    if on_cpu:
        return _with(adapter, load_for_cpu(folder, dtype, int4=quantization == "int4", vision=vision))
    return _with(adapter, load_model(folder, target, dtype, vision=vision))


def loaded_with(model: Transformer, folder: Path, adapter: Adapter) -> Transformer:
    """`model`, loaded from `folder` by `load_for_inference`, with one more adapter; unchanged weights are shared.

    If the model is packed, changed weights are read from the folder again and its earlier adapters reapplied first.
    """
    if not isinstance(model, PackedTransformer):
        return with_adapter(model, adapter)
    checkpoint = Checkpoint(folder, vision=model.vision is not None)
    folded, vision = (*model.folded, adapter), model.vision
    source = checkpoint.weight
    for one in folded:
        source = one.applied(source)
    if any(name.startswith("vision.") for name in adapter.factors):
        vision = load_vision(checkpoint, source, model.device, model.dtype)
    return PackedTransformer(repack(model.packed, source, set(adapter.factors)), vision, folded)


def _packs_on_gpu(folder: Path, device: torch.device, dtype: str | torch.dtype, quantization: str | None) -> bool:
    """Whether a model runs on the kernels; raises `SettingError` if it does not but the request requires them."""
    checkpoint = Checkpoint(folder, vision=False)
    config = checkpoint.config
    if resolve_dtype(dtype, device, checkpoint.dtype) == torch.float32:
        if quantization is not None:
            raise SettingError(
                f"quantization is {quantization!r} and dtype is float32; on a GPU, dtype must be bfloat16.", "dtype"
            )
        return False
    wrong = misfit(config)
    if wrong is not None and quantization is not None:
        raise SettingError(f"quantization is {quantization!r}; on a GPU {wrong}.", "quantization")
    return wrong is None


def _with(adapter: Adapter | None, transformer: Transformer) -> Transformer:
    if adapter is not None:
        merge(transformer, adapter)
    return transformer
