"""tables.py: a plan for every number of rows, and candidates that are off until somebody names them."""

import os
import subprocess
import sys

import pytest

from redraft.errors import SettingError
from redraft.kernels.switches import OPERATIONS
from redraft.kernels.triton import tables


@pytest.mark.parametrize("weights", ["plain", "fp8", "int4"])
@pytest.mark.parametrize("candidates", [(), ("tall-experts",)], ids=["shipped", "tall"])
def test_every_mean_has_a_plan_and_tiles_grow_with_it(weights: str, candidates: tuple[str, ...]) -> None:
    with tables.trying(*candidates):
        plans = [tables.plan(weights, mean) for mean in (0.5, 16, 40, 41, 96, 160, 161, 4096)]
        assert plans[4].block_rows == tables.block_rows(96 * 16, 8, 128, weights)
    heights = [plan.block_rows for plan in plans]
    assert heights == sorted(heights)
    assert all(2816 % plan.down.columns == 0 and 704 % plan.gate.columns == 0 for plan in plans)
    assert all(plan.gate.small < plan.block_rows and plan.down.small < plan.block_rows for plan in plans)
    assert (heights[-1] == 256) == (bool(candidates) and weights != "int4")


def test_candidates_change_operations_that_exist_and_are_off() -> None:
    assert not any(map(tables.taken, tables.CANDIDATES))
    assert {operation for changed in tables.CANDIDATES.values() for operation in changed} <= set(OPERATIONS)
    with tables.trying("flat-router"), tables.trying("wide-attention"):
        assert [name for name in tables.CANDIDATES if tables.taken(name)] == ["wide-attention", "flat-router"]
    assert not tables.taken("flat-router")


def test_an_unknown_candidate_is_one_sentence() -> None:
    with (
        pytest.raises(SettingError, match=r"^'tall' is no candidate; there are .*tall-experts.*\.$"),
        tables.trying("tall"),
    ):
        pass


def test_a_process_takes_candidates_from_its_environment() -> None:
    code = "from redraft.kernels.triton import tables; print(tables.taken('tall-experts'), tables.taken('flat-router'))"
    environment = os.environ | {"REDRAFT_CANDIDATES": "tall-experts"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
