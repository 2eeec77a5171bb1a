"""Redraft: the engine for DiffusionGemma, which drafts a canvas of tokens at once and redrafts it until it is right.

    llm = redraft.load("tiny")
    print(llm.generate("Why is the sky blue?").text)
"""

from redraft import errors
from redraft.config import GenerationSettings, ModelConfig
from redraft.diffusion.records import Commit, DenoiseStep
from redraft.filling import FillResult
from redraft.llm import LLM, ChatReply, GenerateResult, Stats, load
from redraft.model.weights import load_model, save_model

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "ChatReply",
    "Commit",
    "DenoiseStep",
    "FillResult",
    "GenerateResult",
    "GenerationSettings",
    "ModelConfig",
    "Stats",
    "errors",
    "load",
    "load_model",
    "save_model",
]
