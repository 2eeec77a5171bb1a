"""Plain copies of folders in any format and of GGUF files: the numbers that loading in full gives, in one dtype."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from byte_fallback import byte_fallback
from gguf_file import write_gguf
from nvfp4 import quantize_nvfp4
from pack_quantized import Scheme, store
from random_model import save_blocky_model, write_random_model
from redraft.errors import CheckpointError, SettingError
from redraft.model.checkpoint import Checkpoint
from redraft.model.convert import convert_folder
from redraft.model.folders import resolve_folder
from redraft.model.quantize import quantize_folder
from redraft.model.transformer import Transformer
from redraft.model.weights import load_model, save_model
from redraft.text.tokenizer import Tokenizer

DTYPES = ("bfloat16", "float16", "float32")
MATRIX = "model.decoder.layers.0.mlp.up_proj.weight"
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model in fp32, without a tokenizer."""
    where = tmp_path_factory.mktemp("base")
    save_blocky_model(where, byte_fallback().vocab_size)
    (where / "generation_config.json").write_text('{"max_denoising_steps": 3}')
    return where


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    """The same numbers, to be changed."""
    save_model(load_model(base, "cpu", "float32"), tmp_path / "model", like=base)
    return tmp_path / "model"


def set_value(folder: Path, name: str, value: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[5] = value
    save_file(tensors, folder / "model.safetensors")


def logits(model: Transformer) -> Tensor:
    """Of a canvas after a prompt that is longer than the window, with self-conditioning."""
    tokens = torch.randint(0, model.config.vocab_size, (1, 40), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(1, 64)
    model.encode(tokens[:, :24], cache)
    first = model.logits(model.denoise(tokens[:, 24:], cache, None))
    return model.logits(model.denoise(tokens[:, 24:], cache, model.soft_embeddings(first)))


def as_fp8(folder: Path, target: Path) -> None:
    quantize_folder(folder, target, "fp8")


def as_int4(folder: Path, target: Path) -> None:
    quantize_folder(folder, target, "int4", group=32)


def as_uint4(folder: Path, target: Path) -> None:
    store(folder, target, Scheme(symmetric=False))


def as_nvfp4(folder: Path, target: Path, *, modelopt: bool = False) -> None:
    tensors, stored = load_file(folder / "model.safetensors"), dict[str, Tensor]()
    for name, tensor in tensors.items():
        if ".mlp." not in name:
            stored[name] = tensor
            continue
        weight, end = quantize_nvfp4(tensor), "" if modelopt else "_packed"
        factor = weight.factor[:1, 0]
        scale = {"_scale_2": factor} if modelopt else {"_global_scale": 1 / factor}
        parts = {end: weight.codes, "_scale": weight.scale, **scale}
        stored |= {name + suffix: part.contiguous() for suffix, part in parts.items()}
    target.mkdir()
    save_file(stored, target / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    described = {"quantization_config": {"quant_method": "modelopt" if modelopt else "compressed-tensors"}}
    (target / "config.json").write_text(json.dumps(config | described))


def as_nvfp4_of_modelopt(folder: Path, target: Path) -> None:
    as_nvfp4(folder, target, modelopt=True)


@pytest.mark.parametrize("write", [as_fp8, as_int4, as_uint4, as_nvfp4, as_nvfp4_of_modelopt])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_numbers_are_those_of_loading_in_full(base: Path, tmp_path: Path, write: Any, dtype: str) -> None:
    """float16, in which no model is loaded, from the fp32 that quantized numbers are computed in."""
    write(base, tmp_path / "quantized")
    assert Checkpoint(tmp_path / "quantized").formats
    said = convert_folder(tmp_path / "quantized", tmp_path / "out", dtype)
    checkpoint, stored = Checkpoint(tmp_path / "out"), getattr(torch, dtype)
    expected = load_model(tmp_path / "quantized", "cpu", "float32" if dtype == "float16" else dtype).state_dict()
    for name, tensor in expected.items():
        found = checkpoint.weight(name)
        assert isinstance(found, Tensor)
        assert torch.equal(found, tensor.to(stored)), name
    assert said == {"dtype": dtype, "bytes": sum(tensor.numel() * stored.itemsize for tensor in expected.values())}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == dtype
    assert "quantization_config" not in config
    quantize_folder(tmp_path / "out", tmp_path / "again", "fp8")


@pytest.mark.parametrize("type", ["F32", "F16", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_gguf_file_becomes_the_same_model(base: Path, tmp_path: Path, type: str, dtype: str) -> None:
    file = tmp_path / "model.gguf"
    tokens = {byte_fallback().token(id) or "": 3 if id < 5 else 1 for id in range(byte_fallback().vocab_size)}
    merges, keys = ("\u2581 \u2581", "\u2581 b"), {"tokenizer.chat_template": TEMPLATE}
    write_gguf(base, file, type=lambda _: type, tokens=tokens, merges=merges, keys=keys)
    convert_folder(str(file), tmp_path / "out", dtype)
    from_file, found = (load_model(place, "cpu", dtype) for place in (file, tmp_path / "out"))
    assert torch.equal(logits(found), logits(from_file))
    files = {"config.json", "generation_config.json", "model.safetensors", "chat_template.jinja", "tokenizer.json",
             "tokenizer_config.json"}  # fmt: skip
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == TEMPLATE
    both = [Tokenizer.from_folder(place).encode("<bos>a b\u00e9") for place in (tmp_path / "out", resolve_folder(file))]
    assert both[0] == both[1]


def test_everything_beside_the_weights_is_copied_and_the_tower_is_converted(tmp_path: Path) -> None:
    (tmp_path / "seeing").mkdir()
    source = write_random_model(tmp_path / "seeing", canvas=16, context=64, sees=True)
    seen = []
    convert_folder(source, tmp_path / "out", max_shard_size=100_000, progress=lambda *at: seen.append(at))
    expected, found = (load_model(place, "cpu", "bfloat16") for place in (source, tmp_path / "out"))
    assert found.vision is not None
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert seen[0] == (1, len(expected.state_dict()))
    assert seen[-1] == (len(expected.state_dict()), len(expected.state_dict()))


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (float("nan"), "float32", "has infinite or NaN values"),
        (float("-inf"), "float16", "has infinite or NaN values"),
        (65536.0, "float16", "has values that are too large for float16"),
        (3.4e38, "bfloat16", "has values that are too large for bfloat16"),
    ],
)
def test_values_that_are_no_numbers_of_the_dtype_are_named(
    folder: Path, tmp_path: Path, value: float, dtype: str, words: str
) -> None:
    set_value(folder, MATRIX, value)
    with pytest.raises(CheckpointError, match=rf"^model\.decoder\.layers\.0\.mlp\.up_proj\.weight {words}\.$"):
        convert_folder(folder, tmp_path / "above" / "out", dtype)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="dtype is 'fp8'; it must be one of bfloat16, float16, float32"):
        convert_folder(folder, tmp_path / "out", "fp8")
    with pytest.raises(SettingError, match="already exists"):
        convert_folder(folder, folder)
    with pytest.raises(SettingError, match="max_shard_size is 0"):
        convert_folder(folder, tmp_path / "out", max_shard_size=0)
    cut = (folder / "model.safetensors").read_bytes()[:-9]
    (folder / "model.safetensors").write_bytes(cut)
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        convert_folder(folder, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
