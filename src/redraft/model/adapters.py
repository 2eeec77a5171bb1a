"""LoRA adapters: low-rank changes to some of a model's weights, in the file format of the `peft` library.

One adapter serves both phases, because both read one stack of weights. PEFT's format cannot express that: a
Transformers model holds the encoder and the decoder as two modules, so the file has every factor under both names.
Reading requires the two to be equal, since two different adapters could never be folded into one weight.

Shapes: r rank, I input, O output, E experts. A linear weight [O,I] has factors a [r,I] and b [O,r]; the experts'
weights [E,O,I] have a [E,r,I] and b [E,O,r]. The change is scale * b a.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from redraft.checks import is_positive
from redraft.errors import CheckpointError, SettingError
from redraft.model.checkpoint import Checkpoint
from redraft.model.files import check_readable
from redraft.model.folders import ADAPTER_FILE, read_json, write_json
from redraft.model.int4_experts import Int4Experts
from redraft.model.layouts import PLAIN_DTYPES, Weight
from redraft.model.names import DECODER, ENCODER, from_hugging_face, to_hugging_face
from redraft.model.shards import write_tensors
from redraft.model.transformer import Transformer
from redraft.outputs import staged_folder

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_IGNORED_BY_ENCODER = f"{DECODER}self_conditioning."
_EXPERTS = {"experts.gate_up_proj": "experts.base_layer", "experts.down_proj": "experts"}
"""PEFT's names for adapters of a module's parameters: it wraps the module once per parameter, outermost last."""
_PLAIN = {"use_dora": False, "bias": "none", "modules_to_save": None, "fan_in_fan_out": False, "alpha_pattern": {},
          "lora_bias": False, "trainable_token_indices": None, "alora_invocation_tokens": None, "use_bdlora": None,
          "kasa_config": None, "monteclora_config": None, "velora_config": None, "layer_replication": None,
          "arrow_config": None}  # fmt: skip


_BESIDE_THE_BASE = ("true", "false", "none", "gaussian", "orthogonal", "eva", "mica")
"""Values of `init_lora_weights` that leave the base weights unchanged; for others, PEFT changes the base weights."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The two factors of one weight's change; see the module's shapes."""

    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        return self.a.shape[-2]

    def product(self) -> Tensor:
        """b a in fp32, with the shape of the weight."""
        return self.b.float() @ self.a.float()


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Factors by our weight names, such as `layers.0.attention.q_proj.weight`; the change is scaled by `scale`."""

    factors: Mapping[str, Factors]
    alpha: float
    rank: int
    rank_stabilised: bool = False

    def without(self, prefix: str) -> Self:
        """The adapter without weights whose names start with `prefix`, which a model was loaded without."""
        return replace(
            self, factors={name: factors for name, factors in self.factors.items() if not name.startswith(prefix)}
        )

    def scale(self, name: str) -> float:
        """The factor by which the product of one weight's factors is multiplied."""
        rank = self.factors[name].rank
        return self.alpha / (math.sqrt(rank) if self.rank_stabilised else rank)

    def changes_experts(self, layer: int) -> bool:
        """Whether it changes the experts of a layer."""
        return any(name.startswith(f"layers.{layer}.experts.") for name in self.factors)

    def delta(self, name: str) -> Tensor:
        """The change to one weight, fp32. Raises `CheckpointError` if it is not finite."""
        delta = self.factors[name].product() * self.scale(name)
        if not torch.stack(delta.aminmax()).isfinite().all():
            raise CheckpointError(f"The adapter's change to {name} has infinite or NaN values.")
        return delta

    def applied(self, read: Callable[[str], Weight]) -> Callable[[str], Weight]:
        """`read` with the changes added to its results; quantized weights become bf16 if they are changed."""

        def changed(name: str) -> Weight:
            weight = read(name)
            if name not in self.factors:
                return weight
            plain = weight if isinstance(weight, Tensor) else weight.dequantize(torch.bfloat16)
            return (plain.float() + self.delta(name)).to(plain.dtype)

        return changed

    def check_fits(self, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
        """Raises `CheckpointError` if a weight is missing from a model of these shapes or has another shape there."""
        for name, factors in self.factors.items():
            shape = (*factors.b.shape[:-1], factors.a.shape[-1])
            if shapes.get(name) != shape:
                found = list(shapes[name]) if name in shapes else "no such weight"
                raise CheckpointError(
                    f"The adapter in {where} is for another model: it changes {name} {list(shape)}, and this model has "
                    f"{found}."
                )


@torch.no_grad()
def merge(model: Transformer, adapter: Adapter) -> None:
    """Add an adapter's changes to the model's weights, in fp32, and round to the model's dtype once.

    INT4 experts that it changes become plain weights.
    """
    _widen_experts(model, adapter)
    weights = dict(model.named_parameters())
    for name in adapter.factors:
        weight = weights[name]
        weight.copy_(weight.float() + adapter.delta(name).to(weight.device))


@torch.no_grad()
def with_adapter(model: Transformer, adapter: Adapter) -> Transformer:
    """A copy of `model` with an adapter folded in. It shares every weight that the adapter does not change."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    adapted = copy.deepcopy(model, shared)
    _widen_experts(adapted, adapter)
    for name in adapter.factors:
        owner, _, leaf = name.rpartition(".")
        weight = adapted.get_parameter(name)
        changed = weight.float() + adapter.delta(name).to(weight.device)
        copied = nn.Parameter(torch.empty_like(weight).copy_(changed), weight.requires_grad)
        setattr(adapted.get_submodule(owner), leaf, copied)
    return adapted


def _widen_experts(model: Transformer, adapter: Adapter) -> None:
    """Give plain weights to INT4 experts that an adapter changes."""
    for number, layer in enumerate(model.layers):
        if isinstance(layer.experts, Int4Experts) and adapter.changes_experts(number):
            layer.experts = layer.experts.widened(model.config, model.dtype)


# --- files ---------------------------------------------------------------------------------------------------------


def load_adapter(folder: str | Path) -> Adapter:
    """The adapter in a folder of PEFT's format.

    Raises `CheckpointError` for missing or damaged files, for adapters other than plain LoRA, and if encoder and
    decoder have different factors or only one of them has factors.
    """
    if not os.path.isdir(folder):
        raise CheckpointError(
            f"There is no folder {str(folder)!r}; an adapter is one with {ADAPTER_FILE} and {WEIGHTS}."
        )
    folder = Path(folder)
    config = read_json(folder / ADAPTER_FILE, "an adapter")
    _check_kind(config, folder)
    factors = _pair(_read(folder / WEIGHTS), folder, config)
    return Adapter(
        factors=factors,
        alpha=float(config["lora_alpha"]),
        rank=int(config["r"]),
        rank_stabilised=bool(config.get("use_rslora")),
    )


def adapter_for(checkpoint: Checkpoint, folder: str | Path) -> Adapter:
    """The adapter in a folder, for an open model folder; without changes of a vision tower that is left out.

    Raises what `load_adapter` raises, `CheckpointError` for an adapter of another model, and `SettingError` for what is
    no folder.
    """
    if not isinstance(folder, str | Path):
        raise SettingError(f"An adapter must be a folder, not of type {type(folder).__name__}.")
    found = load_adapter(folder)
    if not checkpoint.vision and not (found := found.without("vision.")).factors:
        raise CheckpointError(f"The adapter in {folder} changes only the vision tower, which is not loaded.")
    found.check_fits(checkpoint.shapes, str(folder))
    return found


def save_adapter(adapter: Adapter, folder: str | Path, *, base_model: str, dropout: float = 0.0) -> None:
    """Write an adapter in PEFT's format; the file names `base_model` as the model it belongs to."""
    tensors = {}
    for name, factors in adapter.factors.items():
        for part, tensor in _file_tensors(name, factors).items():
            for stack in _stacks(part):
                tensors[stack] = tensor.detach().to("cpu", copy=True).contiguous()
    config = _config(adapter, base_model, dropout)
    with staged_folder(Path(folder), last=ADAPTER_FILE) as work:
        write_tensors(tensors, work / WEIGHTS)
        write_json(work / ADAPTER_FILE, config)


def _config(adapter: Adapter, base_model: str, dropout: float) -> dict[str, Any]:
    modules = [_module(name) for name in adapter.factors if not _is_experts(name)]
    parameters = sorted({"experts." + name.rsplit(".", 1)[1] for name in adapter.factors if _is_experts(name)})
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base_model,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0 if parameters else dropout,  # PEFT refuses dropout beside parameters
        "use_rslora": adapter.rank_stabilised,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "task_type": None,
        "target_modules": sorted(stack for module in modules for stack in _stacks(module)),
        "target_parameters": list(reversed(parameters)) or None,  # the first is wrapped first: gate_up_proj
    }


