"""Which version of Triton takes the kernels in Gluon."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from redraft.kernels.gluon import language


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    language._wanted.cache_clear()
    yield
    language._wanted.cache_clear()


@pytest.mark.parametrize(
    ("version", "asked", "wanted", "warned"),
    [
        ("3.6.0", None, True, False),
        ("3.9.0", None, True, False),
        ("3.10.0", None, False, True),
        ("3.10.0", "1", True, False),
        ("3.10.0", "0", False, False),
        ("3.6.0", "0", False, False),
    ],
)
def test_the_versions_that_they_ran_with_or_the_word_of_the_user(
    version: str,
    asked: str | None,
    wanted: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(language.triton, "__version__", version)
    monkeypatch.delenv("REDRAFT_GLUON", raising=False)
    if asked is not None:
        monkeypatch.setenv("REDRAFT_GLUON", asked)
    assert [language._wanted() for _ in range(3)] == [wanted] * 3
    assert [(version in text, "REDRAFT_GLUON=1" in text) for text in caplog.messages] == [(True, True)] * warned


def test_other_gpus_do_not_ask_for_them(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(language.triton, "__version__", "3.10.0")
    monkeypatch.delenv("REDRAFT_GLUON", raising=False)
    monkeypatch.setattr(language, "capability", lambda device: (10, 0))
    on_gpu: Any = SimpleNamespace(is_cuda=True, device=None)
    assert not language.use_gluon(on_gpu)
    assert not language.use_gluon(torch.empty(1))
    assert caplog.messages == []
