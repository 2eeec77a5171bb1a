"""Loading into packed form: formats, what a GPU must have, and the sentences that say what is missing."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import redraft
from random_adapter import random_adapter
from random_model import tower_of
from redraft.bench.random_weights import random_model
from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.kernels.triton.experts import format_of
from redraft.model import Model, Transformer, inference, quantize
from redraft.model.accounting import bytes_in, vision_parts
from redraft.model.adapters import Adapter, with_adapter
from redraft.model.checkpoint import Checkpoint
from redraft.model.folders import resolve_folder
from redraft.model.inference import load_packed
from redraft.model.initialise import initialise
from redraft.model.packed.build import pack, repacked_bytes
from redraft.model.packed.requirements import (
    WORKING_BYTES,
    check_device,
    check_fit,
    check_room,
    fp8_vocabulary,
    misfit,
)
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.packed.weights import PackedLayer, tensors
from redraft.model.presets import preset
from redraft.model.quantize import quantize_folder
from redraft.model.weight_settings import WeightSettings
from redraft.model.weights import save_model

CUDA = torch.device("cuda:0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A nano model whose experts are wide enough for groups of 64."""
    model = Transformer(replace(preset("nano"), moe_intermediate_size=64))
    initialise(model, 3)
    path = tmp_path_factory.mktemp("nano")
    save_model(model, path)
    return path


def weight_names(config: ModelConfig) -> list[str]:
    with torch.device("meta"):
        return list(Transformer(config).state_dict())


def stored_in(config: ModelConfig, format: str) -> dict[str, str]:
    """The number formats of a folder that `redraft quantize` wrote."""
    formats = {name: quantize.weight_format(name, format) for name in weight_names(config)}
    return {name: format for name, format in formats.items() if format is not None}


def packed_from(folder: Path, adapter: Adapter | None = None, **given: str | None) -> PackedTransformer:
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", **given}
    return load_packed(Checkpoint(folder), WeightSettings(**settings), adapter=adapter)


@torch.inference_mode()
def logits_of(model: Model) -> torch.Tensor:
    cache = model.new_cache(1, 64)
    model.encode(torch.arange(20)[None], cache)
    return model.logits(model.denoise(torch.arange(30, 46)[None], cache))


