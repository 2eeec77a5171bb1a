"""A tokenizer, models and vocabularies for constraint tests."""

import dataclasses

import pytest
import torch

from redraft.llm import LLM
from redraft.model import Transformer
from redraft.model.folders import resolve_folder
from redraft.model.presets import preset
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve_folder("tiny"))


@pytest.fixture(scope="session")
def random_llm(tokenizer: Tokenizer) -> LLM:
    """Random weights behind the embedded tokenizer: it has no idea what JSON is."""
    torch.manual_seed(0)
    config = dataclasses.replace(
        preset("nano"), vocab_size=tokenizer.vocab_size, max_position_embeddings=2048, canvas_length=32
    )
    model = Transformer(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    template = ChatTemplate.from_folder(resolve_folder("tiny"))
    special = tokenizer.special_ids
    return LLM(model, tokenizer, template, path=resolve_folder("tiny"), eos_ids=(1, special["<turn|>"]))
