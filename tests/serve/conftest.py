"""A small random model, and one real server that most tests share."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from browsing import chromium, opened_page
from serving import ServerProcess, server_process, write_model

import redraft
from redraft.llm import LLM


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else httpx waits no more than five seconds, which a loaded machine may need."""
    for name in ("get", "options", "post", "stream"):
        monkeypatch.setattr(httpx, name, partial(getattr(httpx, name), timeout=120))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random model's folder."""
    return write_model(tmp_path_factory.mktemp("served") / "random")


@pytest.fixture(scope="session")
def llm(folder: Path) -> LLM:
    """The random model in this process."""
    return redraft.load(folder, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[ServerProcess]:
    """`redraft serve` in a process of its own."""
    with server_process(
        folder, "--name", "random", "--name", "gpt-4o", "--slots", "4", "--max-body", "200000"
    ) as running:
        yield running


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of that server."""
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """The `openai` package's client of that server."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium."""
    with chromium() as made:
        yield made


@pytest.fixture
def page(browser: Any, server: ServerProcess) -> Iterator[Any]:
    """The page of that server."""
    with opened_page(browser, server.url) as opened:
        yield opened
