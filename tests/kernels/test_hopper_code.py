"""The kernels compiled for Hopper, on any machine: matrix instructions, registers, shared memory at the 26B shape."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
from compiling import Compiled, assert_fits, bf16, caught_launches, compiled, fp32, int32, meta, only, segments_of
from triton.backends.compiler import GPUTarget

from redraft.constraints.answer import AutomatonConstraint
from redraft.constraints.automaton import Budget
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.constraints.tokens import Ending, compile_tokens
from redraft.constraints.vocabulary import Vocabulary
from redraft.kernels.packed import PackedFp8
from redraft.kernels.triton import (
    attention,
    chain,
    constrained,
    copies,
    head,
    norms,
    philox,
    qkv,
    residuals,
    self_conditioning,
    step,
    training_rows,
)

SEGMENTS, LENGTH, WIDTH, VOCAB, HEADS = 2, 256, 2816, 262_144, 16
ROWS = SEGMENTS * LENGTH


SEGMENT = segments_of(SEGMENTS, LENGTH)
COUNTERS = philox.Counters(seed=meta(SEGMENTS, dtype=torch.int64), canvas=int32(SEGMENTS), step=int32(SEGMENTS))


TABLE = PackedFp8(meta(VOCAB, WIDTH, dtype=torch.float8_e4m3fn), fp32(VOCAB))


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize(("dim", "groups", "window"), [(256, 8, 1024), (512, 2, None)])
def test_attention(dim: int, groups: int, window: int | None, kept: torch.dtype) -> None:
    pages = meta(64, 256, groups, dim, dtype=kept)
    found = compiled(
        attention.attend, bf16(ROWS, HEADS, dim), pages, pages, int32(SEGMENTS, 32), SEGMENT, window=window
    )
    assert_fits(found, spilled=0 if kept == torch.bfloat16 else 96)  # widening takes registers
    assert "wgmma.mma_async" in found[0].ptx
    assert "cp.async.bulk.tensor" in found[0].ptx


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize(
    ("heads", "groups", "dim", "window"),
    [(HEADS, 8, 256, 1024), (HEADS, 2, 512, None), (HEADS // 2, 4, 256, 1024), (HEADS // 2, 1, 512, None)],
)
def test_attention_of_canvases_of_256(heads: int, groups: int, dim: int, window: int | None, count: int) -> None:
    """Of all heads, and of one of two GPUs' part."""
    q, pages = bf16(count * LENGTH, heads, dim), bf16(64, 256, groups, dim)
    with caught_launches(GPUTarget("cuda", 90, 32)) as found:
        attention.attend(q, pages, pages, int32(count, 32), segments_of(count, LENGTH), window=window)
    assert_fits(found)
    assert "setmaxnreg" in found[0].ptx
    assert "wgmma.mma_async" in found[0].ptx
    assert "tensor.3d.global.shared" in found[0].ptx  # results leave in bulk


@pytest.mark.parametrize("gluon", [True, False])
@pytest.mark.parametrize("fp8", [True, False])
def test_head(fp8: bool, gluon: bool) -> None:
    table = TABLE if fp8 else bf16(VOCAB, WIDTH)
    arguments = bf16(ROWS, WIDTH), table, 30.0, fp32(SEGMENTS), COUNTERS, SEGMENT, bf16(ROWS, VOCAB), int32(SEGMENTS, 8)
    tile = None if gluon else head.tuned(meta(ROWS, WIDTH, dtype=torch.float8_e4m3fn if fp8 else torch.bfloat16))
    found = compiled(head.predict, *arguments, tile=tile)
    assert_fits(found)
    product = only(found, "_head_kernel").ptx
    assert ("f32.e4m3.e4m3" if fp8 else "f32.bf16.bf16") in product
    assert ("setmaxnreg" in product) == gluon


def soft_embeddings(fp8: bool, capability: int) -> list[Compiled]:
    """What soft embeddings launch, with a table in FP8 or bf16, compiled for a compute capability."""
    transposed = PackedFp8(meta(WIDTH, VOCAB, dtype=torch.float8_e4m3fn), fp32(WIDTH)) if fp8 else None
    tiles = head.Tiles(peaks=fp32(ROWS, 1024), masses=fp32(ROWS, 1024), moments=fp32(ROWS, 1024), size=256)
    rows: dict[str, Any] = {name: fp32(ROWS) for name in ("argmax", "candidate", "entropy", "peak")}
    prediction = head.HeadResult(**rows, tiles=tiles)
    return compiled(
        self_conditioning.soft_embeddings, bf16(ROWS, VOCAB), prediction, TABLE if fp8 else bf16(VOCAB, WIDTH), bf16(1),
        30.0, fp32(SEGMENTS), int32(SEGMENTS), SEGMENT, transposed=transposed, capability=capability,
    )  # fmt: skip


