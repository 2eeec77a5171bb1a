"""What results say of the machine and the software that gave them."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import redraft
from redraft.kernels.triton.language import triton


def device_facts(device: torch.device) -> dict[str, Any]:
    """The name of a processor, or the name and memory of a GPU."""
    if device.type == "cpu":
        return {"device": processor()}
    properties = torch.cuda.get_device_properties(device)
    return {"device": properties.name, "device_memory_gb": round(properties.total_memory / 1e9, 1)}


def processor() -> str:
    """The CPU's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def versions() -> dict[str, str]:
    """The versions of everything that the numbers depend on."""
    found = {"python": platform.python_version(), "redraft": redraft.__version__, "torch": torch.__version__}
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    if triton is not None:  # the module in use, which may come from another place than the installed package
        found["triton"] = triton.__version__
    with suppress(PackageNotFoundError):
        found["transformers"] = version("transformers")
    return found
