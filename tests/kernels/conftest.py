"""Fixtures for operations on a CPU."""

import pytest

from redraft.kernels import cpu, native


@pytest.fixture
def in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """C has to take what a test hands it: the versions that it leaves things to are gone."""
    if not native.available():
        pytest.skip("needs a C compiler")
    for name in native.__all__:
        if hasattr(cpu, name):
            monkeypatch.setattr(cpu, name, None)
