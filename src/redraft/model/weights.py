"""Checkpoints in the Hugging Face layout, both ways.

Loading opens the folder as a `Checkpoint`, which fails before anything is allocated if the files do not fit; then each
tensor goes from the memory-mapped file straight into its parameter on the device, dequantized if necessary. Saving
writes to a temporary folder and renames, so nothing half-written is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from redraft.errors import CheckpointError, SettingError
from redraft.kernels import native
from redraft.kernels.cpu import input_major, keep_freed_memory
from redraft.model.accounting import bytes_in, cpu_bytes, vision_parts
from redraft.model.adapters import Adapter, merge
from redraft.model.base import Model
from redraft.model.checkpoint import Checkpoint
from redraft.model.files import INDEX_FILE, SINGLE_FILE
from redraft.model.folders import CONFIG_FILE, read_json, resolve_folder
from redraft.model.int4_experts import int4_layers, read_experts
from redraft.model.layouts import Weight, chunks
from redraft.model.linear import through_kernels
from redraft.model.moe import Experts
from redraft.model.names import EXPERTS, to_hugging_face
from redraft.model.placement import machine_memory, resolve_device, resolve_dtype
from redraft.model.quantize import check_requantization
from redraft.model.shards import MAX_SHARD_SIZE, check_shard_size, write_model
from redraft.model.transformer import Transformer
from redraft.model.vision import VisionTower
from redraft.outputs import staged_folder

_SHARD = re.compile(r"model(-\d{5}(-of-\d{5})?)?\.safetensors")


def load_model(
    model: str | Path,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    vision: bool = True,
) -> Transformer:
    """The model of `tiny`, a folder or a hub id, with its weights on `device` in `dtype`.

    `auto` means CUDA if available, with the checkpoint's dtype (on a CPU, the dtype that is fast). `vision` False
    leaves the vision tower out.
    Raises `CheckpointError` for files that are missing, damaged or do not fit, `HubError` for a hub id that cannot
    be resolved, and `SettingError` for an impossible device or dtype.
    """
    target = resolve_device(device)
    resolve_dtype(dtype, target, torch.bfloat16)  # a wrong name fails before a long download
    checkpoint = Checkpoint(resolve_folder(model), vision=vision)
    return filled(checkpoint, target, resolve_dtype(dtype, target, checkpoint.dtype))


def filled(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, int4: Sequence[int] = ()) -> Transformer:
    """The model of an open folder with its weights; experts of the layers `int4` are in INT4."""
    model = checkpoint.empty_model()
    for layer in int4:
        model.layers[layer].experts = nn.Identity()  # takes no memory until they are read
    _allocate(model, device, dtype)
    if device.type == "cpu":
        native.available()  # compile now rather than in the first answer
        _arrange_for_cpu(model)
    _fill(model.state_dict(), checkpoint.names(), checkpoint.weight)
    for layer in int4:
        model.layers[layer].experts = read_experts(checkpoint, layer)
    if device.type == "cpu":
        keep_freed_memory()  # from here on; memory freed while loading has been given back
    return model


def load_vision(
    checkpoint: Checkpoint, read: Callable[[str], Weight], device: torch.device, dtype: torch.dtype
) -> VisionTower | None:
    """The vision tower of an open folder, its weights as `read` gives them; None if it has none."""
    vision = checkpoint.empty_model().vision
    if vision is None:
        return None
    _allocate(vision, device, dtype)
    _fill({f"vision.{name}": tensor for name, tensor in vision.state_dict().items()}, checkpoint.names(), read)
    return vision


def load_for_cpu(
    checkpoint: Checkpoint, dtype: torch.dtype, *, int4: bool = False, adapter: Adapter | None = None
) -> Transformer:
    """The model of an open folder for inference on a CPU, through its kernels, with an adapter folded in.

    Experts stored in INT4 stay in INT4, and with `int4` all experts are converted to it, except for layers whose
    experts the adapter changes. Raises `SettingError` for shapes and stored formats that do not allow it, and for
    weights larger than the machine's memory.
    """
    check_requantization(checkpoint.formats, "int4" if int4 else None)
    layers = int4_layers(checkpoint, asked=int4)
    allowed = [layer for layer in range(checkpoint.config.num_hidden_layers)
               if adapter is None or not adapter.changes_experts(layer)]  # fmt: skip
    _check_memory(checkpoint, dtype, len({*layers}.intersection(allowed)), len(allowed))
    transformer = filled(checkpoint, torch.device("cpu"), dtype, layers)
    if adapter is not None:
        merge(transformer, adapter)
    through_kernels(transformer)
    return transformer


def save_model(
    model: Model, folder: str | Path, *, max_shard_size: int = MAX_SHARD_SIZE, like: Path | None = None
) -> None:
    """Write config.json and the weights in the model's dtype, in several shards above `max_shard_size` bytes.

    With `like`, a model folder, what else describes that model (its tokenizer, template, ...) is copied with them.
    Other files in the folder stay; the weights of a previous model are deleted. Raises `SettingError` for a folder that
    is a file, a shard size below 1, and weights that cannot be saved.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; a model is saved to a folder.")
    check_shard_size(max_shard_size)
    tensors = model.state_dict().items()
    former = _weight_files(folder) if folder.exists() else set[str]()
    needed = sum(tensor.nbytes for _, tensor in tensors)
    with staged_folder(folder, last=CONFIG_FILE, needed=needed) as work:
        files = ((to_hugging_face(name), tensor.cpu().contiguous()) for name, tensor in tensors)
        config = model.config.to_dict() | {"dtype": str(model.dtype).removeprefix("torch.")}
        written = write_model(files, work, config, like=like, max_size=max_shard_size)
        if SINGLE_FILE not in written:  # else it would be read instead of the shards, should moving them be interrupted
            (folder / SINGLE_FILE).unlink(missing_ok=True)
        (folder / INDEX_FILE).unlink(missing_ok=True)  # the shards that it names are replaced
    for stale in former.difference(written):
        (folder / stale).unlink(missing_ok=True)


