"""Frozen, validated settings: the model's shape and the settings of one generation call.

Both read the Hugging Face files (`config.json`, `generation_config.json`) and write them back. The settings of a call
are checked when the object is made. A shape's numbers are checked against each other then, and each by itself where a
file is read (`model.folders.check_config`), whose name the message can give.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from numbers import Integral
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

from redraft.errors import CheckpointError, SettingError, check_utf8, one_of

LayerType = Literal["sliding_attention", "full_attention"]
SLIDING: LayerType = "sliding_attention"
FULL: LayerType = "full_attention"

MIN_CANVAS, MAX_CANVAS = 16, 512
MAX_LOGPROBS = 20
MAX_END_IDS = 8
"""End-of-text ids a model may have; the GPU kernels keep this many per request."""
LOWEST_T_MAX, HIGHEST_T_MAX = 1e-6, 1e6
"""Within these bounds, logits divided by any temperature of the schedule stay finite in 32 bits."""
MAX_NUMBER = 2**31 - 1
"""The largest value of every other setting: GPU buffers hold 32 bits."""
LONGEST_STOP = 4096
"""Characters of a stop string, which is looked for at every canvas' end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The shape of a DiffusionGemma text model. Field names follow `config.json`; `global_*` belong to full layers.

    Raises `CheckpointError` when the numbers contradict each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_experts: int
    top_k_experts: int
    num_attention_heads: int
    num_key_value_heads: int
    num_global_key_value_heads: int
    head_dim: int
    global_head_dim: int
    layer_types: tuple[LayerType, ...]
    sliding_window: int = 1024
    rope_theta: float = 10_000.0
    global_rope_theta: float = 1_000_000.0
    partial_rotary_factor: float = 0.25
    rms_norm_eps: float = 1e-6
    final_logit_softcapping: float = 30.0
    max_position_embeddings: int = 262_144
    initializer_range: float = 0.02
    canvas_length: int = 256
    bos_token_id: int = 2
    eos_token_id: tuple[int, ...] = (1,)
    pad_token_id: int = 0
    spare_holes: bool = field(default=False, compare=False)
    """Whether the model was trained on holes longer than their text: our own key, which other programs ignore."""
    # Written back untouched so that a saved folder keeps what we do not interpret (vision_config, image ids, ...).
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.top_k_experts > self.num_experts:
            raise CheckpointError(f"top_k_experts {self.top_k_experts} is larger than num_experts {self.num_experts}.")
        for kv_heads in (self.num_key_value_heads, self.num_global_key_value_heads):
            if self.num_attention_heads % kv_heads:
                raise CheckpointError(
                    f"num_attention_heads {self.num_attention_heads} is not a multiple of {kv_heads} key/value heads."
                )
        if self.head_dim % 2 or self.global_head_dim % 2:
            raise CheckpointError(f"Head dimensions {self.head_dim} and {self.global_head_dim} must be even.")
        unknown = set(self.layer_types) - {SLIDING, FULL}
        if unknown or not self.layer_types:
            raise CheckpointError(f"layer_types must name {SLIDING!r} or {FULL!r} layers, got {sorted(unknown)}.")

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers of either kind."""
        return len(self.layer_types)

    @property
    def image_marks(self) -> tuple[int, int, int]:
        """The token ids before an image, for each of its parts, and after it.

        Raises `CheckpointError` if one of them is not in the vocabulary.
        """
        names = {"boi_token_id": 255_999, "image_token_id": 258_880, "eoi_token_id": 258_882}
        opening, part, closing = (self.extra.get(name, default) for name, default in names.items())
        for token in (opening, part, closing):
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise CheckpointError(f"config.json's {', '.join(names)} must be token ids; {token!r} is not one.")
        return opening, part, closing

    def is_sliding(self, layer: int) -> bool:
        """Whether a layer attends within the sliding window only, not to everything before it."""
        return self.layer_types[layer] == SLIDING

    def layer_head_dim(self, layer: int) -> int:
        """The size of one attention head of a layer."""
        return self.head_dim if self.is_sliding(layer) else self.global_head_dim

    def layer_kv_heads(self, layer: int) -> int:
        """The number of a layer's key and value heads, each shared by several query heads."""
        return self.num_key_value_heads if self.is_sliding(layer) else self.num_global_key_value_heads

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Read a parsed `config.json`. Raises `CheckpointError` naming what is missing or not supported."""
        if raw.get("model_type") != "diffusion_gemma":
            raise CheckpointError(
                f"config.json describes model_type {raw.get('model_type')!r}; Redraft runs only 'diffusion_gemma'."
            )
        text = raw.get("text_config")
        if not isinstance(text, Mapping):
            raise CheckpointError("config.json has no text_config.")
        _reject_unsupported(text)
        return cls(**_text_fields(text), **_top_fields(raw, text), extra=dict(raw))

    def to_dict(self) -> dict[str, Any]:
        """The `config.json` content of this shape with full-precision weights, readable by Transformers.

        Leaves out how the original weights were quantized.
        """
        extra = {name: value for name, value in self.extra.items() if name != "quantization_config"}
        text = dict(self.extra.get("text_config", {}))
        text.pop("per_layer_config", None)
        same = ("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_experts",
                "top_k_experts", "num_attention_heads", "num_key_value_heads", "num_global_key_value_heads",
                "head_dim", "global_head_dim", "sliding_window", "rms_norm_eps", "final_logit_softcapping",
                "max_position_embeddings", "initializer_range", "bos_token_id", "pad_token_id")  # fmt: skip
        text |= {name: getattr(self, name) for name in same}
        text |= {
            "model_type": "diffusion_gemma_text",
            "num_hidden_layers": self.num_hidden_layers,
            "layer_types": list(self.layer_types),
            "hidden_activation": "gelu_pytorch_tanh",
            "use_bidirectional_attention": "vision",
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": self.rope_theta},
                FULL: {
                    "rope_type": "proportional",
                    "partial_rotary_factor": self.partial_rotary_factor,
                    "rope_theta": self.global_rope_theta,
                },
            },
        }
        return extra | {
            "architectures": ["DiffusionGemmaForBlockDiffusion"],
            "model_type": "diffusion_gemma",
            "canvas_length": self.canvas_length,
            "eos_token_id": list(self.eos_token_id),
            "tie_word_embeddings": True,
            "text_config": text,
            **({"spare_holes": True} if self.spare_holes else {}),
        }


_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_experts",
             "top_k_experts", "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window",
             "max_position_embeddings")  # fmt: skip
_OPTIONAL = ("rms_norm_eps", "final_logit_softcapping", "initializer_range", "bos_token_id", "pad_token_id")


def _reject_unsupported(text: Mapping[str, Any]) -> None:
    activation = text.get("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise CheckpointError(f"hidden_activation {activation!r} is not supported; expected 'gelu_pytorch_tanh'.")
    if text.get("attention_bias"):
        raise CheckpointError("attention_bias is not supported.")
    if text.get("use_bidirectional_attention") == "all":
        raise CheckpointError("use_bidirectional_attention 'all' is not supported; DiffusionGemma uses 'vision'.")
    if text.get("rope_scaling") is not None:
        raise CheckpointError("rope_scaling is not supported; rope_parameters say how each kind of layer rotates.")
    if strange := sorted(set(text.get("rope_parameters") or {}) - {SLIDING, FULL}):
        raise CheckpointError(f"rope_parameters has {strange[0]!r}; it says what holds for {SLIDING!r} and {FULL!r}.")
    if text.get("final_logit_softcapping", 30.0) is None:
        raise CheckpointError("final_logit_softcapping null is not supported; it must be a number.")


def _text_fields(text: Mapping[str, Any]) -> dict[str, Any]:
    missing = [name for name in _REQUIRED if text.get(name) is None]
    if missing:
        raise CheckpointError(f"config.json's text_config lacks {', '.join(missing)}.")
    fields = {name: text[name] for name in _REQUIRED}
    fields |= {name: text[name] for name in _OPTIONAL if text.get(name) is not None}
    layer_types = text.get("layer_types") or _default_layer_types(text.get("num_hidden_layers", 30))
    if (count := text.get("num_hidden_layers")) not in (None, len(layer_types)):
        raise CheckpointError(f"num_hidden_layers is {count!r}, and layer_types names {len(layer_types)} layers.")
    fields |= {"layer_types": tuple(layer_types)} | _rope_fields(text.get("rope_parameters") or {})
    return fields | _global_heads(text, tuple(layer_types))


def _rope_fields(rope: Mapping[str, Any]) -> dict[str, float]:
    """Rotary positions as Transformers reads them: an entry replaces all defaults of its layer kind."""
    fields: dict[str, float] = {}
    if sliding := rope.get(SLIDING):
        _reject_scaled_rope(sliding, SLIDING, "default")
        fields["rope_theta"] = float(sliding.get("rope_theta", 10_000.0))
        if sliding.get("partial_rotary_factor", 1.0) != 1.0:
            raise CheckpointError(f"partial_rotary_factor of {SLIDING!r} layers is not supported.")
    if full := rope.get(FULL):
        _reject_scaled_rope(full, FULL, "proportional")
        fields["global_rope_theta"] = float(full.get("rope_theta", 1_000_000.0))
        fields["partial_rotary_factor"] = float(full.get("partial_rotary_factor", 1.0))
    return fields


def _reject_scaled_rope(rope: Mapping[str, Any], kind: str, supported: str) -> None:
    if rope.get("rope_type", supported) != supported:
        raise CheckpointError(f"rope_type {rope['rope_type']!r} of {kind!r} layers is not supported; {supported!r} is.")
    if rope.get("factor", 1.0) != 1.0:
        raise CheckpointError(f"rope_parameters of {kind!r} layers with factor {rope['factor']!r} are not supported.")


def _default_layer_types(count: int) -> list[str]:
    return [FULL if (i + 1) % 6 == 0 or i == count - 1 else SLIDING for i in range(count)]


def _global_heads(text: Mapping[str, Any], layer_types: tuple[str, ...]) -> dict[str, int]:
    """Full layers' head size and kv heads, from `global_*` keys or from newer files' `per_layer_config`.

    What `per_layer_config` leaves out is the same as in the other layers, even if it is empty. Raises
    `CheckpointError` if it changes anything else, or full layers differently.
    """
    default = text["head_dim"] if "per_layer_config" in text else 512
    full = {
        "head_dim": text.get("global_head_dim") or default,
        "num_key_value_heads": text.get("num_global_key_value_heads") or text["num_key_value_heads"],
    }
    overrides = {str(layer): entry for layer, entry in (text.get("per_layer_config") or {}).items()}
    changed = [overrides.pop(str(layer), {}) for layer, kind in enumerate(layer_types) if kind == FULL]
    others = [{name: value for name, value in entry.items() if text.get(name) != value} for entry in overrides.values()]
    if any(others) or any(entry.keys() - full.keys() or entry != changed[0] for entry in changed):
        raise CheckpointError(
            "config.json's per_layer_config may only set head_dim and num_key_value_heads, the same for all "
            f"{FULL!r} layers."
        )
    full |= changed[0] if changed else {}
    return {"global_head_dim": full["head_dim"], "num_global_key_value_heads": full["num_key_value_heads"]}


def _top_fields(raw: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    given = (raw.get("eos_token_id"), text.get("eos_token_id"), 1)
    eos = next(ids for ids in given if ids is not None)
    return {
        "canvas_length": 256 if raw.get("canvas_length") is None else raw["canvas_length"],
        "eos_token_id": tuple(dict.fromkeys(eos)) if isinstance(eos, list | tuple) else (eos,),
        "spare_holes": raw.get("spare_holes") is True,
    }


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
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        for name, types in _TYPES.items():
            object.__setattr__(self, name, plain(getattr(self, name)))
            if name not in _OPTIONAL_SETTINGS or getattr(self, name) is not None:
                require_type(name, getattr(self, name), *((int, float) if float in types else types))
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(self.steps >= 1, "steps", self.steps, "at least 1")
        _require(self.schedule_steps >= 1, "schedule_steps", self.schedule_steps, "at least 1")
        _require(self.entropy_bound > 0, "entropy_bound", self.entropy_bound, "above 0")
        _require(0 <= self.t_min < inf, "t_min", self.t_min, "at least 0 and finite")
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
        _require(self.t_max >= LOWEST_T_MAX, "t_max", self.t_max, f"at least {LOWEST_T_MAX:g}")
        require_at_most(HIGHEST_T_MAX, t_max=self.t_max)
        others = (name for name, types in _TYPES.items() if bool not in types and name != "seed")
        require_at_most(MAX_NUMBER, **{name: getattr(self, name) for name in others})

    @property
    def temperature_steps(self) -> int:
        """The number of steps over which the temperature schedule runs."""
        return self.steps if self.stretch_schedule else self.schedule_steps


def require_at_most(most: float, **given: float | None) -> None:
    """Raise `SettingError` naming the first of the `given` settings that is above `most`, infinite, or not a number."""
    for name, value in given.items():
        if value is not None and not value <= most:  # NaN fails every comparison
            raise SettingError(f"{name} is too large or not a number; it may be at most {most:,.0f}.", name)


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

_HINTS = {name: hint for name, hint in get_type_hints(GenerationSettings).items() if name != "stop"}
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
    return dataclasses.replace(base, **{**GENERATION_PRESETS[preset or "balanced"](base), **given})


def check_names(given: Iterable[str], known: Iterable[str], unlisted: Iterable[str] = ()) -> None:
    """Raise `SettingError` for a setting that is neither `known` nor `unlisted`; the message lists the known ones."""
    known, unlisted = tuple(known), tuple(unlisted)
    unknown = min((name for name in given if name not in known + unlisted), default=None)
    if unknown is not None:
        close = difflib.get_close_matches(unknown, known, 1, cutoff=0.8)
        meant = f"; did you mean {close[0]!r}? Known" if close else "; known"
        raise SettingError(f"Unknown setting {unknown!r}{meant} settings are {', '.join(known)}.", unknown)


def _stop_strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list | tuple) else None
    if strings is None or not all(isinstance(text, str) for text in strings):
        raise SettingError("stop must be a string or a list of strings.", "stop")
    for text in strings:
        check_utf8(text, "stop", SettingError)
    return strings  # type: ignore[return-value]


def plain(value: Any) -> Any:
    """A whole number of another library, such as numpy's, as Python's own; anything else as it is."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, int) else value


def require_type(name: str, value: object, *allowed: type) -> None:
    """Raise `SettingError` for a value of another type; a bool does not count as a number."""
    is_bool = isinstance(value, bool)
    if not isinstance(value, allowed) or (is_bool and bool not in allowed):
        wanted = " or ".join(t.__name__ for t in allowed)
        raise SettingError(f"{name} is {value!r}; it must be of type {wanted}.", name)


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


def is_positive(value: object) -> bool:
    """Whether a value read from a file is a number above 0 and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def end_ids(given: Any, vocab_size: int, where: object) -> tuple[int, ...]:
    """The token ids of an `eos_token_id`, which is one id or a list of them, without duplicates.

    Raises `CheckpointError`, naming the file `where` it was found, unless they are 1 to 8 ids of the vocabulary.
    """
    ids = tuple(given) if isinstance(given, list | tuple) else (given,)
    known = all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocab_size for token in ids)
    if not known or not 0 < len(set(ids)) <= MAX_END_IDS:
        raise CheckpointError(
            f"{where} sets eos_token_id to {given!r}; it must be 1 to {MAX_END_IDS} token ids below {vocab_size}."
        )
    return tuple(dict.fromkeys(ids))
