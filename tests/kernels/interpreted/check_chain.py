"""chain.py: every kernel of the dynamic programme against its twin."""

from typing import Any

import pytest
import torch
from torch import Tensor

from redraft import kernels
from redraft.kernels.triton import chain
from redraft.kernels.triton.chain import ChainTile, Edges, Lists
from redraft.kernels.vocabulary import NEVER

ROWS, STATES, SETS, CLASSES, TOKENS = 3, 70, 5, 4, 90
SMALL = ChainTile(edges=2, rows=16, states=16, pieces=4, warps=1)
"""Less than the automata here need, so that every loop goes round."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def whole(high: int, count: int, seed: int) -> Tensor:
    return torch.randint(high, (count,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def lists(high: int, sizes: list[int], seed: int = 0) -> Lists:
    first = torch.tensor([0, *sizes]).cumsum(0).int()
    return Lists(items=whole(high, sum(sizes), seed), first=first)


def edges(tile: ChainTile | None = None) -> Edges:
    """A chain of states with one way on, and a few where many edges arrive."""
    source = torch.cat((torch.arange(STATES - 1), whole(STATES, 120, 6).long(), torch.tensor([4, 9, 60])))
    target = torch.cat((torch.arange(1, STATES), whole(6, 120, 1).long(), torch.zeros(3).long()))
    return Edges.of(source, target, whole(SETS, len(source), 9).long(), STATES, torch.device("cpu"), tile)


def compare(function: Any, *arguments: Any) -> None:
    ours = function(*[one.clone() if isinstance(one, Tensor) else one for one in arguments])
    with kernels.force("eager"):
        theirs = function(*[one.clone() if isinstance(one, Tensor) else one for one in arguments])
    for one, other in zip(*(x if type(x) is tuple else (x,) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_log_sums() -> None:
    values = normal(ROWS, TOKENS)
    values[:, ::7] = NEVER
    compare(chain.log_sums, values, lists(TOKENS, [1, 0, 40, 3]))
    some = Lists(items=torch.tensor([0, 7, 14], dtype=torch.int32), first=torch.tensor([0, 3], dtype=torch.int32))
    compare(chain.log_sums, values, some)  # a list of nothing but "never"
    values[0, 8], values[1, :] = torch.nan, torch.nan
    some = Lists(items=torch.arange(7, 12, dtype=torch.int32), first=torch.tensor([0, 3, 5], dtype=torch.int32))
    assert chain.log_sums(values, some)[1].isnan().tolist() == [[True, False], [True, True], [False, False]]


def test_log_sums_of_pairs() -> None:
    group = lists(TOKENS, [2, 33, 5])
    compare(chain.log_sums, normal(ROWS, TOKENS), group, normal(ROWS, STATES, seed=1), whole(STATES, 40, 3))


def test_every_edge_stands_once_in_a_row_of_its_state() -> None:
    source, target, label = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1, 1, 0, 1, 1]), torch.tensor([3, 0, 1, 2, 4])
    table = Edges.of(source, target, label, 3, torch.device("cpu"), SMALL)
    assert table.first.tolist() == [[0, 1, 3, 3], [0, 1, 2, 3]]
    assert table.begins[0].T.flatten().tolist()[:6] == [2, 0, 0, 1, 0, 1]
    assert table.label[0].T.flatten().tolist()[:6] == [1, -1, 3, 0, 2, 4]
    assert [column.tolist() for column in table.way(1)] == [[1, 1, 1, 1, 0], [3, 2, 0, 4, 1], [0, 0, 1, 1, 2]]


def test_the_rule_takes_a_usual_automaton_at_once() -> None:
    counts = torch.tensor([[1] * 200 + [30] * 63 + [84], [8] * 264])
    assert ChainTile.of(counts) == ChainTile(edges=8, rows=512, states=512, pieces=16, warps=16)
    assert ChainTile.of(torch.ones(2, 12).long()) == ChainTile(edges=4, rows=16, states=16, pieces=1, warps=1)
    huge = ChainTile.of(torch.full((2, 40_000), 3))
    assert huge.rows * huge.edges == 8192


@pytest.mark.parametrize("tile", [None, SMALL, ChainTile(edges=8, rows=8, states=128, pieces=1, warps=1)])
def test_ways_and_trace_of_several_canvases(tile: ChainTile | None) -> None:
    length, table, canvases = 5, edges(tile), 3
    total, most = normal(canvases, length, SETS), normal(canvases, length, SETS, seed=1)
    most[0, 2, 1] = total[0, 2, 1] = NEVER
    ends = torch.full((canvases, 2, STATES), NEVER)
    ends[:, 0, 0], ends[0, 1, 3:60], ends[1:, 1, 1:40] = 0.0, 0.0, 0.0
    gate_at = torch.tensor([-1, 3, 1], dtype=torch.int32)
    gate = torch.where(torch.arange(STATES) % 3 == 0, 0.0, NEVER).repeat(canvases, 1)
    compare(chain.ways, total, most, table, ends, gate_at, gate)
    with kernels.force("eager"):
        found = chain.ways(total, most, table, ends, gate_at, gate)
    compare(chain.trace, found[2], most, table, ends[:, 1])
    for one in range(canvases):
        part = slice(one, one + 1)
        alone = chain.ways(total[part], most[part], table, ends[part], gate_at[part], gate[part])
        torch.testing.assert_close(alone, found[:, part], rtol=1e-5, atol=1e-4)
