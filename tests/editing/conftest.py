"""A very small random model behind the embedded tokenizer and chat template."""

import pytest

import redraft
from random_model import write_random_model
from redraft.llm import LLM

CANVAS = 24


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """One layer, to be asked a thousand times."""
    where = write_random_model(tmp_path_factory.mktemp("quick"), canvas=CANVAS, context=256, layers=1)
    return redraft.load(where, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """Canvases of 24 and a context of 512."""
    where = write_random_model(tmp_path_factory.mktemp("editing"), canvas=CANVAS, context=512)
    return redraft.load(where, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def tiny() -> LLM:
    """The embedded model."""
    return redraft.load("tiny", device="cpu", dtype="float32")
