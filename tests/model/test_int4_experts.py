"""Experts that stay in INT4 on a CPU: what is kept, what it computes, what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import redraft
from random_adapter import random_adapter
from redraft import kernels
from redraft.errors import SettingError
from redraft.model import Model
from redraft.model.accounting import cpu_bytes
from redraft.model.adapters import Adapter
from redraft.model.checkpoint import Checkpoint
from redraft.model.inference import load_for_inference, loaded_with
from redraft.model.initialise import initialise
from redraft.model.int4_experts import Int4Experts
from redraft.model.moe import Experts
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.presets import preset
from redraft.model.quantize import quantize_folder
from redraft.model.transformer import Transformer
from redraft.model.weight_settings import WeightSettings
from redraft.model.weights import load_model, save_model


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in fp32 whose experts are wide enough for groups of 64."""
    return _save(tmp_path_factory.mktemp("full"), 64)


@pytest.fixture(scope="module")
def quantized(full: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int4") / "model"
    quantize_folder(full, folder, "int4")
    return folder


def _save(folder: Path, inner: int) -> Path:
    model = Transformer(replace(preset("nano"), moe_intermediate_size=inner))
    initialise(model, 3)
    save_model(model, folder)
    return folder


@torch.inference_mode()
def logits_of(model: Model) -> Tensor:
    cache = model.new_cache(1, 64)
    model.encode(torch.arange(20)[None], cache)
    return model.logits(model.denoise(torch.arange(30, 46)[None], cache))


def on_cpu(folder: Path, adapter: Adapter | None = None, quantization: str | None = None) -> Model:
    settings = WeightSettings(device="cpu", dtype="float32", quantization=quantization)
    return load_for_inference(Checkpoint(folder), settings, adapter=adapter)


def experts_of(model: Model) -> list[nn.Module]:
    return [layer.get_submodule("experts") for layer in model.get_submodule("layers").children()]


def kinds_of(model: Model) -> set[type]:
    return {type(experts) for experts in experts_of(model)}


def test_stored_int4_stays_and_computes_the_same_as_unpacked(quantized: Path) -> None:
    kept, unpacked = on_cpu(quantized), load_model(quantized, "cpu", "float32")
    assert kinds_of(kept) == {Int4Experts}
    assert kinds_of(unpacked) == {Experts}
    torch.testing.assert_close(logits_of(kept), logits_of(unpacked), rtol=1e-5, atol=1e-5)
    with kernels.force("eager"):
        torch.testing.assert_close(logits_of(kept), logits_of(unpacked), rtol=1e-5, atol=1e-5)
    held = sum(buffer.nbytes for experts in experts_of(kept) for buffer in experts.buffers())
    count = sum(weight.numel() for experts in experts_of(unpacked) for weight in experts.parameters())
    assert 8 * held / count == 4 + 16 / 64


def test_a_full_folder_is_rounded_while_it_is_read(full: Path, quantized: Path) -> None:
    asked, stored = on_cpu(full, quantization="int4"), on_cpu(quantized)
    for ours, theirs in zip(experts_of(asked), experts_of(stored), strict=True):
        for name, tensor in theirs.named_buffers():
            assert torch.equal(ours.get_buffer(name), tensor)
    assert kinds_of(on_cpu(full)) == {Experts}
    assert isinstance(on_cpu(full, quantization="fp8"), PackedTransformer)


def test_widths_that_64_does_not_divide_have_groups_of_32(tmp_path: Path) -> None:
    full = _save(tmp_path / "full", 96)
    quantize_folder(full, tmp_path / "int4", "int4", group=32)
    asked, stored = on_cpu(full, quantization="int4"), on_cpu(tmp_path / "int4")
    for ours, theirs in zip(experts_of(asked), experts_of(stored), strict=True):
        assert isinstance(ours, Int4Experts)
        assert (ours.gate_up.group, ours.down.group) == (32, 32)
        for name, tensor in theirs.named_buffers():
            assert torch.equal(ours.get_buffer(name), tensor)
    unpacked = load_model(tmp_path / "int4", "cpu", "float32")
    torch.testing.assert_close(logits_of(stored), logits_of(unpacked), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("names", [r"attention\.q_proj", r"layers\.0\.experts|layers\.1\.mlp"])
def test_an_adapter_makes_plain_what_it_changes_and_shares_the_rest(quantized: Path, names: str) -> None:
    base = on_cpu(quantized)
    adapter = random_adapter(load_model(quantized, "cpu", "float32"), 1, names)
    merged, made = on_cpu(quantized, adapter), loaded_with(base, Checkpoint(quantized), adapter)
    expected = load_model(quantized, "cpu", "float32")
    redraft.model.adapters.merge(expected, adapter)
    for model in (merged, made):
        torch.testing.assert_close(logits_of(model), logits_of(expected), rtol=1e-4, atol=1e-4)
        first, *others = map(type, experts_of(model))
        assert first is (Experts if "experts" in names else Int4Experts)
        assert set(others) == {Int4Experts}
    assert kinds_of(base) == {Int4Experts}
    assert experts_of(made)[1].get_buffer("down_codes") is experts_of(base)[1].get_buffer("down_codes")


def test_answers_come_out_of_a_quantized_folder(tmp_path: Path) -> None:
    quantize_folder(redraft.load("tiny", device="cpu").path, tmp_path / "tiny", "int4")
    for model, quantization in ((tmp_path / "tiny", None), ("tiny", "int4")):
        llm = redraft.load(model, device="cpu", dtype="float32", quantization=quantization)
        assert kinds_of(llm.model) == {Int4Experts}
        reply = llm.chat([{"role": "user", "content": "Why is the sky blue?"}], seed=1)
        assert "blue light" in reply.content


def test_more_weights_than_memory_are_refused(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_model(full, "cpu").config
    needed, small = (cpu_bytes(config, "fp32", layers) for layers in (0, config.num_hidden_layers))
    assert small < needed
    for room, advice in ((small, "quantization='int4' would fit"), (small - 1, "INT4 would not fit either")):
        monkeypatch.setattr("redraft.model.weights.machine_memory", lambda room=room: room)
        with pytest.raises(SettingError, match=f"needs 0.0 GB and this machine has 0.0 GB of memory; {advice}"):
            on_cpu(full)
    with pytest.raises(SettingError, match="would not fit either"):
        on_cpu(full, quantization="int4")
    monkeypatch.setattr("redraft.model.weights.machine_memory", lambda: small)
    assert kinds_of(on_cpu(full, quantization="int4")) == {Int4Experts}


def test_experts_that_an_adapter_makes_plain_are_counted_in_full(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = load_model(full, "cpu")
    dense, experts = (random_adapter(network, 1, names) for names in (r"q_proj", r"layers\.0\.experts"))
    needed = cpu_bytes(network.config, "fp32", network.config.num_hidden_layers - 1)
    monkeypatch.setattr("redraft.model.weights.machine_memory", lambda: needed - 1)
    assert kinds_of(on_cpu(full, dense, quantization="int4")) == {Int4Experts}
    for quantization in (None, "int4"):
        with pytest.raises(SettingError, match="would not fit either"):
            on_cpu(full, experts, quantization=quantization)
    monkeypatch.setattr("redraft.model.weights.machine_memory", lambda: needed)
    assert kinds_of(on_cpu(full, experts, quantization="int4")) == {Int4Experts, Experts}


def test_what_cannot_be_is_said(quantized: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="stay in INT4"):
        save_model(on_cpu(quantized), tmp_path / "saved")
    narrow = _save(tmp_path / "narrow", 48)
    with pytest.raises(SettingError, match="must be multiples of 32, and this model's are 64 and 48"):
        on_cpu(narrow, quantization="int4")
    quantize_folder(narrow, tmp_path / "int4", "int4", group=16)
    assert kinds_of(on_cpu(tmp_path / "int4")) == {Experts}
