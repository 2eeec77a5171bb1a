"""Launch tables: tile sizes per format and number of rows, measured on Hopper. Nothing is tuned while running."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch

from redraft.kernels.triton.hardware import roomy
from redraft.kernels.triton.language import cdiv


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """How a product over experts is cut up.

    columns   weight rows of a tile (a gate tile has as many again for up)
    depth     inputs per step; INT4 always takes 128
    stages    steps in flight
    warps     per program
    tma       weights through the bulk copy engine, on GPUs that have one
    small     tiles with at most this many rows take narrower instructions; 0 for none
    """

    columns: int
    depth: int
    stages: int
    warps: int
    tma: bool = False
    small: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearTile:
    """How a dense product is cut up: rows of tokens, columns (weight rows) and depth (inputs per step) of a tile."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingTile:
    """How routing of at most `most` rows is cut up.

    router  rows of a tile of the router's product
    split   whether several programs share a tile's sum, each computing a part of it
    choose  rows for which a program chooses experts, one warp each
    place   rows whose assignments a program sorts
    warps   of a program that sorts
    """

    most: float
    router: int
    split: bool
    choose: int
    place: int
    warps: int


ROUTING = (
    RoutingTile(most=256, router=16, split=True, choose=4, place=16, warps=4),
    RoutingTile(most=512, router=16, split=True, choose=16, place=16, warps=4),
    RoutingTile(most=1024, router=64, split=True, choose=16, place=16, warps=4),
    RoutingTile(most=2048, router=16, split=False, choose=16, place=64, warps=8),
    RoutingTile(most=inf, router=32, split=False, choose=16, place=64, warps=8),
)
"""By rising number of rows. Few rows are split so that every SM has a program. Larger numbers have enough programs
without, and their tiles are small until larger ones read fewer weights."""


def routing_tile(rows: int) -> RoutingTile:
    """The tile for this many rows."""
    return next(tile for tile in ROUTING if rows <= tile.most)


@dataclass(frozen=True, kw_only=True, slots=True)
class TritonPlan:
    """How experts with at most `mean` rows on average are computed."""

    mean: float
    block_rows: int
    gate: Tile
    down: Tile


PLANS = {
    "plain": (
        TritonPlan(
            mean=16,
            block_rows=32,
            gate=Tile(columns=64, depth=64, stages=3, warps=4, tma=True),
            down=Tile(columns=64, depth=64, stages=4, warps=4),
        ),
        TritonPlan(
            mean=40,
            block_rows=64,
            gate=Tile(columns=64, depth=64, stages=3, warps=4, tma=True, small=32),
            down=Tile(columns=128, depth=64, stages=3, warps=4, tma=True, small=32),
        ),
        TritonPlan(
            mean=96,
            block_rows=128,
            gate=Tile(columns=64, depth=64, stages=3, warps=4, tma=True, small=64),
            down=Tile(columns=128, depth=64, stages=3, warps=4, tma=True, small=64),
        ),
        TritonPlan(
            mean=inf,
            block_rows=128,
            gate=Tile(columns=64, depth=64, stages=3, warps=4, small=32),
            down=Tile(columns=128, depth=64, stages=3, warps=4, tma=True, small=32),
        ),
    ),
    "fp8": (
        TritonPlan(
            mean=16,
            block_rows=32,
            gate=Tile(columns=64, depth=128, stages=3, warps=4, tma=True),
            down=Tile(columns=64, depth=128, stages=3, warps=4, tma=True),
        ),
        TritonPlan(
            mean=96,
            block_rows=64,
            gate=Tile(columns=64, depth=128, stages=3, warps=4, tma=True, small=32),
            down=Tile(columns=128, depth=128, stages=3, warps=4, tma=True, small=32),
        ),
        TritonPlan(
            mean=inf,
            block_rows=128,
            gate=Tile(columns=64, depth=128, stages=3, warps=4, small=32),
            down=Tile(columns=128, depth=128, stages=3, warps=4, tma=True, small=32),
        ),
    ),
    "int4": (
        TritonPlan(
            mean=40,
            block_rows=32,
            gate=Tile(columns=64, depth=128, stages=3, warps=4),
            down=Tile(columns=128, depth=128, stages=3, warps=4),
        ),
        TritonPlan(
            mean=inf,
            block_rows=64,
            gate=Tile(columns=64, depth=128, stages=3, warps=4, small=16),
            down=Tile(columns=64, depth=128, stages=3, warps=4, small=16),
        ),
    ),
}
"""By format, in order of rising means. All fit the 99 KiB of shared memory that a program has on smaller cards."""


GLUON_ROWS = {"plain": ((40, 128),), "fp8": ((40, 128), (80, 144)), "int4": ((0, 32), (24, 64), (40, 80))}
"""By format: a mean, and the most rows of a tile in `kernels.gluon` for experts that get more than that on average.

These are for Hopper; where there is no entry, the plans above are as fast or faster. Of more than 128 rows, tiles make
use only where that saves one (`routing.usual_rows`): with bf16 weights that gained nothing.
"""


def gluon_rows(weights: str, mean: float) -> int | None:
    """The most rows of a tile in `kernels.gluon` for weights in a format and a mean number of rows, where it pays."""
    return next((rows for least, rows in reversed(GLUON_ROWS[weights]) if mean > least), None)


def plan(weights: str, mean: float) -> TritonPlan:
    """The plan for weights in a format ("plain", "fp8", "int4") and the mean number of rows that an expert gets."""
    return next(plan for plan in PLANS[weights] if mean <= plan.mean)


def linear_tile(device: torch.device, rows: int, outputs: int, inputs: int) -> LinearTile | None:
    """The tile of a dense FP8 product, or None where the library is faster; a row gets the same bits from all."""
    if not roomy(device):
        return LinearTile(rows=64, columns=64, depth=64, stages=3, warps=4)
    if device.type == "cuda" and outputs % 16 == inputs % 16 == 0 and (rows > 256 or outputs >= 8192):
        return None
    if cdiv(rows, 128) * cdiv(outputs, 128) >= 64:  # one on every second SM: parallel work has the others
        return LinearTile(rows=128, columns=128, depth=128, stages=6, warps=8)
    return LinearTile(rows=64, columns=128, depth=128, stages=6, warps=4)
