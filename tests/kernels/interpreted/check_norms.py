"""norms.py and qkv.py: every kernel against its twin, fp32 and fp16."""

from contextlib import nullcontext
from dataclasses import fields
from typing import Any

import pytest
import torch
from making import normal, segments

from redraft import kernels
from redraft.cache.fp8 import FP8, key_unit
from redraft.kernels.packed import PackedFp8, Rows8
from redraft.kernels.triton import norms, qkv, residuals
from redraft.kernels.triton.language import INTERPRETED
from redraft.kernels.triton.residuals import AfterAttention, AfterExperts, FeedForwardRows
from redraft.kernels.triton.segments import DENOISE, ENCODE, UNUSED
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.prepare import prepare

DTYPES = [torch.float32, torch.float16]
EPS = 1e-6
WIDTH, ROWS = 48, 16


SEGMENTS = segments(ROWS, (ENCODE, 250, 9), (DENOISE, 700, 16), (UNUSED, 0, 0))


def assert_equal_rows(ours: Any, theirs: Any) -> None:
    """To one rounding of the dtype. Of e4m3 values a few may differ: the interpreter misrounds into the next binade."""
    if isinstance(theirs, Rows8):
        torch.testing.assert_close(ours.scale, theirs.scale, rtol=2e-3, atol=0)
        assert (ours.values.float() != theirs.values.float()).float().mean() < 0.05
    else:
        torch.testing.assert_close(ours, theirs, rtol=4 * torch.finfo(theirs.dtype).eps, atol=1e-6)


def compare(function: Any, *arguments: Any, **options: Any) -> None:
    ours = function(*arguments, **options)
    with kernels.force("eager"):
        theirs = function(*arguments, **options)
    for one, other in zip(listed(ours), listed(theirs), strict=True):
        assert_equal_rows(one, other)


def listed(result: Any) -> list[Any]:
    """A result's rows, one after the other."""
    if isinstance(result, tuple):
        return [one for part in result for one in listed(part)]
    if isinstance(result, FeedForwardRows):
        return [result.mlp, result.experts, result.router]
    return [result]


def weights(kind: type, dtype: torch.dtype) -> Any:
    names = [field.name for field in fields(kind)]
    return kind(**{name: (1 + 0.3 * normal(1 if "scalar" in name else WIDTH, seed=i)).to(dtype) for i, name in
                   enumerate(names)})  # fmt: skip


