"""Which version of Triton takes the kernels in Gluon."""

from collections.abc import Iterator

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from redraft.kernels.gluon import language


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    language._wanted.cache_clear()
    yield
    language._wanted.cache_clear()


@pytest.mark.parametrize(
    ("version", "asked", "wanted"),
    [
        ("3.6.0", None, True),
        ("3.9.0", None, True),
        ("3.10.0", None, False),
        ("3.10.0", "1", True),
        ("3.6.0", "0", False),
    ],
)
def test_the_versions_that_they_ran_with_or_the_word_of_the_user(
    version: str, asked: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language.triton, "__version__", version)
    monkeypatch.delenv("REDRAFT_GLUON", raising=False)
    if asked is not None:
        monkeypatch.setenv("REDRAFT_GLUON", asked)
    assert language._wanted() == wanted
