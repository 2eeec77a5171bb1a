"""Copies of weights to a GPU at the rate of its bus.

PyTorch copies ordinary memory, such as that of a mapped file, with one thread: 6 GB a second on an H200, whose bus
takes five times as much. Here several threads fill a pinned buffer each, and the bus takes it from there.
"""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from redraft.model.layouts import W, each_tensor

_THREADS = 4
_PART = 8 << 20
"""Bytes of a buffer."""


def upload(weight: W, device: torch.device) -> W:
    """A weight on a device; itself if it is there already."""
    return each_tensor(weight, lambda tensor: _upload(tensor.detach(), device))


def _upload(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda" or tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.nbytes <= _PART:
        return tensor.to(device)
    result = torch.empty_like(tensor, device=device)
    source, target = (whole.view(-1).view(torch.uint8).split(_PART) for whole in (tensor, result))
    stream = torch.cuda.current_stream(device)  # whose earlier work may still use the result's memory
    mode = torch.is_inference_mode_enabled()  # a thread has its own, and only this one may write to the result

    def copy(part: Tensor, place: Tensor) -> None:
        with torch.inference_mode(mode), torch.cuda.stream(stream):
            place.copy_(torch.empty_like(part, pin_memory=True).copy_(part), non_blocking=True)
            stream.record_event().synchronize()

    with ThreadPoolExecutor(_THREADS) as threads:
        copies = []
        for part, place in zip(source, target, strict=True):
            part[:: mmap.PAGESIZE].sum()  # reads a mapped file in its order; disks are slower in that of the threads
            copies.append(threads.submit(copy, part, place))
        for done in copies:
            done.result()
    return result
