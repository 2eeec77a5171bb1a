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
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from redraft.config import ModelConfig
from redraft.diffusion.corruption import LEVELS
from redraft.errors import CheckpointError, SettingError
from redraft.eval.curve import TASKS
from redraft.model.folders import read_config, resolve_folder
from redraft.model.quantize import FORMATS

SOURCE_KINDS = ("text", "chat", "sudoku", "reverse")
DTYPES = ("float32", "bfloat16")
SCHEDULES = ("cosine", "wsd")
CORRUPTIONS = ("uniform", "absorbing")
LOSSES = ("base", "reweighted", "loo", "reweighted-loo")


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
    """`text` and `chat` read shards or JSON lines; `sudoku` draws puzzles from a base file; `reverse` is a toy task."""
    share: float
    path: str = ""
    """A file, or for shards and JSON lines a pattern such as `code-*.xz` or `chats/*.jsonl`."""
    max_canvases: int = 0
    """Most canvases that an answer of JSON lines may take; a longer one is an error. 0 leaves that to the row."""
    infill: float = 0.0
    """Share of canvases of which only a hole is not given; the rest is generated whole."""
    line_holes: float = 0.7
    """Share of holes that are whole lines or ends of lines, in chat what stands between two marks such as quotes and
    commas; the rest are random spans."""
    extra_holes: float = 0.0
    """Share of the canvases with a hole that have one to three more."""
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
        for name in ("infill", "line_holes", "extra_holes", "hole_full_noise", "full_noise", "heldout"):
            _check_share(f"source {self.name}: {name}", getattr(self, name))
        for name in ("hole_weight", "prompt_weight", "fill_weight"):
            _check(getattr(self, name) >= 0, f"source {self.name}: {name}", getattr(self, name), "at least 0")
        _check(self.max_canvases >= 0, f"source {self.name}: max_canvases", self.max_canvases, "at least 0")
        _check(len(self.clues) == 2 and 17 <= self.clues[0] <= self.clues[1] <= 81,
               f"source {self.name}: clues", self.clues, "two rising numbers within 17..81")  # fmt: skip
        self._reject_what_the_kind_ignores()

    @property
    def is_jsonl(self) -> bool:
        return self.path.endswith(".jsonl")

    def _reject_what_the_kind_ignores(self) -> None:
        holes = {"infill", "line_holes", "extra_holes", "hole_weight", "hole_full_noise"}
        ignored = {
            "text": {"prompt_weight", "clean_answer", "clues"},
            "chat": {"clues"},
            "sudoku": holes | {"heldout"},
            "reverse": holes | {"clues", "heldout"},
        }[self.kind] | (set() if self.infill else holes - {"infill"})
        ignored |= set() if self.is_jsonl and self.kind == "chat" else {"max_canvases"}
        for f in dataclasses.fields(self):
            if f.name in ignored and getattr(self, f.name) != f.default:
                idle = f.name in holes and self.kind in ("text", "chat")
                where = "without infill" if idle else f"on kind {self.kind!r}"
                where = "without JSON lines" if f.name == "max_canvases" else where
                raise SettingError(f"source {self.name}: {f.name} has no effect {where}; remove it.")


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
    accumulate: int = 1
    """Batches per step and device, whose gradients are averaged."""

    def __post_init__(self) -> None:
        for name in ("rows", "tokens", "canvases", "accumulate"):
            _check(getattr(self, name) >= 1, f"data.{name}", getattr(self, name), "at least 1")
        _check(self.tokens < 2**16, "data.tokens", self.tokens, "below 65536")
        _check(self.workers >= 0, "data.workers", self.workers, "at least 0")
        _check(len(self.sources) > 0, "data.sources", self.sources, "at least one [[data.sources]] table")
        names = [source.name for source in self.sources]
        _check(len(set(names)) == len(names), "data.sources", names, "named differently")
        needs = [s.name for s in self.sources if s.kind in ("text", "sudoku") or s.infill or s.is_jsonl]
        if needs and not self.tokenizer:
            raise SettingError(f"data.tokenizer is missing; source {needs[0]} needs a model folder with a tokenizer.")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The loss. The defaults are the open objective of DiffusionGemma, with balanced experts added."""

    noise_eps: float = 1e-4
    levels: str = "uniform"
    """How noise levels are spread: `uniform`, or with more of them `high` or `low`."""
    corruption: str = "uniform"
    """`uniform` tokens, as the sampler's; `absorbing` puts a mask token, for research."""
    mask_token: int = 4
    """The token that absorbing corruption puts."""
    loss: str = "base"
    """`base` cross-entropy; `reweighted` by 1 / (1 - t); `loo`, which reads the logits as those of a predictor that
    has not seen the position's own token; or `reweighted-loo`."""
    weight_clip: float = 10.0
    """Largest factor of a reweighted loss."""
    kept_weight: float = 1.0
    """Weight of canvas positions whose token was kept."""
    encoder_weight: float = 1.0
    encoder_share: float = 1.0
    """Share of the clean positions that carry an encoder loss, drawn anew every step among those with a weight."""
    balance_weight: float = 0.01
    self_conditioning: float = 0.5
    """Share of the rows that are conditioned on a first pass."""
    temperature_low: float = 1.0
    """First-pass logits are divided by a temperature drawn per row from [temperature_low, 1]."""
    rollout: float = 0.0
    """Share of the canvases with a first pass whose second pass goes on from what the sampler makes of the first one:
    the model's surest tokens kept, right or wrong, and fresh noise elsewhere."""
    rollout_bound: tuple[float, float] = (0.1, 2.0)
    """Least and greatest entropy bound of those canvases, in nats; drawn evenly on a logarithmic scale."""

    def __post_init__(self) -> None:
        for name, allowed in (("levels", tuple(LEVELS)), ("corruption", CORRUPTIONS), ("loss", LOSSES)):
            value = getattr(self, name)
            _check(value in allowed, f"objective.{name}", value, f"one of {', '.join(allowed)}")
        _check(self.mask_token >= 0, "objective.mask_token", self.mask_token, "a token")
        if self.corruption == "absorbing" and "loo" in self.loss:
            raise SettingError("objective.loss 'loo' is defined for uniform corruption, not for absorbing.")
        _check(self.weight_clip >= 1, "objective.weight_clip", self.weight_clip, "at least 1")
        _check(0 < self.noise_eps < 0.5, "objective.noise_eps", self.noise_eps, "between 0 and 0.5")
        for name in ("encoder_weight", "balance_weight", "kept_weight"):
            _check(getattr(self, name) >= 0, f"objective.{name}", getattr(self, name), "at least 0")
        for name in ("self_conditioning", "rollout"):
            _check_share(f"objective.{name}", getattr(self, name))
        _check(len(self.rollout_bound) == 2 and 0 < self.rollout_bound[0] <= self.rollout_bound[1],
               "objective.rollout_bound", self.rollout_bound, "two rising numbers above 0")  # fmt: skip
        _check(0 < self.encoder_share <= 1, "objective.encoder_share", self.encoder_share, "above 0 and at most 1")
        _check(0 < self.temperature_low <= 1, "objective.temperature_low", self.temperature_low,
               "above 0 and at most 1")  # fmt: skip

    @property
    def absorbing_token(self) -> int | None:
        """What corruption puts everywhere; None where it draws."""
        return self.mask_token if self.corruption == "absorbing" else None


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
class LoraSettings:
    """Low-rank training: the weights of `run.init` stay as they are, and only factors beside them are trained."""

    rank: int
    alpha: float = 0.0
    """The change is scaled by alpha / rank; 0 means alpha = rank."""
    dropout: float = 0.0
    """Of what enters the factors of linear modules."""
    targets: tuple[str, ...] = ("attention", "mlp", "self_conditioning")
    """Groups (also `router` and `experts`), or patterns of module names such as `layers.1?.attention.q_proj`."""
    quantization: str = ""
    """Number format of the frozen weights: `fp8`, or `int4` for the experts and FP8 for attention and dense MLP; empty
    keeps them in `run.dtype`."""

    def __post_init__(self) -> None:
        _check(self.rank >= 1, "lora.rank", self.rank, "at least 1")
        _check(self.alpha >= 0, "lora.alpha", self.alpha, "at least 0")
        _check(0 <= self.dropout < 1, "lora.dropout", self.dropout, "from 0 up to, not including, 1")
        _check(len(self.targets) > 0, "lora.targets", self.targets, "at least one group or pattern")
        if self.quantization:
            _check(self.quantization in FORMATS, "lora.quantization", self.quantization,
                   f"one of {', '.join(FORMATS)}, or empty")  # fmt: skip
        if self.alpha == 0:
            object.__setattr__(self, "alpha", float(self.rank))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


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
    shard: bool = False
    """Spread weights, gradients and optimizer state over the processes (`fully_shard`) instead of copying them."""
    recompute: bool = False
    """Keep only each layer's input for the backward pass and run the layer again: less memory, a third more work."""
    log_every: int = 10
    tensorboard: bool = False
    """Log for TensorBoard as well, into the folder `board`."""
    evaluate_every: int = 0
    """0 never evaluates on held-out batches."""
    evaluate_batches: int = 1
    curve_every: int = 0
    """Measure score and steps of `curve_task` at each of `curve_budgets` before training, this often, and at its end;
    0 never."""
    curve_task: str = "sudoku"
    """`sudoku` or `tools`, on items that come with Redraft."""
    curve_items: int = 16
    curve_budgets: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 32, 48)
    checkpoint_every: int = 0
    """0 writes a checkpoint only when the run ends."""
    max_seconds: float = 0.0
    """Stop cleanly, with a checkpoint, after this time; 0 means no limit."""
    fit_seconds: float = 0.0
    """Lower the optimizer's steps to what this time leaves room for, so that the learning rate falls to its end; 0
    keeps them."""

    def __post_init__(self) -> None:
        _check(bool(self.out), "run.out", self.out, "a folder")
        _check(0 <= self.seed < 2**31, "run.seed", self.seed, "between 0 and 2^31 - 1")
        _check(self.dtype in DTYPES, "run.dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        _check(self.curve_task in TASKS, "run.curve_task", self.curve_task, f"one of {', '.join(TASKS)}")
        _check(len(self.curve_budgets) > 0 and all(budget >= 1 for budget in self.curve_budgets)
               and sorted(set(self.curve_budgets)) == list(self.curve_budgets), "run.curve_budgets",
               self.curve_budgets, "rising numbers from 1 up")  # fmt: skip
        if self.curve_every and self.shard:
            raise SettingError("run.curve_every cannot be had with run.shard; use `redraft eval curve` afterwards.")
        for name in ("log_every", "evaluate_batches", "curve_items"):
            _check(getattr(self, name) >= 1, f"run.{name}", getattr(self, name), "at least 1")
        for name in ("evaluate_every", "curve_every", "checkpoint_every", "max_seconds", "fit_seconds"):
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
    lora: LoraSettings | None = None
    """Without it all weights are trained."""

    def __post_init__(self) -> None:
        if self.objective.corruption == "absorbing":
            _check(self.objective.mask_token < self.model.vocab_size, "objective.mask_token",
                   self.objective.mask_token, f"below the vocabulary of {self.model.vocab_size}")  # fmt: skip
        if self.run.curve_every and not self.data.tokenizer:
            raise SettingError("run.curve_every asks the model questions; it needs data.tokenizer.")
        if self.run.shard and self.optimizer.average:
            raise SettingError("optimizer.average cannot be had with run.shard; set one of them to 0 or false.")
        if self.lora is not None and not self.run.init:
            raise SettingError("run.init is missing; LoRA changes a given model.")
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
    except OSError as error:
        raise SettingError(f"The recipe {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{str(path)!r} is not valid TOML: {error}.") from error
    return recipe_from_dict(path.stem, raw)


def recipe_from_dict(name: str, raw: Mapping[str, Any]) -> Recipe:
    """Build a recipe from parsed TOML; what it leaves out of [model] and data.tokenizer is that of `run.init`.

    Raises `SettingError`.
    """
    run = raw.get("run")
    init = run.get("init") if isinstance(run, Mapping) else None
    try:
        if init and isinstance(init, str) and _leaves_something_out(raw):
            raw = _completed(raw, resolve_folder(init, weights=False))
        return _build(Recipe, {"name": name, **raw}, "recipe")
    except CheckpointError as error:
        raise SettingError(f"recipe: [model] {error}") from error


def _leaves_something_out(raw: Mapping[str, Any]) -> bool:
    data = raw.get("data")
    return "model" not in raw or (isinstance(data, Mapping) and "tokenizer" not in data)


def _completed(raw: Mapping[str, Any], init: Path) -> Mapping[str, Any]:
    """A recipe with the model of the folder `init`, and its tokenizer where the recipe names none."""
    data = raw.get("data")
    if "model" not in raw:
        raw = {**raw, "model": read_config(init)}
    if isinstance(data, Mapping) and "tokenizer" not in data and (init / "tokenizer.json").is_file():
        raw = {**raw, "data": {**data, "tokenizer": str(init)}}
    return raw


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
    if get_origin(hint) is UnionType:  # a table that may be left out
        hint = get_args(hint)[0]
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
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
