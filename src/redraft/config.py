"""The shape of a model: read from `config.json`, and written back.

Its numbers are checked against each other when the object is made, and each by itself where a file is read
(`model.folders.check_config`). There, messages get the name of the file, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from redraft.errors import CheckpointError

LayerType = Literal["sliding_attention", "full_attention"]
SLIDING: LayerType = "sliding_attention"
FULL: LayerType = "full_attention"

MAX_END_IDS = 8
"""End-of-text ids a model may have; the GPU kernels keep this many per request."""


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
        unknown = [kind for kind in self.layer_types if kind not in (SLIDING, FULL)]
        if unknown or not self.layer_types:
            raise CheckpointError(f"layer_types must name {SLIDING!r} or {FULL!r} layers, got {unknown[:1]}.")

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
                f"model_type {raw.get('model_type')!r} is not supported; Redraft runs only 'diffusion_gemma'."
            )
        text = raw.get("text_config")
        if not isinstance(text, Mapping):
            raise CheckpointError("text_config is missing.")
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
        raise CheckpointError(f"text_config lacks {', '.join(missing)}.")
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
            f"per_layer_config may only set head_dim and num_key_value_heads, the same for all {FULL!r} layers."
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
