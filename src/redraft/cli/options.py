"""Options that several commands share, as frozen dataclasses.

A command takes one parameter per group; `expand_groups` shows Typer the groups' fields instead and passes the command
the built groups. None always means "not given": the model's own settings then apply.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from redraft.errors import InputError, SettingError, check_utf8, why
from redraft.outputs import check_file
from redraft.settings import GenerationSettings, resolve_settings

if TYPE_CHECKING:
    from redraft.llm import LLM

_MODEL, _SAMPLING, _OUTPUT = "Model", "Sampling", "Output"


def option(name: str, help: str, metavar: str = "", *, panel: str | None = None, default: str | None = None) -> Any:
    """An option, or without `metavar` a flag; `default` describes what applies if the option is not given."""
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=default or bool(metavar))


JsonFlag = Annotated[bool, option("--json", "Print one JSON object as the last line.", panel=_OUTPUT)]
JsonAlone = Annotated[
    bool, option("--json", "Print only the JSON object, which is otherwise the last line.", panel=_OUTPUT)
]
"""For commands that measure and always end with their figures as JSON."""


@dataclass(frozen=True, kw_only=True)
class BaseModelOptions:
    """Which model runs, and how; `redraft serve` has its own option for adapters."""

    model: Annotated[str, option("--model", "tiny, a folder, a GGUF file, a hub id.", "MODEL", panel=_MODEL)] = "tiny"
    device: Annotated[str, option("--device", "auto, cpu, cuda or cuda:N.", "DEVICE", panel=_MODEL)] = "auto"
    gpus: Annotated[int, option("--gpus", "CUDA devices that share the model's layers.", "N", panel=_MODEL)] = 1
    dtype: Annotated[
        str, option("--dtype", "auto (as stored; on a CPU what is faster), bfloat16 or float32.", "DTYPE", panel=_MODEL)
    ] = "auto"
    quantization: Annotated[
        str | None,
        option(
            "--quantization",
            "fp8, or int4 (experts; on a GPU the rest is fp8).",
            "FORMAT",
            panel=_MODEL,
            default="as stored",
        ),
    ] = None
    vocabulary_dtype: Annotated[
        str,
        option(
            "--vocabulary-dtype",
            "Type of the token embeddings and the head: model, fp8, or auto (fp8 on a GPU with quantized weights).",
            "DTYPE",
            panel=_MODEL,
        ),
    ] = "auto"
    text_only: Annotated[
        bool, option("--text-only", "Leave the vision tower out: less memory, and images are refused.", panel=_MODEL)
    ] = False

    def load_with(self, adapter: Path | Mapping[str, str] | None) -> LLM:
        """The loaded model, with a LoRA adapter or several by name; a terminal shows that it is being loaded."""
        from rich.console import Console

        console = Console(stderr=True)
        # A model from the hub may have to be downloaded, which brings its own progress bars.
        local = self.model == "tiny" or os.path.isdir(self.model)
        with console.status(f"loading {self.model}") if console.is_terminal and local else nullcontext():
            return self.read_with(adapter)

    def read_with(self, adapter: Path | Mapping[str, str] | None) -> LLM:
        """The same without showing anything."""
        from redraft.loading import load

        words: dict[str, Any] = {  # `load` says which ones it takes
            "dtype": self.dtype,
            "quantization": self.quantization,
            "vocabulary_dtype": self.vocabulary_dtype,
        }
        return load(self.model, device=self.device, gpus=self.gpus, adapter=adapter, vision=not self.text_only, **words)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(BaseModelOptions):
    """Which model runs, with which adapter, and how."""

    adapter: Annotated[
        Path | None, option("--adapter", "LoRA adapter to fold into the weights.", "FOLDER", panel=_MODEL)
    ] = None

    def load(self) -> LLM:
        """The loaded model with the chosen adapter; a terminal shows that it is being loaded."""
        return self.load_with(self.adapter)

    @property
    def names(self) -> dict[str, str]:
        """The model, and its adapter if there is one, as results name them."""
        return {"model": self.model} | ({} if self.adapter is None else {"adapter": str(self.adapter)})


_sampling = partial(option, panel=_SAMPLING)

Thinking = Annotated[
    bool, _sampling("--thinking/--no-thinking", "Let the model think before it answers, if its chat template can.")
]


def steps_option(default: str) -> Any:
    """The option --steps of a command."""
    return _sampling("--steps", "Most denoising steps per canvas.", "N", default=default)


def max_tokens_option(default: str) -> Any:
    """The option --max-tokens of a command."""
    return _sampling("--max-tokens", "Most tokens to write.", "N", default=default)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The settings of `redraft.GenerationSettings` that the command line offers."""

    preset: Annotated[
        str | None,
        _sampling("--preset", "fast, balanced (the model's own settings) or careful.", "NAME", default="balanced"),
    ] = None
    steps: Annotated[int | None, steps_option("the model's")] = None
    max_tokens: Annotated[int | None, max_tokens_option("1024")] = None
    canvas_length: Annotated[
        int | None, _sampling("--canvas-length", "Tokens drafted at once, 16 to 512.", "N", default="the model's")
    ] = None
    seed: Annotated[int | None, _sampling("--seed", "The same seed gives the same answer.", "N", default="0")] = None
    entropy_bound: Annotated[
        float | None,
        _sampling("--entropy-bound", "Total entropy, in nats, accepted per step.", "X", default="the model's"),
    ] = None
    t_min: Annotated[
        float | None, _sampling("--t-min", "Temperature at the end of the schedule.", "X", default="the model's")
    ] = None
    t_max: Annotated[
        float | None, _sampling("--t-max", "Temperature at the start of the schedule.", "X", default="the model's")
    ] = None

    def given(self, **more: Any) -> dict[str, Any]:
        """The given options, by the names that `LLM.generate` uses; checked, so a typo fails before a long load."""
        given = {name: value for name, value in (vars(self) | more).items() if value is not None}
        # The checkpoint's own temperature bounds are not known yet: a single one is checked with one that fits.
        low = given.get("t_min", 0.0)
        resolve_settings(GenerationSettings(), **({"t_min": low, "t_max": low + 1} | given))
        return given


