"""Fixtures for operations on a CPU."""

from collections.abc import Iterator

import pytest
import torch

from redraft.kernels import cpu, native


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """C has to take what a test hands it: the versions that it leaves things to are gone."""
    if not native.available():
        pytest.skip("needs a C compiler")
    for name in native.__all__:
        if hasattr(cpu, name):
            monkeypatch.setattr(cpu, name, None)
