"""language.py: what kernels are made of."""

import pytest
import torch
from making import normal
from triton.backends.compiler import GPUTarget
from triton.language import target_info

from redraft.kernels.triton import norms


def test_the_interpreter_does_without_the_instructions_of_the_machine_s_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = normal(4, 48), normal(48, seed=1)
    expected = norms.norm(x, weight, 1e-6)
    monkeypatch.setattr(target_info, "current_target", lambda: GPUTarget("cuda", 90, 32))
    ours = norms.norm(x, weight, 1e-6)
    assert isinstance(ours, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    assert ours.equal(expected)
