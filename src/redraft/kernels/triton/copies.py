"""Pages of keys and values copied in all layers at once, where PyTorch would launch two kernels for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redraft.kernels.triton.language import cdiv, jit, tl, use_triton

BLOCK = 4096
"""Words that a program copies."""


def copy_pages(layers: Sequence[Tensor], source: Tensor, target: Tensor) -> None:
    """Copy pages `source` to pages `target` in the page tensors [P,...] of several layers, all of one size.

    Both are int64 [N]; no page is in both.
    """
    if not use_triton(source):
        for pages in layers:
            pages.index_copy_(0, target, pages.index_select(0, source))
        return
    assert source.is_contiguous()
    assert target.is_contiguous()
    words = layers[0].stride(0) * layers[0].element_size() // 4
    addresses = torch.tensor([pages.data_ptr() for pages in layers], device=source.device)
    _copy_kernel[(cdiv(words, BLOCK), len(source), len(layers))](addresses, source, target, words, BLOCK=BLOCK)


@jit
def _copy_kernel(addresses, source, target, words, BLOCK: tl.constexpr):
    """Some words of one page of one layer."""
    pages = tl.load(addresses + tl.program_id(2)).to(tl.pointer_type(tl.int32))
    pages = tl.multiple_of(pages, 16)
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    line = tl.load(pages + tl.load(source + tl.program_id(1)) * words + word, word < words)
    tl.store(pages + tl.load(target + tl.program_id(1)) * words + word, line, word < words)
