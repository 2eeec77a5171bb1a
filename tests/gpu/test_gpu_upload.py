"""Weights that are copied to a GPU through pinned buffers: all bytes, in order with other work on the device."""

import pytest
import torch

from redraft.kernels.packed import PackedFp8
from redraft.model.packed.upload import _PART, upload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("size", [1, _PART, _PART + 1, 5 * _PART, 33 * _PART + 4097])
def test_every_byte_arrives(size: int, inference: bool) -> None:
    with torch.inference_mode(inference):
        tensor = torch.randint(0, 256, (size + 3,), dtype=torch.uint8)[3:]
        assert torch.equal(upload(tensor, CUDA).cpu(), tensor)


def test_any_weight_keeps_its_form() -> None:
    values = torch.randn(3, 2048, 2048).to(torch.float8_e4m3fn)
    weight = PackedFp8(values, torch.rand(3, 2048))
    moved = upload(weight, CUDA)
    assert moved.values.device == CUDA
    assert moved.values.shape == values.shape
    assert torch.equal(moved.values.cpu().view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(moved.scale.cpu(), weight.scale)
    transposed = torch.randn(2048, 4096).T
    assert torch.equal(upload(transposed, CUDA).cpu(), transposed)
    assert upload(moved, CUDA).values.data_ptr() == moved.values.data_ptr()


def test_it_waits_for_work_that_still_uses_the_memory() -> None:
    """The result may lie where a tensor was whose last use is queued but not done."""
    tensor = torch.full((8 * _PART,), 7, dtype=torch.uint8)
    for stream in (torch.cuda.current_stream(CUDA), torch.cuda.Stream(CUDA)):
        with torch.cuda.stream(stream):
            former = torch.zeros(8 * _PART, dtype=torch.uint8, device=CUDA)
            torch.cuda._sleep(100_000_000)
            former.fill_(1)
            place = former.data_ptr()
            del former
            moved = upload(tensor, CUDA)
            assert moved.data_ptr() == place
            assert (moved == 7).all()
