"""Compile the C files of this folder for this processor, once, and load them.

This takes a second with the system's C compiler; the result stays in the user's cache. Threads are PyTorch's: the
library is linked without an OpenMP runtime and finds PyTorch's. If any of this fails, there is no library, and
PyTorch's operations do the same work (`kernels/cpu.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno",
          "-fno-trapping-math")  # fmt: skip
_SECONDS = 120
_TYPES = {"*": ctypes.c_void_p, "integer": ctypes.c_int64, "float": ctypes.c_float, "int": ctypes.c_int}
_log = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled operations; None without a compiler, on systems other than Linux, or with REDRAFT_NATIVE=0."""
    if sys.platform != "linux" or os.environ.get("REDRAFT_NATIVE") == "0":
        return None
    try:
        return _load()
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        # RuntimeError: there is no home folder; ValueError: $CC has an unclosed quotation mark
        _log.warning("The C kernels are left out, which makes the CPU slower: %s", _reason(error))
        return None


def _load() -> ctypes.CDLL | None:
    compiler = _compiler()
    if compiler is None:
        _log.info("No C compiler: PyTorch's operations are used on the CPU.")
        return None
    file = cache_folder() / f"{_key(compiler)}.so"
    if not file.exists():
        _compile(compiler, file)
    return ctypes.CDLL(str(file))


def arguments_of(function: str) -> list[type]:
    """The types of an exported function's arguments, as its C file declares them, in one line or several."""
    for file in _FOLDER.glob("*.c"):
        if found := re.search(rf"^EXPORT \w+ redraft_{function}\((.*?)\)", file.read_text("utf-8"), re.M | re.S):
            return [_TYPES["*" if "*" in one else one.split()[0]] for one in found[1].split(",")]
    raise LookupError(f"no C file exports redraft_{function}")


def _compiler() -> list[str] | None:
    """The command $CC, else GCC, whose OpenMP calls PyTorch's runtime supports, else cc; with its full path.

    It compiles for this processor unless its options name another one.
    """
    given = shlex.split(os.environ.get("CC", ""))
    commands = [given] if given else [["gcc"], ["cc"]]
    found = ([os.path.abspath(path), *options] for name, *options in commands if (path := shutil.which(name)))
    command = next(found, None)
    if command is not None and not any(option.startswith("-march=") for option in command):
        command.append("-march=native")
    return command


def cache_folder() -> Path:
    """Where compiled libraries stay: $XDG_CACHE_HOME/redraft/native, or the same under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "redraft" / "native"


def _key(compiler: Sequence[str]) -> str:
    """A name for the result of these sources with this compiler, on this processor."""
    digest = hashlib.sha256(repr((compiler, os.stat(compiler[0]).st_mtime_ns, _FLAGS, _processor())).encode())
    for file in sorted(_FOLDER.glob("*.[ch]")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:24]


def _processor() -> str:
    """The instruction sets of this processor, as reported by Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def _compile(compiler: Sequence[str], target: Path) -> None:
    """Compile and link in a temporary folder; `target` appears in one step, even if other processes do the same."""
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(_FOLDER.glob("*.c"))
    objects = [f"{file.stem}.o" for file in sources]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        for arguments in (*_FLAGS, "-c", *map(str, sources)), ("-shared", "-o", target.name, *objects, "-lm"):
            subprocess.run(
                [*compiler, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=_SECONDS
            )
        os.replace(Path(folder) / target.name, target)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or "").strip().splitlines() or [f"{error.cmd[0]} failed"]
        return next((line for line in lines if "error" in line), lines[0])
    return str(error)
