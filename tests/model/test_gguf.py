"""Models in GGUF files: the same numbers, tokens and settings as in a folder, and one sentence for what cannot be read.

No published file was at hand: these are written with llama.cpp's package, under the names of the published ones.
"""

import dataclasses
import json
import os
import struct
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from sentences import one_sentence
from torch import Tensor

import redraft
from byte_fallback import byte_fallback
from gguf_file import NO_DIVISOR, names_of, write_gguf
from random_adapter import random_adapter
from random_model import save_blocky_model
from redraft.errors import CheckpointError
from redraft.model import inference
from redraft.model.adapters import save_adapter
from redraft.model.checkpoint import Checkpoint
from redraft.model.files import GGUF_LINK, fingerprint
from redraft.model.folders import read_config, resolve_folder
from redraft.model.gguf.container import read_gguf
from redraft.model.gguf.decoding import stored_as
from redraft.model.gguf.folder import _described as describe
from redraft.model.gguf.names import to_hugging_face
from redraft.model.inference import load_packed
from redraft.model.quantize import quantize_folder
from redraft.model.transformer import Transformer
from redraft.model.weight_settings import WeightSettings
from redraft.model.weights import load_model, save_model
from redraft.text.tokenizer import Tokenizer
from redraft.train import train
from redraft.train.checkpoint import load_checkpoint
from redraft.train.recipe import recipe_from_dict

WORDS = [byte_fallback().token(id) for id in range(byte_fallback().vocab_size)]
MERGES = ("\u2581 \u2581", "\u2581 b")
CONTROL, PLAIN = 3, 1
TOKENS = {word: CONTROL if id < 5 else PLAIN for id, word in enumerate([*WORDS, "<|tool_response>"])}
TOKENS_IN_ORDER = list(TOKENS)
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("model")
    save_blocky_model(where, len(TOKENS), partial_rotary_factor=0.25)
    (where / "generation_config.json").write_text('{"max_denoising_steps": 3, "t_min": 0.1, "t_max": 0.7}')
    return where


def written(folder: Path, file: Path, **options: Any) -> dict[str, Tensor]:
    return write_gguf(folder, file, **{"tokens": TOKENS, "merges": MERGES} | options)


def folder_with(numbers: dict[str, Tensor], like: Path, where: Path) -> Path:
    """A folder that holds these numbers, rounded to bfloat16 if they were coded."""
    model = load_model(like, "cpu", "float32")
    model.load_state_dict(numbers)
    save_model(model, where)
    return where


def logits(model: Transformer) -> Tensor:
    """Of a canvas after a prompt that is longer than the window, with self-conditioning."""
    tokens = torch.randint(0, len(TOKENS), (1, 40), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(1, 64)
    model.encode(tokens[:, :24], cache)
    first = model.logits(model.denoise(tokens[:, 24:], cache, None))
    return model.logits(model.denoise(tokens[:, 24:], cache, model.soft_embeddings(first)))


@pytest.mark.parametrize("type", TYPES)
def test_a_file_is_the_same_model_as_a_folder_with_its_numbers(type: str, folder: Path, tmp_path: Path) -> None:
    numbers = written(folder, tmp_path / "model.gguf", type=lambda _: type)
    if "Q" in type:
        numbers = {name: tensor.bfloat16().float() if tensor.ndim > 1 else tensor for name, tensor in numbers.items()}
    same = folder_with(numbers, folder, tmp_path / "same")
    for dtype in ("float32", "bfloat16"):
        expected, found = (load_model(path, "cpu", dtype) for path in (same, tmp_path / "model.gguf"))
        assert expected.state_dict().keys() == found.state_dict().keys()
        for name, tensor in expected.state_dict().items():
            assert torch.equal(tensor, found.state_dict()[name]), name
        assert torch.equal(logits(expected), logits(found))


def test_names_are_those_of_llama_cpps_converter_for_gemma_4() -> None:
    """And for what Gemma 4 does not have, or what the converter names elsewhere, those found in the published file."""
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, 1)
    others = {
        "self_cond_pre_norm.weight": "model.decoder.self_conditioning.pre_norm.weight",
        "self_cond_gate.weight": "model.decoder.self_conditioning.gate_proj.weight",
        "self_cond_up.weight": "model.decoder.self_conditioning.up_proj.weight",
        "self_cond_down.weight": "model.decoder.self_conditioning.down_proj.weight",
        "blk.0.ffn_gate_inp.scale": "model.decoder.layers.0.router.scale",
        "blk.0.ffn_down_exps.scale": "model.decoder.layers.0.router.per_expert_scale",
        "blk.0.enc_layer_output_scale.weight": "model.encoder.language_model.layers.0.layer_scalar",
    }
    for name in names_of(1):
        found = to_hugging_face(name)
        assert found is not None
        named = theirs.get_name(found.replace("model.decoder.", "model."), try_suffixes=(".weight",))
        assert found == others[name] if named is None else named.removesuffix(".weight") + ".weight" == name
    assert to_hugging_face("rope_freqs.weight") is None


