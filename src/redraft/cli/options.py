"""Options that several commands share, as frozen dataclasses.

A command takes one parameter per group; `expand_groups` shows Typer the groups' fields instead and hands the command
the built groups. None always means "not given": the model's own settings then apply.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from redraft.config import GenerationSettings, resolve_settings
from redraft.errors import InputError

if TYPE_CHECKING:
    from redraft.llm import LLM

_MODEL, _SAMPLING, _OUTPUT = "Model", "Sampling", "Output"


def _option(panel: str, name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


JsonFlag = Annotated[bool, _option(_OUTPUT, "--json", "Print one JSON object as the last line.", "")]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model runs, and how."""

    model: Annotated[str, _option(_MODEL, "--model", "tiny (default), a folder, or a hub id.", "MODEL")] = "tiny"
    device: Annotated[str, _option(_MODEL, "--device", "auto (default), cpu, cuda or cuda:N.", "DEVICE")] = "auto"
    dtype: Annotated[str, _option(_MODEL, "--dtype", "auto (default), bfloat16 or float32.", "DTYPE")] = "auto"
    quantization: Annotated[
        str | None,
        _option(_MODEL, "--quantization", "fp8 or int4 (experts; the rest fp8); else as stored.", "FORMAT"),
    ] = None

    def load(self) -> LLM:
        """The loaded model; a terminal shows that it is being loaded."""
        from rich.console import Console

        console = Console(stderr=True)
        # A model from the hub may have to be downloaded, which brings its own progress bars.
        local = self.model == "tiny" or os.path.isdir(self.model)
        with console.status(f"loading {self.model}") if console.is_terminal and local else nullcontext():
            from redraft.llm import load

            return load(self.model, device=self.device, dtype=self.dtype, quantization=self.quantization)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The settings of `redraft.GenerationSettings` that the command line offers."""

    preset: Annotated[
        str | None, _option(_SAMPLING, "--preset", "fast, balanced (the reference, default) or careful.", "NAME")
    ] = None
    steps: Annotated[int | None, _option(_SAMPLING, "--steps", "Most denoising steps per canvas.", "N")] = None
    max_tokens: Annotated[int | None, _option(_SAMPLING, "--max-tokens", "Most tokens to write.", "N")] = None
    canvas_length: Annotated[
        int | None, _option(_SAMPLING, "--canvas-length", "Tokens drafted at once, 16 to 512.", "N")
    ] = None
    seed: Annotated[int | None, _option(_SAMPLING, "--seed", "The same seed gives the same answer.", "N")] = None
    entropy_bound: Annotated[
        float | None, _option(_SAMPLING, "--entropy-bound", "Entropy in nats accepted together per step.", "X")
    ] = None
    t_min: Annotated[float | None, _option(_SAMPLING, "--t-min", "Temperature the schedule ends at.", "X")] = None
    t_max: Annotated[float | None, _option(_SAMPLING, "--t-max", "Temperature the schedule begins at.", "X")] = None

    def given(self, **more: Any) -> dict[str, Any]:
        """What was given, by the names that `LLM.generate` knows; checked, so that a typo fails before a long load."""
        given = {name: value for name, value in (vars(self) | more).items() if value is not None}
        # One temperature bound alone can only be judged beside the checkpoint's other one.
        lone = {"t_min", "t_max"} & given.keys() if ("t_min" in given) != ("t_max" in given) else set()
        resolve_settings(GenerationSettings(), **{name: value for name, value in given.items() if name not in lone})
        return given


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What a command that writes an answer shows and keeps."""

    stop: Annotated[
        list[str] | None, _option(_SAMPLING, "--stop", "End the answer before this text; may be repeated.", "TEXT")
    ] = None
    latency_budget_ms: Annotated[
        float | None,
        _option(_SAMPLING, "--latency-budget-ms", "Take as many steps as fit this time, from measured speed.", "MS"),
    ] = None
    trace: Annotated[
        Path | None, _option(_OUTPUT, "--trace", "Write every step to FILE (JSONL, see `redraft replay`).", "FILE")
    ] = None
    no_live: Annotated[bool, _option(_OUTPUT, "--no-live", "Do not show the canvas while it settles.", "")] = False
    json: JsonFlag = False


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with every parameter that is an option group replaced by the group's fields."""
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and dataclasses.is_dataclass(hint)}
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(command).parameters.values()]
    expanded = [field for p in own for field in (_fields(groups[p.name]) if p.name in groups else [p])]

    def run(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**values, **built)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__annotations__ = {p.name: p.annotation for p in expanded}
    run.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
    return run


def _fields(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    by_name = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(field.name, by_name, default=field.default, annotation=hints[field.name])
        for field in dataclasses.fields(group)
    ]


def read_text(source: str, what: str) -> str:
    """UTF-8 text of a file, or of standard input for `-`, byte for byte. Raises `InputError` naming what is wrong."""
    import sys

    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"{what} {source} cannot be read: {error.strerror or error}.") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {source} is not UTF-8 text: byte {error.start} cannot be decoded.") from error