@pytest.mark.parametrize(("quantization", "apart"), [("fp8", 0.15), ("int4", 0.3)])
def test_a_quantized_load_stays_near_the_full_model_and_is_smaller(
    folder: Path, quantization: str, apart: float
) -> None:
    full = redraft.load_model(folder, "cpu", "float32")
    packed = packed_from(folder, quantization=quantization)
    whole = packed_from(folder)
    assert packed.packed.quantization == quantization
    assert whole.packed.quantization is None
    assert packed.packed.nbytes < whole.packed.nbytes / 2
    expected, found = logits_of(full), logits_of(packed)
    assert 0 < float((found - expected).norm() / expected.norm()) < apart
    torch.testing.assert_close(logits_of(whole), expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("format", ["fp8", "int4"])
def test_a_quantized_folder_loads_as_it_is_stored(folder: Path, tmp_path: Path, format: str) -> None:
    quantize_folder(folder, tmp_path / "q", format)
    stored = packed_from(tmp_path / "q")
    made = packed_from(folder, quantization=format)
    assert stored.packed.quantization == format
    torch.testing.assert_close(logits_of(stored), logits_of(made), atol=1e-4, rtol=1e-4)


def test_fp8_does_not_become_int4(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize_folder(folder, tmp_path / "q", "fp8")
    monkeypatch.setattr(Checkpoint, "weight", None)  # refused before any is read
    with pytest.raises(SettingError, match="already fp8"):
        packed_from(tmp_path / "q", quantization="int4")
    with pytest.raises(SettingError, match="already fp8"):
        inference.load_for_inference(Checkpoint(tmp_path / "q"), WeightSettings(device="cpu", quantization="int4"))


def test_unknown_quantization_is_one_sentence() -> None:
    with pytest.raises(SettingError, match=r"^quantization is 'fp4'; it must be one of fp8, int4, or left out\.$"):
        redraft.load("tiny", device="cpu", quantization="fp4")


def test_the_vocabulary_is_in_fp8_where_a_gpu_s_weights_are_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    config, cpu = preset("26b-a4b"), torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    for device, quantized in ((CUDA, True), (CUDA, False), (cpu, True)):
        assert fp8_vocabulary(config, "auto", device, quantized=quantized) == (device is CUDA and quantized)
        assert not fp8_vocabulary(config, "model", device, quantized=quantized)
        assert fp8_vocabulary(config, "fp8", device, quantized=quantized)
    odd = replace(config, vocab_size=1000)
    assert not fp8_vocabulary(odd, "auto", CUDA, quantized=True)
    with pytest.raises(SettingError, match=r"that needs a multiple of 16 tokens, and the model has 1000\.$"):
        fp8_vocabulary(odd, "fp8", CUDA, quantized=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not fp8_vocabulary(config, "auto", CUDA, quantized=True)
    with pytest.raises(SettingError, match=r"^vocabulary_dtype is 'fp8'; that needs .* capability 8\.9 or more\.$"):
        fp8_vocabulary(config, "fp8", CUDA, quantized=False)
    with pytest.raises(SettingError, match=r"^vocabulary_dtype is 'int4'; it must be one of auto, model, fp8\.$"):
        redraft.load(device="cpu", vocabulary_dtype="int4")


def test_a_vocabulary_in_fp8_is_asked_for_where_weights_are_packed(folder: Path) -> None:
    settings = WeightSettings(device="cpu", dtype="float32", vocabulary_dtype="fp8")
    for quantization in (None, "int4"):
        with pytest.raises(
            SettingError, match=r"^vocabulary_dtype is 'fp8'; that needs a GPU .* quantization 'fp8'\.$"
        ):
            inference.load_for_inference(Checkpoint(folder), replace(settings, quantization=quantization))
    packed = inference.load_for_inference(Checkpoint(folder), replace(settings, quantization="fp8"))
    assert isinstance(packed, PackedTransformer)
    assert packed.packed.vocabulary.dtype == torch.float8_e4m3fn
    plain = inference.load_for_inference(
        Checkpoint(folder), replace(settings, quantization="fp8", vocabulary_dtype="auto")
    )
    assert plain.dtype == torch.float32


def test_a_gpu_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(SettingError, match=r"^Tesla T4 has compute capability 7\.5; Redraft needs 8\.0 or newer .*\.$"):
        check_device(CUDA, "fp8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    check_device(CUDA, None)
    check_device(CUDA, "int4")
    with pytest.raises(SettingError, match=r"8\.0; FP8 weights need 8\.9 or newer \(.*'int4' works here\)\.$"):
        check_device(CUDA, "fp8")
    check_device(torch.device("cpu"), "fp8")


def test_too_little_memory_says_how_much_and_what_would_fit() -> None:
    config = preset("26b-a4b")
    check_room(config, "int4", (CUDA,), free=18_000_000_000)
    with pytest.raises(SettingError, match=r"needs 52\.0 GB in bf16 .* 23\.5 GB free, 28\.5 GB too little; .*'int4'"):
        check_room(config, None, (CUDA,), free=23_500_000_000)
    with pytest.raises(SettingError, match="no format would fit"):
        check_room(config, "fp8", (CUDA,), free=8_000_000_000)


def test_several_gpus_need_less_memory_each() -> None:
    """Each has the vocabulary besides its shard, and the first one self-conditioning."""
    config, both = preset("26b-a4b"), (CUDA, torch.device("cuda:1"))
    check_room(config, None, both, free=28_000_000_000)
    told = r"needs 27\.5 GB of each GPU in bf16 and one of cuda:0, cuda:1 has 23\.5 GB free, .*'fp8' would fit"
    with pytest.raises(SettingError, match=told):
        check_room(config, None, both, free=23_500_000_000)


def test_several_gpus_take_only_what_the_kernels_take(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("redraft.model.weight_settings.resolve_devices", lambda device, gpus: (CUDA,))
    with pytest.raises(SettingError, match="gpus is 2; only a model in bfloat16 whose shape the kernels support"):
        inference.load_for_inference(Checkpoint(folder), WeightSettings(dtype="bfloat16", gpus=2))


@pytest.mark.parametrize("format", ["fp8", "int4", "nvfp4"])
def test_memory_is_counted_as_stored_weights_are_packed(format: str) -> None:
    """Experts alone in NVFP4, as NVIDIA stores them, become FP8 and leave attention and dense MLP in full."""
    config = preset("26b-a4b")
    if format == "nvfp4":
        stored = {name: format for name in weight_names(config) if ".experts." in name}
        free = 22_837_985_280 + 2 * (25_250_986_812 - 22_837_985_280) + 400_000_000  # of which scales take 0.2 GB
    else:
        stored = stored_in(config, format)
        free = {"fp8": 26_300_000_000, "int4": 15_500_000_000}[format]
    check_room(config, None, (CUDA,), stored=stored, free=free + WORKING_BYTES)
    with pytest.raises(SettingError, match="too little"):
        check_room(config, None, (CUDA,), stored=stored, free=free - 400_000_000 + WORKING_BYTES)


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        (r"experts\.down", 22.773),  # both weights of the experts become plain
        (r"layers\.0\.experts", 0.759),
        (r"layers\.\d+\.mlp", 0.534),
        (r"router|norm", 0.0),
    ],
)
def test_memory_is_counted_for_what_an_adapter_makes_plain(changed: str, more: float) -> None:
    """A GPU would run out of it in the middle of loading."""
    config = preset("26b-a4b")
    stored, names = stored_in(config, "fp8"), {name for name in weight_names(config) if re.search(changed, name)}

    def fits(free: int, asked: str | None, changed: set[str]) -> bool:
        try:
            check_room(config, asked, (CUDA,), stored=stored, changed=changed, free=free)
        except SettingError:
            return False
        return True

    least = 27_586_000_000
    assert fits(least, None, set())
    assert not fits(least - 2_000_000, None, set())
    assert fits(least, "fp8", names)  # all are rounded again
    assert fits(least + int((more + 0.01) * 1e9), None, names)
    assert not fits(least + int((more - 0.01) * 1e9), None, names)


def test_room_is_looked_for_with_what_is_stored_seen_and_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize_folder(folder, tmp_path / "q", "fp8")
    checkpoint, asked = Checkpoint(tmp_path / "q"), dict[str, Any]()
    monkeypatch.setattr("redraft.model.packed.requirements.check_room", lambda *_, **given: asked.update(given))
    adapter = random_adapter(redraft.load_model(folder, "cpu", "float32"), 1, r"mlp\.down")
    load_packed(checkpoint, WeightSettings(device="cpu", dtype="float32"), adapter=adapter)
    kept = {"stored": checkpoint.formats, "changed": adapter.factors.keys(), "fp8_products": True}
    assert asked == {"vision": False, "scales": 0, **kept}
    checkpoint.has_vision = True
    check_fit(checkpoint.config, WeightSettings(device="cpu"), checkpoint)
    assert (asked["vision"], asked["changed"]) == (True, frozenset())


def test_narrow_groups_of_int4_take_room_too(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their scales are counted by what is stored, except for experts that do not stay in INT4."""
    asked, experts = dict[str, Any](), 3 * 4 * 3 * 64 * 64  # layers, experts, matrices
    monkeypatch.setattr("redraft.model.packed.requirements.check_room", lambda *_, **given: asked.update(given))
    for group, scales in ((16, 0), (32, 2 * experts // 64), (64, 0)):
        quantize_folder(folder, tmp_path / f"{group}", "int4", group=group)
        check_fit(preset("nano"), WeightSettings(device="cpu"), Checkpoint(tmp_path / f"{group}"))
        assert asked["scales"] == scales
        assert ("int4" in asked["stored"].values()) == (group != 16)
    config = preset("26b-a4b")
    for formats in ("int4", None):
        check_room(config, formats, (CUDA,), stored=stored_in(config, "int4"), scales=10**9, free=18_000_000_000)
        with pytest.raises(SettingError, match=r"needs 17\.8 GB"):
            check_room(config, formats, (CUDA,), stored=stored_in(config, "int4"), scales=10**9, free=17_000_000_000)


def test_room_is_counted_for_what_matrices_in_four_bits_become() -> None:
    """Asymmetric experts, and those beside them, become FP8, as do dense matrices."""
    config = preset("26b-a4b")
    names = [name for name in stored_in(config, "int4") if ".experts." in name]
    uint4 = dict.fromkeys(stored_in(config, "int4"), "uint4")
    beside = uint4 | {name: "int4" for name in names if name.endswith("down_proj")}
    for stored in (uint4, beside, dict.fromkeys(uint4, "fp8")):
        check_room(config, None, (CUDA,), stored=stored, free=27_600_000_000)
        with pytest.raises(SettingError, match=r"needs 27\.6 GB in"):
            check_room(config, None, (CUDA,), stored=stored, free=27_500_000_000)
    with pytest.raises(SettingError, match=r"needs 27\.6 GB in fp8 .*; quantization='int4' would fit"):
        check_room(config, None, (CUDA,), stored=uint4, free=24_000_000_000)
    check_room(config, None, (CUDA,), stored=dict.fromkeys(uint4, "int4"), free=17_000_000_000)


def test_a_vision_tower_takes_room_too() -> None:
    config = preset("26b-a4b")
    tower = bytes_in(vision_parts(config), "bf16")
    assert tower > 1_100_000_000
    check_room(config, "int4", (CUDA,), vision=True, free=16_900_000_000 + tower)
    with pytest.raises(SettingError, match="too little"):
        check_room(config, "int4", (CUDA,), vision=True, free=16_900_000_000)


def test_a_product_that_is_plain_in_part_is_counted_as_plain() -> None:
    """Some writers leave whole layers in full; and one plain weight widens the others of its product."""
    config = preset("26b-a4b")
    stored = {name: format for name, format in stored_in(config, "fp8").items() if not name.startswith("layers.0.")}
    with pytest.raises(SettingError, match=r"needs 28\.4 GB in fp8"):
        check_room(config, None, (CUDA,), stored=stored, free=28_000_000_000)


def test_no_format_is_advised_that_stored_weights_cannot_take() -> None:
    config, stored = preset("26b-a4b"), {"layers.0.experts.gate_up_proj": "fp8", "layers.0.experts.down_proj": "fp8"}
    with pytest.raises(SettingError, match="no format would fit"):
        check_room(config, None, (CUDA,), stored=stored, free=20_000_000_000)
    with pytest.raises(SettingError, match="'int4' would fit"):
        check_room(config, None, (CUDA,), stored=dict.fromkeys(stored, "nvfp4"), free=20_000_000_000)


def test_packed_weights_cannot_be_saved(folder: Path, tmp_path: Path) -> None:
    model = packed_from(folder)
    with pytest.raises(SettingError, match="packed"):
        save_model(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_quantization_and_float32_do_not_go_together_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.model.weight_settings.resolve_devices", lambda device, gpus: (CUDA,))
    with pytest.raises(SettingError, match="on a GPU, dtype must be bfloat16"):
        inference.load_for_inference(
            Checkpoint(resolve_folder("tiny")), WeightSettings(dtype="float32", quantization="fp8")
        )


def test_shapes_that_the_kernels_do_not_take_stay_plain_on_a_gpu(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert misfit(preset("26b-a4b")) is None
    assert misfit(preset("tiny")) is None
    assert misfit(preset("nano")) == "the width must be a multiple of 128, and this model's is 64"
    for change, told in (
        ({"vocab_size": 262_145}, "multiple of 8"), ({"num_experts": 512}, "at most 256"), ({"head_dim": 96}, "powers"),
    ):  # fmt: skip
        assert told in str(misfit(replace(preset("26b-a4b"), **change)))
    monkeypatch.setattr("redraft.model.weight_settings.resolve_devices", lambda device, gpus: (CUDA,))
    monkeypatch.setattr(inference, "filled", lambda checkpoint, *arguments: arguments)
    assert inference.load_for_inference(Checkpoint(folder), WeightSettings(dtype="bfloat16")) == (CUDA, torch.bfloat16)
    with pytest.raises(SettingError, match="multiple of 128"):
        inference.load_for_inference(Checkpoint(folder), WeightSettings(dtype="bfloat16", quantization="fp8"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for refused in (
        lambda: load_packed(Checkpoint(folder), WeightSettings()),
        lambda: random_model("nano", WeightSettings()),
    ):
        with pytest.raises(SettingError, match=r"cannot be packed for a GPU: the width must be a multiple of 128, "):
            refused()


@pytest.mark.parametrize("stored", [None, "fp8", "int4"])
@pytest.mark.parametrize("names", [r"attention\.[kv]_proj|mlp\.down|conditioning\.up", r"router\.proj|experts\."])
def test_a_packed_twin_is_what_loading_with_the_adapter_makes(
    folder: Path, tmp_path: Path, stored: str | None, names: str
) -> None:
    if stored:
        quantize_folder(folder, tmp_path / "q", stored)
    place = tmp_path / "q" if stored else folder
    adapter = random_adapter(redraft.load_model(folder, "cpu", "float32"), 1, names)
    for quantization in (None, stored) if stored else (None, "fp8", "int4"):
        base = packed_from(place, quantization=quantization)
        expected = packed_from(place, adapter, quantization=quantization)
        made = inference.loaded_with(base, Checkpoint(place), adapter)
        assert isinstance(made, PackedTransformer)
        torch.testing.assert_close(logits_of(made), logits_of(expected), rtol=0, atol=0)
        assert not torch.equal(logits_of(made), logits_of(base))
        kept = {tensor.data_ptr() for tensor in tensors(base.packed)}
        shared = sum(tensor.data_ptr() in kept for tensor in tensors(made.packed))
        assert shared > len(list(tensors(made.packed))) / 2
        anew = sum(tensor.nbytes for tensor in tensors(made.packed) if tensor.data_ptr() not in kept)
        assert repacked_bytes(base.packed, adapter.factors.keys()) == {base.device: anew}


@pytest.mark.parametrize("vocabulary", ["model", "fp8"])
def test_a_packed_twin_has_the_vocabulary_that_its_adapter_changes(folder: Path, vocabulary: str) -> None:
    adapter = random_adapter(redraft.load_model(folder, "cpu", "float32"), 1, r"^embedding")
    base = packed_from(folder, vocabulary_dtype=vocabulary)
    expected = packed_from(folder, adapter, vocabulary_dtype=vocabulary)
    made = inference.loaded_with(base, Checkpoint(folder), adapter)
    table = sum(tensor.nbytes for tensor in tensors(made.packed.vocabulary))
    assert repacked_bytes(base.packed, adapter.factors.keys()) == {base.device: table}
    torch.testing.assert_close(logits_of(made), logits_of(expected), rtol=0, atol=0)
    assert not torch.equal(logits_of(made), logits_of(base))


def test_an_adapter_of_the_vision_tower_takes_a_tower_more(folder: Path) -> None:
    model = packed_from(folder)
    model.vision = tower_of(replace(preset("nano"), extra=dict(preset("nano").extra)))
    tower = sum(tensor.nbytes for tensor in model.vision.state_dict().values())
    assert inference._copied_bytes(model, {"vision.projection.weight"}) == {model.device: tower}
    assert inference._copied_bytes(model, {"router"}) == {model.device: 0}


def test_an_adapter_without_room_is_refused_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = redraft.load_model(folder, "cpu", "float32"), list[torch.device]()
    adapter = random_adapter(model, 1, r"experts\.")
    needed = {CUDA: 3_300_000_000, torch.device("cuda:1"): 2_100_000_000, torch.device("cpu"): 10**15}
    monkeypatch.setattr(inference, "_copied_bytes", lambda model, changed: needed)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device) or (free, 0))
    monkeypatch.setattr(Checkpoint, "weight", None)
    free = 2_100_000_000
    told = r"changes need 3\.3 GB and cuda:0 has 2\.1 GB free, 1\.2 GB too little"
    with pytest.raises(SettingError, match=told):
        inference.loaded_with(model, Checkpoint(folder), adapter)
    free = 3_300_000_000
    inference.loaded_with(model, Checkpoint(folder), adapter)
    assert asked == [CUDA, CUDA, torch.device("cuda:1")]


@pytest.mark.parametrize("stored", [None, "fp8", "int4"])
def test_a_packed_twin_keeps_the_adapter_that_was_loaded(folder: Path, tmp_path: Path, stored: str | None) -> None:
    """Both change one fused matrix and the experts, and each another matrix of its own."""
    if stored:
        quantize_folder(folder, tmp_path / "q", stored)
    place = tmp_path / "q" if stored else folder
    full = redraft.load_model(folder, "cpu", "float32")
    first = random_adapter(full, 1, r"attention\.[qk]_proj|mlp\.gate|experts\.gate_up")
    second = random_adapter(full, 2, r"attention\.[kv]_proj|mlp\.down|experts\.down")
    read = second.applied(first.applied(Checkpoint(place).weight))
    expected = PackedTransformer(pack(full.config, read, device=torch.device("cpu"), dtype=torch.float32))
    base = packed_from(place, first)
    made = inference.loaded_with(base, Checkpoint(place), second)
    torch.testing.assert_close(logits_of(made), logits_of(expected), rtol=0, atol=0)
    if not stored:
        plain = with_adapter(with_adapter(full, first), second)
        torch.testing.assert_close(logits_of(made), logits_of(plain), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("stored", ["fp8", "int4"])
@pytest.mark.parametrize(
    ("changed", "product"),
    [
        ("attention.q_proj", "qkv"), ("attention.v_proj", "qkv"), ("attention.o_proj", "out"),
        ("mlp.gate_proj", "gate_up"), ("mlp.up_proj", "gate_up"), ("mlp.down_proj", "down"),
        ("experts.gate_up_proj", "experts"), ("experts.down_proj", "experts"),
    ],
)  # fmt: skip
def test_an_adapter_widens_the_weights_that_share_a_product_with_one_that_it_changes(
    folder: Path, tmp_path: Path, stored: str, changed: str, product: str
) -> None:
    """The experts' two products read rows in one format, too. All weights are rounded if quantization is asked for."""
    quantize_folder(folder, tmp_path / "q", stored)
    full = redraft.load_model(folder, "cpu", "float32")
    adapter = random_adapter(full, 1, rf"layers\.1\.{changed}", size=0.3)
    packed = packed_from(tmp_path / "q", adapter)
    assert list(map(_plain_products, packed.packed.layers)) == [set(), {product}, set()]
    assert packed.packed.quantization == stored
    expected = logits_of(
        inference.load_for_inference(
            Checkpoint(tmp_path / "q"), WeightSettings(device="cpu", dtype="float32"), adapter=adapter
        )
    )
    unchanged = logits_of(packed_from(tmp_path / "q"))
    assert _apart(logits_of(packed), expected) < 0.15 < 0.2 < _apart(unchanged, expected)
    rounded = packed_from(tmp_path / "q", adapter, quantization=stored)
    assert list(map(_plain_products, rounded.packed.layers)) == [set()] * 3


def _plain_products(layer: PackedLayer) -> set[str]:
    """The layer's products whose weights are not quantized; both weights of the experts must have one format."""
    experts = {format_of(layer.experts.gate_up), format_of(layer.experts.down)}
    assert len(experts) == 1
    dense = {name for name in ("qkv", "out", "gate_up", "down") if isinstance(getattr(layer, name), torch.Tensor)}
    return dense | ({"experts"} if experts == {"plain"} else set())


def _apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