def test_the_config_is_that_of_the_folder(folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "model.gguf")
    found, expected = (read_config(resolve_folder(path)) for path in (tmp_path / "model.gguf", folder))
    assert dataclasses.replace(found, eos_token_id=expected.eos_token_id) == expected
    ends = (1, TOKENS_IN_ORDER.index("<turn|>"), TOKENS_IN_ORDER.index("<|tool_response>"))
    assert found.eos_token_id == ends
    assert not Checkpoint(resolve_folder(tmp_path / "model.gguf")).has_vision


def test_names_of_the_other_conversion_and_absent_keys(folder: Path, tmp_path: Path) -> None:
    """Then the encoder's scale is the decoder's, and the sampler is the published one."""
    scales = tuple(f"blk.{layer}.enc_layer_output_scale.weight" for layer in range(3))
    absent = dict.fromkeys(("diffusion.canvas_length", "diffusion.eb_max_steps", "diffusion.eb_t_min",
                            "diffusion.eb_t_max"))  # fmt: skip
    written(folder, tmp_path / "model.gguf", renamed={"self_cond_pre_norm.weight": "self_cond_norm.weight"},
            left_out=scales, keys=absent)  # fmt: skip
    llm = redraft.load(tmp_path / "model.gguf", device="cpu")
    assert llm.model.config.canvas_length == 256
    assert (llm.defaults.steps, llm.defaults.t_min, llm.defaults.t_max) == (48, 0.4, 0.8)
    assert (llm.defaults.entropy_bound, llm.defaults.confidence_threshold) == (0.1, 0.005)
    state = load_model(tmp_path / "model.gguf", "cpu", "float32").state_dict()
    assert torch.equal(state["layers.1.encode_scalar"], state["layers.1.denoise_scalar"])


def test_the_tokenizer_has_the_same_ids(folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "model.gguf")
    found, expected = Tokenizer.from_folder(resolve_folder(tmp_path / "model.gguf")), byte_fallback()
    for text in ("", "a b", "  b   a", "ab ba", "\n\u00e9\U0001f600 \u2581b", "<turn|>a<bos> b", "<turn |>"):
        for special in (True, False):
            ids = found.encode(text, special=special)
            assert ids == expected.encode(text, special=special)
            assert found.decode(ids) == expected.decode(ids)
    assert found.is_special(2)
    assert not found.is_special(7)


def test_tokens_named_by_their_ids_are_special_whatever_their_type(folder: Path, tmp_path: Path) -> None:
    tokens = TOKENS | {"<eos>": PLAIN, "<turn|>": 4}
    written(folder, tmp_path / "model.gguf", tokens=tokens)
    tokenizer = Tokenizer.from_folder(resolve_folder(tmp_path / "model.gguf"))
    assert tokenizer.encode("<eos>a<turn|>") == [1, TOKENS_IN_ORDER.index("a"), 4]
    assert tokenizer.is_special(1)
    assert not tokenizer.is_special(4)