@pytest.mark.parametrize("fp8", [False, True])
def test_soft_embeddings(fp8: bool) -> None:
    found = soft_embeddings(fp8, capability=90)
    assert_fits(found)
    product = next(kernel for kernel in found if kernel.name == "_product_kernel")
    assert "wgmma.mma_async" in product.ptx
    assert ("f32.e4m3.e4m3" in product.ptx) == fp8


@pytest.mark.parametrize("table", [bf16(VOCAB, WIDTH), TABLE.values])
def test_weighted_sums(table: torch.Tensor) -> None:
    product = only(compiled(self_conditioning.weighted_sums, bf16(48, VOCAB), table), "_product_kernel")
    assert_fits([product])
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" in product.ptx


def test_pages_are_copied_in_wide_lines() -> None:
    found = compiled(copies.copy_pages, [bf16(64, 256, 8, 256)] * 3, *(meta(5, dtype=torch.int64) for _ in range(2)))
    assert_fits(found)
    assert "ld.global.v4.b32" in only(found, "_copy_kernel").ptx


def test_rows_of_a_vocabulary_in_fp8() -> None:
    """Tokens' embeddings keep to the norms' registers."""
    x, tokens = bf16(ROWS, WIDTH), int32(ROWS)
    found = compiled(norms.enter, tokens, TABLE, bf16(1), x, SEGMENT, bf16(WIDTH), 1e-6, fp8=True)
    assert_fits(found, spilled=16)
    assert found[0].registers <= 80
    assert "f16x2.e4m3x2" in found[0].ptx


