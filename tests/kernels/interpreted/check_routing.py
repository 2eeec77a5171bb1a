"""routing.py: both kernels against the twin, and against what a routing must be."""

import pytest
import torch
from making import normal, route
from torch import Tensor

from redraft.kernels.triton.routing import Routing, max_tiles, route_eager, route_rows


def assert_equal(ours: Routing, theirs: Routing) -> None:
    assert torch.equal(ours.index, theirs.index)
    assert torch.equal(ours.counts, theirs.counts)
    used = int(theirs.counts[1])
    placed = int(theirs.tiles[used - 1, 2]) if used else 0
    assert torch.equal(ours.order[:placed], theirs.order[:placed])
    assert (ours.tiles[used:, 1] >= ours.tiles[used:, 2]).all()
    assert torch.equal(ours.tiles[:used], theirs.tiles[:used])
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-7)


def both(
    logits: Tensor, top_k: int, block_rows: int, lengths: Tensor | None = None, share: range | None = None
) -> Routing:
    scale = 1 + normal(logits.shape[1], seed=1).abs()
    ours = route(logits, scale, top_k, block_rows, lengths, share)
    assert_equal(ours, route_eager(logits, scale, top_k, block_rows, lengths, share))
    return ours


@pytest.mark.parametrize(
    ("rows", "experts", "top_k", "block_rows"),
    [
        (48, 8, 2, 16),
        (33, 5, 3, 32),
        (20, 128, 8, 16),
        (1, 16, 4, 32),
        (200, 8, 2, 64),
        (300, 16, 4, 64),
        (1032, 4, 1, 128),
        (1032, 4, 1, 144),
        (600, 8, 3, 160),
    ],
)
def test_many_shapes(rows: int, experts: int, top_k: int, block_rows: int) -> None:
    both(normal(rows, experts), top_k, block_rows)


@pytest.mark.parametrize(
    ("size", "tiles"),
    [
        (128, [128]),
        (129, [129]),
        (144, [144]),
        (145, [128, 17]),
        (256, [128, 128]),
        (257, [144, 113]),
        (288, [144, 144]),
        (289, [128, 128, 33]),
    ],
)
def test_tiles_are_higher_only_where_that_saves_one(size: int, tiles: list[int]) -> None:
    """In tiles of up to 144 rows, the usual ones have 128."""
    chosen = torch.zeros(size + 64, 4)
    chosen[:size, 2], chosen[size:, 1] = 9, 9
    ours = both(chosen, 1, 144)
    assert [stop - first for expert, first, stop in ours.tiles.tolist() if expert == 2] == tiles


def test_logits_of_two_bytes() -> None:
    logits = 3 * normal(64, 32)
    logits[:8] = logits[:8].round()  # many ties
    both(logits.bfloat16(), 4, 16)


