"""Checks of kernels under Triton's interpreter. tests/kernels/test_interpreter.py runs them in their own processes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor: Any, *scope: Any) -> None:
    """Loops over bounds read from memory: the interpreter's own conversion to int fails with NumPy 2.4."""
    _patch(tensor, *scope)
    tensor.__index__ = lambda self: self.handle.data.item()


interpreter._patch_lang_tensor = _patch_with_index


@pytest.fixture(autouse=True)
def _unwritten_memory_is_nan() -> Iterator[None]:
    """What no kernel writes is NaN, not whatever memory held: each run sees the same, and reading it shows."""
    torch.use_deterministic_algorithms(True)  # which fills new tensors, as torch.utils.deterministic says
    yield
    torch.use_deterministic_algorithms(False)
