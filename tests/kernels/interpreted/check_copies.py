"""copies.py: pages copied by a kernel and by PyTorch."""

import pytest
import torch
from making import normal

from redraft import kernels
from redraft.kernels.triton.copies import copy_pages


@pytest.mark.parametrize("shape", [(256, 2, 16), (256, 1, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_become_what_others_are(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    layers = [normal(9, *shape, seed=seed).to(dtype) for seed in range(3)]
    source, target = torch.tensor([3, 3, 0]), torch.tensor([8, 1, 7])
    expected, twins = ([pages.clone() for pages in layers] for _ in range(2))
    for pages in expected:
        pages[target] = pages[source]
    with kernels.force("eager"):
        copy_pages(twins, source, target)
    copy_pages(layers, source, target)
    for ours, theirs, wanted in zip(layers, twins, expected, strict=True):
        assert torch.equal(theirs, wanted)
        assert torch.equal(ours, wanted)
