"""The same operations shaped for CPUs: few passes over memory, few and large matrix products.

Elementwise operations work in place on their own temporaries, so nothing here can be differentiated. The result for a
token's row does not depend on the other rows: in fp32, matrix products get at least `MIN_ROWS` rows, because BLAS
libraries sum in a different order for fewer; in bf16, where oneDNN splits sums by the number of rows, they only get
numbers of rows that sum alike (`in_parts`).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.kernels import eager
from redraft.kernels.packed import ExpertWeight, dequantized
from redraft.kernels.vocabulary import blocks

MIN_ROWS = 16
BF16_ROWS = 128
"""Rows of a product in bf16; larger parts are computed at once if they sum alike."""
ATTENDING = 256
"""Rows of a prompt that attend together in bf16: a chunk is a multiple of this, or the end of the prompt."""
BF16_LOGITS = 1 << 21
"""The most logits in a product in bf16, unless it has only `MIN_ROWS`."""
BF16_TRIED = 1 << 21
"""Size, in numbers, of the largest weight for which products of fewer rows are tried."""
DROPPED = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-9}
"""Probability mass that a settled row may leave out: in fp32 no more than the rounding error of a sum over a
vocabulary; in bf16 what a GPU's rows may, no more than probabilities lose or gain when they are rounded."""

_SURE, _KEPT = 0.9, 32  # a row qualifies if a token has this probability, and may keep this many
_CHUNK, _LOOKED_AT = 128, 8  # tokens per chunk of the vocabulary, and chunks searched for a row's tokens
WHOLE_VOCAB = _CHUNK * _LOOKED_AT
"""Means over fewer tokens than this sum over all of them."""
_DTYPES = torch.float32, torch.bfloat16  # computed in fp32; others, such as fp64 in tests, are left to `eager`
_GELU = 2 * math.sqrt(2 / math.pi)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """`eager.rms_norm` with the squares summed in one pass and few operations on the sums."""
    if x.dtype not in _DTYPES:
        return eager.rms_norm(x, weight, eps)
    y = _normed(x, eps)
    return (y if weight is None else y.mul_(weight)).to(x.dtype)


def rms_norms(x: Tensor, weights: Sequence[Tensor | None], eps: float) -> list[Tensor]:
    """`eager.rms_norms` with one norm for all weights."""
    if x.dtype not in _DTYPES:
        return eager.rms_norms(x, weights, eps)
    y = _normed(x, eps)
    return [(y if weight is None else y * weight).to(x.dtype) for weight in weights]


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`eager.add_norm` with weight and sum in one pass; in bf16 only the sum is rounded, not its terms."""
    if x.dtype not in _DTYPES:
        return eager.add_norm(x, y, weight, eps)
    return torch.addcmul(x.float(), _normed(y, eps), weight.float()).to(x.dtype)


def _normed(x: Tensor, eps: float) -> Tensor:
    """x over its root mean square: a new fp32 tensor."""
    y = x.float()
    norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
    scale = torch.addcmul(_constant(eps), norm, norm, value=1 / x.shape[-1]).rsqrt_()
    return y * scale if y.dtype == x.dtype else y.mul_(scale)


@cache
def _constant(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """`eager.gelu_gate` as gate * sigmoid(2 sqrt(2/pi) (gate + 0.044715 gate^3)) * up: sigmoid is the faster form."""
    if gate.dtype not in _DTYPES:
        return eager.gelu_gate(gate, up)
    x = gate.float()
    z = x.square()
    torch.add(_constant(_GELU), z, alpha=0.044715 * _GELU, out=z)
    return z.mul_(x).sigmoid_().mul_(x).mul_(up.float()).to(gate.dtype)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`eager.linear`; in bf16 computed in parts of the rows."""
    if x.dtype != torch.bfloat16:
        return eager.linear(x, weight)
    rows, sizes = x.reshape(-1, x.shape[-1]), _sizes(*weight.shape, torch.get_num_threads())
    return in_parts(lambda part: F.linear(part, weight), rows, sizes).view(*x.shape[:-1], -1)


