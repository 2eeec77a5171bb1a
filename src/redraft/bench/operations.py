"""Every operation of a step by itself, with the inputs that it gets in a step over one layer of each kind."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from redraft.bench.board import Board, StepCase
from redraft.bench.random_weights import random_source, sharpened
from redraft.config import ModelConfig
from redraft.kernels.switches import Operation, known, watching
from redraft.model.layouts import Weight
from redraft.model.packed.build import pack
from redraft.model.packed.requirements import fp8_vocabulary
from redraft.model.packed.transformer import PackedTransformer

AROUND = ("predict", "soft_embeddings", "finish_step")
"""Operations after the last layer."""
OVERWRITES = {"soft_embeddings": 0, "after_experts": 2}
"""Which argument an operation overwrites or uses up: the logits become probabilities, experts' rows are dropped."""
FAINT = 0.25
"""The factor of tokens' embeddings where distributions shall be flat, as thirty layers of random weights leave them.
Otherwise a token would outweigh what two layers add to it, and the model would predict the token that it sees."""

T = TypeVar("T")


@torch.inference_mode()
def visit_operations(
    config: ModelConfig, device: torch.device, visit: Callable[[Operation, str], T], *, quantization: str | None,
    case: StepCase, only: Collection[str] = (),
) -> list[T]:  # fmt: skip
    """What `visit` returns for each operation about to run, or for some `only`, in the order of a step.

    It also gets the kind of layer, "sliding" or "full", or "" outside layers. Weights are random.
    """
    known(only)
    kinds = tuple(dict.fromkeys(config.layer_types))
    embedding_scale = 1.0 if case.certain else FAINT
    model = _random_model(replace(config, layer_types=kinds), device, quantization, embedding_scale)
    found: list[T] = []
    layer = -1

    def watch(operation: Operation) -> Any:
        nonlocal layer
        layer += operation.name == "qkv_linear"
        kind = kinds[layer] if layer >= 0 and operation.name not in AROUND else ""
        if not only or operation.name in only:
            found.append(visit(operation, kind.removesuffix("_attention")))
        return operation.run()

    with sharpened(model) if case.certain else nullcontext():
        board = Board(model, case, graphs=False)
        board.prefill()
        for step in (0, 1):  # a canvas' first step has no soft embeddings to read
            board.runner.run(board.steps_at(step))
        with watching(watch):
            board.runner.bucket(case.batch).launch_singly()
    return found


def fresh(operation: Operation) -> Operation:
    """The operation on a copy of whatever it overwrites."""
    if operation.name not in OVERWRITES:
        return operation
    args = list(operation.args)
    used = args[OVERWRITES[operation.name]]
    args[OVERWRITES[operation.name]] = (
        used.clone() if isinstance(used, Tensor) else tuple(part.clone() for part in used)
    )
    return replace(operation, args=tuple(args))


def _random_model(
    config: ModelConfig, device: torch.device, quantization: str | None, embedding_scale: float
) -> PackedTransformer:
    weights = random_source(config, device, torch.bfloat16)

    def source(name: str) -> Weight:
        weight = weights(name)
        return weight * embedding_scale if name == "embedding.weight" and isinstance(weight, Tensor) else weight

    fp8 = fp8_vocabulary(config, "auto", device, quantized=quantization is not None)
    given = {"dtype": torch.bfloat16, "quantization": quantization, "fp8_vocabulary": fp8}
    return PackedTransformer(pack(config, source, device=device, **given))
