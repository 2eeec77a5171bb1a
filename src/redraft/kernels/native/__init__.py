"""Operations in C for CPUs: each has the signature of its `eager` twin and leaves to `cpu` what it does not support.

One call replaces many small ones, and each row is computed separately, so its result depends on that row alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from redraft.kernels import cpu, vocabulary
from redraft.kernels.native.build import arguments_of, library
from redraft.kernels.packed import PANEL, ExpertWeight, PanelInt4

__all__ = [
    "add_norm", "attention", "available", "distribution", "expectation", "experts", "gelu_gate", "head", "linear",
    "rms_norm", "rms_norms", "soft_probabilities",
]  # fmt: skip

_BF16 = {torch.float32: 0, torch.bfloat16: 1}


def available() -> bool:
    """Whether the C files could be compiled and loaded; the first call compiles them."""
    return library() is not None


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """See `eager.rms_norm`."""
    if not _takes(x, weight):
        return cpu.rms_norm(x, weight, eps)
    return _norm(x.contiguous(), weight, None, eps)


def rms_norms(x: Tensor, weights: Sequence[Tensor | None], eps: float) -> list[Tensor]:
    """See `eager.rms_norms`."""
    if not _takes(x, *weights):
        return cpu.rms_norms(x, weights, eps)
    x = x.contiguous()
    return [_norm(x, weight, None, eps) for weight in weights]


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `eager.add_norm`; the sum is rounded once."""
    if not _takes(x, y, weight):
        return cpu.add_norm(x, y, weight, eps)
    return _norm(y.contiguous(), weight, x.contiguous(), eps)