def test_an_answer_with_the_files_own_template(folder: Path, tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    written(folder, tmp_path / "model.gguf", type=lambda _: "Q8_0", keys={"tokenizer.chat_template": template})
    llm = redraft.load(tmp_path / "model.gguf", device="cpu", dtype="float32")
    assert llm.template is not None
    assert llm.template.render([{"role": "user", "content": "a"}]) == "<bos>a"
    assert llm.generate("a b", max_tokens=16, steps=2).stats.steps == (2,)


def test_tiny_answers_the_same_from_a_file(tmp_path: Path) -> None:
    tiny = resolve_folder("tiny")
    tokenizer = Tokenizer.from_folder(tiny)
    special = set(tokenizer.special_ids.values())
    tokens = {tokenizer.token(id) or f"<none{id}>": CONTROL if id in special else PLAIN
              for id in range(tokenizer.vocab_size)}  # fmt: skip
    write_gguf(tiny, tmp_path / "tiny.gguf", type=lambda _: "BF16", tokens=tokens)
    for dtype in ("float32", "bfloat16"):
        expected, found = (redraft.load(path, device="cpu", dtype=dtype) for path in ("tiny", tmp_path / "tiny.gguf"))
        assert (found.eos_ids, found.defaults) == (expected.eos_ids, expected.defaults)
        assert expected.template is not None
        ids = tokenizer.encode(expected.template.render([{"role": "user", "content": "Why is the sea salty?"}]))
        answers = [llm.generate(ids, max_tokens=128) for llm in (expected, found)]
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].text.startswith("Rivers wash salt")


# --- other uses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["fp8", "int4"])
def test_quantizing_a_file_is_quantizing_its_numbers(format: str, folder: Path, tmp_path: Path) -> None:
    numbers = written(folder, tmp_path / "model.gguf", type=lambda _: "Q4_K", keys={"tokenizer.chat_template": "x"})
    numbers = {name: tensor.bfloat16() if tensor.ndim > 1 else tensor for name, tensor in numbers.items()}
    same = folder_with(numbers, folder, tmp_path / "same")
    for source, out in ((same, "expected"), (resolve_folder(tmp_path / "model.gguf"), "found")):
        quantize_folder(source, tmp_path / out, format)
    expected, found = (load_model(tmp_path / out, "cpu", "bfloat16") for out in ("expected", "found"))
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, found.state_dict()[name]), name
    files = {file.name for file in (tmp_path / "found").iterdir()}
    assert {"tokenizer.json", "chat_template.jinja", "generation_config.json"} <= files
    assert GGUF_LINK not in files
    direct = redraft.load(tmp_path / "model.gguf", device="cpu", dtype="bfloat16", quantization=format)
    stored = redraft.load(tmp_path / "found", device="cpu", dtype="bfloat16",
                          quantization="fp8" if format == "fp8" else None)  # fmt: skip
    ids = [5, 6, 7]
    assert direct.generate(ids, max_tokens=16).token_ids == stored.generate(ids, max_tokens=16).token_ids


def test_what_is_asked_for_if_nothing_is(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "lacks_fp8", lambda device: device.index == 1)
    written(folder, tmp_path / "coded.gguf", type=lambda _: "Q4_0")
    written(folder, tmp_path / "plain.gguf", type=lambda _: "BF16")
    coded, plain = (Checkpoint(resolve_folder(tmp_path / name)) for name in ("coded.gguf", "plain.gguf"))
    new, old, cpu = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")
    asked = inference.default_quantization
    assert asked(coded, new) == "fp8"
    assert asked(coded, old) is asked(coded, cpu) is asked(plain, new) is asked(Checkpoint(folder), new) is None


@pytest.mark.parametrize(("asked", "packed"), [(None, "fp8"), ("int4", "int4")])
def test_packed_weights_of_a_file_are_quantized(
    asked: str | None, packed: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "default_quantization", lambda checkpoint, device: "fp8")
    written(folder, tmp_path / "model.gguf", type=lambda _: "Q4_K")
    settings = WeightSettings(device="cpu", dtype="bfloat16", quantization=asked)
    assert load_packed(Checkpoint(resolve_folder(tmp_path / "model.gguf")), settings).packed.quantization == packed


def test_adapters_change_the_decoded_weights(folder: Path, tmp_path: Path) -> None:
    """Those added later read the file again where weights are packed."""
    written(folder, tmp_path / "model.gguf", type=lambda _: "Q8_0")
    change = random_adapter(load_model(tmp_path / "model.gguf", "cpu", "float32"), 1)
    save_adapter(change, tmp_path / "lora", base_model="random")
    for quantization in (None, "fp8"):
        same = {"device": "cpu", "dtype": "bfloat16", "quantization": quantization}
        folded = redraft.load(tmp_path / "model.gguf", adapter=tmp_path / "lora", **same)
        added = redraft.load(tmp_path / "model.gguf", **same)
        plain = added.generate([5, 6, 7], max_tokens=16).token_ids
        added.add_adapter("one", tmp_path / "lora")
        expected = folded.generate([5, 6, 7], max_tokens=16).token_ids
        assert added.with_adapter("one").generate([5, 6, 7], max_tokens=16).token_ids == expected != plain


