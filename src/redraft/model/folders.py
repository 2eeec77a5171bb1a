"""Resolves the name a user gives a model to a folder with its files, and reads the folder's config."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from redraft.checks import MAX_NUMBER, is_positive
from redraft.config import FULL, SLIDING, ModelConfig, end_ids
from redraft.errors import CheckpointError, HubError, why
from redraft.model.presets import PRESETS

CONFIG_FILE, ADAPTER_FILE = "config.json", "adapter_config.json"
"""What a model's folder and an adapter's are known by."""
EMBEDDED = "tiny"
QUANTIZERS = ("compressed-tensors", "modelopt")
"""Quantization tools whose weights can be read; `redraft quantize` writes the format of the first."""
READABLE = "it must be compressed-tensors (FP8, NVFP4, or 4 bits in pack-quantized) or modelopt (NVFP4)"
"""The same with their formats, as the end of a sentence about another one."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_experts", "top_k_experts",
          "num_attention_heads", "num_key_value_heads", "num_global_key_value_heads", "head_dim", "global_head_dim",
          "sliding_window", "max_position_embeddings", "canvas_length")  # fmt: skip
_FACTORS = ("rms_norm_eps", "final_logit_softcapping", "rope_theta", "global_rope_theta", "initializer_range")
_DESCRIPTION_FILES = ["*.json", "*.jinja"]
_BESIDE = [*_DESCRIPTION_FILES, "*.txt", "*.model"]
_FILES = [*_BESIDE, "*.safetensors"]
_OF_WEIGHTS = (".index.json", "hf_quant_config.json")
"""Files that say where the weights are, and how they were quantized."""


def resolve_folder(model: str | Path, *, weights: bool = True) -> Path:
    """The folder for `tiny` (inside the package), a folder's path, a GGUF file (described in a temporary folder, see
    `model.gguf`), or a hub id (downloaded if necessary).

    With `weights=False` only what describes the model is downloaded: configs, tokenizer, chat template and the index
    of the weights.
    Raises `HubError` if the hub cannot provide the model and `CheckpointError` if `model` is none of the three.
    """
    if model == EMBEDDED:
        return _embedded_folder()
    if os.path.isdir(model):  # os.path, since Path("") is the working directory and Path raises for overlong names
        return _whole_folder(Path(model))
    if os.path.isfile(model) and str(model).lower().endswith(".gguf"):
        from redraft.model.gguf.folder import folder_of  # it uses this file

        return folder_of(Path(model))
    if os.path.exists(model):
        raise CheckpointError(
            f"{model} is a file; a model is a folder with config.json and safetensors files, or a GGUF file."
        )
    if isinstance(model, str) and _HUB_ID.fullmatch(model):
        return _download(model, _FILES if weights else _DESCRIPTION_FILES)
    raise CheckpointError(
        f"{str(model)!r} is neither '{EMBEDDED}', nor a folder, nor a hub id like google/diffusiongemma-26B-A4B-it, "
        "nor a GGUF file."
    )


def shape_of(model: str) -> ModelConfig:
    """A preset's shape, or that of a folder or hub id; see `resolve_folder`."""
    return PRESETS[model] if model in PRESETS else read_config(resolve_folder(model, weights=False))


def read_config(folder: Path) -> ModelConfig:
    """The shape that a folder's config.json describes. Raises `CheckpointError` saying what is wrong with it."""
    path = folder / CONFIG_FILE
    raw = read_json(path)
    _check_quantization(raw.get("quantization_config") or {}, path)
    if raw.get("tie_word_embeddings") is False:
        raise CheckpointError(
            f"{path} sets tie_word_embeddings to false; it must be true, as encoder and decoder share their weights."
        )
    with naming(path):
        config = ModelConfig.from_dict(raw)
    check_config(config, path)
    return config


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Raise a `CheckpointError` that names `path` for whatever keeps what it says from being made a config."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"In {path}: {error}") from error
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise CheckpointError(f"{path} holds an invalid value: {error}.") from error


