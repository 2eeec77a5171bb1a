"""Redraft: the engine for DiffusionGemma, which drafts a canvas of tokens at once and redrafts it until it is right.

    llm = redraft.load("tiny")
    print(llm.generate("Why is the sea salty?").text)

The names below are imported on first use, which keeps `import redraft` and `redraft --help` fast.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redraft import errors
    from redraft.config import ModelConfig
    from redraft.deciding import Decision, Reading
    from redraft.diffusion.causal import TokenScore
    from redraft.diffusion.records import Commit, DenoiseStep, FinishReason, Record, TokenConfidence
    from redraft.editing import EditResult, NextEdit
    from redraft.engine.async_engine import AsyncEngine
    from redraft.engine.request import AnswerStats, Stats
    from redraft.engine.result import AnswerStream, ChatReply, GenerateResult
    from redraft.engine.settings import EngineSettings
    from redraft.filling import Filling, FillResult
    from redraft.llm import LLM
    from redraft.loading import load
    from redraft.model.weights import load_model, save_model
    from redraft.scoring import Score
    from redraft.settings import GenerationSettings
    from redraft.text.tools import ToolCall

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AnswerStats",
    "AnswerStream",
    "AsyncEngine",
    "ChatReply",
    "Commit",
    "Decision",
    "DenoiseStep",
    "EditResult",
    "EngineSettings",
    "FillResult",
    "Filling",
    "FinishReason",
    "GenerateResult",
    "GenerationSettings",
    "ModelConfig",
    "NextEdit",
    "Reading",
    "Record",
    "Score",
    "Stats",
    "TokenConfidence",
    "TokenScore",
    "ToolCall",
    "errors",
    "load",
    "load_model",
    "save_model",
]

_HOMES = {
    "redraft.config": ("ModelConfig",),
    "redraft.diffusion.causal": ("TokenScore",),
    "redraft.diffusion.records": ("Commit", "DenoiseStep", "FinishReason", "Record", "TokenConfidence"),
    "redraft.deciding": ("Decision", "Reading"),
    "redraft.editing": ("EditResult", "NextEdit"),
    "redraft.filling": ("FillResult", "Filling"),
    "redraft.engine.async_engine": ("AsyncEngine",),
    "redraft.engine.request": ("AnswerStats", "Stats"),
    "redraft.engine.result": ("AnswerStream", "ChatReply", "GenerateResult"),
    "redraft.engine.settings": ("EngineSettings",),
    "redraft.llm": ("LLM",),
    "redraft.loading": ("load",),
    "redraft.model.weights": ("load_model", "save_model"),
    "redraft.scoring": ("Score",),
    "redraft.settings": ("GenerationSettings",),
    "redraft.text.tools": ("ToolCall",),
}
# Torch's libraries read these once; a value set by the user wins (docs/performance.md). By default OpenMP's threads
# spin for milliseconds while they wait for one another, which slows down two programs that share cores. oneDNN and what
# calls it keep 1,024 prepared products of bf16 matrices each: every new length of a prompt adds some, in all 0.7 GB.
if "torch" not in sys.modules:
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker that saw it would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name == "errors":
            return import_module("redraft.errors")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'redraft' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