def _read(file: Path) -> dict[str, Tensor]:
    if not file.exists():
        raise CheckpointError(f"{file.parent} has no {file.name}; it is not an adapter folder.")
    check_readable(file)
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged or truncated ({str(error).rstrip('.')}).") from error


def _check_kind(config: Mapping[str, Any], folder: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{folder} holds an adapter of kind {config.get('peft_type')!r}; only LORA can be read.")
    for name, plain in _PLAIN.items():
        if (config.get(name) or plain) != plain:
            raise CheckpointError(f"The adapter in {folder} uses {name}, which is not supported.")
    if str(config.get("init_lora_weights", True)).lower() not in _BESIDE_THE_BASE:
        raise CheckpointError(
            f"The adapter in {folder} was initialised with {config['init_lora_weights']!r}, which changes the base "
            "weights; convert it to plain LoRA with PEFT."
        )
    numbers = config.get("r"), config.get("lora_alpha")
    if not all(map(is_positive, numbers)):
        raise CheckpointError(f"{folder / ADAPTER_FILE} must set r and lora_alpha to numbers above 0.")


def _pair(tensors: Mapping[str, Tensor], folder: Path, config: Mapping[str, Any]) -> dict[str, Factors]:
    """Our names -> factors, from the tensors of a file."""
    found: dict[str, dict[str, Tensor]] = {}
    wrapped = _wrapped_experts(config)
    for key, tensor in tensors.items():
        name, part = _parse(key, wrapped, folder)
        if tensor.dtype not in PLAIN_DTYPES.values():
            raise CheckpointError(f"The adapter in {folder} holds {key} in {tensor.dtype}, which is not supported.")
        if not tensor.isfinite().all():
            raise CheckpointError(f"The adapter in {folder} has infinite or NaN values in {key}.")
        other = found.setdefault(name, {}).setdefault(part, tensor)
        if not torch.equal(other, tensor) or _in_other_stack(key) not in tensors:
            raise CheckpointError(
                f"The adapter in {folder} changes {name} differently for encoder and decoder; "
                "they share one weight, so it can be neither used nor merged."
            )
    if not found:
        raise CheckpointError(f"The adapter in {folder} changes nothing.")
    for name, parts in found.items():
        if len(parts) != 2:
            raise CheckpointError(f"The adapter in {folder} holds only one factor of {name}.")
    return {name: _factors(name, parts["a"], parts["b"], config, folder) for name, parts in found.items()}


def _factors(name: str, a: Tensor, b: Tensor, config: Mapping[str, Any], folder: Path) -> Factors:
    rank = _rank(name, config, folder)
    if not _is_experts(name):
        ok = a.ndim == b.ndim == 2 and a.shape[0] == b.shape[1]
        factors = Factors(a, b)
    else:
        ok = a.ndim == b.ndim == 2 and a.shape[0] == b.shape[1] and a.shape[0] % rank == 0
        factors = Factors(a.unflatten(0, (-1, rank)), b.unflatten(1, (rank, -1)).permute(2, 0, 1)) if ok else None
    if not ok or factors is None:
        raise CheckpointError(f"The factors of {name} in {folder} do not fit each other: {a.shape} and {b.shape}.")
    if factors.rank != rank:
        raise CheckpointError(
            f"The factors of {name} in {folder} have rank {factors.rank}; {ADAPTER_FILE} says {rank}."
        )
    return factors


def _rank(name: str, config: Mapping[str, Any], folder: Path) -> int:
    """The rank of one weight's factors: from the first pattern that matches its PEFT name, else the adapter's."""
    theirs = to_hugging_face(name).removesuffix(".weight")
    try:
        patterns = dict(config.get("rank_pattern") or {})
        found = (rank for pattern, rank in patterns.items() if re.match(rf"(.*\.)?({pattern})$", theirs))
        rank = int(next(found, config["r"]))
    except (TypeError, ValueError, OverflowError, re.error):
        rank = 0
    if rank < 1:
        raise CheckpointError(f"{folder / ADAPTER_FILE} must map patterns to whole numbers above 0 in rank_pattern.")
    return rank


def _file_tensors(name: str, factors: Factors) -> dict[str, Tensor]:
    """The decoder's entries of one weight: PEFT's key -> tensor."""
    a, b = factors.a, factors.b
    if _is_experts(name):
        a, b = a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)  # [E*r,I] and [O,r*E]
    return {f"{_module(name)}.lora_A.weight": a, f"{_module(name)}.lora_B.weight": b}


