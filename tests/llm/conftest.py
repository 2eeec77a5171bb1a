"""A front door to a random model with the embedded tokenizer, for canvases of 16 tokens."""

from pathlib import Path

import pytest

import redraft
from random_model import write_random_model
from redraft.llm import LLM


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the embedded model's tokenizer and template and a very small random network."""
    return write_random_model(tmp_path_factory.mktemp("random"), canvas=16, context=192)


@pytest.fixture(scope="session")
def llm(folder: Path) -> LLM:
    return redraft.load(folder, device="cpu", dtype="float32")
