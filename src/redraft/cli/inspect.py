"""`redraft inspect`: what a model consists of, from its config and the headers of its files."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.options import JsonFlag
from redraft.cli.output import print_json

if TYPE_CHECKING:
    from redraft.config import ModelConfig

_UNITS = ("B", "kB", "MB", "GB", "TB")


def inspect(
    model: Annotated[
        str, typer.Argument(help="tiny, a folder, a GGUF file, a hub id, or the shape 26b-a4b.", metavar="MODEL")
    ],
    json: JsonFlag = False,
) -> None:
    """Show a model's shape, parameters, bytes, and what its cache costs."""
    from redraft.model.folders import EMBEDDED, resolve_folder
    from redraft.model.presets import PRESETS

    if model in PRESETS and model != EMBEDDED:
        config, files = PRESETS[model], None
    else:
        folder = resolve_folder(model, weights=False)
        config, files = _config(folder), _files(folder)
    if json:
        print_json({"model": model} | description(config) | {"files": files})
        return
    _print(model, config, files)


def _config(folder: Path) -> ModelConfig:
    from redraft.model.folders import read_config

    config = read_config(folder)
    if _has_vision(folder):
        return config
    # Text-only folders also describe a vision tower, because Transformers insists on one.
    return dataclasses.replace(config, extra={k: v for k, v in config.extra.items() if k != "vision_config"})


def _files(folder: Path) -> dict[str, Any] | None:
    """What the folder's weights are stored as: bytes by dtype, and the format in which they are quantized, if any.

    None if its weights are not here, or not all of them.
    """
    from redraft.model.files import all_here, read_headers, shards
    from redraft.model.folders import CONFIG_FILE, read_json

    if not all_here(folder):
        return None
    sizes, entries = Counter[str](), read_headers(folder).values()
    for entry in entries:
        sizes[entry.dtype] += entry.end - entry.start
    stated = read_json(folder / CONFIG_FILE).get("quantization_config") or {}
    format = stated.get("format") or stated.get("quant_algo") or stated.get("quant_method")
    format = "GGUF" if any(entry.coded for entry in entries) else format
    return {"count": len(shards(folder)), "bytes": dict(sizes.most_common()), "quantized": format}


def _has_vision(folder: Path) -> bool:
    """Whether the folder's weights contain a vision tower; True without weights, so that the config decides."""
    from redraft.model.files import tensor_names
    from redraft.model.names import is_vision

    names = tensor_names(folder)
    return names is None or any(map(is_vision, names))


def description(config: ModelConfig) -> dict[str, Any]:
    """Everything that `inspect` shows, JSON-ready."""
    from redraft.cache.sizes import kv_costs
    from redraft.model import accounting

    text, vision, costs = accounting.text_parts(config), accounting.vision_parts(config), kv_costs(config)
    stored = accounting.total(text) + accounting.total(vision)
    formats = (*accounting.BYTES_PER_PARAMETER, *accounting.MATRIX_FORMATS)
    return {
        "architecture": architecture(config),
        "parameters": {
            "parts": [
                {
                    "name": part.name,
                    "each": part.each,
                    "count": part.count,
                    "total": part.total,
                    "active": part.active,
                    "bytes": {name: part.bytes_in(name) for name in formats},
                }
                for part in (*text, *vision)
            ],
            "text": accounting.total(text),
            "stored": stored,
            "active_per_token": accounting.active_per_token(config),
        },
        "bytes": {name: accounting.bytes_in((*text, *vision), name) for name in formats},
        "text_bytes": {name: accounting.bytes_in(text, name) for name in formats},
        "kv_bytes_per_token": {
            cost.kind: {"layers": cost.layers, "bytes": cost.bytes_per_token, "kept_tokens": cost.kept_tokens}
            for cost in costs
        },
        "kv_bytes_full_context": sum(cost.bytes_at(config.max_position_embeddings) for cost in costs),
    }