def _module(name: str) -> str:
    """What PEFT calls the module of one of our weights, in the decoder."""
    theirs = to_hugging_face(name)
    for parameter, wrapped in _EXPERTS.items():
        if theirs.endswith(parameter):
            return theirs.removesuffix(parameter) + wrapped
    return theirs.removesuffix(".weight")


def _stacks(name: str) -> list[str]:
    """A decoder name and the same one in the encoder, with the tensor prefix if it names a tensor."""
    prefix = _PREFIX if ".lora_" in name else ""
    names = [name] if name.startswith(_IGNORED_BY_ENCODER) else [name, name.replace(DECODER, ENCODER, 1)]
    return [prefix + name for name in names]


def _in_other_stack(key: str) -> str:
    """The key of the same factor in the other stack; the key itself if only the decoder has it."""
    if _IGNORED_BY_ENCODER in key:
        return key
    return key.replace(ENCODER, DECODER, 1) if ENCODER in key else key.replace(DECODER, ENCODER, 1)


def _wrapped_experts(config: Mapping[str, Any]) -> dict[str, str]:
    """`_EXPERTS`, except that an adapter for only one of the two parameters has only that parameter's wrapper."""
    given = config.get("target_parameters") or []
    targets = [str(target) for target in (given if isinstance(given, list) else [given])]
    chosen = [name for name in _EXPERTS if any(target.endswith(name.rsplit(".", 1)[1]) for target in targets)]
    return _EXPERTS if len(chosen) != 1 else {chosen[0]: "experts"}


def _parse(key: str, wrapped_experts: Mapping[str, str], folder: Path) -> tuple[str, str]:
    """Our name of the weight, and `a` or `b`, from a tensor's key."""
    module, _, part = key.removeprefix(_PREFIX).partition(".lora_")
    module = module.replace(ENCODER, DECODER, 1)
    theirs = f"{module}.weight"
    for parameter, wrapped in wrapped_experts.items():
        if module.endswith("." + wrapped):
            theirs = module.removesuffix(wrapped) + parameter
            break
    name = from_hugging_face(theirs)
    if name is None or part not in ("A.weight", "B.weight"):
        raise CheckpointError(f"The adapter in {folder} is for another model: there is no weight for {key}.")
    return name, part[0].lower()


def _is_experts(name: str) -> bool:
    return name.endswith(tuple(_EXPERTS))