def test_the_interpreter_is_on() -> None:
    assert INTERPRETED


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fp8", [False, True])
def test_norm(dtype: torch.dtype, fp8: bool) -> None:
    x = 3 * normal(5, WIDTH, dtype=dtype)
    x[2] = 0
    compare(norms.norm, x, 1 + normal(WIDTH, seed=1, dtype=dtype), EPS, fp8=fp8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_enter(dtype: torch.dtype) -> None:
    token_ids = torch.arange(3 * ROWS, dtype=torch.int32) % 20
    conditioning = normal(3 * ROWS, WIDTH, seed=4, dtype=dtype)
    scale = torch.tensor([WIDTH**0.5], dtype=dtype)
    compare(norms.enter, token_ids, normal(20, WIDTH, dtype=dtype), scale, conditioning, SEGMENTS,
            normal(WIDTH, seed=2, dtype=dtype), EPS)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_enter_with_images(dtype: torch.dtype) -> None:
    token_ids = torch.arange(3 * ROWS, dtype=torch.int32) % 20
    token_ids[3:8] = -1 - torch.tensor([4, 0, 2, 6, 1])
    images, scale = 5 * normal(7, WIDTH, seed=6, dtype=dtype), torch.tensor([WIDTH**0.5], dtype=dtype)
    given = (token_ids, normal(20, WIDTH, dtype=dtype), scale, normal(3 * ROWS, WIDTH, seed=4, dtype=dtype), SEGMENTS,
             normal(WIDTH, seed=2, dtype=dtype), EPS)  # fmt: skip
    compare(norms.enter, *given, images=images)
    x, _ = norms.enter(*given, images=images)
    assert torch.equal(x[3:8], images[[4, 0, 2, 6, 1]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_enter_from_a_vocabulary_in_fp8(dtype: torch.dtype) -> None:
    token_ids, table = torch.arange(3 * ROWS, dtype=torch.int32) % 20, prepare(quantize_fp8(normal(20, WIDTH)))
    assert isinstance(table, PackedFp8)
    scale, following = torch.tensor([WIDTH**0.5], dtype=dtype), normal(WIDTH, seed=2, dtype=dtype)
    compare(norms.enter, token_ids, table, scale, torch.zeros(3 * ROWS, WIDTH, dtype=dtype), SEGMENTS, following, EPS)


PARTS = pytest.mark.parametrize("parts", [1, 2, 3])


@PARTS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("mlp_fp8", "experts_fp8"), [(False, False), (True, True), (True, False), (False, True)])
def test_after_attention(dtype: torch.dtype, mlp_fp8: bool, experts_fp8: bool, parts: int) -> None:
    x, attention = normal(7, WIDTH, dtype=dtype), [5 * normal(7, WIDTH, seed=n, dtype=dtype) for n in range(parts)]
    given = x, attention, weights(AfterAttention, dtype), EPS
    compare(residuals.after_attention, *given, mlp_fp8=mlp_fp8, experts_fp8=experts_fp8)
    _, rows = residuals.after_attention(*given, mlp_fp8=mlp_fp8, experts_fp8=experts_fp8)
    assert (isinstance(rows.mlp, Rows8), isinstance(rows.experts, Rows8)) == (mlp_fp8, experts_fp8)


@PARTS
@pytest.mark.parametrize("dtype", DTYPES)
def test_after_experts(dtype: torch.dtype, parts: int) -> None:
    rows = 3 * ROWS
    x, dense = normal(rows, WIDTH, dtype=dtype), [normal(rows, WIDTH, seed=n, dtype=dtype) for n in range(parts)]
    experts = [normal(rows, 3 if parts == 1 else 1, WIDTH, seed=4 + n, dtype=dtype) for n in range(parts)]
    compare(residuals.after_experts, x, dense, experts, weights(AfterExperts, dtype), SEGMENTS, EPS, fp8=False)


@PARTS
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_gpu_adds_up_its_own_rows(dtype: torch.dtype, fp8: bool, parts: int) -> None:
    """By kernels and by twins; the interpreter and PyTorch have the bits of one GPU that adds up all rows."""
    rows, each = 3 * ROWS, 3 * ROWS // parts
    x, attention = normal(rows, WIDTH, dtype=dtype), [normal(rows, WIDTH, seed=n, dtype=dtype) for n in range(parts)]
    experts = [normal(rows, 1, WIDTH, seed=4 + n, dtype=dtype) for n in range(parts)]
    before, after = weights(AfterAttention, dtype), weights(AfterExperts, dtype)
    formats = {"mlp_fp8": fp8, "experts_fp8": not fp8}
    ends = attention, experts, after, SEGMENTS, EPS
    for run in (nullcontext(), kernels.force("eager")):
        with run:
            added, whole = residuals.after_attention(x, attention, before, EPS, **formats)
            own = [residuals.add_attention(x[at : at + each], attention, before, EPS, first=at)
                   for at in range(0, rows, each)]  # fmt: skip
            assert torch.equal(torch.cat(own), added)
            assert_same(residuals.feed_forward_norms(own, before, EPS, **formats), whole)
            ended, following = residuals.after_experts(added, *ends, fp8=fp8)
            own = [residuals.add_experts(part, *ends, first=number * each) for number, part in enumerate(own)]
            assert torch.equal(torch.cat(own), ended)
            assert_same(norms.norm_of_parts(own, after.following, EPS, fp8=fp8), following)


def assert_same(ours: Any, theirs: Any) -> None:
    for one, other in zip(listed(ours), listed(theirs), strict=True):
        pairs = zip(*((x.values.float(), x.scale) if isinstance(x, Rows8) else (x,) for x in (one, other)), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("page", [256, 128])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "groups", "dim", "own_values"), [(6, 2, 16, True), (6, 1, 32, False)])
def test_norm_rope_write(dtype: torch.dtype, heads: int, groups: int, dim: int, own_values: bool, page: int) -> None:
    product = normal(3 * ROWS, (heads + groups * (1 + own_values)) * dim, dtype=dtype)
    rope = qkv.rope_rows(SEGMENTS, 10_000.0 ** (-torch.arange(dim // 2) / (dim // 2)))
    table = torch.tensor([[0, 3, 0, 0], [0, 0, 2, 1], [0, 0, 0, 0]], dtype=torch.int32)
    table = table.repeat_interleave(256 // page, 1)
    norm_weights = 1 + normal(dim, seed=1, dtype=dtype), 1 + normal(dim, seed=2, dtype=dtype)
    pools = [torch.zeros(2, 4, page, groups, dim, dtype=dtype) for _ in range(2)]
    ours = qkv.norm_rope_write(product, *norm_weights, rope, *pools[0], table, SEGMENTS, EPS, own_values=own_values)
    with kernels.force("eager"):
        theirs = qkv.norm_rope_write(product, *norm_weights, rope, *pools[1], table, SEGMENTS, EPS,
                                     own_values=own_values)  # fmt: skip
    assert_equal_rows(ours, theirs)
    assert_equal_rows(pools[0], pools[1])
    assert (pools[0] != 0).any(-1).sum() == 2 * groups * 25  # 9 prompt rows and 16 of the canvas, keys and values


@pytest.mark.parametrize("own_values", [True, False])
def test_pages_of_fp8_hold_what_others_hold_rounded(own_values: bool) -> None:
    heads, groups, dim = 4, 2, 16
    product = normal(3 * ROWS, (heads + groups * (1 + own_values)) * dim)
    rope = qkv.rope_rows(SEGMENTS, 10_000.0 ** (-torch.arange(dim // 2) / (dim // 2)))
    table = torch.tensor([[0, 3, 0, 0], [0, 0, 2, 1], [0, 0, 0, 0]], dtype=torch.int32)
    q_norm, k_norm = 1 + normal(dim, seed=1), 1 + normal(dim, seed=2)
    k_norm = k_norm / key_unit(k_norm)
    full, small, twin = (torch.zeros(2, 4, 256, groups, dim).to(dtype) for dtype in (torch.float32, FP8, FP8))
    arguments = rope, table, SEGMENTS, EPS
    for pools in (full, small):
        qkv.norm_rope_write(product, q_norm, k_norm, rope, *pools, *arguments[1:], own_values=own_values)
    with kernels.force("eager"):
        qkv.norm_rope_write(product, q_norm, k_norm, rope, *twin, *arguments[1:], own_values=own_values)
    rounded = full.to(FP8).float()
    # The interpreter cuts subnormal numbers off, and forgets to carry where rounding gives a power of two.
    sound = (full.abs() >= 2**-6) & (rounded.abs().log2() % 1 != 0)
    assert sound.sum() > 1000
    assert torch.equal(small.float()[sound], rounded[sound])
    assert torch.equal(twin.float()[sound], rounded[sound])
    assert ((small.float() != 0) <= (full != 0)).all()


def test_rope_rows_far_from_the_start() -> None:
    frequencies = 10_000.0 ** (-torch.arange(24) / 24)
    places = segments(ROWS, (DENOISE, 262_000, 16), (ENCODE, 1, 16))
    ours = qkv.rope_rows(places, frequencies)
    with kernels.force("eager"):
        theirs = qkv.rope_rows(places, frequencies)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)