@dataclass(frozen=True, kw_only=True)
class TaskOptions(SamplingOptions):
    """The same for the items of an evaluation, whose tasks know how long their answers are."""

    max_tokens: Annotated[int | None, max_tokens_option("what the answers need")] = None


@dataclass(frozen=True, kw_only=True)
class EditOptions(SamplingOptions):
    """The same for an edit, which has other defaults (`redraft.editing.api`)."""

    steps: Annotated[int | None, steps_option("16, or the model's if fewer")] = None
    max_tokens: Annotated[int | None, max_tokens_option("twice the old text's plus 16")] = None


@dataclass(frozen=True, kw_only=True)
class FillOptions(SamplingOptions):
    """The same for a filling, which has other defaults (`redraft.filling.api`)."""

    steps: Annotated[int | None, steps_option("12, or the model's if fewer")] = None
    max_tokens: Annotated[int | None, max_tokens_option("32 a hole, or half the canvas if that is less")] = None


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What a command that writes an answer shows and keeps."""

    stop: Annotated[
        list[str] | None, _sampling("--stop", "End the answer before this text; may be repeated.", "TEXT")
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        _sampling("--logit-bias", "Add BIAS, -100 to 100, to this token's logit; may be repeated.", "ID:BIAS"),
    ] = None
    latency_budget_ms: Annotated[
        float | None,
        _sampling(
            "--latency-budget-ms",
            "Take as many steps as fit in this time, shared among the canvases of --max-tokens.",
            "MS",
        ),
    ] = None
    trace: Annotated[
        Path | None, option("--trace", "Write every step to FILE (JSONL, see `redraft replay`).", "FILE", panel=_OUTPUT)
    ] = None
    no_live: Annotated[bool, option("--no-live", "Do not show the canvas as it settles.", panel=_OUTPUT)] = False
    json: JsonFlag = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of `redraft.GenerationSettings` among them. Raises `InputError` for one that cannot be read."""
        bias = read_bias(self.logit_bias) if self.logit_bias else None
        return {"stop": self.stop, "latency_budget_ms": self.latency_budget_ms, "logit_bias": bias}


def read_bias(written: Sequence[str]) -> dict[int, float]:
    """The setting `logit_bias` of several `ID:BIAS`."""
    found = dict(map(_token_and_bias, written))
    if len(found) < len(written):
        raise InputError("logit_bias has two numbers for one token; give each token its own.")
    return found


def _token_and_bias(written: str) -> tuple[int, float]:
    token, _, bias = written.partition(":")
    try:
        return int(token), float(bias)
    except ValueError:
        raise InputError(f"logit_bias has {written!r:.80}, which is not ID:BIAS, such as 9:-100.") from None


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


def at_least(least: int, **values: float | None) -> None:
    """Raise `SettingError` for the first of these options that is given and too small."""
    for name, value in values.items():
        if value is not None and not value >= least:  # NaN is not at least anything
            raise SettingError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}.")


def number(digits: str, option: str) -> int:
    """The number that an option's digits write. Raises `InputError`, since Python refuses thousands of digits."""
    try:
        return int(digits)
    except ValueError:
        raise InputError(f"{option} has a number of {len(digits)} digits, which is too long.") from None


def whole_numbers(name: str, text: str) -> list[int]:
    """The numbers of an option such as --batch 1,4,16, each at least 1. Raises `SettingError`."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"--{name} is {text!r}; it must be whole numbers separated by commas.") from None
    for number in numbers:
        at_least(1, **{name: number})
    return numbers


def check_picture(path: Path | None) -> None:
    """Raise `SettingError` or `InputError`, before the work starts, if a plot cannot be written there."""
    from importlib.util import find_spec

    if path is None:
        return
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise SettingError(f"{path} is not a picture that can be drawn; its name must end in .png, .svg or .pdf.")
    if find_spec("matplotlib") is None:
        raise SettingError("A picture needs matplotlib: pip install 'redraft[train]'.")
    check_file(path)


def read_prompt(prompt: str, *, raw: bool) -> str:
    """The prompt, which `-` reads from standard input. Raises `InputError` if it is empty or no Unicode."""
    text = read_words("-", "The prompt") if prompt == "-" else prompt
    if not text if raw else not text.strip():
        raise InputError("The prompt is empty.")
    check_utf8(text, "The prompt")
    return text


def read_words(source: str, what: str) -> str:
    """`read_text` without the byte order mark that Windows programs put before a text; for text not written back."""
    return read_text(source, what).removeprefix("\ufeff")


def read_text(source: str, what: str) -> str:
    """UTF-8 text of a file, or of standard input for `-`, byte for byte. Raises `InputError` naming what is wrong."""
    import sys

    name = "Standard input" if source == "-" else f"{what} {source}"
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {why(error)}.") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text: byte {error.start} cannot be decoded.") from error