def in_parts(product: Callable[[Tensor], Tensor], rows: Tensor, sizes: Sequence[int], dim: int = 0) -> Tensor:
    """A product of rows [R,D] in parts whose numbers of rows are in `sizes` (ascending), the last padded with zeros.

    `dim` is the dimension of the rows in the product's result.
    """
    if len(rows) in sizes:
        return product(rows)
    parts, left = [], rows
    while len(left) or not parts:
        size = max((size for size in sizes if BF16_ROWS <= size <= len(left)), default=0)
        size = size or next((size for size in sizes if size >= len(left)), sizes[-1])
        part, left = left[:size], left[size:]
        parts.append(product(F.pad(part, (0, 0, 0, size - len(part)))).narrow(dim, 0, len(part)))
    return torch.cat(parts, dim)


@cache
def _sizes(outputs: int, inputs: int, threads: int) -> tuple[int, ...]:
    """Numbers of rows, ascending, for which a row of a linear layer in bf16 has the same result, as found by a test.

    The test numbers cancel out except for their last bits, so that sums in another order would show. Large weights are
    not tested: they take long to read whatever the number of rows.
    """
    if outputs * inputs > BF16_TRIED or inputs % 2:
        return (BF16_ROWS,)
    generator = torch.Generator().manual_seed(0)
    half, other = (torch.randn(rows, inputs // 2, generator=generator) for rows in (outputs, 4 * BF16_ROWS))
    nearly = torch.where(torch.rand(half.shape, generator=generator) < 1 / 16, half * (1 + 2.0**-7), half)
    weight, rows = (torch.cat(parts, 1).bfloat16() for parts in ((half, nearly), (other, -other)))
    expected = torch.cat([F.linear(part, weight) for part in rows.split(BF16_ROWS)])
    sizes = MIN_ROWS, 32, 64, BF16_ROWS, 2 * BF16_ROWS, 4 * BF16_ROWS
    return tuple(size for size in sizes if torch.equal(F.linear(rows[:size], weight), expected[:size]))


def _vocabulary_rows(weight: Tensor) -> tuple[int]:
    """Rows of a product in bf16 with the vocabulary [V,D]."""
    return (max(MIN_ROWS, min(BF16_ROWS, BF16_LOGITS // len(weight))),)


def head(hidden: Tensor, weight: Tensor, cap: float, temperature: float) -> Tensor:
    """`eager.head` in parts of the vocabulary, so that a product's rows are not a whole vocabulary apart.

    cap tanh(x / cap) is 2 cap sigmoid(2 x / cap) - cap, which is 3x faster to compute.
    """
    products = products_by_parts(hidden.reshape(-1, hidden.shape[-1]), weight, 2 / cap)  # [P,R,V/P]
    parts, rows, columns = products.shape
    logits = products.new_empty(rows, parts, columns, dtype=torch.float32)
    least = logits.new_tensor(-cap / temperature)
    for block in blocks(logits.flatten(1)):
        halves = products[:, block].float().sigmoid_()
        torch.add(least, halves.transpose(0, 1), alpha=2 * cap / temperature, out=logits[block])
    return logits.view(*hidden.shape[:-1], -1)


def products_by_parts(rows: Tensor, weight: Tensor, factor: float) -> Tensor:
    """`factor` times rows [R,D] times the embedding [V,D], in P parts of the vocabulary: [P,R,V/P]."""
    parts = _parts(weight)
    transposed = weight.unflatten(0, (parts, -1)).mT

    def product(rows: Tensor) -> Tensor:
        return torch.baddbmm(rows.new_empty(()), rows.expand(parts, -1, -1), transposed, beta=0, alpha=factor)

    if rows.dtype == torch.bfloat16:
        return in_parts(product, rows, _vocabulary_rows(weight), 1)
    count = len(rows)
    return product(F.pad(rows, (0, 0, 0, max(0, MIN_ROWS - count))))[:, :count]


def soft_probabilities(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """`eager.soft_probabilities` in blocks of rows; a softmax of bf16 numbers is computed in fp32 internally."""
    if dtype != torch.bfloat16:
        return eager.soft_probabilities(logits, dtype)
    rows = logits.reshape(-1, logits.shape[-1])  # [R,V]
    probabilities = torch.empty_like(rows, dtype=dtype)
    for block in blocks(rows):
        torch.softmax(rows[block].to(dtype), -1, out=probabilities[block])
    return probabilities.view_as(logits)


def expectation(probabilities: Tensor, weight: Tensor) -> Tensor:
    """`eager.expectation` with a shortcut for settled rows, whose mass except for `DROPPED` is on a few tokens.

    Whether a row takes the shortcut, and its sum, depend on that row alone.
    """
    rows = probabilities.reshape(-1, len(weight))  # [R,V]
    if rows.dtype not in _DTYPES or len(weight) % _CHUNK or len(weight) < WHOLE_VOCAB:
        return dense_expectation(rows, weight).view(*probabilities.shape[:-1], -1)
    settled, means = _settled_means(rows, weight)
    if 4 * len(settled) < len(rows):
        out = dense_expectation(rows, weight)
    else:
        others = torch.ones(len(rows), dtype=torch.bool).index_fill_(0, settled, False).nonzero()[:, 0]
        out = rows.new_empty(len(rows), weight.shape[1])
        if len(others):
            out.index_copy_(0, others, dense_expectation(rows.index_select(0, others), weight))
    return out.index_copy_(0, settled, means).view(*probabilities.shape[:-1], -1)


def _settled_means(rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows [R,V] are settled, [S], and their means [S,D].

    Their tokens are searched only in the chunks of the vocabulary with the most likely ones.
    """
    chunks = rows.unflatten(1, (-1, _CHUNK))  # [R,C,V/C]
    peaks, total = _peaks(chunks)
    sure = (peaks.amax(-1) > _SURE).nonzero()[:, 0]  # [N]
    which = peaks.index_select(0, sure).topk(_LOOKED_AT, sorted=False).indices  # [N,_LOOKED_AT]
    places = (sure[:, None] * chunks.shape[1] + which).flatten()
    likely = chunks.flatten(0, 1).index_select(0, places).view(-1, _LOOKED_AT * _CHUNK)
    mass, at = likely.topk(_KEPT, sorted=False)  # [N,_KEPT]
    tokens = which.gather(1, at // _CHUNK) * _CHUNK + at % _CHUNK
    left_out = total.index_select(0, sure) - mass.sum(-1, dtype=torch.float32)
    settled = (left_out <= DROPPED[rows.dtype]).nonzero()[:, 0]  # [S]
    means = F.embedding_bag(tokens[settled], weight, mode="sum", per_sample_weights=mass[settled])
    return sure[settled], means


def _peaks(chunks: Tensor) -> tuple[Tensor, Tensor]:
    """The largest probability in every chunk [R,C,V/C], [R,C], and each row's sum [R]; both in fp32.

    A sum is 1 in fp32, and close to it if every probability was rounded to bf16.
    """
    if chunks.dtype == torch.float32:
        return chunks.amax(-1), torch.ones(len(chunks))
    peaks, total = torch.empty(chunks.shape[:2]), torch.empty(len(chunks))
    for block in blocks(chunks.flatten(1)):
        part = chunks[block].float()
        torch.amax(part, -1, out=peaks[block])
        torch.sum(part.flatten(1), -1, out=total[block])
    return peaks, total


def dense_expectation(rows: Tensor, weight: Tensor) -> Tensor:
    """[R,V] -> [R,D]; in fp32, summed over parts of the vocabulary, which threads share better than one product."""
    if rows.dtype == torch.bfloat16:
        return in_parts(lambda part: part @ weight, rows, _vocabulary_rows(weight))
    if rows.dtype != torch.float32:
        return rows @ weight
    parts, count = _parts(weight), len(rows)
    if count < MIN_ROWS:
        rows = F.pad(rows, (0, 0, 0, MIN_ROWS - count))
    return torch.bmm(rows.unflatten(1, (parts, -1)).transpose(0, 1), weight.unflatten(0, (parts, -1))).sum(0)[:count]


def _parts(weight: Tensor) -> int:
    """The number of equal parts of the vocabulary: 16 if it is divisible by 16."""
    return math.gcd(weight.shape[0], 16)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """`eager.attention` through PyTorch's blocked kernel in fp32, and through plain products in bf16.

    In bf16 the query heads of one key/value head are packed into the rows of one product: where bf16 products are
    fast, this is about twice as fast as the blocked kernel. If there is a mask, the rows are a prompt's: they attend
    `ATTENDING` rows at a time, just as when the prompt is cut into chunks.
    """
    if q.dtype == torch.float32:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).flatten(2)  # [B,T,N*H]
    if mask is None:
        return _packed_attention(q, k, v, None)
    parts = zip(q.split(ATTENDING, 2), mask.split(ATTENDING, -2), strict=True)
    return torch.cat([_seen_attention(rows, k, v, seen) for rows, seen in parts], 1)


def _seen_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attend to the keys from the first to the last that any row sees, so that other keys do not split any sum."""
    seen = mask.flatten(0, -2).any(0).nonzero()[:, 0].tolist()
    keys = slice(seen[0], seen[-1] + 1)
    return _packed_attention(q, k[:, :, keys], v[:, :, keys], mask[..., keys])


def _packed_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    batch, heads, count, dim = q.shape
    groups = k.shape[1]
    packed = q.reshape(batch, groups, heads // groups * count, dim)  # [B,G,N/G*T,H]
    scores = packed @ k.transpose(-1, -2)  # [B,G,N/G*T,S]
    if mask is not None:
        seen = mask.expand(batch, heads // groups, count, k.shape[2]).reshape(batch, 1, -1, k.shape[2])
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)  # in fp32 within each row, rounded once
    out = (weights @ v).reshape(batch, heads, count, dim)
    return out.transpose(1, 2).reshape(batch, count, -1)


def experts(x: Tensor, index: Tensor, weight: Tensor, gate_up: ExpertWeight, down: ExpertWeight) -> Tensor:
    """`eager.experts` over rows sorted by expert: two products for every expert that has rows."""
    chosen, top_k = index.flatten(), index.shape[1]  # [T*K]
    order = chosen.argsort(stable=True)
    slices = _slices(chosen.bincount(minlength=gate_up.shape[0]).tolist(), 1 if x.dtype == torch.float32 else MIN_ROWS)
    rows = x.index_select(0, F.pad(order // top_k, (0, MIN_ROWS - 1)))  # [R,D]
    inner = gelu_gate(*_products(rows, gate_up, slices).chunk(2, -1))  # [R,I]
    out = _products(inner, down, slices)  # [R,D]
    places = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order))).view_as(index)  # [T,K]
    return F.embedding_bag(places, out, mode="sum", per_sample_weights=weight.to(out.dtype))


def _slices(tokens: list[int], multiple: int) -> list[tuple[int, int, int]]:
    """(expert, start, stop) of every busy expert's rows: a multiple of `multiple`, and at least `MIN_ROWS`.

    An expert with fewer rows also takes some of the next ones'; these results are overwritten when their turn comes.
    oneDNN, which computes the products in bf16, compiles one for every new number of rows: 0.7 ms each.
    """
    starts = [0, *accumulate(tokens)]
    busy = zip(range(len(tokens)), starts, tokens, strict=False)
    rounded = ((expert, start, -(-count // multiple) * multiple) for expert, start, count in busy if count)
    return [(expert, start, start + max(count, MIN_ROWS)) for expert, start, count in rounded]


def _products(rows: Tensor, weights: ExpertWeight, slices: list[tuple[int, int, int]]) -> Tensor:
    """Each slice of rows [R,in] times its expert's weights [E,out,in], transposed -> [R,out]."""
    out = rows.new_empty(len(rows), weights.shape[1])
    for expert, start, stop in slices:
        torch.mm(rows[start:stop], dequantized(weights[expert], rows.dtype).mT, out=out[start:stop])
    return out


def input_major(weights: Tensor) -> Tensor:
    """Uninitialised expert weights of the same shape, with the inputs outermost in memory.

    Products with few rows are a quarter faster this way, as BLAS does not have to transpose the weights.
    """
    return torch.empty_like(weights.mT, memory_format=torch.contiguous_format).mT


def keep_freed_memory() -> None:
    """Let the C library keep up to 256 MiB of freed memory, where it has that setting (glibc).

    By default it returns blocks as large as a canvas' logits to the system at once, and every step gets them again page
    by page, which takes a sixth of the time of a step.
    """
    for setting in _TRIM_THRESHOLD, _MMAP_THRESHOLD:
        _set_allocator(setting, 256 << 20)


def return_freed_memory() -> None:
    """Let the C library return freed blocks of 128 KiB and more to the system at once, where it can be told (glibc).

    By default it comes to keep larger and larger ones, and the tensors that live on among them keep it from reusing
    the rest, so a process that makes many holds several times what is in use.
    """
    _set_allocator(_MMAP_THRESHOLD, 128 << 10)


def _set_allocator(setting: int, size: int) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(setting, size)
