"""How many parameters a model has and where, and how many bytes they take, from its config alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redraft.config import FULL, SLIDING, LayerType, ModelConfig
from redraft.model.vision import VisionConfig
from redraft.quant import nvfp4
from redraft.quant.int4 import INT4_GROUP

BYTES_PER_PARAMETER = {"bf16": 2, "fp32": 4}
MATRIX_FORMATS = {
    "fp8": {"dense": "fp8", "experts": "fp8"},
    "int4": {"dense": "fp8", "experts": "int4"},
    "nvfp4": {"experts": "nvfp4"},
}
"""The number format of dense matrices and of experts in each quantized format; the rest is bf16.

`nvfp4` is NVIDIA's checkpoint; `redraft quantize` writes the others.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """`count` equal pieces of a model with `each` parameters, of which one token uses `active_each`."""

    name: str
    each: int
    count: int
    active_each: int
    kind: str = ""
    matrices: tuple[tuple[int, int], ...] = ()
    """Output and input sizes of the matrices in one piece that quantized formats cover, depending on `kind`."""

    @property
    def total(self) -> int:
        return self.each * self.count

    @property
    def active(self) -> int:
        return self.active_each * self.count

    def bytes_in(self, format: str) -> int:
        """Bytes of all pieces in bf16, fp32 or one of `MATRIX_FORMATS`, scales included."""
        if format in BYTES_PER_PARAMETER:
            return self.total * BYTES_PER_PARAMETER[format]
        return self.bytes_as(MATRIX_FORMATS[format])

    def bytes_as(self, formats: Mapping[str, str]) -> int:
        """Bytes of all pieces with matrices in these number formats, by kind; the rest is bf16."""
        kept_as = formats.get(self.kind)
        if kept_as is None:
            return self.total * BYTES_PER_PARAMETER["bf16"]
        rest = self.each - sum(rows * inputs for rows, inputs in self.matrices)
        matrices = sum(matrix_bytes(rows, inputs, kept_as) for rows, inputs in self.matrices)
        return self.count * (rest * BYTES_PER_PARAMETER["bf16"] + matrices)


def matrix_bytes(rows: int, inputs: int, format: str, group: int = INT4_GROUP) -> int:
    """Bytes of a matrix: fp8 has an fp32 scale per row, int4 a bf16 scale per `group` of inputs, and nvfp4 a byte per
    group of its own.
    """
    numbers = rows * inputs
    if format == "fp8":
        return numbers + 4 * rows
    return numbers // 2 + (2 * (numbers // group) if format == "int4" else numbers // nvfp4.GROUP)


def text_parts(config: ModelConfig) -> tuple[Part, ...]:
    """The text model, part by part; shared tensors count once."""
    width, layers = config.hidden_size, config.num_hidden_layers
    expert = 3 * config.moe_intermediate_size * width
    dense = 3 * config.intermediate_size * width
    return (
        _part("embedding (also the head)", config.vocab_size * width),
        _attention_part(config, SLIDING),
        _attention_part(config, FULL),
        _part("dense MLP", dense, layers, kind="dense", matrices=_gated(config.intermediate_size, width)),
        _part("router", width * config.num_experts + width + config.num_experts, layers),
        _part(
            "experts",
            expert * config.num_experts,
            layers,
            active=expert * config.top_k_experts,
            kind="experts",
            matrices=_gated(config.moe_intermediate_size, width) * config.num_experts,
        ),
        _part("self-conditioning", dense + width),
        _part("layer norms", 7 * width, layers),
        _part("final norm", width),
        _part("layer scalars", 2, layers, active=1),  # one for each phase
    )


def vision_parts(config: ModelConfig) -> tuple[Part, ...]:
    """The vision tower and its projector as `vision_config` describes them; empty without one.

    Raises `CheckpointError` if it lacks a size or is of another kind.
    """
    vision = VisionConfig.of(config)
    if vision is None:
        return ()
    projector = vision.hidden_size * config.hidden_size
    return (_part("vision tower", _vision_tower(vision)), _part("vision projector", projector))


def total(parts: tuple[Part, ...]) -> int:
    """Parameters of all parts together."""
    return sum(part.total for part in parts)


def bytes_in(parts: tuple[Part, ...], format: str) -> int:
    """Bytes of all parts together; see `Part.bytes_in`."""
    return sum(part.bytes_in(format) for part in parts)


def cpu_bytes(config: ModelConfig, dtype: str, int4_layers: int) -> int:
    """Bytes on a CPU in "bf16" or "fp32", with the experts of `int4_layers` layers in INT4."""
    parts = text_parts(config)
    plain, small = (sum(p.bytes_in(format) for p in parts if p.kind == "experts") for format in (dtype, "int4"))
    return bytes_in(parts, dtype) - (plain - small) * int4_layers // config.num_hidden_layers


def active_per_token(config: ModelConfig) -> int:
    """Parameters used to compute one token."""
    return sum(part.active for part in text_parts(config))


def _part(name: str, each: int, count: int = 1, active: int | None = None, **quantizable: Any) -> Part:
    return Part(name=name, each=each, count=count, active_each=each if active is None else active, **quantizable)


def _gated(inner: int, width: int) -> tuple[tuple[int, int], ...]:
    """Gate, up and down of an MLP."""
    return ((inner, width), (inner, width), (width, inner))


def _attention_part(config: ModelConfig, kind: LayerType) -> Part:
    """The projections and the q and k norms of one kind of layer; full layers have no v projection."""
    sliding, width = kind == SLIDING, config.hidden_size
    dim = config.head_dim if sliding else config.global_head_dim
    queries = config.num_attention_heads * dim
    keys = (config.num_key_value_heads if sliding else config.num_global_key_value_heads) * dim
    matrices = ((queries, width), (width, queries)) + ((keys, width),) * (2 if sliding else 1)
    each = sum(rows * inputs for rows, inputs in matrices) + 2 * dim
    name = kind.replace("_", " ")
    return _part(name, each, config.layer_types.count(kind), kind="dense", matrices=matrices)


def _vision_tower(vision: VisionConfig) -> int:
    width, dim = vision.hidden_size, vision.head_dim
    attention = 2 * width * dim * (vision.num_attention_heads + vision.num_key_value_heads) + 2 * dim
    layers = vision.num_hidden_layers * (attention + 3 * width * vision.intermediate_size + 4 * width)
    patches = 3 * vision.patch_size**2 * width + 2 * vision.position_embedding_size * width
    return patches + layers + 2 * width * vision.standardize
