"""descriptors.py: what GPUs without bulk copies read by addresses gives the same bits, at the edges of matrices too."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from check_attention import GROUPS, MIXED
from check_experts import DOWN, GATE_UP, PLAN, TILE, TOP_K
from check_head import CAP, COUNTERS, HEAT, SEGMENTS
from making import ints, normal, route
from torch import Tensor

from redraft.kernels.packed import PackedExperts
from redraft.kernels.triton import attention, descriptors, experts, head, self_conditioning
from redraft.kernels.triton.attention import AttentionTile
from redraft.kernels.triton.head import HeadResult, HeadTile
from redraft.kernels.triton.self_conditioning import SoftTile, soft_embeddings
from redraft.model.packed.vocabulary import pack_vocabulary

HEAD = HeadTile(rows=16, tokens=32, depth=16, warps=4, stages=2)
SOFT = SoftTile(rows=16, columns=32, depth=32, splits=2, warps=4, stages=2)
WIDTH, ROWS = 48, len(SEGMENTS.kind) * SEGMENTS.rows


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], list[Tensor]]], None]:
    """Compare what a function returns with descriptors and without."""

    def compare(results: Callable[[], list[Tensor]]) -> None:
        bulk = results()
        for module in (attention, descriptors, experts, head, self_conditioning):
            monkeypatch.setattr(module, "bulk_copies", lambda device: False)
        for one, other in zip(bulk, results(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)

    return compare


def predicted(vocabulary: int) -> tuple[Tensor, HeadResult]:
    """Logits of uncertain rows over a vocabulary, and what is said of them."""
    hidden, logits = 0.1 * normal(ROWS, WIDTH), torch.zeros(ROWS, vocabulary)
    return logits, head.predict(
        hidden, normal(vocabulary, WIDTH, seed=1), CAP, HEAT, COUNTERS, SEGMENTS, logits, tile=HEAD
    )


@pytest.mark.parametrize(("window", "splits", "parts"), [(None, 2, 1), (24, 1, 2)])
def test_attention(both: Callable[..., None], window: int | None, splits: int, parts: int) -> None:
    q = normal(len(MIXED.kind) * MIXED.rows, 6, 16, dtype=torch.float16)
    keys, values = (normal(9, 256, GROUPS, 16, seed=seed, dtype=torch.float16) for seed in (1, 2))
    table = torch.tensor([[4, 0, 0], [7, 0, 0], [8, 1, 2], [3, 5, 0], [0, 0, 0], [6, 0, 0]], dtype=torch.int32)
    tile = AttentionTile(rows=16, keys=32, splits=splits, parts=parts, warps=4, stages=2, inside=True)
    both(lambda: [attention.attend(q, keys, values, table, MIXED, window=window, tile=tile)])


def test_head(both: Callable[..., None]) -> None:
    def results() -> list[Tensor]:
        logits, found = predicted(200)
        return [logits, found.argmax, found.candidate, found.entropy, found.peak]

    both(results)


@pytest.mark.parametrize("fp8", [False, True])
def test_soft_embeddings(both: Callable[..., None], fp8: bool) -> None:
    table = pack_vocabulary(normal(208, WIDTH, seed=1), torch.device("cpu"), torch.float32, fp8=fp8)

    def results() -> list[Tensor]:
        given = torch.tensor([6.0]), CAP, HEAT, ints(1, 1, 1), SEGMENTS
        return [soft_embeddings(*predicted(208), table.head, *given, transposed=table.transposed, tile=SOFT)]

    both(results)


def test_experts(both: Callable[..., None]) -> None:
    tile = replace(TILE, tma=True)
    plan = replace(PLAN, gate=tile, down=tile)
    x = normal(48, GATE_UP.shape[2])
    routing = route(normal(48, len(GATE_UP)), torch.ones(len(GATE_UP)), TOP_K, PLAN.block_rows)
    both(lambda: [experts.experts(x, routing, PackedExperts(GATE_UP, DOWN), plan)])
