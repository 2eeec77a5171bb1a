"""From a name or a folder to an `LLM`: tokenizer, template, defaults, weights and adapters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from redraft.checks import require_type
from redraft.config import ModelConfig, end_ids
from redraft.engine.settings import EngineSettings, KvCacheDtype
from redraft.errors import about
from redraft.llm import LLM, check_adapter_name
from redraft.model.adapters import Adapter, adapter_for
from redraft.model.checkpoint import Checkpoint
from redraft.model.folders import read_json, resolve_folder
from redraft.model.inference import load_for_inference, loaded_with
from redraft.model.placement import Dtype
from redraft.model.quantize import Quantization
from redraft.model.weight_settings import VocabularyDtype, WeightSettings
from redraft.settings import GenerationSettings, settings_from_dict
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer


def load(
    model: str | Path = "tiny",
    *,
    device: str = "auto",
    gpus: int = 1,
    dtype: Dtype = "auto",
    quantization: Quantization | None = None,
    vocabulary_dtype: VocabularyDtype = "auto",
    kv_cache_dtype: KvCacheDtype = "auto",
    memory_gb: float | None = None,
    slots: int = 16,
    adapter: str | Path | Mapping[str, str | Path] | None = None,
    vision: bool = True,
) -> LLM:
    """Load a model: "tiny" (embedded), a folder, a GGUF file, or a hub id such as "google/diffusiongemma-26B-A4B-it".

    device            "auto", "cpu", "cuda", "cuda:1" ...
    gpus              how many CUDA devices share the model's layers, keys and values
    dtype             "auto", "bfloat16" or "bf16", "float32" or "fp32"
    quantization      None (the weights as they are stored; quantized ones of a GGUF file in FP8 on a GPU), "fp8", or
                      "int4": int4 experts, with the rest in FP8 (on a CPU, in `dtype`); "fp8" on a CPU computes what a
                      GPU would, slowly
    vocabulary_dtype  of the token embeddings, which are also the head: "model", same as the weights; "fp8", which
                      is faster on a GPU; or "auto", FP8 where weights on a GPU are quantized
    kv_cache_dtype    of the engine's keys and values: "auto", same as the model, or "fp8", half of bfloat16's bytes
    memory_gb         for the engine's keys and values, on each device; None for four fifths of what a GPU has left, or
                      2 GB on a CPU
    slots             answers that the engine works on at a time
    adapter           a LoRA folder in PEFT's format, folded into the weights; or several by name, for
                      `llm.with_adapter`
    vision            False leaves out the vision tower (1.1 GB of the 26B model); images are then refused
    Raises `CheckpointError`, `HubError` or `SettingError` with one sentence each.
    """
    require_type("vision", vision, bool)
    settings = EngineSettings(kv_cache_dtype=kv_cache_dtype, memory_gb=memory_gb, slots=slots)
    weights = WeightSettings(
        device=device, gpus=gpus, dtype=dtype, quantization=quantization, vocabulary_dtype=vocabulary_dtype
    )
    folder = resolve_folder(str(model))
    checkpoint = Checkpoint(folder, vision=vision)
    with about("adapter"):  # a mismatch fails before a long load
        folded, named = _adapters(checkpoint, adapter)
    defaults, eos_ids = _generation(folder, checkpoint.config)
    tokenizer = Tokenizer.from_folder(folder, vocab_size=checkpoint.config.vocab_size)
    template = ChatTemplate.find(folder)
    network = load_for_inference(checkpoint, weights, adapter=folded)
    adapted = {name: loaded_with(network, checkpoint, lora) for name, lora in named.items()}
    return LLM(
        network,
        tokenizer,
        template,
        path=folder,
        defaults=defaults,
        eos_ids=eos_ids,
        settings=settings,
        adapted=adapted,
    )


def _adapters(
    checkpoint: Checkpoint, folders: str | Path | Mapping[str, str | Path] | None
) -> tuple[Adapter | None, dict[str, Adapter]]:
    """The adapter to fold into the weights, and those by name, from what `load` was given."""
    if folders is None:
        return None, {}
    if not isinstance(folders, Mapping):
        return adapter_for(checkpoint, folders), {}
    for name in folders:
        check_adapter_name(name)
    return None, {name: adapter_for(checkpoint, folder) for name, folder in folders.items()}


def _generation(folder: Path, config: ModelConfig) -> tuple[GenerationSettings, tuple[int, ...] | None]:
    """The defaults of a folder's `generation_config.json`, and the ids that end an answer if it names any."""
    file = folder / "generation_config.json"
    raw = read_json(file) if file.is_file() else {}
    eos = raw.get("eos_token_id")
    return settings_from_dict(raw), None if eos is None else end_ids(eos, config.vocab_size, file)