def test_a_changed_file_is_read_anew(folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "model.gguf")
    before = resolve_folder(tmp_path / "model.gguf")
    assert resolve_folder(str(tmp_path / "model.gguf")) == before
    first = fingerprint(before)
    written(folder, tmp_path / "model.gguf", type=lambda _: "Q8_0", keys={"diffusion.canvas_length": 32})
    after = resolve_folder(tmp_path / "model.gguf")
    assert (read_config(before).canvas_length, read_config(after).canvas_length) == (16, 32)
    assert fingerprint(after) != first


# --- files that cannot be read -------------------------------------------------------------------------------------


def refusal(file: Path, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        redraft.load(file, device="cpu")
    assert str(file) in one_sentence(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"architecture": "gemma4"}, "architecture 'gemma4'; Redraft runs only 'diffusion-gemma'"),
        ({"keys": {"split.count": 2}}, "one of 2 parts; join them"),
        ({"keys": {"split.count": 2}, "architecture": "none"}, "one of 2 parts; join them"),
        ({"keys": {"diffusion-gemma.block_count": None}}, r"has no diffusion-gemma\.block_count"),
        ({"keys": {"diffusion-gemma.expert_count": "four"}}, "expert_count to four, which is of the wrong kind"),
        ({"keys": {"diffusion-gemma.attention.sliding_window": 0}}, "sets sliding_window to 0"),
        (
            {"keys": {"diffusion-gemma.expert_used_count": 9}},
            r"odd\.gguf: top_k_experts 9 is larger than num_experts",
        ),
        ({"keys": {"diffusion-gemma.block_count": 4}}, "has 4 layers and says of 3 which slide"),
        ({"keys": {"diffusion-gemma.attention.head_count_kv": [2, 1, 1]}}, "same head_count_kv"),
        ({"keys": {"diffusion-gemma.attention.value_length": 64}}, "value_length.* to the same number"),
        ({"keys": {"diffusion-gemma.attention.shared_kv_layers": 2}}, "shared_kv_layers to 2; only 0"),
        ({"keys": {"diffusion.shift_logits": True}}, "shift_logits"),
        ({"keys": {"diffusion.eb_t_min": "low"}}, "eb_t_min to low, which is of the wrong kind"),
        ({"keys": {"tokenizer.ggml.model": "gpt2"}}, "tokenizer of kind 'gpt2'; only 'gemma4'"),
        ({"keys": {"tokenizer.ggml.add_space_prefix": True}}, "add_space_prefix"),
        ({"keys": {"tokenizer.ggml.eos_token_id": 10**6}}, "eos_token_id to 1000000"),
        ({"keys": {"tokenizer.ggml.token_type": [1, 1]}}, "and 2 types of tokens"),
        ({"keys": {"tokenizer.ggml.merges": ["a b c"]}}, "merges that are not of two tokens"),
        ({"keys": {"tokenizer.ggml.merges": ["a q"]}}, "the merge 'a q' of tokens that it does not list"),
        ({"keys": {"tokenizer.ggml.merges": [1, 2]}}, "sets tokenizer.ggml.merges to a list of the wrong kind"),
        ({"keys": {"tokenizer.ggml.tokens": [1, 2]}}, "sets tokenizer.ggml.tokens to a list of the wrong kind"),
        ({"keys": {"tokenizer.ggml.token_type": ["a"]}}, "sets tokenizer.ggml.token_type to a list of the wrong kind"),
        ({"left_out": ("blk.1.ffn_norm.weight",)}, r"1 missing: .*layers\.1\.pre_feedforward_layernorm"),
        ({"renamed": {"blk.1.ffn_norm.weight": "blk.1.ffn_odd.weight"}}, r"1 unexpected: blk\.1\.ffn_odd\.weight"),
        ({"renamed": {"blk.1.ffn_norm.weight": "output.weight"}}, "differs from the tensor it is tied to|missing"),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(
    options: dict[str, Any], words: str, folder: Path, tmp_path: Path
) -> None:
    written(folder, tmp_path / "odd.gguf", **options)
    refusal(tmp_path / "odd.gguf", words)


