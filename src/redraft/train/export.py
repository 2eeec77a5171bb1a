"""The end of a run: a model folder in the Hugging Face layout, in bf16, with the tokenizer files beside the weights."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import torch

from redraft.model import Transformer
from redraft.model.weights import save_model

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def export_model(model: Transformer, folder: Path, tokenizer: str) -> Path:
    """Save `model` in bf16, with generation defaults and, if `tokenizer` names a folder, its tokenizer files."""
    save_model(copy.deepcopy(model).to(torch.bfloat16), folder)
    (folder / "generation_config.json").write_text(json.dumps(_generation_config(model), indent=2) + "\n")
    for name in _TOKENIZER_FILES if tokenizer else ():
        source = Path(tokenizer) / name
        if source.is_file():
            shutil.copyfile(source, folder / name)
    return folder


def _generation_config(model: Transformer) -> dict[str, object]:
    """The reference sampler's settings, in the layout that Transformers reads."""
    return {
        "max_new_tokens": model.config.canvas_length,
        "max_denoising_steps": 48,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
        "t_min": 0.4,
        "t_max": 0.8,
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
        "pad_token_id": model.config.pad_token_id,
        "eos_token_id": list(model.config.eos_token_id),
    }
