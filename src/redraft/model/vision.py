"""How an image enters a prompt: Gemma 4's vision tower, and the projection into the text model's embeddings.

An image is a grid of square patches of pixels. Each becomes a row that knows its column and row in the image, from a
learned embedding and rotary angles; all rows see each other in every layer; each square of neighbouring patches is
averaged into one row, which replaces one token's embedding in the prompt.

Shapes: P patches, W the tower's width, M heads, G key/value heads, H head dim, N tokens, D the text model's width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redraft import kernels
from redraft.checks import is_positive
from redraft.config import ModelConfig
from redraft.errors import CheckpointError
from redraft.model.attention import RMSNorm
from redraft.model.moe import GatedMLP
from redraft.model.rope import rotate
from redraft.text.images import BUDGETS, Grid

RopeTable = tuple[Tensor, Tensor]
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "head_dim", "patch_size", "pooling_kernel_size", "position_embedding_size")  # fmt: skip
_WITHOUT = "vision=False loads the text model alone."


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionConfig:
    """The shape of a vision tower. Field names follow `vision_config` in config.json; patch sizes are in pixels."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    position_embedding_size: int
    patch_size: int = 16
    pooling_kernel_size: int = 3
    rms_norm_eps: float = 1e-6
    rope_theta: float = 100.0
    standardize: bool = False
    budget: int = 280
    """The most tokens per image, unless set otherwise (`vision_soft_tokens_per_image`)."""

    @classmethod
    def of(cls, config: ModelConfig) -> Self | None:
        """The tower that a model's config describes; None if it describes none. Raises `CheckpointError`."""
        raw = config.extra.get("vision_config")
        if not raw:
            return None
        if not isinstance(raw, Mapping):
            raise CheckpointError(f"config.json sets vision_config to {raw!r}; it must be an object.")
        given = {"patch_size": 16, "pooling_kernel_size": 3, **raw}
        if wrong := [name for name in _SIZES if type(given.get(name)) is not int or given[name] < 1]:
            raise CheckpointError(f"config.json's vision_config needs whole numbers above 0 for {', '.join(wrong)}.")
        _reject_unsupported(given)
        numbers = {
            "rms_norm_eps": given.get("rms_norm_eps", 1e-6),
            "rope_theta": (given.get("rope_parameters") or {}).get("rope_theta", 100.0),
        }
        if wrong := [name for name, value in numbers.items() if not is_positive(value)]:
            raise CheckpointError(f"config.json's vision_config needs numbers above 0 for {', '.join(wrong)}.")
        if (budget := config.extra.get("vision_soft_tokens_per_image", 280)) not in BUDGETS:
            raise CheckpointError(
                f"config.json's vision_soft_tokens_per_image is {budget!r}; it must be one of {BUDGETS}."
            )
        return cls(
            **{name: given[name] for name in _SIZES},
            rms_norm_eps=float(numbers["rms_norm_eps"]),
            rope_theta=float(numbers["rope_theta"]),
            standardize=bool(given.get("standardize")),
            budget=budget,
        )