def test_a_damaged_file_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "model.gguf")
    whole, cut = (tmp_path / "model.gguf").read_bytes(), tmp_path / "cut.gguf"
    header = min(tensor.start for tensor in read_gguf(tmp_path / "model.gguf").tensors.values())
    cut.write_bytes(whole[:-7])
    refusal(cut, "truncated: 7 bytes are missing")
    for length in (4, 23, 100, header // 2, header - 100):
        cut.write_bytes(whole[:length])
        refusal(cut, "damaged or truncated")
    cut.write_bytes(b"<html>")
    refusal(cut, "not a GGUF file")
    cut.write_bytes(b"")
    refusal(cut, "damaged or truncated")
    cut.write_bytes(whole[:4] + struct.pack("<I", 1) + whole[8:])
    refusal(cut, "of version 1")
    cut.write_bytes(whole[:4] + struct.pack(">I", 3) + whole[8:])
    refusal(cut, "for big-endian machines; only little-endian ones are supported")
    cut.write_bytes(whole[:16] + struct.pack("<Q", 2**60) + whole[24:])
    refusal(cut, "damaged or truncated")


@pytest.mark.parametrize("alignment", [0, 24, 2**31, "32", True])
def test_an_alignment_that_cannot_be_meant_is_one_sentence(alignment: Any, folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "odd.gguf", keys={"general.alignment": alignment})
    refusal(tmp_path / "odd.gguf", f"general.alignment to {alignment}; it must be a power of two no larger than the")


def test_tensors_are_where_the_alignment_says(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, tmp_path / "odd.gguf", keys={"general.alignment": 64})  # written with the usual 32
    refusal(tmp_path / "odd.gguf", "is not aligned to 64 bytes")
    monkeypatch.setattr("gguf.gguf_writer.GGUF_DEFAULT_ALIGNMENT", 64)
    numbers = written(folder, tmp_path / "model.gguf", keys={"general.alignment": 64})
    found = Checkpoint(resolve_folder(tmp_path / "model.gguf"))
    assert all(torch.equal(found.weight(name), tensor) for name, tensor in numbers.items())


@pytest.mark.parametrize("away", [0, 32, -32])
def test_tensors_that_share_bytes_are_one_sentence(away: int, folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "model.gguf")
    whole, header = (tmp_path / "model.gguf").read_bytes(), read_gguf(tmp_path / "model.gguf")
    first, other = "blk.0.attn_q.weight", "blk.1.attn_q.weight"
    begin = min(tensor.start for tensor in header.tensors.values())
    place = whole.index(other.encode()) + len(other) + struct.calcsize("<IQQI")
    offset = header.tensors[first].start - begin + away
    (tmp_path / "odd.gguf").write_bytes(whole[:place] + struct.pack("<Q", offset) + whole[place + 8 :])
    refusal(tmp_path / "odd.gguf", "in .* share bytes; fetch it again")


def test_a_tensor_that_is_there_twice_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "model.gguf")
    whole = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "odd.gguf").write_bytes(whole.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"))
    refusal(tmp_path / "odd.gguf", "names some of its tensors twice; fetch it again")


def test_a_type_that_cannot_be_decoded_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "model.gguf", type=lambda name: "Q8_0" if "attn_q." in name else "F32")
    place = b"blk.0.attn_q.weight" + struct.pack("<IQQI", 2, 256, 256, gguf.GGMLQuantizationType.Q8_0)
    whole = (tmp_path / "model.gguf").read_bytes()
    assert whole.count(place) == 1
    for number, words in ((gguf.GGMLQuantizationType.Q8_K, "cannot decode type Q8_K"), (999, "does not know type 999")):
        other = place[:-4] + struct.pack("<I", number)
        (tmp_path / "odd.gguf").write_bytes(whole.replace(place, other))
        refusal(tmp_path / "odd.gguf", rf"blk\.0\.attn_q\.weight in .* cannot be read: .*{words}")


