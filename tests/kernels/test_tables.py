"""tables.py: a plan for every number of rows."""

import pytest

from redraft.kernels.triton import tables


def test_routing_puts_whole_chunks_in_order() -> None:
    tiles = [tables.routing_tile(rows) for rows in (1, 256, 257, 1024, 1025, 4096, 100_000)]
    assert [tile.most for tile in tiles] == sorted(tile.most for tile in tiles)
    assert all(tile.place % tile.choose == 0 and tile.place >= 16 for tile in tiles)


@pytest.mark.parametrize("weights", ["plain", "fp8", "int4"])
def test_every_mean_has_a_plan_and_tiles_grow_with_it(weights: str) -> None:
    plans = [tables.plan(weights, mean) for mean in (0.5, 16, 40, 41, 96, 97, 4096)]
    heights = [plan.block_rows for plan in plans]
    assert heights == sorted(heights)
    assert all(2816 % plan.down.columns == 0 and 704 % plan.gate.columns == 0 for plan in plans)
    assert all(plan.gate.small < plan.block_rows and plan.down.small < plan.block_rows for plan in plans)


@pytest.mark.parametrize("weights", ["plain", "fp8", "int4"])
def test_tiles_of_kernels_for_hopper_grow_with_the_mean(weights: str) -> None:
    heights = [tables.gluon_rows(weights, mean) for mean in (16, 32, 48, 64, 512)]
    assert (heights[0] is None) == (weights != "int4")
    found = [rows for rows in heights if rows is not None]
    assert found == sorted(found)
    assert heights[2:] == found[-3:]
