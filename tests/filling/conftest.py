"""A very small random model behind the embedded tokenizer, and pieces of real text that are hard to cut."""

import dataclasses
from pathlib import Path

import pytest

import redraft
from random_model import write_random_model
from redraft.llm import LLM

CANVAS = 16


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's tokenizer and template around a random network with canvases of 16."""
    return write_random_model(tmp_path_factory.mktemp("filling"), canvas=CANVAS, context=256)


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """One layer, to be asked a thousand times."""
    where = write_random_model(tmp_path_factory.mktemp("quick"), canvas=CANVAS, context=128, layers=1)
    return redraft.load(where, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def llm(folder: Path) -> LLM:
    return redraft.load(folder, device="cpu", dtype="float32")


@pytest.fixture
def knowing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The model as one that was taught spare room."""
    monkeypatch.setattr(llm.model, "config", dataclasses.replace(llm.model.config, spare_holes=True))
    return llm