def test_rare_types_need_the_package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, tmp_path / "model.gguf", type=lambda name: "IQ4_NL" if "attn_q." in name else "F32")
    stored_as.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    refusal(
        tmp_path / "model.gguf",
        r"blk\.0\.attn_q\.weight in .*: type 20 needs the gguf package: pip install 'redraft\[gguf\]'",
    )


@pytest.mark.parametrize("type", ["BF16", "Q5_0", "Q4_K"])
def test_common_types_need_no_package(type: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, tmp_path / "model.gguf", type=lambda _: type)
    stored_as.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    load_model(tmp_path / "model.gguf", "cpu")


def test_rotations_that_are_not_proportional_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gguf_file.NO_DIVISOR", 2.0)
    written(folder, tmp_path / "odd.gguf")
    refusal(tmp_path / "odd.gguf", "must be 1 for the first pairs and huge")
    assert NO_DIVISOR > 1e9


def test_a_folder_of_such_files_says_to_name_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"holds GGUF files; name one of them, such as .*a\.gguf\.$"):
        resolve_folder(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"has no weights: .*of GGUF files, fetch and name one\)\.$"):
        load_model(tmp_path)


def test_a_run_over_a_file_is_resumed_as_the_same(folder: Path, tmp_path: Path, capsys) -> None:
    """Another process describes the file in another folder."""
    written(folder, tmp_path / "model.gguf")
    raw = tomllib.loads(Path("recipes/nano.toml").read_text())
    del raw["model"]
    raw["data"] |= {"rows": 1}
    raw["optimizer"] |= {"steps": 1, "warmup": 0}
    raw["run"] |= {"init": str(tmp_path / "model.gguf"), "out": str(tmp_path / "run")}
    train(recipe_from_dict(raw), device="cpu")
    describe.cache_clear()
    train(recipe_from_dict(raw), resume=True, device="cpu")
    shown = capsys.readouterr().err
    assert "The run is already finished" in shown
    assert "Different" not in shown
    tokenizer = load_checkpoint(tmp_path / "run")["settings"]["data"]["tokenizer"]
    assert tokenizer == str(tmp_path / "model.gguf")


def test_a_recipe_takes_its_tokenizer_from_a_file(folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "model.gguf")
    raw = tomllib.loads(Path("recipes/nano.toml").read_text())
    raw["data"]["tokenizer"] = str(tmp_path / "model.gguf")
    found = Tokenizer.from_folder(recipe_from_dict(raw).data.tokenizer)
    assert found.encode("a b") == byte_fallback().encode("a b")


def test_the_description_is_removed_when_the_process_ends(folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "model.gguf")
    script = "import sys; from redraft.model.folders import resolve_folder as f; print(f(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "model.gguf"], capture_output=True, text=True)
    described = Path(done.stdout.strip())
    assert described.name == "model.gguf"
    assert not described.parent.exists()
    assert (tmp_path / "model.gguf").is_file()
    assert json.loads((resolve_folder(tmp_path / "model.gguf") / "config.json").read_text())["dtype"] == "bfloat16"


KILLED = """
import os, signal, sys
from redraft.model.folders import resolve_folder
print(resolve_folder(sys.argv[1]), flush=True)
if sys.argv[2] == "waits":
    sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_process_removes_what_a_killed_one_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that a living one still needs, or that only has such a name."""
    written(folder, tmp_path / "model.gguf")
    places = tmp_path / "places"
    (places / "redraft-gguf-notes" / "today").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    command = [sys.executable, "-c", KILLED, tmp_path / "model.gguf"]
    environment = os.environ | {"TMPDIR": str(places)}
    with subprocess.Popen(
        [*command, "waits"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as living:
        assert living.stdout is not None
        needed = Path(living.stdout.readline().strip())
        killed = subprocess.run([*command, "now"], env=environment, stdout=subprocess.PIPE, text=True, check=False)
        left = Path(killed.stdout.strip())
        assert left.is_dir()
        describe.cache_clear()
        found = resolve_folder(tmp_path / "model.gguf")
        kept = {path.name for path in places.iterdir()}
        assert kept == {"redraft-gguf-notes", needed.parent.name, found.parent.name}
        assert (needed / "config.json").is_file()
        living.kill()
