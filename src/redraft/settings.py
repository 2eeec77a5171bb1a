"""The settings of one generation call: their defaults, bounds and presets, checked when the object is made.

The defaults of a model come from its `generation_config.json`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from types import NoneType
from typing import Any, get_args, get_type_hints

from redraft.checks import MAX_NUMBER, check_names, plain, require_at_most, require_type
from redraft.errors import CheckpointError, SettingError, check_utf8, one_of

MIN_CANVAS, MAX_CANVAS = 16, 512
MAX_LOGPROBS = 20
LOWEST_T_MAX, HIGHEST_T_MAX = 1e-6, 1e6
"""Within these bounds, logits divided by any temperature of the schedule stay finite in 32 bits."""
LONGEST_STOP = 4096
"""Characters of a stop string, which is looked for at every canvas' end."""
MOST_BIASED, HIGHEST_BIAS = 1024, 100
"""Tokens that one `logit_bias` may name, and the largest bias of one, up or down."""

Bias = tuple[tuple[int, float], ...]
"""What is added to the logits of some tokens: their ids, ascending, each with its bias, which is not 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationSettings:
    """Everything one generation call can set. The defaults are the reference sampler (preset `balanced`).

    Temperatures are plain factors, entropies and `confidence_threshold` are in nats, lengths are in tokens.
    Raises `SettingError` naming the setting, its value and what is allowed.
    """

    max_tokens: int = 1024
    steps: int = 48
    entropy_bound: float = 0.1
    t_max: float = 0.8
    t_min: float = 0.4
    schedule_steps: int = 48
    """Steps over which the temperature falls from t_max to t_min, whatever the step cap `steps` is."""
    stretch_schedule: bool = False
    """Let the temperature fall over `steps` instead, as Transformers does with its step cap."""
    stability_threshold: int = 1
    confidence_threshold: float = 0.005
    stop_at_eos: bool = False
    """Judge stability and confidence only up to the first end-of-text of the argmax canvas."""
    forbid_empty: bool = False
    """Forbid end-of-text at the very first position of an answer, also in what feeds self-conditioning."""
    canvas_length: int | None = None
    fit_canvas: bool = False
    """Take a shorter canvas, a power of two, where it holds all that max_tokens leaves to write."""
    latency_budget_ms: float | None = None
    """Choose the step caps (at most `steps`) so that the answer takes about this long, from measured step times."""
    logprobs: int | None = None
    """Report each token's log-probability at its canvas' last step (0), and the k most likely tokens' as well (k)."""
    logit_bias: Bias = ()
    """Add to the logits of tokens, before the temperature: {token id: -100 to 100}. Given as a dict, kept as pairs."""
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        for name, types in _TYPES.items():
            object.__setattr__(self, name, plain(getattr(self, name)))
            if name not in _OPTIONAL_SETTINGS or getattr(self, name) is not None:
                require_type(name, getattr(self, name), *((int, float) if float in types else types))
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(self.steps >= 1, "steps", self.steps, "at least 1")
        _require(self.schedule_steps >= 1, "schedule_steps", self.schedule_steps, "at least 1")
        _require(self.entropy_bound > 0, "entropy_bound", self.entropy_bound, "above 0")
        _require(0 <= self.t_min < inf, "t_min", self.t_min, "at least 0 and finite")
        _require(self.t_max >= LOWEST_T_MAX, "t_max", self.t_max, f"at least {LOWEST_T_MAX:g}")
        _require(self.t_max > self.t_min, "t_max", self.t_max, f"above t_min ({self.t_min})")
        _require(self.stability_threshold >= 0, "stability_threshold", self.stability_threshold, "at least 0")
        _require(self.confidence_threshold > 0, "confidence_threshold", self.confidence_threshold, "above 0")
        _require(0 <= self.seed < 2**63, "seed", self.seed, "between 0 and 2^63 - 1")
        if self.canvas_length is not None:
            allowed = f"between {MIN_CANVAS} and {MAX_CANVAS}"
            _require(MIN_CANVAS <= self.canvas_length <= MAX_CANVAS, "canvas_length", self.canvas_length, allowed)
        if self.latency_budget_ms is not None:
            _require(self.latency_budget_ms > 0, "latency_budget_ms", self.latency_budget_ms, "above 0")
        if self.logprobs is not None:
            _require(0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", self.logprobs, f"between 0 and {MAX_LOGPROBS}")
        if any(not text for text in self.stop):
            raise SettingError("stop has an empty string; leave it out.", "stop")
        if any(len(text) > LONGEST_STOP for text in self.stop):
            raise SettingError(f"stop has a string of more than {LONGEST_STOP:,} characters.", "stop")
        self._check_extremes()

    def _check_extremes(self) -> None:
        """Refuse values that the arithmetic further on cannot hold."""
        require_at_most(HIGHEST_T_MAX, t_min=self.t_min, t_max=self.t_max)
        others = (name for name, types in _TYPES.items() if bool not in types and name != "seed")
        require_at_most(MAX_NUMBER, **{name: getattr(self, name) for name in others})

    def check_vocabulary(self, size: int) -> None:
        """Raise `SettingError` for a token that a vocabulary of so many does not have."""
        if self.logit_bias and (last := self.logit_bias[-1][0]) >= size:
            sentence = f"logit_bias has the token id {last}; the vocabulary has {size} tokens."
            raise SettingError(sentence, "logit_bias")

    @property
    def temperature_steps(self) -> int:
        """The number of steps over which the temperature schedule runs."""
        return self.steps if self.stretch_schedule else self.schedule_steps


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise SettingError(f"{name} is {value}; it must be {allowed}.", name)


def _fast(base: GenerationSettings) -> dict[str, Any]:
    return {"steps": min(base.steps, 16), "stop_at_eos": True, "forbid_empty": True, "fit_canvas": True}


def _careful(base: GenerationSettings) -> dict[str, Any]:
    """Twice the steps, a fifth of the entropy bound, and temperatures a quarter higher."""
    more = {name: 2 * getattr(base, name) for name in ("steps", "schedule_steps")}
    hotter = {name: 1.25 * getattr(base, name) for name in ("t_max", "t_min")}
    return {**more, **hotter, "entropy_bound": base.entropy_bound / 5, "forbid_empty": True}


GENERATION_PRESETS: dict[str, Callable[[GenerationSettings], dict[str, Any]]] = {
    "fast": _fast, "balanced": lambda base: {}, "careful": _careful,
}  # fmt: skip
"""What a preset changes of a model's own settings, which `balanced` keeps. For the published checkpoints these are the
reference's; `careful` then is a slower setting (96 steps, 0.02, 1.0 to 0.5) that users measured as better on hard
questions."""

SETTINGS = (*(field.name for field in dataclasses.fields(GenerationSettings)), "preset")
"""What `resolve_settings` takes by name."""

_HINTS = {name: hint for name, hint in get_type_hints(GenerationSettings).items() if name not in ("stop", "logit_bias")}
_TYPES = {name: tuple(part for part in get_args(hint) or (hint,) if part is not NoneType)
          for name, hint in _HINTS.items()}  # fmt: skip
_OPTIONAL_SETTINGS = frozenset(name for name, hint in _HINTS.items() if NoneType in get_args(hint))


def resolve_settings(base: GenerationSettings, *, preset: str | None = None, **overrides: Any) -> GenerationSettings:
    """The settings of one call: `base` (the checkpoint's), then a preset, then what the caller named.

    `None` means "not given". Raises `SettingError` for unknown names, presets, types and values.
    """
    if preset is not None and (not isinstance(preset, str) or preset not in GENERATION_PRESETS):
        raise SettingError(f"preset is {preset!r}; it must be {one_of(GENERATION_PRESETS)}.", "preset")
    check_names(overrides, SETTINGS)
    given = {name: value for name, value in overrides.items() if value is not None}
    if given.get("stretch_schedule") and "schedule_steps" in given:
        raise SettingError(
            "schedule_steps has no effect with stretch_schedule, by which the temperature falls over all steps; "
            "give one of them.",
            "schedule_steps",
        )
    changed = {**GENERATION_PRESETS[preset or "balanced"](base), **given}
    try:
        return dataclasses.replace(base, **changed)
    except SettingError as error:
        if error.field == "t_max" and "t_min" in given and "t_max" not in given:
            high = changed.get("t_max", base.t_max)
            raise SettingError(f"t_min is {given['t_min']}; it must be below t_max ({high}).", "t_min") from None
        raise


def _stop_strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list | tuple) else None
    if strings is None or not all(isinstance(text, str) for text in strings):
        raise SettingError("stop must be a string or a list of strings.", "stop")
    for text in strings:
        check_utf8(text, "stop", SettingError)
    return strings  # type: ignore[return-value]