def _reject_unsupported(given: Mapping[str, Any]) -> None:
    activation = given.get("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise CheckpointError(f"vision_config's hidden_activation {activation!r} is not supported; {_WITHOUT}")
    for name in ("use_clipped_linears", "attention_bias"):
        if given.get(name):
            raise CheckpointError(f"vision_config's {name} is not supported; {_WITHOUT}")
    rope = given.get("rope_parameters") or {}
    if not isinstance(rope, Mapping) or rope.get("rope_type", "axial") not in ("axial", "default"):
        raise CheckpointError(f"vision_config's rope_parameters {rope!r} are not supported; {_WITHOUT}")
    if given["head_dim"] % 4:
        raise CheckpointError(f"vision_config's head_dim is {given['head_dim']}; it must be a multiple of 4.")
    heads, kv_heads = given["num_attention_heads"], given["num_key_value_heads"]
    if heads % kv_heads:
        raise CheckpointError(
            f"vision_config's {heads} attention heads are not a multiple of its {kv_heads} key/value heads."
        )


class VisionAttention(nn.Module):
    """Two-sided attention among an image's patches, with normed and rotated queries and keys, and normed values."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width, dim = config.hidden_size, config.head_dim
        self.head_dim, self.eps = dim, config.rms_norm_eps
        self.grouped = config.num_key_value_heads != config.num_attention_heads
        self.q_proj = nn.Linear(width, config.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, width, bias=False)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps)

    def forward(self, x: Tensor, rope: RopeTable) -> Tensor:
        """x [P,W] -> [P,W]."""
        heads = (len(x), -1, self.head_dim)
        q = _rotate_halves(self.q_norm(self.q_proj(x).view(heads)), rope)  # [P,M,H]
        k = _rotate_halves(self.k_norm(self.k_proj(x).view(heads)), rope)  # [P,G,H]
        v = kernels.rms_norm(self.v_proj(x).view(heads), None, self.eps)
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, scale=1.0, enable_gqa=self.grouped)  # [1,M,P,H]
        return self.o_proj(seen[0].transpose(0, 1).flatten(1))


class VisionLayer(nn.Module):
    """Attention, then a gated MLP, each normed on both sides."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.attention = VisionAttention(config)
        self.mlp = GatedMLP(width, config.intermediate_size)
        self.pre_attention_norm = RMSNorm(width, eps)
        self.post_attention_norm = RMSNorm(width, eps)
        self.pre_mlp_norm = RMSNorm(width, eps)
        self.post_mlp_norm = RMSNorm(width, eps)

    def forward(self, x: Tensor, rope: RopeTable) -> Tensor:
        """x [P,W] -> [P,W]."""
        x = self.post_attention_norm.added(x, self.attention(self.pre_attention_norm(x), rope))
        return self.post_mlp_norm.added(x, self.mlp(self.pre_mlp_norm(x)))


class VisionTower(nn.Module):
    """Turns an image's patches into the embeddings of its tokens."""

    std_bias: Tensor
    std_scale: Tensor

    def __init__(self, config: VisionConfig, width: int) -> None:
        """`width` is the text model's."""
        super().__init__()
        self.config = config
        self.patch_proj = nn.Linear(3 * config.patch_size**2, config.hidden_size, bias=False)
        self.positions = nn.Parameter(torch.empty(2, config.position_embedding_size, config.hidden_size))
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.num_hidden_layers))
        if config.standardize:
            self.register_buffer("std_bias", torch.zeros(config.hidden_size))
            self.register_buffer("std_scale", torch.ones(config.hidden_size))
        self.projection = nn.Linear(config.hidden_size, width, bias=False)

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """A model's tower, with weights yet to be filled in. Raises `CheckpointError` if its config describes none."""
        vision, _ = VisionConfig.of(config), config.image_marks
        if vision is None:
            raise CheckpointError("The folder holds a vision tower, which its config.json does not describe.")
        return cls(vision, config.hidden_size)

    @property
    def grid(self) -> Grid:
        """How images are cut into patches for it."""
        config = self.config
        sizes = {"patch": config.patch_size, "square": config.pooling_kernel_size}
        return Grid(**sizes, budget=config.budget, longest=config.position_embedding_size)

    @property
    def dtype(self) -> torch.dtype:
        return self.patch_proj.weight.dtype

    def forward(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """Patches uint8 [rows * columns, 3 * patch_size^2], row by row, each pixel's colours together -> [N,D].

        Rows and columns are multiples of `pooling_kernel_size`.
        """
        assert len(patches) == rows * columns
        device = self.positions.device
        at = torch.arange(rows * columns, device=device)
        column, row = at % columns, at // columns
        pixels = patches.to(device).float() * (1 / 255)
        x = self.patch_proj((2 * (pixels - 0.5)).to(self.dtype))
        x = x + (self.positions[0, column] + self.positions[1, row])  # [P,W]
        rope = self._rope(column, row)
        for layer in self.layers:
            x = layer(x, rope)
        return self.projection(kernels.rms_norm(self._pool(x, rows, columns), None, self.config.rms_norm_eps))

    def _pool(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """The mean of every square of neighbours [P,W] -> [N,W], scaled by sqrt(W) and standardized in fp32."""
        side = self.config.pooling_kernel_size
        squares = x.float().view(rows // side, side, columns // side, side, -1)
        pooled = squares.mean((1, 3)).flatten(0, 1).to(x.dtype).float() * x.shape[1] ** 0.5
        if self.config.standardize:
            pooled = (pooled - self.std_bias.float()) * self.std_scale.float()
        return pooled.to(x.dtype)

    def _rope(self, column: Tensor, row: Tensor) -> RopeTable:
        """cos and signed sin [P,1,2,H/2]: one half of every head rotates by the column, the other by the row."""
        half = self.config.head_dim // 2
        steps = torch.arange(0, half, 2, dtype=torch.float32, device=column.device) / half
        angles = torch.stack((column, row), 1)[..., None].float() * (1.0 / self.config.rope_theta**steps)  # [P,2,H/4]
        cos, sin = angles.cos(), angles.sin()
        cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return cos[:, None].to(self.dtype), sin[:, None].to(self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class ImageEmbeddings:
    """An image's embeddings [N,D] from the vision tower, for positions `start` .. `stop`."""

    start: int
    embeddings: Tensor

    @property
    def stop(self) -> int:
        return self.start + len(self.embeddings)

    @property
    def positions(self) -> range:
        """The image's positions, whose tokens all see each other."""
        return range(self.start, self.stop)


def overlay(x: Tensor, start: int, images: Sequence[ImageEmbeddings]) -> Tensor:
    """Embeddings x [T,D] of positions from `start` on, with those of images put in place."""
    if not images:
        return x
    x = x.clone()
    for image in images:
        x[image.start - start : image.stop - start] = image.embeddings.to(x)
    return x


def _rotate_halves(x: Tensor, rope: RopeTable) -> Tensor:
    """Rotate both halves of the heads x [P,M,H], each by its own angles."""
    return rotate(x.unflatten(-1, (2, -1)), rope).flatten(-2)
