"""chain.py: every kernel of the dynamic programme against its twin, and the whole of it on a real automaton."""

from typing import Any

import pytest
import torch
from torch import Tensor

from redraft import kernels
from redraft.constraints.answer import AutomatonConstraint
from redraft.constraints.automaton import Budget
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.constraints.tokens import Ending, compile_tokens
from redraft.constraints.vocabulary import Vocabulary
from redraft.kernels.triton import chain
from redraft.kernels.triton.chain import NEVER, ChainTile, Edges, Lists

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
@pytest.mark.parametrize("gate_at", [None, 3])
def test_ways_and_trace(gate_at: int | None, tile: ChainTile | None) -> None:
    length, table = 5, edges(tile)
    total, most = normal(length, SETS), normal(length, SETS, seed=1)
    most[2, 1] = total[2, 1] = NEVER
    ends = torch.full((2, STATES), NEVER)
    ends[0, 0], ends[1, 3:60] = 0.0, 0.0
    gate = None if gate_at is None else (gate_at, torch.where(torch.arange(STATES) % 3 == 0, 0.0, NEVER))
    compare(chain.ways, total, most, table, ends, gate)
    with kernels.force("eager"):
        best = chain.ways(total, most, table, ends, gate)[2]
    compare(chain.trace, best, most, table, ends[1])


def test_tokens_and_marginals() -> None:
    logits, classes, sets = normal(ROWS, TOKENS), lists(TOKENS, [3, 40, 1, 9]), lists(CLASSES, [1, 4, 2, 1, 3], seed=4)
    most = chain.log_sums(logits, classes)[0]
    compare(chain.best_tokens, logits, torch.tensor([1, 0, 4]), most, sets, classes)
    compare(chain.add_by_class, logits, normal(ROWS, CLASSES), whole(CLASSES + 1, TOKENS, 6))


def test_a_canvas_of_a_real_automaton() -> None:
    spelled = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"bb"]
    budget = Budget()
    dfa = compile_bytes(parse_regex("(ab|ba){2,5}a?", budget=budget), budget)
    automaton = compile_tokens(dfa, Vocabulary(spelled, {"<eos>": 0}), Ending((0,), (0,)), (), budget)
    canvas = AutomatonConstraint(automaton, {1: 4}).begin().canvas(9, 8)
    free = canvas.free(9, torch.device("cpu"))
    logits = normal(9, len(spelled))[free]
    plain, ours = canvas._plainly(logits.clone()), canvas._on_device(logits.clone())
    assert plain is not None
    assert torch.equal(ours.argmax, plain.argmax)
    torch.testing.assert_close(ours.probabilities, plain.probabilities, atol=1e-5, rtol=0)