def _check_quantization(quantization: Any, path: Path) -> None:
    """Raise `CheckpointError` for a description of quantized weights that cannot be read."""
    if not isinstance(quantization, dict):
        raise CheckpointError(f"{path} sets quantization_config to {quantization!r}; it must be an object.")
    method = quantization.get("quant_method", QUANTIZERS[0])
    if method not in QUANTIZERS:
        raise CheckpointError(f"{path} sets quant_method to {method!r}; {READABLE}.")
    if transforms := quantization.get("transform_config"):
        raise CheckpointError(f"{path} sets transform_config to {transforms!r}; transformed weights are not supported.")
    groups = quantization.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get("type") == "int" and weights.get("num_bits") != 4:
            bits = weights.get("num_bits")
            raise CheckpointError(f"{path} sets num_bits to {bits!r} in {name}; of whole numbers only 4 bits are read.")


def check_config(config: ModelConfig, path: Path | str) -> None:
    """Raises `CheckpointError` for a number that no model can have; the message names `path` as its source."""
    for name in _SIZES:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_NUMBER:
            raise CheckpointError(f"{path} sets {name} to {value!r}; it must be a whole number from 1 to {MAX_NUMBER}.")
    for name in _FACTORS:
        value = getattr(config, name)
        if not is_positive(value):
            raise CheckpointError(f"{path} sets {name} to {value!r}; it must be a number above 0.")
    if not 0 <= config.partial_rotary_factor <= 1:
        raise CheckpointError(
            f"{path} sets partial_rotary_factor to {config.partial_rotary_factor!r}; it must be between 0 and 1."
        )
    if config.is_sliding(-1):
        raise CheckpointError(
            f"{path} names a last layer of kind {SLIDING!r}; it must be {FULL!r}, which Transformers makes of it."
        )
    for name in ("bos_token_id", "pad_token_id"):
        value = getattr(config, name)
        if type(value) is not int or not 0 <= value < config.vocab_size:
            raise CheckpointError(f"{path} sets {name} to {value!r}; it must be a token id below {config.vocab_size}.")
    end_ids(config.eos_token_id, config.vocab_size, path)


def read_json(path: Path, kind: str = "a model") -> dict[str, Any]:
    """A JSON object from a folder of `kind`. Raises `CheckpointError` if it is missing or cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        below = next((f", but {file.parent} may be one" for file in sorted(path.parent.glob(f"*/{path.name}"))), "")
        raise CheckpointError(f"{path.parent} has no {path.name}; it is not {kind} folder{below}.") from None
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: deeply nested brackets
        raise CheckpointError(f"{path} cannot be read as JSON: {why(error)}.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object.")
    return content


def copy_beside(source: Path, target: Path) -> None:
    """Copy what describes a model besides its weights (tokenizer, template, ...), unless `target` has it already."""
    for pattern in _BESIDE:
        for file in source.glob(pattern):
            if not (target / file.name).exists() and not file.name.endswith(_OF_WEIGHTS):
                shutil.copyfile(file, target / file.name)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object for people to read, with each entry on a separate line."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _whole_folder(folder: Path) -> Path:
    """The folder, unless all that it holds are GGUF files, of which one must be named, or an adapter."""
    files = sorted(file.name for file in folder.glob("*.gguf"))
    if files and not (folder / CONFIG_FILE).exists():
        raise CheckpointError(f"{folder} holds GGUF files; name one of them, such as {folder / files[0]}.")
    if (folder / ADAPTER_FILE).exists() and not (folder / CONFIG_FILE).exists():
        raise CheckpointError(
            f"{folder} holds an adapter, not a model; give the model that it changes, and this folder as `adapter`."
        )
    return folder


def _embedded_folder() -> Path:
    folder = Path(str(files("redraft"))) / "assets" / EMBEDDED
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(f"This installation of redraft lacks the embedded model '{EMBEDDED}'; reinstall it.")
    return folder


def _download(hub_id: str, patterns: list[str]) -> Path:
    # Imported here because most runs need no hub and the client takes a while to import.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except GatedRepoError as error:
        advice = f"needs permission: accept its terms at huggingface.co/{hub_id} and run `hf auth login`"
        raise HubError(f"{hub_id} {advice}.") from error
    except RepositoryNotFoundError as error:
        advice = "check the spelling, or run `hf auth login` if the model is private"
        raise HubError(f"{hub_id} is neither a folder here nor a model on the Hugging Face hub; {advice}.") from error
    except LocalEntryNotFoundError as error:
        reason = "is neither a folder here nor in the local cache, and the hub cannot be reached"
        raise HubError(f"{hub_id} {reason}; go online, or name a folder or 'tiny'.") from error
    except Exception as error:  # the client lets its transport library's own exceptions through
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise HubError(f"{hub_id} could not be fetched from the Hugging Face hub: {reason}.") from error
