"""Recipes: everything a training run depends on, as one TOML file read into frozen, validated settings.

Every table of the file is one dataclass here; an unknown key, a wrong type or an impossible value is a `SettingError`
that names it. Paths in a recipe are relative to the folder where the command runs.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from redraft.config import ModelConfig
from redraft.errors import CheckpointError, SettingError

SOURCE_KINDS = ("text", "chat", "sudoku", "reverse")
DTYPES = ("float32", "bfloat16")
SCHEDULES = ("cosine", "wsd")


def _check(ok: bool, where: str, value: object, allowed: str) -> None:
    if not ok:
        raise SettingError(f"{where} is {value!r}; it must be {allowed}.")


def _check_share(where: str, value: float) -> None:
    _check(0 <= value <= 1, where, value, "between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """One kind of training documents and its share of the rows."""

    name: str
    kind: str
    """`text` and `chat` read a shard; `sudoku` draws fresh puzzles from a base file; `reverse` is a toy task."""
    share: float
    path: str = ""
    """A file, or for shards a pattern such as `code-*.xz`."""
    infill: float = 0.0
    """Share of canvases of plain text that are holes with clean text behind them; the rest is generated whole."""
    line_holes: float = 0.7
    """Share of holes that are whole lines or ends of lines; the rest are random spans."""
    hole_weight: float = 1.0
    """Loss weight of each hole token."""
    hole_full_noise: float = 0.3
    """Probability that a hole is entirely noise, beside what the uniform noise level gives."""
    full_noise: float = 0.0
    """The same for canvases that are generated whole."""
    prompt_weight: float = 1.0
    """Weight of prompt tokens in the encoder loss."""
    fill_weight: float = 1.0
    """Weight of the end-of-text tokens that fill a canvas, behind the first of them."""
    clean_answer: bool = True
    """Put the answer tokens of a document's last canvas into the clean stream, for the encoder loss."""
    heldout: float = 0.002
    """Share of a shard's documents, its last ones, that are kept for evaluation."""
    clues: tuple[int, int] = (24, 45)
    """Fewest and most clues of Sudoku puzzles."""

    def __post_init__(self) -> None:
        _check(bool(self.name), "source.name", self.name, "a name")
        _check(self.kind in SOURCE_KINDS, f"source {self.name}: kind", self.kind, f"one of {', '.join(SOURCE_KINDS)}")
        _check(self.share > 0, f"source {self.name}: share", self.share, "above 0")
        _check(bool(self.path) != (self.kind == "reverse"), f"source {self.name}: path", self.path,
               "empty for kind 'reverse' and given for every other kind")  # fmt: skip
        for name in ("infill", "line_holes", "hole_full_noise", "full_noise", "heldout"):
            _check_share(f"source {self.name}: {name}", getattr(self, name))
        for name in ("hole_weight", "prompt_weight", "fill_weight"):
            _check(getattr(self, name) >= 0, f"source {self.name}: {name}", getattr(self, name), "at least 0")
        _check(len(self.clues) == 2 and 17 <= self.clues[0] <= self.clues[1] <= 81,
               f"source {self.name}: clues", self.clues, "two rising numbers within 17..81")  # fmt: skip
        self._reject_what_the_kind_ignores()

    def _reject_what_the_kind_ignores(self) -> None:
        text_only = {"infill", "line_holes", "hole_weight", "hole_full_noise"}
        ignored = {
            "text": {"prompt_weight", "clean_answer", "clues"},
            "chat": text_only | {"clues"},
            "sudoku": text_only | {"heldout"},
            "reverse": text_only | {"clues", "heldout"},
        }[self.kind]
        for f in dataclasses.fields(self):
            if f.name in ignored and getattr(self, f.name) != f.default:
                raise SettingError(f"source {self.name}: {f.name} has no effect on kind {self.kind!r}; remove it.")


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Shape of a batch, and where its documents come from."""

    rows: int
    tokens: int
    """Clean tokens per row."""
    canvases: int
    """Canvases per row; their length is the model's canvas_length."""
    sources: tuple[SourceSettings, ...]
    tokenizer: str = ""
    """Model folder with the tokenizer and chat template; needed by `text` and `sudoku` sources, copied on export."""
    workers: int = 0
    """Processes that pack batches ahead; 0 packs in the training process."""

    def __post_init__(self) -> None:
        for name in ("rows", "tokens", "canvases"):
            _check(getattr(self, name) >= 1, f"data.{name}", getattr(self, name), "at least 1")
        _check(self.tokens < 2**16, "data.tokens", self.tokens, "below 65536")
        _check(self.workers >= 0, "data.workers", self.workers, "at least 0")
        _check(len(self.sources) > 0, "data.sources", self.sources, "at least one [[data.sources]] table")
        names = [source.name for source in self.sources]
        _check(len(set(names)) == len(names), "data.sources", names, "named differently")
        needs = [source.name for source in self.sources if source.kind in ("text", "sudoku")]
        if needs and not self.tokenizer:
            raise SettingError(f"data.tokenizer is missing; source {needs[0]} needs a model folder with a tokenizer.")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The loss. The defaults are the open objective of DiffusionGemma, with balanced experts added."""

    noise_eps: float = 1e-4
    encoder_weight: float = 1.0
    encoder_share: float = 1.0
    """Share of the clean positions that carry an encoder loss, drawn anew every step among those with a weight."""
    balance_weight: float = 0.01
    self_conditioning: float = 0.5
    """Share of the rows that are conditioned on a first pass."""
    temperature_low: float = 1.0
    """First-pass logits are divided by a temperature drawn per row from [temperature_low, 1]."""

    def __post_init__(self) -> None:
        _check(0 < self.noise_eps < 0.5, "objective.noise_eps", self.noise_eps, "between 0 and 0.5")
        for name in ("encoder_weight", "balance_weight"):
            _check(getattr(self, name) >= 0, f"objective.{name}", getattr(self, name), "at least 0")
        _check_share("objective.self_conditioning", self.self_conditioning)
        _check(0 < self.encoder_share <= 1, "objective.encoder_share", self.encoder_share, "above 0 and at most 1")
        _check(0 < self.temperature_low <= 1, "objective.temperature_low", self.temperature_low,
               "above 0 and at most 1")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW, its learning-rate schedule, clipping, and an optional running average of the weights."""

    steps: int
    learning_rate: float
    schedule: str = "cosine"
    """`cosine` falls from the peak to the end; `wsd` holds the peak and falls linearly over the last `decay_share`."""
    warmup: int = 0
    decay_share: float = 0.2
    final_share: float = 0.1
    """Learning rate at the end, as a share of the peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Applied to matrices only."""
    clip: float = 1.0
    """Largest norm of all gradients together; 0 turns clipping off."""
    average: float = 0.0
    """Decay of a running average of the weights, which is evaluated and exported in their place; 0 turns it off."""

    def __post_init__(self) -> None:
        _check(self.steps >= 1, "optimizer.steps", self.steps, "at least 1")
        _check(self.learning_rate > 0, "optimizer.learning_rate", self.learning_rate, "above 0")
        _check(self.schedule in SCHEDULES, "optimizer.schedule", self.schedule, f"one of {', '.join(SCHEDULES)}")
        _check(0 <= self.warmup <= self.steps, "optimizer.warmup", self.warmup, "between 0 and steps")
        _check(0 < self.decay_share <= 1, "optimizer.decay_share", self.decay_share, "above 0 and at most 1")
        _check_share("optimizer.final_share", self.final_share)
        _check(len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas), "optimizer.betas", self.betas,
               "two numbers from 0 up to, not including, 1")  # fmt: skip
        _check(0 <= self.average < 1, "optimizer.average", self.average, "from 0 up to, not including, 1")
        for name in ("eps", "weight_decay", "clip"):
            _check(getattr(self, name) >= 0, f"optimizer.{name}", getattr(self, name), "at least 0")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How the run is carried out."""

    out: str
    """Folder for checkpoint, log, picture and the exported model."""
    init: str = ""
    """Model folder whose weights the run begins with; empty draws fresh ones."""
    seed: int = 0
    dtype: str = "float32"
    compile: bool = False
    log_every: int = 10
    evaluate_every: int = 0
    """0 never evaluates on held-out batches."""
    evaluate_batches: int = 1
    checkpoint_every: int = 0
    """0 writes a checkpoint only when the run ends."""
    max_seconds: float = 0.0
    """Stop cleanly, with a checkpoint, after this time; 0 means no limit."""

    def __post_init__(self) -> None:
        _check(bool(self.out), "run.out", self.out, "a folder")
        _check(0 <= self.seed < 2**31, "run.seed", self.seed, "between 0 and 2^31 - 1")
        _check(self.dtype in DTYPES, "run.dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        for name in ("log_every", "evaluate_batches"):
            _check(getattr(self, name) >= 1, f"run.{name}", getattr(self, name), "at least 1")
        for name in ("evaluate_every", "checkpoint_every", "max_seconds"):
            _check(getattr(self, name) >= 0, f"run.{name}", getattr(self, name), "at least 0")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run."""

    name: str
    model: ModelConfig
    data: DataSettings
    optimizer: OptimizerSettings
    run: RunSettings
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)

    def __post_init__(self) -> None:
        longest = self.data.tokens + self.model.canvas_length
        if longest > self.model.max_position_embeddings:
            raise SettingError(
                f"data.tokens and a canvas reach position {longest}; the model ends at "
                f"{self.model.max_position_embeddings}."
            )


