"""The model that a run begins with: fresh weights, or those of the folder named in the recipe."""

from __future__ import annotations

import dataclasses

import torch

from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.model.weights import load_model
from redraft.train.lora import adapt
from redraft.train.quantized import load_quantized
from redraft.train.recipe import Recipe


def initial_model(recipe: Recipe, device: torch.device) -> Transformer:
    """The recipe's model on the device, with the factors of its adapter; trained weights are fp32.

    Raises `SettingError` if the model of `run.init` has a different shape from the recipe's, and `CheckpointError` for
    damaged files.
    """
    if not recipe.run.init:
        model = Transformer(recipe.model)
        initialise(model, recipe.run.seed)
        return model.to(device)
    model = _given_model(recipe, device)
    if _tensor_shapes(model.config) != _tensor_shapes(recipe.model):
        raise SettingError(f"run.init: the model in {recipe.run.init!r} has a different shape from the recipe's.")
    model.config = dataclasses.replace(model.config, canvas_length=recipe.model.canvas_length)  # as it is trained
    if recipe.lora is not None:
        adapt(model, recipe.lora, recipe.run.seed)
    return model.to(device)


def _given_model(recipe: Recipe, device: torch.device) -> Transformer:
    """The model of `run.init`: in fp32, or in `run.dtype` or quantized if it will be frozen."""
    run, lora = recipe.run, recipe.lora
    if lora is not None and lora.quantization:
        return load_quantized(run.init, lora.quantization, device=device, dtype=getattr(torch, run.dtype))
    model = load_model(run.init, device="cpu", dtype=run.dtype if lora else "float32", vision=False)
    for parameter in model.parameters():  # loading may have arranged them for CPU products
        parameter.data = parameter.data.contiguous()
    return model


def _tensor_shapes(config: ModelConfig) -> ModelConfig:
    """A config reduced to what determines the weights' shapes."""
    return dataclasses.replace(config, canvas_length=256, eos_token_id=(1,), max_position_embeddings=1, extra={})
