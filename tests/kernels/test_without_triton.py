"""PyTorch for CPUs brings no Triton: everything must import without it."""

import subprocess
import sys

CODE = """
import pkgutil, sys
from importlib import import_module

sys.modules["triton"] = None  # importing it fails
import redraft.kernels

for module in pkgutil.walk_packages(redraft.kernels.__path__, "redraft.kernels."):
    import_module(module.name)
import_module("redraft.llm")
assert redraft.kernels.triton.language.triton is None
"""


def test_every_kernel_and_the_api_import() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