@pytest.mark.parametrize("lengths", [[16, 16, 16], [10, 0, 16], [0, 0, 0], [1, 16, 3]])
def test_dead_rows_take_no_expert_and_stand_last(lengths: list[int]) -> None:
    ours = both(normal(48, 8), 2, 16, torch.tensor(lengths, dtype=torch.int32))
    live = (torch.arange(16) < torch.tensor(lengths)[:, None]).flatten()
    assert (ours.index[~live] == -1).all()
    assert (ours.weight[~live] == 0).all()
    assert (ours.order[: 2 * sum(lengths)] // 2).unique().tolist() == live.nonzero().flatten().tolist()
    assert (ours.tiles[int(ours.counts[0]) : int(ours.counts[1]), 0] == -1).all()


@pytest.mark.parametrize("lengths", [None, [16, 0, 9]])
@pytest.mark.parametrize(("experts", "shares"), [(8, 2), (16, 4), (6, 3)])
def test_shares_of_the_experts_divide_the_assignments(experts: int, shares: int, lengths: list[int] | None) -> None:
    """Each has its own ones as if there were no others, and a row that chose none of them has none."""
    logits, each = normal(48, experts), experts // shares
    alive = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    whole, found = both(logits, 2, 16, alive), set[tuple[int, int]]()
    for number in range(shares):
        part = both(logits, 2, 16, alive, range(number * each, (number + 1) * each))
        own = part.index >= 0
        assert torch.equal(part.index[own] + number * each, whole.index[own])
        assert torch.equal(part.weight[own], whole.weight[own])
        assert (part.weight[~own] == 0).all()
        assert part.mean == whole.mean
        for expert, first, end in part.tiles[: int(part.counts[0])].tolist():
            found |= {(expert + number * each, assignment) for assignment in part.order[first:end].tolist()}
    live = int((whole.index >= 0).sum())
    assert found == {(int(whole.index.flatten()[at]), at) for at in whole.order[:live].tolist()}
    assert len(found) == live


def test_not_a_number_in_dead_rows_changes_nothing() -> None:
    logits, lengths = normal(32, 8), torch.tensor([9, 0], dtype=torch.int32)
    clean = route(logits, torch.ones(8), 2, 16, lengths)
    logits[9:] = torch.nan
    assert_equal(route(logits, torch.ones(8), 2, 16, lengths), clean)


def test_a_row_of_nothing_but_nan_still_leaves_a_valid_routing() -> None:
    logits = normal(32, 8)
    logits[3] = torch.nan
    ours = route(logits, torch.ones(8), 2, 16)
    assert ours.order.sort().values.tolist() == list(range(64))
    assert ours.index[3].tolist() == [0, 1]


def test_all_rows_to_the_same_experts() -> None:
    logits = torch.zeros(100, 16)
    logits[:, 5], logits[:, 11] = 9.0, 8.0
    ours = both(logits, 2, 32)
    assert ours.index.unique().tolist() == [5, 11]
    assert ours.tiles[: int(ours.counts[0]), 0].tolist() == [5] * 4 + [11] * 4
    assert int(ours.counts[1]) <= max_tiles(100, 2, 16, 32)


def test_ties_go_to_the_lower_expert() -> None:
    assert both(torch.zeros(20, 8), 3, 16).index.tolist() == [[0, 1, 2]] * 20


def test_tiles_cover_every_assignment_once_and_hold_one_expert_each() -> None:
    ours = both(normal(70, 8), 2, 16, torch.tensor([30, 35], dtype=torch.int32))
    covered = []
    for expert, first, end in ours.tiles[: int(ours.counts[1])].tolist():
        assert 0 < end - first <= 16
        rows = ours.order[first:end]
        covered += rows.tolist()
        assert (ours.index.flatten()[rows] == expert).all()
    assert sorted(covered) == list(range(140))


def test_weights_equal_the_model_s_router() -> None:
    logits, scale = normal(40, 16), normal(16, seed=1)
    ours = route(logits, scale, 4, 16)
    value, index = logits.softmax(-1).topk(4, -1)
    assert torch.equal(ours.index.long(), index)
    torch.testing.assert_close(ours.weight, value / value.sum(-1, keepdim=True) * scale[index])


F32, F16 = torch.float32, torch.float16


@pytest.mark.parametrize(
    ("rows", "width", "dtype"),
    [(40, 96, F32), (40, 96, F16), (33, 1408, F32), (33, 1408, F16), (1025, 64, F32), (1025, 192, F16)],
)
def test_route_rows(rows: int, width: int, dtype: torch.dtype) -> None:
    x, weight, scale = normal(rows, width).to(dtype), normal(8, width, seed=1).to(dtype), normal(8, seed=2)
    lengths = torch.tensor([rows - 3], dtype=torch.int32)
    ours = route_rows(x, weight, scale, 2, 16, lengths)
    theirs = route_eager(x.float() @ weight.float().T, scale, 2, 16, lengths)  # only bf16 is rounded
    same = (ours.index == theirs.index).all(-1)
    assert same.float().mean() > 0.99  # logits that round differently may change places
    torch.testing.assert_close(ours.weight[same], theirs.weight[same], rtol=0.01, atol=1e-3)
