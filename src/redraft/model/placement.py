"""Where a model lives and in which number format: resolves the `device` and `dtype` that a user names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from redraft.checks import plain, require_type
from redraft.errors import SettingError, one_of

Dtype = Literal["auto", "bfloat16", "bf16", "float32", "fp32"]
"""What `resolve_dtype` takes by name."""
DTYPES = {
    "bfloat16": torch.bfloat16, "bf16": torch.bfloat16, "float32": torch.float32, "fp32": torch.float32,
}  # fmt: skip

DEVICES = ("auto", "cpu", "cuda", "cuda:N")

OLDEST = (8, 0)
"""The first compute capability with bf16 products."""
OLDEST_FP8 = (8, 9)
"""The first one with FP8 products. Older ones keep in bf16 what would be in FP8, and INT4 experts take bf16 rows."""


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """`auto` is CUDA where there is one, else the CPU; a CUDA device comes with its number.

    Raises `SettingError` for a device that does not exist here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(str(device))  # PyTorch takes numbers, too, some versions only where there is a GPU
    except RuntimeError:
        raise SettingError(f"device is {device!r}; it must be {one_of(DEVICES)}.", "device") from None
    if chosen.type not in ("cpu", "cuda") or (chosen.type == "cpu" and chosen.index is not None):
        raise SettingError(f"device is {str(device)!r}; it must be {one_of(DEVICES)}.", "device")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise SettingError(f"device is {str(device)!r}; this machine has {there} CUDA devices.", "device")
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return chosen


def resolve_devices(device: str | torch.device, gpus: int) -> tuple[torch.device, ...]:
    """The devices of a model: one, or the first `gpus` CUDA devices.

    Raises `SettingError` if they do not exist, differ, or `device` names a single one.
    """
    gpus = plain(gpus)
    require_type("gpus", gpus, int)
    if gpus < 1:
        raise SettingError(f"gpus is {gpus}; it must be at least 1.", "gpus")
    if gpus == 1:
        return (resolve_device(device),)
    if device not in ("auto", "cuda") or resolve_device(device).type != "cuda":
        raise SettingError(
            f"gpus is {gpus} and device is {str(device)!r}; it must be 'cuda', on a machine with GPUs.", "gpus"
        )
    there = torch.cuda.device_count()
    if gpus > there:
        raise SettingError(f"gpus is {gpus}; this machine has {there} CUDA devices.", "gpus")
    kinds = [torch.cuda.get_device_name(number) for number in range(gpus)]
    if len(set(kinds)) > 1:
        raise SettingError(f"gpus is {gpus}; they must be of one kind, not {' and '.join(sorted(set(kinds)))}.", "gpus")
    return tuple(torch.device("cuda", number) for number in range(gpus))


def resolve_dtype(dtype: str | torch.dtype, device: torch.device, stored: torch.dtype) -> torch.dtype:
    """`auto` is the checkpoint's own format on CUDA and the fast one on a CPU; float16 is never chosen.

    Raises `SettingError` for formats the model does not run in.
    """
    if dtype == "auto":
        if device.type == "cpu":
            return torch.bfloat16 if cpu_has_bf16_products() else torch.float32
        return stored if stored in DTYPES.values() else torch.bfloat16
    chosen = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if chosen is None or chosen not in DTYPES.values():
        raise SettingError(f"dtype is {str(dtype)!r}; it must be {one_of(('auto', 'bfloat16', 'float32'))}.", "dtype")
    return chosen


@contextmanager
def without_autocast() -> Iterator[None]:
    """Inside, tensors keep their own number formats, whatever `torch.autocast` the caller is in."""
    if not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda"):
        yield  # switching it off all the same takes 5 us, a noticeable part of what a step costs the host
        return
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def lacks_fp8(device: torch.device) -> bool:
    """Whether this is a GPU without FP8 products; a CPU emulates them."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST_FP8


def machine_memory() -> int | None:
    """Bytes of this machine's memory; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def cpu_has_bf16_products() -> bool:
    """Whether this CPU has bf16 matrix instructions. Without them bf16 products are about 8 times slower than fp32."""
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
