"""Compile the C files of this folder for this processor, once, and load them.

Takes a second with the system's C compiler; what comes out stays in the user's cache. Threads are those that PyTorch
has: the library is linked without an OpenMP runtime of its own and finds PyTorch's. Where any of this fails, there is
no library, and PyTorch's operations do the same work (`kernels/cpu.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno",
          "-fno-trapping-math")  # fmt: skip
_SECONDS = 120
_log = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled operations, or None: without a compiler, elsewhere than on Linux, with REDRAFT_NATIVE=0."""
    if sys.platform != "linux" or os.environ.get("REDRAFT_NATIVE") == "0":
        return None
    try:
        return _load()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: there is no home folder
        _log.warning("C kernels are left out, which makes a CPU slower: %s", _reason(error))
        return None


def _load() -> ctypes.CDLL | None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        _log.info("No C compiler: PyTorch's operations are used on the CPU.")
        return None
    file = cache_folder() / f"{_key(compiler)}.so"
    if not file.exists():
        _compile(compiler, file)
    return ctypes.CDLL(str(file))


def cache_folder() -> Path:
    """Where compiled libraries stay: $XDG_CACHE_HOME/redraft/native, or the same under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "redraft" / "native"


def _key(compiler: str) -> str:
    """A name for what these sources come out as with this compiler, on this processor."""
    digest = hashlib.sha256(repr((compiler, os.stat(compiler).st_mtime_ns, _FLAGS, _processor())).encode())
    for file in sorted(_FOLDER.glob("*.[ch]")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:24]


def _processor() -> str:
    """The instructions that this processor has, as far as Linux says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def _compile(compiler: str, target: Path) -> None:
    """Compile and link in a folder of its own; `target` appears in one step, whoever else does the same."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        for command in (
            [compiler, *_FLAGS, "-c", *map(str, sorted(_FOLDER.glob("*.c")))],
            [
                compiler,
                "-shared",
                "-o",
                target.name,
                *(f"{file.stem}.o" for file in sorted(_FOLDER.glob("*.c"))),
                "-lm",
            ],
        ):
            subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_SECONDS)
        os.replace(Path(folder) / target.name, target)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return (error.stderr or "").strip().splitlines()[0] if error.stderr else f"{error.cmd[0]} failed"
    return str(error)