# --- loading -----------------------------------------------------------------------------------------------------


def _check_memory(checkpoint: Checkpoint, dtype: torch.dtype, int4_layers: int, most: int) -> None:
    """Raise `SettingError` for weights larger than this machine's memory: the system would kill the process.

    Experts of `int4_layers` layers stay in INT4; of `most` they could.
    """
    config, room, name = checkpoint.config, machine_memory(), "bf16" if dtype == torch.bfloat16 else "fp32"
    vision = bytes_in(vision_parts(config), name) if checkpoint.has_vision else 0
    needed, smallest = (cpu_bytes(config, name, count) + vision for count in (int4_layers, most))
    if room is None or needed <= room:
        return
    advice = "quantization='int4' would fit" if smallest <= room else "INT4 would not fit either"
    raise SettingError(
        f"The model needs {needed / 1e9:.1f} GB and this machine has {room / 1e9:.1f} GB of memory; {advice}."
    )


def _arrange_for_cpu(model: Transformer) -> None:
    for module in model.modules():
        if isinstance(module, Experts):
            for weights in module.parameters():
                weights.data = input_major(weights.data)


@torch.no_grad()
def _allocate(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Give a module on the device "meta" memory for its weights; PyTorch's `to_empty` imports a compiler for that."""
    weights = module.state_dict().items()
    module.load_state_dict(
        {name: torch.empty(old.shape, device=device, dtype=dtype) for name, old in weights}, assign=True
    )


def _fill(targets: Mapping[str, Tensor], names: Iterable[str], read: Callable[[str], Weight]) -> None:
    """Fill every weight that is among the targets, one at a time; quantized ones are dequantized to its dtype."""
    for name in filter(targets.__contains__, names):
        copy_in_full(name, read(name), targets[name])


def copy_in_full(name: str, weight: Weight, target: Tensor) -> None:
    """Copy one of our weights to `target`; a quantized one is dequantized to its dtype."""
    if not EXPERTS.fullmatch(name):
        _copy(weight, target)
        return
    first = 0
    for part in chunks(weight):  # all of a layer in fp32 would take several times the memory of what they become
        _copy(part, target[first : first + part.shape[0]])
        first += part.shape[0]


def _copy(weight: Weight, target: Tensor) -> None:
    target.copy_(weight if isinstance(weight, Tensor) else weight.dequantize(target.dtype))


# --- saving ------------------------------------------------------------------------------------------------------


def _weight_files(folder: Path) -> set[str]:
    """Names of the files that hold a model's weights: those in its index, and those named like shards."""
    found = {path.name for path in folder.iterdir() if _SHARD.fullmatch(path.name)}
    with suppress(CheckpointError):  # an index that cannot be read names nothing
        named = read_json(folder / INDEX_FILE).get("weight_map")
        named = map(str, named.values()) if isinstance(named, dict) else ()
        found |= {name for name in named if name.endswith(".safetensors") and Path(name).name == name}
    return found | {INDEX_FILE}