def _bias(given: object) -> Bias:
    """The pairs of a mapping, or of a `Bias` itself, without those that change nothing."""
    pairs = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        sentence = f"logit_bias is {given!r:.80}; it must be of type dict, from token ids to numbers."
        raise SettingError(sentence, "logit_bias")
    if len(pairs) > MOST_BIASED:
        sentence = f"logit_bias has {len(pairs):,} entries; at most {MOST_BIASED:,} are allowed."
        raise SettingError(sentence, "logit_bias")
    for token, bias in (pairs := tuple((plain(token), plain(bias)) for token, bias in pairs)):
        if type(token) is not int or token < 0:
            sentence = f"logit_bias has the token id {token!r:.80}; it must be a whole number of at least 0."
            raise SettingError(sentence, "logit_bias")
        number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not (number and -HIGHEST_BIAS <= bias <= HIGHEST_BIAS):
            sentence = f"logit_bias has {bias!r:.80} for token {token}; it must be a number"
            raise SettingError(f"{sentence} from {-HIGHEST_BIAS} to {HIGHEST_BIAS}.", "logit_bias")
    return tuple((token, float(bias)) for token, bias in sorted(pairs) if bias)


def settings_from_dict(raw: Mapping[str, Any]) -> GenerationSettings:
    """The defaults of a checkpoint, from its parsed `generation_config.json` (max_new_tokens stays the caller's).

    What is null is not given, as in Transformers. Raises `CheckpointError` for another sampler and for values that are
    not valid settings.
    """
    sampler = raw.get("sampler_config") or {}
    if not isinstance(sampler, Mapping):
        raise CheckpointError(f"generation_config.json sets sampler_config to {sampler!r}; it must be an object.")
    kind = sampler.get("_cls_name", "EntropyBoundSamplerConfig")
    if kind != "EntropyBoundSamplerConfig":
        raise CheckpointError(f"generation_config.json names sampler {kind!r}; EntropyBoundSamplerConfig is supported.")
    steps = raw.get("max_denoising_steps")
    given = {
        "steps": steps, "schedule_steps": steps, "entropy_bound": sampler.get("entropy_bound"),
        "t_min": raw.get("t_min"), "t_max": raw.get("t_max"),
        "stability_threshold": raw.get("stability_threshold"), "confidence_threshold": raw.get("confidence_threshold"),
    }  # fmt: skip
    try:
        return resolve_settings(GenerationSettings(), **given)
    except SettingError as error:
        raise CheckpointError(f"In generation_config.json {error}") from error