def _norm(x: Tensor, weight: Tensor | None, residual: Tensor | None, eps: float) -> Tensor:
    out, width = torch.empty_like(x), x.shape[-1]
    weight = None if weight is None else weight.contiguous()
    _call("norm", out, x, weight, residual, x.numel() // width, width, eps, like=x)
    return out


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """See `eager.gelu_gate`."""
    if not _takes(gate, up):
        return cpu.gelu_gate(gate, up)
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    _call("gelu_gate", out, gate, up, gate.numel(), like=gate)
    return out


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """See `eager.attention`; left to `cpu` in bf16, where C is no faster, and with a mask, which only prompts have."""
    if mask is not None or any(x.dtype != torch.float32 for x in (q, k, v)):
        return cpu.attention(q, k, v, mask)
    (batch, heads, count, dim), (_, groups, seen, _) = q.shape, k.shape
    q, k, v = q if q.stride(-1) == 1 else q.contiguous(), k.contiguous(), v.contiguous()
    out = q.new_empty(batch, count, heads * dim)
    for b in range(batch):
        sizes = heads, count, *q.stride()[1:3], groups, seen, dim
        if _call("attention", out[b], q[b], k[b], v[b], *sizes):
            raise MemoryError(f"no memory for attention to {seen} keys")
    return out


def experts(x: Tensor, index: Tensor, weight: Tensor, gate_up: ExpertWeight, down: ExpertWeight) -> Tensor:
    """See `eager.experts`; plain weights must have the inputs outermost in memory (`cpu.input_major`)."""
    (tokens, top_k), (count, width, inner) = index.shape, down.shape
    matrices = _matrices(x, gate_up, down)
    if matrices is None or index.dtype != torch.long or width % PANEL or inner % PANEL:
        return cpu.experts(x, index, weight, gate_up, down)
    x, index, weight = x.contiguous(), index.contiguous(), weight.float().contiguous()
    out = torch.empty_like(x)
    if _call("experts", out, x, index, weight, *matrices, tokens, top_k, count, width, inner, like=x):
        raise MemoryError(f"no memory for the experts of {tokens} tokens")
    return out


def _matrices(x: Tensor, gate_up: ExpertWeight, down: ExpertWeight) -> tuple[Tensor | int | None, ...] | None:
    """Values and scales of both weights and the group, as C arguments; None if the C function does not take them."""
    if isinstance(gate_up, Tensor) and isinstance(down, Tensor):
        transposed = gate_up.mT.is_contiguous() and down.mT.is_contiguous()
        return (gate_up, None, down, None, 0) if transposed and _takes(x, gate_up, down) else None
    if isinstance(gate_up, PanelInt4) and isinstance(down, PanelInt4) and gate_up.group == down.group and _takes(x):
        return gate_up.codes, gate_up.scale, down.codes, down.scale, gate_up.group
    return None


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """See `eager.linear`; in bf16 the library's products are as fast."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        return cpu.linear(x, weight)
    return _linear("linear", x, weight)


def _linear(name: str, x: Tensor, weight: Tensor, *settings: float) -> Tensor:
    x, weight, (columns, depth) = x.contiguous(), weight.contiguous(), weight.shape
    out = x.new_empty(*x.shape[:-1], columns)
    rows = math.prod(x.shape[:-1])
    if _call(name, out, x, weight, rows, columns, depth, *settings):
        raise MemoryError(f"no memory for the product of {rows} rows")
    return out


def head(hidden: Tensor, weight: Tensor, cap: float, temperature: float) -> Tensor:
    """See `eager.head`."""
    if not _takes(hidden, weight):
        return cpu.head(hidden, weight, cap, temperature)
    if hidden.dtype == torch.float32:
        return _linear("head", hidden, weight, cap, temperature)
    products = cpu.products_by_parts(hidden.reshape(-1, hidden.shape[-1]), weight, 2 / cap)  # [P,R,V/P]
    parts, rows, columns = products.shape
    logits = hidden.new_empty(*hidden.shape[:-1], len(weight), dtype=torch.float32)
    _call("cap_logits", logits, products, parts, rows, columns, cap, temperature)
    return logits


def distribution(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See `eager.distribution`."""
    if logits.dtype != torch.float32:
        return vocabulary.distribution(logits)
    logits = logits.contiguous()
    probabilities, entropy = torch.empty_like(logits), logits.new_empty(len(logits))
    argmax = torch.empty_like(entropy, dtype=torch.long)
    _call("distribution", probabilities, argmax, entropy, logits, *logits.shape)
    return probabilities, argmax, entropy


def soft_probabilities(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """See `eager.soft_probabilities`."""
    if (logits.dtype, dtype) != (torch.float32, torch.bfloat16):
        return cpu.soft_probabilities(logits, dtype)
    logits = logits.contiguous()
    out, width = torch.empty_like(logits, dtype=dtype), logits.shape[-1]
    _call("soft_probabilities", out, logits, logits.numel() // width, width)
    return out


def expectation(probabilities: Tensor, weight: Tensor) -> Tensor:
    """See `eager.expectation`; rows whose mass except for `cpu.DROPPED` is on a few tokens sum over these only."""
    if not _takes(probabilities, weight) or len(weight) < cpu.WHOLE_VOCAB:
        return cpu.expectation(probabilities, weight)
    rows, weight = probabilities.reshape(-1, len(weight)).contiguous(), weight.contiguous()  # [R,V], [V,D]
    means, settled = rows.new_empty(len(rows), weight.shape[1]), rows.new_empty(len(rows), dtype=torch.bool)
    dropped = cpu.DROPPED[rows.dtype]
    _call("settled_means", means, settled, rows, weight, *rows.shape, weight.shape[1], dropped, like=rows)
    others = (~settled).nonzero()[:, 0]
    if len(others):
        means.index_copy_(0, others, cpu.dense_expectation(rows.index_select(0, others), weight))
    return means.view(*probabilities.shape[:-1], -1)


def _takes(x: Tensor, *others: Tensor | None) -> bool:
    """Whether C supports the dtype of x, and all others have the same."""
    return x.dtype in _BF16 and all(other is None or other.dtype == x.dtype for other in others)


def _call(name: str, *arguments: Tensor | float | None, like: Tensor | None = None) -> int:
    """Call a C function; tensors are passed as addresses, with elements in the dtype of `like`.

    After the `arguments` come the number of threads and, if `like` is given, the dtype.
    The result is meaningful only for functions that allocate memory: 0, or -1 if there is none.
    """
    plain = [argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments]
    last = () if like is None else (_BF16[like.dtype],)
    function, given = _function(name), (*plain, torch.get_num_threads(), *last)
    assert len(given) == len(function.argtypes), f"{name} has {len(function.argtypes)} arguments, not {len(given)}"
    return function(*given)


@cache
def _function(name: str) -> Any:
    loaded = library()
    assert loaded is not None, "the caller asks `available` first"
    function = loaded[f"redraft_{name}"]
    function.argtypes = arguments_of(name)
    return function
