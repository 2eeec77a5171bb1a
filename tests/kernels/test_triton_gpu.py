"""The kernels on a GPU in bf16: at most twice the error of eager bf16 against fp32, or equal where nothing rounds."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from redraft import kernels
from redraft.kernels import eager
from redraft.kernels.gluon.attention import fits
from redraft.kernels.gluon.head import tile_for
from redraft.kernels.packed import PackedFp8, Rows8, dequantized
from redraft.kernels.triton import (
    attention,
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
from redraft.kernels.triton.quantize import quantize_rows
from redraft.kernels.triton.segments import DENOISE, ENCODE, ENCODE_IMAGES, UNUSED, Segments
from redraft.kernels.triton.softcap import tempered
from redraft.model.packed.vocabulary import pack_vocabulary
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.prepare import prepare

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

WIDTH, ROWS, VOCAB, EPS, CAP = 512, 64, 8192, 1e-6, 30.0


@pytest.fixture(autouse=True)
def _seeded_on_the_gpu() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.device("cuda"), torch.inference_mode():
        yield


def bf16(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).bfloat16()


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def mixed() -> Segments:
    return Segments(
        kind=ints(DENOISE, ENCODE, DENOISE, UNUSED), start=ints(700, 300, 0, 5), length=ints(64, 50, 17, 3), rows=ROWS
    )


def mixed_with_images() -> Segments:
    """As `mixed`, but prompts in place of an unused segment and of a canvas: one image goes on in the next of them."""
    start = ints(700, 300, 350, 5)
    segments = Segments(
        kind=ints(DENOISE, ENCODE_IMAGES, ENCODE_IMAGES, ENCODE_IMAGES), start=start, length=ints(64, 50, 60, 64),
        rows=ROWS,
    )  # fmt: skip
    own = segments.positions()
    since, until = own.clone(), own + 1
    for first_row, image in ((ROWS, range(310, 315)), (ROWS, range(340, 395)), (3 * ROWS, range(20, 69))):
        rows = torch.arange(4 * ROWS)
        mine = (rows >= first_row) & (rows < first_row + 2 * ROWS) & (own >= image.start) & (own < image.stop)
        since, until = since.where(~mine, image.start), until.where(~mine, image.stop)
    return replace(segments, since=since.int(), until=until.int())


def fp32(value: Any) -> Any:
    """A value, a list of them, or the weights of a dataclass, in fp32."""
    if isinstance(value, list):
        return [fp32(one) for one in value]
    if isinstance(value, residuals.AfterAttention | residuals.AfterExperts):
        return type(value)(**{field.name: getattr(value, field.name).float() for field in fields(value)})
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def parts(result: Any) -> list[Tensor]:
    if isinstance(result, tuple):
        return [one for part in result for one in parts(part)]
    if isinstance(result, residuals.FeedForwardRows):
        return [getattr(result, field.name) for field in fields(result)]
    return [result]


def assert_as_exact_as_eager(function: Callable[..., Any], *arguments: Any, rows: Tensor | None = None) -> None:
    chosen = slice(None) if rows is None else rows
    ours = parts(function(*arguments))
    with kernels.force("eager"):
        theirs = parts(function(*arguments))
        exact = parts(function(*(fp32(value) for value in arguments)))
    for one, other, true in zip(ours, theirs, exact, strict=True):
        error, allowed = ((x[chosen].float() - true[chosen]).norm() for x in (one, other))
        assert one.isfinite().all()
        assert error <= 2 * allowed + 1e-6 * true[chosen].norm()


def weights(kind: type) -> Any:
    return kind(**{field.name: 1 + bf16(1 if "scalar" in field.name else WIDTH, scale=0.2) for field in fields(kind)})


def test_norms() -> None:
    segments, x, y = mixed(), bf16(4 * ROWS, WIDTH), bf16(4 * ROWS, WIDTH, scale=3)
    assert_as_exact_as_eager(lambda x, w: norms.norm(x, w, EPS), x, 1 + bf16(WIDTH, scale=0.2))
    assert_as_exact_as_eager(
        lambda x, y, w: residuals.after_attention(x, (y,), w, EPS), x, y, weights(residuals.AfterAttention)
    )
    end = bf16(4 * ROWS, 8, WIDTH), weights(residuals.AfterExperts)

    def after_experts(x: Tensor, y: Tensor, rows: Tensor, *rest: Any) -> Any:
        return residuals.after_experts(x, (y,), (rows.clone(),), *rest, segments, EPS)  # it uses them up

    assert_as_exact_as_eager(after_experts, x, y, *end)


@pytest.mark.parametrize("gpus", [2, 4])
def test_norms_where_every_gpu_adds_up_its_own_rows(gpus: int) -> None:
    segments, first, eps = mixed(), 4 * ROWS // gpus, EPS
    outs, own = [bf16(4 * ROWS, WIDTH, scale=3) for _ in range(gpus)], [bf16(first, WIDTH) for _ in range(gpus)]
    sums = [bf16(4 * ROWS, 1, WIDTH) for _ in range(gpus)]
    before, after = weights(residuals.AfterAttention), weights(residuals.AfterExperts)
    assert_as_exact_as_eager(lambda *x: residuals.add_attention(*x, eps, first=first), own[0], outs, before)
    assert_as_exact_as_eager(lambda *x: residuals.feed_forward_norms(*x, eps), own, before)
    assert_as_exact_as_eager(lambda x, w: norms.norm_of_parts(x, w, eps), own, after.following)
    assert_as_exact_as_eager(
        lambda *x: residuals.add_experts(*x, segments, eps, first=first), own[0], outs, sums, after
    )


@pytest.mark.parametrize("shape", [(130, 64), (33, 16, 72), (9, 2816)])
def test_norms_of_pytorch(shape: tuple[int, ...]) -> None:
    x, y, weight = bf16(*shape, scale=3), bf16(*shape, scale=3), 1 + bf16(shape[-1], scale=0.2)
    assert_as_exact_as_eager(lambda x: kernels.rms_norm(x, None, EPS), x)
    assert_as_exact_as_eager(lambda x, w: tuple(kernels.rms_norms(x, [w, None], EPS)), x, weight)
    assert_as_exact_as_eager(lambda x, y, w: kernels.add_norm(x, y, w, EPS), x, y, weight)


def test_rows_of_training() -> None:
    tokens, slots, inner = 40, 8, 704
    place = torch.randperm(tokens * slots).view(tokens, slots)
    token = (
        torch.empty_like(place).flatten().index_put((place.flatten(),), torch.arange(tokens).repeat_interleave(slots))
    )
    x = bf16(tokens, WIDTH)
    assert torch.equal(training_rows.take_rows(x, token), x[token])
    assert_as_exact_as_eager(training_rows.sum_rows, bf16(tokens * slots, WIDTH), place, torch.rand(tokens, slots))
    arguments = bf16(tokens * slots, 2 * inner), bf16(tokens * slots, inner), torch.rand(tokens * slots)
    assert_as_exact_as_eager(lambda *given: training_rows.gate_gradients(*given)[0], *arguments)
    found, expected = training_rows.gate_gradients(*arguments)[1], eager.gate_gradients(*arguments)[1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # sums in fp32, in another order


def test_fp8_rows_equal_the_twin_but_for_ties() -> None:
    x, weight = bf16(300, WIDTH), 1 + bf16(WIDTH, scale=0.2)
    ours = norms.norm(x, weight, EPS, fp8=True)
    with kernels.force("eager"):
        theirs = norms.norm(x, weight, EPS, fp8=True)
    assert isinstance(ours, Rows8)
    assert isinstance(theirs, Rows8)
    torch.testing.assert_close(ours.scale, theirs.scale, rtol=1e-6, atol=0)
    assert (ours.values.view(torch.uint8) == theirs.values.view(torch.uint8)).float().mean() > 0.998


@pytest.mark.parametrize(("groups", "dim", "own_values"), [(4, 256, True), (2, 512, False), (2, 64, True)])
def test_qkv(groups: int, dim: int, own_values: bool) -> None:
    segments, heads = mixed(), 8
    rope = qkv.rope_rows(segments, 10_000.0 ** (-torch.arange(dim // 2) / (dim // 2)))
    table = torch.arange(16, dtype=torch.int32).view(4, 4)

    def write(product: Tensor, q_norm: Tensor, k_norm: Tensor) -> tuple[Tensor, ...]:
        pools = [torch.zeros(16, 256, groups, dim, dtype=product.dtype) for _ in range(2)]
        arguments = rope, *pools, table, segments, EPS
        return qkv.norm_rope_write(product, q_norm, k_norm, *arguments, own_values=own_values), *pools

    product = bf16(4 * ROWS, (heads + groups * (1 + own_values)) * dim)
    assert_as_exact_as_eager(write, product, 1 + bf16(dim, scale=0.2), 1 + bf16(dim, scale=0.2))


@pytest.mark.parametrize(("groups", "dim", "window"), [(4, 256, 256), (2, 512, None), (2, 64, 100), (1, 128, None)])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("segments_of", [mixed, mixed_with_images])
def test_attention(
    groups: int, dim: int, window: int | None, splits: int, kept: torch.dtype, segments_of: Callable[[], Segments]
) -> None:
    segments, table = segments_of(), torch.randperm(16).int().view(4, 4)
    pages = (bf16(16, 256, groups, dim).to(kept) for _ in range(2))
    inputs = bf16(4 * ROWS, 8, dim, scale=dim**-0.5), *pages
    shape = attention.tuned(inputs[0], inputs[1], segments)
    tile = attention.AttentionTile(
        rows=shape.rows, keys=shape.keys, splits=splits, parts=shape.parts, warps=shape.warps, stages=shape.stages
    )

    def attend(q: Tensor, keys: Tensor, values: Tensor) -> Any:
        return attention.attend(q, keys, values, table, segments, window=window, tile=tile)

    assert_as_exact_as_eager(attend, *inputs, rows=segments.live())


@pytest.mark.parametrize(
    ("dim", "rows", "parts"),
    [(256, 128, 1), (256, 64, 1), (256, 64, 2), (512, 128, 2), (512, 64, 2), (512, 64, 4), (512, 64, 1)],
)
@pytest.mark.parametrize("window", [40, None])
@pytest.mark.parametrize("segments_of", [mixed, mixed_with_images])
def test_attention_in_gluon_has_the_same_bits(
    dim: int, rows: int, parts: int, window: int | None, segments_of: Callable[[], Segments]
) -> None:
    groups, segments, table = 1024 // dim, segments_of(), torch.randperm(16).int().view(4, 4)
    q, keys, values = bf16(4 * ROWS, 8, dim, scale=dim**-0.5), *(bf16(16, 256, groups, dim) for _ in range(2))
    if not fits(q, keys, segments):
        pytest.skip("needs a Hopper GPU")
    shape = {"keys": 64 * 256 // dim, "splits": 1, "warps": 4, "stages": 2}
    tiles = (
        attention.AttentionTile(rows=64, parts=dim // 256, **shape),
        attention.AttentionTile(rows=rows, parts=parts, gluon=True, **shape),
    )
    plain, gluon = (attention.attend(q, keys, values, table, segments, window=window, tile=tile) for tile in tiles)
    assert isinstance(plain, Tensor)
    assert isinstance(gluon, Tensor)
    assert gluon.isfinite().all()
    assert torch.equal(gluon[segments.live()], plain[segments.live()])


@pytest.mark.parametrize("kind", [DENOISE, ENCODE, ENCODE_IMAGES])
@pytest.mark.parametrize("count", [2, 5, 16])
@pytest.mark.parametrize(
    ("heads", "groups", "dim", "window"), [(16, 8, 256, 300), (16, 2, 512, None), (4, 2, 256, 300), (4, 1, 512, None)]
)
def test_a_segment_alone_gets_the_same_attention_as_in_a_batch(
    heads: int, groups: int, dim: int, window: int | None, count: int, kind: int
) -> None:
    """Whose tiles are of another height, and so end behind other keys; the small shapes share keys out to splits."""
    q, keys, values = bf16(256, heads, dim, scale=dim**-0.5), *(bf16(3, 256, groups, dim, scale=2) for _ in range(2))
    own = torch.arange(501, 757)
    image = (own >= 600) & (own < 690)
    sight = {"since": own.where(~image, 600).int(), "until": (own + 1).where(~image, 690).int()}
    fields = {"kind": ints(kind), "start": ints(501), "length": ints(256), **sight}
    one, many = (Segments(**{name: x.repeat(n) for name, x in fields.items()}, rows=256) for n in (1, count))
    table = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    alone = attention.attend(q, keys, values, table, one, window=window)
    together = attention.attend(q.repeat(count, 1, 1), keys, values, table.repeat(count, 1), many, window=window)
    assert isinstance(alone, Tensor)
    assert isinstance(together, Tensor)
    assert torch.equal(together, alone.repeat(count, 1))


def counters() -> philox.Counters:
    return philox.Counters(seed=torch.tensor([2**62 + 5, 1, 9, 0]), canvas=ints(0, 0, 7, 0), step=ints(3, 0, 47, 0))


def new_prediction(
    hidden: Tensor, embedding: Tensor | PackedFp8, heat: Tensor
) -> tuple[head.HeadResult, Tensor, Tensor]:
    segments = mixed()
    logits = torch.zeros(len(hidden), embedding.shape[0], dtype=hidden.dtype)
    seen = head.predict(hidden, embedding, CAP, heat, counters(), segments, logits)
    return seen, logits, segments.live() & (segments.kind == DENOISE).repeat_interleave(ROWS)


def test_head() -> None:
    hidden, embedding = bf16(4 * ROWS, WIDTH), bf16(VOCAB, WIDTH, scale=0.1)
    heat = torch.tensor([0.8, 1.0, 0.41, 1.0])
    seen, logits, rows = new_prediction(hidden, embedding, heat)
    exact = hidden.float() @ embedding.float().t()
    eager = hidden @ embedding.t()
    assert (logits[rows] - exact[rows]).norm() <= 2 * (eager[rows] - exact[rows]).norm()
    x = tempered(logits, CAP, heat)[rows]
    assert torch.equal(seen.argmax[rows].long(), x.argmax(-1))
    p = x.double().softmax(-1)
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    torch.testing.assert_close(seen.entropy[rows].double(), entropy, rtol=1e-4, atol=1e-5)
    edges = p.cumsum(-1)
    drawn = seen.candidate[rows].long()[:, None]
    uniform = philox.uniform(counters(), ROWS).flatten()[rows]
    low, high = edges.gather(1, drawn)[:, 0] - p.gather(1, drawn)[:, 0], edges.gather(1, drawn)[:, 0]
    assert ((low - 1e-5 <= uniform) & (uniform <= high + 1e-5)).all()


def test_a_first_row_without_its_likeliest_tokens() -> None:
    hidden, embedding, segments = bf16(4 * ROWS, WIDTH), bf16(VOCAB, WIDTH, scale=0.1), mixed()
    heat, logits = torch.full((4,), 0.8), [torch.zeros(4 * ROWS, VOCAB, dtype=torch.bfloat16) for _ in range(3)]
    first, given = int((segments.kind == DENOISE).nonzero()[0]), (hidden, embedding, CAP, heat, counters(), segments)
    free = head.predict(*given, logits[0])
    never = logits[0][first * ROWS].topk(8).indices.int()
    not_first = torch.full((4, 8), -1, dtype=torch.int32)
    not_first[first] = never
    ours = head.predict(*given, logits[1], not_first)
    with kernels.force("eager"):
        theirs = head.predict(*given, logits[2], not_first)
    rows = segments.live() & (segments.kind == DENOISE).repeat_interleave(ROWS)
    rows[first * ROWS] = False
    assert free.argmax[first * ROWS] in never
    assert ours.argmax[first * ROWS] not in never
    for name in ("argmax", "candidate", "entropy", "peak"):
        seen, expected = getattr(ours, name), getattr(theirs, name)
        torch.testing.assert_close(seen[first * ROWS], expected[first * ROWS], rtol=1e-3, atol=1e-3)
        assert torch.equal(seen[rows], getattr(free, name)[rows])
    assert (logits[1][first * ROWS, never.long()] < -1e29).all()


def test_head_in_fp8() -> None:
    """The twin rounds rows and table in the same places; what is left is the sum of products and one rounding."""
    whole = quantize_fp8(bf16(VOCAB, WIDTH, scale=0.1))
    hidden, heat, embedding = bf16(4 * ROWS, WIDTH), torch.full((4,), 0.8), prepare(whole)
    assert isinstance(embedding, PackedFp8)
    seen, logits, rows = new_prediction(hidden, embedding, heat)
    exact = quantize_rows(hidden).dequantize(torch.float32) @ whole.dequantize(torch.float32).t()
    assert (logits[rows] - exact[rows]).norm() <= 2**-8 * exact[rows].norm()
    assert torch.equal(seen.argmax[rows].long(), tempered(logits, CAP, heat)[rows].argmax(-1))


def test_logits_in_fp8_are_not_too_small() -> None:
    """The matrix unit cuts off what it adds up; where hidden states and tokens agree, that would be seen."""
    rows, vocab, width = 256, 1024, 2816
    table = bf16(vocab, width)
    hidden, logits = bf16(rows, width) + 0.6 * table[:rows], torch.zeros(rows, vocab, dtype=torch.bfloat16)
    segments = Segments(kind=ints(DENOISE), start=ints(0), length=ints(rows), rows=rows)
    embedding = prepare(quantize_fp8(table))
    head.predict(hidden, embedding, CAP, torch.ones(1), counters(), segments, logits)
    products = quantize_rows(hidden).dequantize(torch.float32) * dequantized(embedding, torch.float32)[:rows]
    own, expected = logits.diagonal().double(), products.double().sum(-1)
    assert (own - expected).norm() <= 2 * (expected.bfloat16() - expected).norm()
    assert (own / expected).mean() > 0.998


@pytest.mark.parametrize("fp8", [False, True])
def test_head_in_gluon_has_the_same_logits(fp8: bool) -> None:
    """Of canvases among segments that have no row to look at, in several tiles of rows, and of more than 512 inputs."""
    kinds = [DENOISE, ENCODE, ENCODE, UNUSED, DENOISE, ENCODE, ENCODE, DENOISE]
    lengths, rows, vocab, width = [256, 256, 200, 0, 17, 256, 256, 240], 256, 16384, 1408
    segments = Segments(kind=ints(*kinds), start=ints(*[0] * 8), length=ints(*lengths), rows=rows)
    table = bf16(vocab, width, scale=0.1)
    hidden, embedding = bf16(8 * rows, width), prepare(quantize_fp8(table)) if fp8 else table
    if tile_for(hidden, vocab) is None:
        pytest.skip("needs a Hopper GPU")
    numbers = torch.arange(8, dtype=torch.int32)
    given = CAP, 0.4 + numbers / 10, philox.Counters(seed=numbers.long(), canvas=numbers, step=numbers), segments
    tile = head.tuned(hidden.to(torch.float8_e4m3fn) if fp8 else hidden)
    plain, gluon = (torch.zeros(8 * rows, vocab, dtype=hidden.dtype) for _ in range(2))
    expected = head.predict(hidden, embedding, *given, plain, tile=tile)
    seen = head.predict(hidden, embedding, *given, gluon)
    wanted = segments.live() & (segments.kind == DENOISE).repeat_interleave(rows)
    assert torch.equal(gluon[wanted], plain[wanted])
    assert (gluon[256:768] == 0).all()  # a tile without a canvas is left alone
    assert torch.equal(seen.argmax, expected.argmax)
    assert (seen.candidate == expected.candidate).float().mean() > 0.999
    for name in ("entropy", "peak"):
        torch.testing.assert_close(getattr(seen, name), getattr(expected, name), rtol=1e-5, atol=1e-5)


def test_soft_embeddings() -> None:
    embedding = bf16(VOCAB, WIDTH, scale=0.1)
    hidden = bf16(4 * ROWS, WIDTH)
    hidden[::2] = 20 * embedding[: 2 * ROWS]  # certain rows
    heat, scale, want = torch.tensor([0.8, 1.0, 0.41, 1.0]), bf16(1) + 22, ints(1, 1, 1, 1)
    seen, logits, rows = new_prediction(hidden, embedding, heat)
    p = tempered(logits, CAP, heat).bfloat16().float().softmax(-1)
    exact = p @ embedding.float() * scale.float()
    with kernels.force("eager"):
        theirs = self_conditioning.soft_embeddings(logits, seen, embedding, scale, CAP, heat, want, mixed())
    ours = self_conditioning.soft_embeddings(logits, seen, embedding, scale, CAP, heat, want, mixed())
    assert (ours[~rows] == 0).all()
    assert (ours[rows] - exact[rows]).norm() <= 2 * (theirs[rows] - exact[rows]).norm()


def test_soft_embeddings_in_fp8() -> None:
    """The twin rounds weights and tables in the same places; what is left is the product's own rounding."""
    embedding, hidden = bf16(VOCAB, WIDTH, scale=0.1), bf16(4 * ROWS, WIDTH, scale=0.1)  # uncertain rows
    hidden[::2] = 20 * embedding[: 2 * ROWS]  # certain ones
    kept = pack_vocabulary(embedding, embedding.device, torch.bfloat16, fp8=True)
    heat, scale, want = torch.tensor([0.8, 1.0, 0.41, 1.0]), bf16(1) + 22, ints(1, 1, 1, 1)
    seen, logits, rows = new_prediction(hidden, embedding, heat)
    arguments = scale, CAP, heat, want, mixed()
    assert seen.tiles is not None
    way = self_conditioning.choose(logits, seen.tiles, CAP, heat, want, mixed()).way
    with kernels.force("eager"):
        exact = self_conditioning.soft_embeddings(logits, seen, embedding, *arguments).float()
        theirs = self_conditioning.soft_embeddings(
            logits, seen, kept.head, *arguments, transposed=kept.transposed
        ).float()
    ours = self_conditioning.soft_embeddings(logits, seen, kept.head, *arguments, transposed=kept.transposed).float()
    for wanted in (rows & (way == 1), rows & (way == 2)):
        assert wanted.any()
        assert (ours - theirs)[wanted].norm() <= 0.02 * theirs[wanted].norm()
        assert 0.001 < (theirs - exact)[wanted].norm() / exact[wanted].norm() < 0.06


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("tokens", "way"), [(200, self_conditioning.SPARSE), (600, self_conditioning.DENSE)])
def test_likely_tokens_may_lie_anywhere_in_the_vocabulary(tokens: int, way: int, fp8: bool) -> None:
    embedding, hidden = bf16(32768, WIDTH, scale=0.05), bf16(4 * ROWS, WIDTH, scale=0.1)
    embedding[torch.arange(tokens) * 54, 0] += 5
    hidden[:, 0] += 4
    kept = pack_vocabulary(embedding, embedding.device, torch.bfloat16, fp8=fp8)
    heat, scale, want = torch.tensor([0.8, 1.0, 0.41, 1.0]), bf16(1) + 22, ints(1, 1, 1, 1)
    seen, logits, rows = new_prediction(hidden, embedding, heat)
    arguments = scale, CAP, heat, want, mixed()
    assert seen.tiles is not None
    assert (self_conditioning.choose(logits, seen.tiles, CAP, heat, want, mixed()).way[rows] == way).all()
    with kernels.force("eager"):
        theirs = self_conditioning.soft_embeddings(logits, seen, kept.head, *arguments, transposed=kept.transposed)
    ours = self_conditioning.soft_embeddings(logits, seen, kept.head, *arguments, transposed=kept.transposed)
    assert (ours - theirs).float()[rows].norm() <= 0.02 * theirs.float()[rows].norm()


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("rows", [3, 64, 200])
def test_weights_that_are_there_already(rows: int, fp8: bool) -> None:
    table = bf16(VOCAB, WIDTH).to(torch.float8_e4m3fn if fp8 else torch.bfloat16)
    weights = (3 * bf16(rows, VOCAB)).softmax(-1)
    ours = self_conditioning.weighted_sums(weights, table)
    exact = weights.double() @ table.double()
    assert (ours - exact).norm() <= 1e-4 * exact.norm()
    for some in (slice(0, 1), slice(1, 3), slice(0, 65)):
        assert torch.equal(self_conditioning.weighted_sums(weights[some], table), ours[some])


