"""language.py: what kernels are made of."""

import pytest
from making import normal
from triton.backends.compiler import GPUTarget
from triton.language import target_info

from redraft.kernels.triton.quantize import quantize_rows


def test_the_interpreter_does_without_the_instructions_of_the_machine_s_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(4, 128)
    expected = quantize_rows(x)
    monkeypatch.setattr(target_info, "current_target", lambda: GPUTarget("cuda", 90, 32))
    ours = quantize_rows(x)
    assert ours.values.float().equal(expected.values.float())
    assert ours.scale.equal(expected.scale)
