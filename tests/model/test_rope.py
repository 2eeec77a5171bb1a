"""Rotary positions of a model that several threads use for the first time."""

from typing import Any

import pytest
import torch
from torch import Tensor

from redraft.model import rope
from redraft.model.presets import preset
from redraft.model.transformer import Transformer


def test_nobody_sees_the_frequencies_of_one_kind_of_layers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, positions = Transformer(preset("nano")), torch.arange(4)[None]
    calls: list[Any] = []
    between: list[Any] = []

    def another_thread_comes_between(config: Any, *, sliding: bool) -> Tensor:
        calls.append(sliding)
        if len(calls) == 2:
            between.append(model.rope(positions))
        return rope.inverse_frequencies(config, sliding=sliding)

    monkeypatch.setattr("redraft.model.transformer.inverse_frequencies", another_thread_comes_between)
    kinds = set(preset("nano").layer_types)
    assert set(model.rope(positions)) == set(between[0]) == kinds
