"""What the GPU benchmarks share: the card, its ceilings, and times taken on the device."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from redraft.bench.roofline import Ceilings
from redraft.errors import SettingError
from redraft.model.placement import lacks_fp8, resolve_device

_COPY_BYTES = 4 << 30
_SIZE = 8192


def check_gpu() -> None:
    """Raise `SettingError` if there is no CUDA device. Does not use any device memory."""
    if not torch.cuda.is_available():
        raise SettingError("This benchmark measures a CUDA GPU, and this machine has none.")


def require_gpu(device: str = "auto") -> torch.device:
    """The CUDA device to measure on, set as the current one. Raises `SettingError` if there is none."""
    if device == "auto":
        check_gpu()
    chosen = resolve_device(device)
    if chosen.type != "cuda":
        raise SettingError(f"This benchmark measures a CUDA GPU; device is {str(device)!r}.")
    torch.cuda.set_device(chosen)  # where events are recorded and single kernels run
    return chosen


def milliseconds(function: Callable[[], object], *, count: int = 10, warm: int = 3) -> float:
    """Mean time of one call on the device, by events around `count` calls."""
    for _ in range(warm):
        function()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def measure_ceilings(device: torch.device) -> Ceilings:
    """What this card reaches: a copy counted as read and written, and 8192-cubed products of random numbers.

    A card without FP8 products gets its bf16 rate for them.
    """
    left = torch.randn(_SIZE, _SIZE, device=device, dtype=torch.bfloat16)
    right = torch.randn(_SIZE, _SIZE, device=device, dtype=torch.bfloat16)
    flops = 2 * _SIZE**3 * 1e3
    bf16 = flops / milliseconds(lambda: left @ right)
    return Ceilings(bandwidth=_copy_rate(device), bf16=bf16, fp8=_fp8_rate(left, right, flops) or bf16)


def _copy_rate(device: torch.device) -> float:
    room = torch.cuda.mem_get_info(device)[0] // 4
    source = torch.empty(min(_COPY_BYTES, room) // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source)) * 1e3


def _fp8_rate(left: torch.Tensor, right: torch.Tensor, flops: float) -> float | None:
    return None if lacks_fp8(left.device) else flops / milliseconds(fp8_product(left, right))


def fp8_product(left: torch.Tensor, right: torch.Tensor) -> Callable[[], torch.Tensor]:
    """PyTorch's product in FP8 of left [M,K] with right [N,K] transposed, both rounded beforehand."""
    rows, columns = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=left.device)
    return lambda: torch._scaled_mm(rows, columns, one, one, out_dtype=torch.bfloat16)  # pyright: ignore[reportPrivateImportUsage]


def free_cached_memory() -> None:
    """Release freed memory that torch holds on to, so that a process' memory is what it needs."""
    gc.collect()
    torch.cuda.empty_cache()
