"""self_conditioning.py: dense rows equal the twin to rounding, sparse rows within the stated bound."""

import pytest
import torch
from making import ints, normal
from torch import Tensor

from redraft import kernels
from redraft.kernels.triton import self_conditioning
from redraft.kernels.triton.head import HeadTile, predict
from redraft.kernels.triton.philox import Counters
from redraft.kernels.triton.segments import DENOISE, ENCODE, Segments
from redraft.kernels.triton.self_conditioning import (
    DENSE,
    DROPPED,
    NOTHING,
    SPARSE,
    SoftTile,
    choose,
    soft_embeddings,
    weighted_sums,
)
from redraft.model.packed.vocabulary import pack_vocabulary

CAP, WIDTH, ROWS = 30.0, 40, 16
VOCAB = 328  # eleven tiles of 32 tokens, the last in part

SEGMENTS = Segments(
    kind=ints(DENOISE, ENCODE, DENOISE, DENOISE), start=ints(0, 4, 9, 9), length=ints(16, 16, 11, 16), rows=ROWS
)  # fmt: skip
COUNTERS = Counters(seed=torch.tensor([5, 1, 7, 8]), canvas=ints(0, 0, 3, 0), step=ints(0, 0, 40, 1))
HEAT, WANT = torch.tensor([0.8, 1.0, 0.41, 0.7]), ints(1, 1, 1, 0)


@pytest.fixture(autouse=True)
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_conditioning, "KEPT_TOKENS", 64)


def distinct(dtype: torch.dtype) -> Tensor:
    """Embeddings [V,D] whose product with themselves is far above that with any other."""
    return (7 * torch.nn.functional.normalize(normal(VOCAB, WIDTH, seed=1))).to(dtype)


