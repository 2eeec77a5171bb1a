"""philox.py and head.py: random words bit for bit, statistics and samples against the twin."""

import pytest
import torch
from making import ints, normal

from redraft import kernels
from redraft.kernels.packed import PackedFp8
from redraft.kernels.triton.head import FP8_TOGETHER, HeadTile, predict
from redraft.kernels.triton.philox import Counters
from redraft.kernels.triton.quantize import quantize_rows_eager
from redraft.kernels.triton.segments import DENOISE, ENCODE, Segments
from redraft.kernels.triton.softcap import tempered
from redraft.kernels.vocabulary import NEVER
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.prepare import prepare

CAP, WIDTH, ROWS = 30.0, 32, 16


SEGMENTS = Segments(
    kind=ints(DENOISE, ENCODE, DENOISE), start=ints(0, 4, 9), length=ints(16, 16, 11), rows=ROWS
)  # fmt: skip
COUNTERS = Counters(seed=torch.tensor([2**62 + 12345, 1, 7]), canvas=ints(0, 0, 3), step=ints(0, 0, 40))
HEAT = torch.tensor([0.8, 1.0, 0.41])


@pytest.mark.parametrize("width", [WIDTH, FP8_TOGETHER + 48, 2 * FP8_TOGETHER])
def test_predict_in_fp8(width: int) -> None:
    """Inputs that are added up at once, and in parts."""
    table = prepare(quantize_fp8(0.01 * normal(200, width, seed=1)))
    assert isinstance(table, PackedFp8)
    hidden = quantize_rows_eager(normal(3 * ROWS, width)).values.float()  # rounds to itself; the interpreter misrounds
    arguments = hidden, table, CAP, HEAT, COUNTERS, SEGMENTS
    logits = [torch.zeros(3 * ROWS, 200) for _ in range(2)]
    ours = predict(*arguments, logits[0], tile=HeadTile(rows=16, tokens=32, depth=16, warps=4, stages=2))
    with kernels.force("eager"):
        theirs = predict(*arguments, logits[1])
    rows = SEGMENTS.live() & (SEGMENTS.kind == DENOISE).repeat_interleave(ROWS)
    torch.testing.assert_close(logits[0][rows], logits[1][rows], rtol=1e-3, atol=1e-4)
    assert torch.equal(ours.argmax[rows], theirs.argmax[rows])


def test_a_first_row_without_its_likeliest_tokens() -> None:
    """Two in one tile, one in the last tile, which is short; the second canvas may begin with anything."""
    vocab, tile = 200, HeadTile(rows=16, tokens=32, depth=16, warps=4, stages=2)
    hidden, embedding = normal(3 * ROWS, WIDTH), normal(vocab, WIDTH, seed=1) / WIDTH**0.5
    embedding[[40, 45, 197]] += torch.tensor([6.0, 5.0, 9.0])[:, None] * hidden[0] / WIDTH
    not_first = torch.full((3, 8), -1, dtype=torch.int32)
    not_first[0, :3] = ints(197, 40, 45)
    arguments = hidden, embedding, CAP, HEAT, COUNTERS, SEGMENTS
    logits = [torch.zeros(3 * ROWS, vocab) for _ in range(3)]
    free = predict(*arguments, logits[0], tile=tile)
    ours = predict(*arguments, logits[1], not_first, tile=tile)
    with kernels.force("eager"):
        theirs = predict(*arguments, logits[2], not_first)
    assert free.argmax[0] == 197
    assert ours.argmax[0] == theirs.argmax[0]
    assert ours.argmax[0] not in (197, 40, 45)
    assert (logits[1][0, [197, 40, 45]] == NEVER).all()
    assert (logits[2][0, [197, 40, 45]] == NEVER).all()
    assert ours.tiles is not None
    assert torch.equal(ours.tiles.peaks[0], torch.stack([part.max() for part in logits[1][0].split(32)]))
    x = tempered(logits[1][:ROWS], CAP, HEAT[:1])[0].double()
    p = x.where(logits[1][0] != NEVER, -torch.inf).softmax(-1)
    torch.testing.assert_close(ours.entropy[0].double(), torch.special.entr(p).sum(), rtol=1e-4, atol=1e-5)
    for name in ("argmax", "candidate", "entropy", "peak"):
        torch.testing.assert_close(getattr(ours, name)[0], getattr(theirs, name)[0], rtol=1e-4, atol=1e-5)
        assert torch.equal(getattr(ours, name)[1:], getattr(free, name)[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("vocab", "sharpness"), [(256, 1.0), (256, 12.0), (200, 3.0)])
def test_predict(dtype: torch.dtype, vocab: int, sharpness: float) -> None:
    hidden, embedding = normal(3 * ROWS, WIDTH, dtype=dtype), sharpness * normal(vocab, WIDTH, seed=1) / WIDTH**0.5
    embedding = embedding.to(dtype)
    embedding[70] = embedding[3]  # ties: the lower id must win
    arguments = hidden, embedding, CAP, HEAT, COUNTERS, SEGMENTS
    logits = [torch.full((3 * ROWS, vocab), 7.0, dtype=dtype) for _ in range(2)]
    ours = predict(*arguments, logits[0], tile=HeadTile(rows=16, tokens=32, depth=16, warps=4, stages=2))
    with kernels.force("eager"):
        theirs = predict(*arguments, logits[1])
    rows = SEGMENTS.live() & (SEGMENTS.kind == DENOISE).repeat_interleave(ROWS)
    torch.testing.assert_close(logits[0][rows], logits[1][rows], rtol=2e-3, atol=1e-5)
    assert (logits[0][ROWS : 2 * ROWS] == 7.0).all()  # a prompt's rows
    if dtype == torch.float32:  # else one rounding of a logit may decide
        assert torch.equal(ours.argmax[rows], theirs.argmax[rows])
        assert torch.equal(ours.candidate[rows], theirs.candidate[rows])
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    for name in ("entropy", "peak"):
        torch.testing.assert_close(getattr(ours, name)[rows], getattr(theirs, name)[rows], **tolerance)