def architecture(config: ModelConfig) -> dict[str, Any]:
    """The shape in words and numbers."""
    full = config.num_hidden_layers - sum(map(config.is_sliding, range(config.num_hidden_layers)))
    sliding = config.num_hidden_layers - full
    return {
        "layers": f"{config.num_hidden_layers} ({sliding} sliding over {config.sliding_window} tokens, {full} full)",
        "width": config.hidden_size,
        "vocabulary": config.vocab_size,
        "attention heads": config.num_attention_heads,
        "sliding layers": f"{config.num_key_value_heads} key/value heads of {config.head_dim}",
        "full layers": f"{config.num_global_key_value_heads} key/value heads of {config.global_head_dim}",
        "dense MLP": config.intermediate_size,
        "experts": f"{config.num_experts} of {config.moe_intermediate_size}, {config.top_k_experts} per token",
        "canvas": f"{config.canvas_length} tokens",
        "context": f"{config.max_position_embeddings} tokens",
    }


def _print(model: str, config: ModelConfig, files: dict[str, Any] | None) -> None:
    from rich.console import Console

    shape = architecture(config) | ({} if files is None else {"stored here": _in_words(files)})
    tables = (_table(shape), _parts_table(config), _bytes_table(config), _table(_costs(config)))
    console = Console(highlight=False)
    console.print(model, style="bold", markup=False)
    for table in tables:
        console.print(table)


def _in_words(files: dict[str, Any]) -> str:
    sizes, count = files["bytes"], files["count"]
    parts = ", ".join(f"{_bytes(size)} {dtype}" for dtype, size in sizes.items())
    quantized = f"quantized ({files['quantized']}), " if files["quantized"] else ""
    return f"{quantized}{_bytes(sum(sizes.values()))} in {count} file{'s' * (count > 1)}: {parts}"


def _table(rows: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def _costs(config: ModelConfig) -> dict[str, str]:
    """Active parameters, and bytes of the bf16 cache per token and for a full context."""
    from redraft.cache.sizes import kv_costs
    from redraft.model import accounting

    rows = {"active per token": f"{accounting.active_per_token(config):,} parameters"}
    costs = kv_costs(config)
    for cost in costs:
        kept = "every token" if cost.kept_tokens is None else f"the last {cost.kept_tokens:,} tokens"
        name = f"bf16 KV cache, {cost.kind.removesuffix('_attention')}"
        rows[name] = f"{cost.bytes_per_token:,} B per token, {cost.layers} layers keep {kept}"
    context = config.max_position_embeddings
    bf16, fp8 = (sum(cost.bytes_at(context) for cost in kv_costs(config, size)) for size in (2, 1))
    rows["bf16 KV cache, all"] = f"{_bytes(bf16)} at {context:,} tokens; {_bytes(fp8)} in FP8"
    return rows


def _parts_table(config: ModelConfig) -> Any:
    from redraft.model import accounting

    text, vision = accounting.text_parts(config), accounting.vision_parts(config)
    table = _numbers_table("each", "count", "parameters", "share")
    whole = accounting.total(text) + accounting.total(vision)
    for part in (*text, *vision):
        table.add_row(part.name, f"{part.each:,}", str(part.count), f"{part.total:,}", f"{part.total / whole:.1%}")
    table.add_section()
    table.add_row("text model", "", "", f"{accounting.total(text):,}", f"{accounting.total(text) / whole:.1%}")
    if vision:
        table.add_row("all stored", "", "", f"{whole:,}", "100.0%", style="bold")
    return table


def _bytes_table(config: ModelConfig) -> Any:
    """The size of every part in every number format."""
    from redraft.model import accounting

    text, vision = accounting.text_parts(config), accounting.vision_parts(config)
    formats = (*accounting.BYTES_PER_PARAMETER, *accounting.MATRIX_FORMATS)
    table = _numbers_table(*formats)
    rows = {part.name: (part,) for part in (*text, *vision)} | {"text model": text}
    if vision:
        rows["all stored"] = (*text, *vision)
    for name, parts in rows.items():
        if name == "text model":
            table.add_section()
        table.add_row(name, *(_bytes(accounting.bytes_in(parts, format)) for format in formats))
    return table


def _numbers_table(*columns: str) -> Any:
    from rich import box
    from rich.table import Column, Table

    table = Table(Column("part", overflow="fold"), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _bytes(count: float) -> str:
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.{0 if unit == 0 else 1}f} {_UNITS[unit]}"