def test_a_prediction_by_the_twin_has_soft_embeddings_by_the_twin() -> None:
    """Only the head may be switched to its twin, which has no tiles."""
    hidden, embedding, logits = normal(4 * ROWS, WIDTH), distinct(torch.float32), torch.zeros(4 * ROWS, VOCAB)
    given = embedding, torch.tensor([6.0]), CAP, HEAT, WANT, SEGMENTS
    with kernels.force("eager"):
        seen = predict(hidden, embedding, CAP, HEAT, COUNTERS, SEGMENTS, logits)
        twin = soft_embeddings(logits, seen, *given)
    assert seen.tiles is None
    assert torch.equal(soft_embeddings(logits, seen, *given), twin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_soft_embeddings(dtype: torch.dtype) -> None:
    embedding = distinct(dtype)
    hidden = 0.05 * normal(4 * ROWS, WIDTH, dtype=dtype)  # uncertain rows
    hidden[::2] = embedding[100 : 100 + 2 * ROWS]  # certain ones
    logits = torch.zeros(4 * ROWS, VOCAB, dtype=dtype)
    tile = HeadTile(rows=16, tokens=32, depth=16, warps=4, stages=2)
    seen = predict(hidden, embedding, CAP, HEAT, COUNTERS, SEGMENTS, logits, tile=tile)
    assert seen.tiles is not None
    arguments = embedding, torch.tensor([6.0], dtype=dtype), CAP, HEAT, WANT, SEGMENTS
    with kernels.force("eager"):
        theirs = soft_embeddings(logits, seen, *arguments)
    way = choose(logits, seen.tiles, CAP, HEAT, WANT, SEGMENTS).way
    ours = soft_embeddings(logits, seen, *arguments)

    wanted = SEGMENTS.live() & (SEGMENTS.kind == DENOISE).repeat_interleave(ROWS)
    wanted &= (WANT != 0).repeat_interleave(ROWS)
    assert (way[~wanted] == NOTHING).all()
    assert (ours[~wanted] == 0).all()
    certain = torch.arange(4 * ROWS) % 2 == 0
    assert (way[wanted & certain] == SPARSE).all()
    assert (way[wanted & ~certain] == DENSE).all()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    dense = wanted & ~certain
    torch.testing.assert_close(ours[dense], theirs[dense], rtol=tolerance, atol=tolerance)
    reach = 6 * (embedding.float()[:, None] - theirs[wanted & certain].float() / 6).norm(dim=-1).max()
    error = (ours - theirs).float()[wanted & certain].norm(dim=-1).max()
    assert error <= DROPPED * reach + 6 * tolerance


def test_a_table_in_fp8() -> None:
    embedding = distinct(torch.float32)[: VOCAB // 16 * 16]
    kept = pack_vocabulary(embedding, embedding.device, torch.float32, fp8=True)
    hidden, logits = 0.05 * normal(4 * ROWS, WIDTH), torch.zeros(4 * ROWS, len(embedding))
    hidden[::2] = embedding[100 : 100 + 2 * ROWS]  # certain rows
    tile = HeadTile(rows=16, tokens=32, depth=16, warps=4, stages=2)
    seen = predict(hidden, embedding, CAP, HEAT, COUNTERS, SEGMENTS, logits, tile=tile)
    assert seen.tiles is not None
    way = choose(logits, seen.tiles, CAP, HEAT, WANT, SEGMENTS).way
    arguments = torch.tensor([6.0]), CAP, HEAT, WANT, SEGMENTS
    with kernels.force("eager"):
        exact = soft_embeddings(logits, seen, embedding, *arguments)
        theirs = soft_embeddings(logits, seen, kept.head, *arguments, transposed=kept.transposed)
    ours = soft_embeddings(logits, seen, kept.head, *arguments, transposed=kept.transposed, tile=SoftTile(
        rows=16, columns=32, depth=32, splits=2, warps=4, stages=2))  # fmt: skip
    # The interpreter cuts the weights of dense rows off where the twin rounds.
    for wanted, apart in ((way == DENSE, 0.08), (way == SPARSE, 2 * DROPPED)):
        assert wanted.sum() >= ROWS // 2 + 5
        assert 0.001 < (theirs - exact)[wanted].norm() / exact[wanted].norm() < 0.04
        assert (ours - theirs)[wanted].norm() <= apart * theirs[wanted].norm()


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_that_are_there_already(dtype: torch.dtype, fp8: bool) -> None:
    table = normal(VOCAB, 48).to(torch.float8_e4m3fn if fp8 else dtype)
    weights = normal(37, VOCAB, seed=2).softmax(-1).to(dtype)
    tile = SoftTile(rows=16, columns=32, depth=32, splits=3, warps=4, stages=2)
    ours = weighted_sums(weights, table, tile=tile)
    torch.testing.assert_close(ours, weights.float() @ table.float(), rtol=1e-4, atol=1e-5)
    # Rows at the same places of a tile: the interpreter's products, NumPy's, may round other places otherwise.
    assert torch.equal(weighted_sums(weights[16:20], table, tile=tile), ours[16:20])


def test_too_many_likely_tokens_take_the_dense_way(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding = distinct(torch.float32)
    hidden = embedding[: 4 * ROWS]
    logits = torch.zeros(4 * ROWS, VOCAB)
    tile = HeadTile(rows=16, tokens=32, depth=16, warps=4, stages=2)
    seen = predict(hidden, embedding, CAP, HEAT, COUNTERS, SEGMENTS, logits, tile=tile)
    assert seen.tiles is not None
    monkeypatch.setattr(self_conditioning, "KEPT_TOKENS", 1)
    embedding[64:96] = embedding[:32]  # two tokens share the mass
    seen = predict(hidden, embedding, CAP, HEAT, COUNTERS, SEGMENTS, logits, tile=tile)
    assert seen.tiles is not None
    way = choose(logits, seen.tiles, CAP, HEAT, WANT, SEGMENTS).way
    assert (way[:16] == DENSE).all()


@pytest.mark.parametrize(("kept", "way"), [(16, SPARSE), (11, SPARSE), (10, DENSE)])
def test_tokens_may_lie_in_any_number_of_tiles(kept: int, way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_conditioning, "KEPT_TOKENS", kept)
    embedding, hidden = 0.05 * normal(VOCAB, WIDTH), 0.05 * normal(4 * ROWS, WIDTH, seed=3)
    embedding[5::32, 0] += 5  # one in every tile
    hidden[:, 0] += 4
    logits = torch.zeros(4 * ROWS, VOCAB)
    tile = HeadTile(rows=16, tokens=32, depth=16, warps=4, stages=2)
    seen = predict(hidden, embedding, CAP, HEAT, COUNTERS, SEGMENTS, logits, tile=tile)
    assert seen.tiles is not None
    chosen = choose(logits, seen.tiles, CAP, HEAT, WANT, SEGMENTS)
    assert (chosen.way[:ROWS] == way).all()
    if way == SPARSE:
        assert (chosen.token[:ROWS, :11].sort().values == torch.arange(5, VOCAB, 32)).all()
    arguments = embedding, torch.tensor([6.0]), CAP, HEAT, WANT, SEGMENTS
    with kernels.force("eager"):
        theirs = soft_embeddings(logits, seen, *arguments)
    torch.testing.assert_close(soft_embeddings(logits, seen, *arguments), theirs, rtol=1e-3, atol=1e-3)
