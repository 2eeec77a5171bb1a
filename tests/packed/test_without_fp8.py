"""What a GPU without FP8 products makes of quantized weights, tried on a CPU that is taken for one."""

import json
from pathlib import Path

import pytest
import torch
from test_load_for_inference import CUDA, folder, logits_of, packed_from, stored_in
from typer.testing import CliRunner

import redraft
from redraft.bench import gpu
from redraft.bench.roofline import H200
from redraft.cli.main import app
from redraft.errors import SettingError
from redraft.kernels.packed import PackedInt4
from redraft.model.packed import build, layers, requirements
from redraft.model.packed.requirements import check_room
from redraft.model.presets import preset
from redraft.model.quantize import quantize_folder

__all__ = ["folder"]  # a fixture


@pytest.fixture
def without_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (build, layers, requirements):
        monkeypatch.setattr(module, "lacks_fp8", lambda device: True)


@pytest.mark.usefixtures("without_fp8")
@pytest.mark.parametrize("format", ["fp8", "int4"])
def test_only_experts_in_int4_stay_quantized(folder: Path, tmp_path: Path, format: str) -> None:
    quantize_folder(folder, tmp_path / "q", format)
    packed, full = packed_from(tmp_path / "q"), redraft.load_model(tmp_path / "q", "cpu", "float32")
    assert packed.packed.quantization == (None if format == "fp8" else "int4")
    for layer in packed.packed.layers:
        assert isinstance(layer.qkv, torch.Tensor)
        assert isinstance(layer.experts.gate_up, torch.Tensor if format == "fp8" else PackedInt4)
    assert packed.packed.vocabulary.dtype == torch.float32
    torch.testing.assert_close(logits_of(packed), logits_of(full), atol=2e-4, rtol=2e-4)


@pytest.mark.usefixtures("without_fp8")
def test_weights_in_full_are_rounded_to_int4(folder: Path) -> None:
    packed, full = packed_from(folder, quantization="int4"), redraft.load_model(folder, "cpu", "float32")
    assert isinstance(packed.packed.layers[0].out, torch.Tensor)
    expected, found = logits_of(full), logits_of(packed)
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.3


def test_memory_is_counted_so() -> None:
    config = preset("26b-a4b")
    for stored, asked in (({}, "int4"), (stored_in(config, "int4"), None)):
        check_room(config, asked, (CUDA,), stored=stored, fp8_products=False, free=18_600_000_000)
        with pytest.raises(SettingError, match=r"needs 18\.5 GB in int4 .*; no format would fit"):
            check_room(config, asked, (CUDA,), stored=stored, fp8_products=False, free=18_400_000_000)
    stored = stored_in(config, "fp8")
    with pytest.raises(SettingError, match=r"needs 52\.0 GB in bf16 .*; no format would fit"):
        check_room(config, None, (CUDA,), stored=stored, fp8_products=False, free=24_000_000_000)
    with pytest.raises(SettingError, match=r"needs 52\.0 GB in bf16 .*; quantization='int4' would fit"):
        check_room(config, None, (CUDA,), fp8_products=False, free=24_000_000_000)


def test_its_floor_reads_in_full_what_is_not_an_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "require_gpu", lambda: CUDA)
    monkeypatch.setattr(gpu, "measure_ceilings", lambda device: H200)

    def read(capability: tuple[int, int]) -> dict[str, float]:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        done = CliRunner().invoke(
            app, ["bench", "roofline", "--quantization", "int4", "--batch", "1", "--measured", "--json"]
        )
        parts = json.loads(done.stdout.splitlines()[-1])["components"]
        return {part["name"]: part["bytes"] for part in parts}

    old, new = read((8, 6)), read((8, 9))
    assert old["experts"] == new["experts"]
    assert old["dense MLP"] == 2 * new["dense MLP"]
    assert old["head"] > 1.5 * new["head"]