@pytest.mark.parametrize("capability", [80, 89, 120])
def test_smaller_gpus_have_room_and_copy_ahead(capability: int) -> None:
    command = [sys.executable, str(Path(__file__).with_name("smaller_gpus.py")), str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    needs = json.loads(done.stdout)
    assert needs["shared"] <= 99 * 1024
    assert needs["waiting"] == []


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("fp8", [False, True])
def test_norms(fp8: bool, gpus: int) -> None:
    """Other GPUs may still read the experts' sums of a share, so these are not dropped from the cache."""
    names = ("post_attention", "pre_mlp", "pre_experts", "router_scale")
    before = residuals.AfterAttention(**{name: bf16(WIDTH) for name in names})
    names = ("post_mlp", "post_experts", "post_feedforward", "following")
    scalars = {"encode_scalar": bf16(1), "denoise_scalar": bf16(1)}
    after = residuals.AfterExperts(**{name: bf16(WIDTH) for name in names}, **scalars)
    x, parts = bf16(ROWS, WIDTH), (bf16(ROWS, WIDTH),) * gpus
    experts = (bf16(ROWS, 8 if gpus == 1 else 1, WIDTH),) * gpus
    found = compiled(norms.norm, x, bf16(WIDTH), 1e-6, fp8=fp8)
    found += compiled(residuals.after_attention, x, parts, before, 1e-6, mlp_fp8=fp8, experts_fp8=fp8)
    found += compiled(residuals.after_experts, x, parts, experts, after, SEGMENT, 1e-6, fp8=fp8)
    found += compiled(norms.enter, int32(ROWS), bf16(VOCAB, WIDTH), bf16(1), x, SEGMENT, bf16(WIDTH), 1e-6, fp8=fp8)
    assert ["discard.global.L2" in kernel.ptx for kernel in found] == [False, False, gpus == 1, False]
    own = (bf16(ROWS // gpus, WIDTH),) * gpus
    found += compiled(norms.norm_of_parts, own, bf16(WIDTH), 1e-6, fp8=fp8)
    found += compiled(residuals.feed_forward_norms, own, before, 1e-6, mlp_fp8=fp8, experts_fp8=fp8)
    assert all(("e4m3" in kernel.ptx) == fp8 for kernel in found)
    found += compiled(residuals.add_attention, own[0], parts, before, 1e-6, first=ROWS // gpus)
    found += compiled(residuals.add_experts, own[0], parts, experts, after, SEGMENT, 1e-6, first=ROWS // gpus)
    # A few words, so that three programs fit on a multiprocessor; Triton 3.7 needs four more than 3.6 in FP8.
    more = fp8 and not triton.__version__.startswith("3.6.")
    assert_fits(found, spilled=(32 if more else 16) if gpus < 8 else 64)
    assert all(kernel.registers <= 80 for kernel in found)


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize(("groups", "dim", "own_values"), [(8, 256, True), (2, 512, False)])
def test_qkv(groups: int, dim: int, own_values: bool, kept: torch.dtype) -> None:
    product, rope = bf16(ROWS, (HEADS + groups * (1 + own_values)) * dim), (fp32(ROWS, dim // 2), fp32(ROWS, dim // 2))
    pages, table = meta(64, 256, groups, dim, dtype=kept), int32(SEGMENTS, 32)
    arguments = product, bf16(dim), bf16(dim), rope, pages, pages, table, SEGMENT, 1e-6
    assert_fits(compiled(qkv.norm_rope_write, *arguments, own_values=own_values))


def test_step() -> None:
    state = step.SlotCanvases(tokens=int32(4, LENGTH), argmax=int32(4, LENGTH), stable=int32(4), converged=int32(4))
    rules = step.Rules(
        entropy_bound=fp32(SEGMENTS), confidence_threshold=fp32(SEGMENTS), stability_threshold=int32(SEGMENTS),
        stop_at_eos=int32(SEGMENTS), eos_ids=int32(SEGMENTS, 8),
    )  # fmt: skip
    prediction = head.HeadResult(argmax=int32(ROWS), candidate=int32(ROWS), entropy=fp32(ROWS), peak=fp32(ROWS))
    slot = int32(SEGMENTS)
    found = compiled(step.enter_tokens, int32(ROWS), state, slot, COUNTERS, SEGMENT, VOCAB)
    found += compiled(philox.draw, COUNTERS.seed, 0, 7, LENGTH, VOCAB, philox.STEP)
    found += compiled(step.finish_step, prediction, rules, state, slot, COUNTERS, SEGMENT, VOCAB)
    assert_fits(found)


def test_chain() -> None:
    states, sets, kinds = 264, 244, 262
    lists = chain.Lists(items=int32(1489), first=int32(sets + 1))
    tokens = chain.Lists(items=int32(VOCAB), first=int32(kinds + 1))
    tile = chain.ChainTile(edges=8, rows=512, states=512, pieces=16, warps=16)
    edges = chain.Edges(
        first=int32(2, states + 1), begins=int32(2, 8, 512), label=int32(2, 8, 512), order=int32(2, states), tile=tile
    )
    automaton = constrained.AutomatonTables(
        tokens=None, class_of=int32(VOCAB), pieces=tokens, owners=int32(kinds + 1), sets=lists, holders=lists,
        uses=lists, leads=int32(1489), edges=edges, every_class=lists,
    )  # fmt: skip
    weights, found, by_class = fp32(2, LENGTH, sets), fp32(2 * LENGTH, states), fp32(2 * LENGTH, kinds)
    kernels = compiled(chain.log_sums, found, lists, found, int32(1489))
    kernels += compiled(chain.ways, weights, weights, edges, fp32(2, 2, states), int32(2), fp32(2, states))
    kernels += compiled(chain.trace, fp32(2, LENGTH + 1, states), weights, edges, fp32(2, states))
    for logits, cap in ((bf16(2 * LENGTH, VOCAB), 30.0), (fp32(2 * LENGTH, VOCAB), None)):
        for bias in (None, fp32(2, VOCAB)):
            kernels += compiled(constrained.class_sums, logits, automaton, cap, fp32(2), bias)
        labels = meta(2 * LENGTH, dtype=torch.int64)
        sums = constrained.ClassSums(most=by_class, token=int32(2 * LENGTH, kinds), total=by_class)
        kernels += compiled(constrained.best_tokens, labels, sums, lists)
        held = None if cap is None else int32(2 * LENGTH)
        for bias in (None, fp32(2, VOCAB)):
            kernels += compiled(constrained.add_by_class, logits, by_class, int32(VOCAB), held, cap, fp32(2), bias)
    assert_fits(kernels)


def test_a_constrained_step_reads_nothing_back() -> None:
    """Tensors without data cannot be copied to the host: all of it runs on the device that holds the logits."""
    budget = Budget()
    dfa = compile_bytes(parse_regex("(ab|ba){2,5}a?", budget=budget), budget)
    spelled = Vocabulary([b"", b"a", b"b", b"ab", b"ba"], {"<eos>": 0})
    automaton = compile_tokens(dfa, spelled, Ending((0,), (0,)), (), budget)
    limit = AutomatonConstraint(automaton).begin().canvas(16, 9)
    rows, width = limit.free(16, torch.device("cpu")), 8
    count = 16 if rows is None else len(rows)
    found = compiled(limit.restrict, fp32(count, width))
    names = [kernel.name for kernel in found]
    assert names.count("_log_sums_kernel") == 5
    assert {"_class_sums_kernel", "_ways_kernel", "_trace_kernel", "_tokens_kernel", "_add_kernel"} <= set(names)


def test_the_way_back_through_gates() -> None:
    assert_fits(compiled(training_rows.gate_gradients, bf16(ROWS, 2 * 704), bf16(ROWS, 704), fp32(ROWS)))
