"""Linear layers by the table of kernels: the same weights under the same names, whatever is done to them."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from random_adapter import random_adapter
from redraft.kernels import eager
from redraft.model.adapters import merge, with_adapter
from redraft.model.checkpoint import Checkpoint
from redraft.model.inference import load_for_inference
from redraft.model.initialise import initialise
from redraft.model.linear import Linear, through_kernels
from redraft.model.presets import preset
from redraft.model.transformer import Transformer
from redraft.model.weight_settings import WeightSettings
from redraft.model.weights import load_model, save_model


def fresh() -> Transformer:
    model = Transformer(preset("nano"))
    initialise(model, 0)
    return model


@torch.inference_mode()
def answer(model: Transformer) -> torch.Tensor:
    cache = model.new_cache(1, 64)
    model.encode(torch.arange(20)[None], cache)
    return model.logits(model.denoise(torch.arange(30, 46)[None], cache))


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def test_nothing_changes_but_the_way_of_computing(tmp_path: Path) -> None:
    plain, ours = fresh(), fresh()
    places = [parameter.data_ptr() for parameter in ours.parameters()]
    through_kernels(ours)
    assert all(type(layer) is Linear for layer in linear_layers(ours))
    assert [parameter.data_ptr() for parameter in ours.parameters()] == places
    assert list(ours.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(answer(ours), answer(plain), rtol=1e-4, atol=1e-4)
    save_model(plain, tmp_path / "plain"), save_model(ours, tmp_path / "ours")
    first, second = (tmp_path / name / "model.safetensors" for name in ("plain", "ours"))
    assert first.read_bytes() == second.read_bytes()


def test_changed_weights_are_seen_at_once() -> None:
    """By merging, in a twin, in a copy and by loading others: nothing is kept beside the weights."""
    ours, before = fresh(), fresh()
    through_kernels(ours)
    adapter = random_adapter(ours, 1, r"attention\.q_proj|mlp\.down", size=0.3)
    twin, copied = with_adapter(ours, adapter), copy.deepcopy(ours)
    merge(before, adapter), merge(copied, adapter)
    merged = answer(copied)
    torch.testing.assert_close(merged, answer(before), rtol=1e-4, atol=1e-4)
    assert torch.equal(answer(twin), merged)
    assert not torch.equal(answer(ours), merged)
    ours.load_state_dict(before.state_dict())
    assert torch.equal(answer(ours), merged)


def test_gradients_take_pytorchs_way() -> None:
    ours, plain = fresh(), fresh()
    through_kernels(ours)
    x = torch.randn(5, ours.config.hidden_size)
    for model in (ours, plain):
        layer = model.layers[0]
        layer.mlp(x).sum().backward()  # type: ignore[operator, union-attr]
    for first, second in zip(ours.parameters(), plain.parameters(), strict=True):
        assert (first.grad is None) == (second.grad is None)
        assert first.grad is None or torch.equal(first.grad, second.grad)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_to_answer_and_loading_to_train(tmp_path: Path, dtype: str) -> None:
    """Training and GPUs have PyTorch's layers."""
    save_model(fresh(), tmp_path)
    assert all(type(layer) is nn.Linear for layer in linear_layers(load_model(tmp_path, "cpu", dtype)))
    answering = load_for_inference(Checkpoint(tmp_path), WeightSettings(device="cpu", dtype=dtype))
    assert all(type(layer) is Linear for layer in linear_layers(answering))


def test_without_a_compiler_pytorch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    from redraft.kernels import native

    plain, ours = fresh(), fresh()
    through_kernels(ours)
    monkeypatch.setattr(native, "available", lambda: False)
    assert torch.equal(answer(ours), answer(plain))
    layer, x = linear_layers(ours)[0], torch.randn(3, ours.config.hidden_size)
    with torch.no_grad():
        assert torch.equal(layer(x), eager.linear(x, layer.weight))