def test_pages_are_copied_in_all_layers() -> None:
    layers = [bf16(40, 256, 2, 96) for _ in range(3)]
    source, target = torch.tensor([3, 3, 0]), torch.tensor([38, 1, 7])
    expected = [pages.clone() for pages in layers]
    with kernels.force("eager"):
        copies.copy_pages(expected, source, target)
    copies.copy_pages(layers, source, target)
    assert all(torch.equal(one, other) for one, other in zip(layers, expected, strict=True))


def test_a_step_in_a_graph_equals_the_twin() -> None:
    segments, slot = mixed(), ints(2, 5, 0, 5)
    rules = step.Rules(
        entropy_bound=torch.full((4,), 0.1), confidence_threshold=torch.full((4,), 9.0),
        stability_threshold=ints(1, 1, 1, 1), stop_at_eos=ints(1, 0, 0, 0), eos_ids=ints(*[1] * 32).view(4, 8),
    )  # fmt: skip
    argmax, candidate = (torch.randint(VOCAB, (4 * ROWS,), dtype=torch.int32) for _ in range(2))
    entropy = torch.rand(4 * ROWS).pow(6)
    seen = head.HeadResult(argmax=argmax, candidate=candidate, entropy=entropy, peak=entropy)
    columns = {"tokens": (6, ROWS), "argmax": (6, ROWS), "stable": (6,), "converged": (6,)}
    states = [
        step.SlotCanvases(**{name: torch.zeros(*shape, dtype=torch.int32) for name, shape in columns.items()})
        for _ in range(2)
    ]
    keyed = counters()
    step.finish_step(seen, rules, states[0], slot, keyed, segments, VOCAB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        report = step.finish_step(seen, rules, states[0], slot, keyed, segments, VOCAB)
    graph.replay()
    with kernels.force("eager"):
        for _ in range(2):
            expected = step.finish_step(seen, rules, states[1], slot, counters(), segments, VOCAB)
    assert torch.equal(report.block, expected.block)
    assert torch.equal(states[0].tokens, states[1].tokens)
    assert report.converged.tolist() == [1, 0, 1, 0]