def read_recipe(path: Path | str) -> Recipe:
    """Read a TOML recipe. Raises `SettingError` for a missing or malformed file and for any wrong setting."""
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(f"There is no recipe at {str(path)!r}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{str(path)!r} is not valid TOML: {error}.") from error
    return recipe_from_dict(path.stem, raw)


def recipe_from_dict(name: str, raw: Mapping[str, Any]) -> Recipe:
    """Build a recipe from parsed TOML. Raises `SettingError`."""
    try:
        return _build(Recipe, {"name": name, **raw}, "recipe")
    except CheckpointError as error:
        raise SettingError(f"recipe: [model] {error}") from error


def _build(cls: type[Any], raw: Mapping[str, Any], where: str) -> Any:
    """An instance of dataclass `cls` from a table, checking names and types all the way down."""
    known = {f.name: f for f in dataclasses.fields(cls)}
    if unknown := sorted(set(raw) - set(known)):
        raise SettingError(f"{where}: unknown setting {unknown[0]!r}; known settings are {', '.join(known)}.")
    required = {n for n, f in known.items() if f.default is f.default_factory is dataclasses.MISSING}
    if missing := sorted(required - set(raw)):
        raise SettingError(f"{where}: {missing[0]} is missing.")
    hints = get_type_hints(cls)
    return cls(**{key: _convert(hints[key], value, f"{where}.{key}") for key, value in raw.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        _check(isinstance(value, Mapping), where, value, "a table")
        return _build(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        _check(isinstance(value, list | tuple), where, value, "a list")
        return tuple(_convert(get_args(hint)[0], item, where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type):
        ok = isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)
        _check(ok, where, value, f"of type {hint.__name__}")
    return value
