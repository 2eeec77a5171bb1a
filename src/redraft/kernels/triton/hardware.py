"""What a GPU has: its compute capability, multiprocessors and shared memory."""

from __future__ import annotations

from functools import cache

import torch


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """A CUDA device's compute capability; (9, 0) is Hopper."""
    return torch.cuda.get_device_capability(device)


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU, on which persistent kernels start one program each; 1 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def roomy(device: torch.device) -> bool:
    """Whether a program may have the 227 KiB of shared memory of a data-centre GPU; others have about 99."""
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= 200 << 10
