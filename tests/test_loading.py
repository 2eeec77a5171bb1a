"""What `redraft.load` makes of folders: values that make no sense, damaged weights, adapters."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

import redraft
from random_adapter import random_adapter
from random_model import write_random_model
from redraft.errors import CheckpointError, HubError, NotFiniteError, SettingError
from redraft.model import adapters, checkpoint
from redraft.model.adapters import save_adapter
from redraft.model.placement import DTYPES

CANVAS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the embedded model's tokenizer and template and a very small random network."""
    return write_random_model(tmp_path_factory.mktemp("random"), canvas=CANVAS, context=192)


def test_the_names_of_dtypes_that_load_takes_are_those_of_its_type() -> None:
    assert set(get_args(get_type_hints(redraft.load)["dtype"])) == {"auto", *DTYPES}


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="quantization is 'int3'"):
        redraft.load("tiny", quantization="int3")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        redraft.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("generation_config.json", [], "does not hold a JSON object"),
        ("generation_config.json", None, "does not hold a JSON object"),
        ("generation_config.json", {"max_denoising_steps": "4"}, "steps is '4'; it must be of type int"),
        ("generation_config.json", {"t_max": "a"}, "t_max is 'a'; it must be of type int or float"),
        ("generation_config.json", {"max_denoising_steps": 0}, "steps is 0; it must be at least 1"),
        ("generation_config.json", {"sampler_config": "x"}, "sets sampler_config to 'x'; it must be an object"),
        ("generation_config.json", {"eos_token_id": "x"}, "sets eos_token_id to 'x'"),
        ("generation_config.json", {"eos_token_id": 999_999}, "1 to 8 token ids below 16384"),
        ("generation_config.json", {"eos_token_id": [*range(1, 10)]}, "1 to 8 token ids below 16384"),
        ("generation_config.json", {"eos_token_id": 1.5}, "sets eos_token_id to 1.5"),
        ("generation_config.json", {"eos_token_id": []}, r"sets eos_token_id to \[\]"),
        ("generation_config.json", {"eos_token_id": [1, True]}, "sets eos_token_id to"),
        ("config.json", {"eos_token_id": "a"}, "sets eos_token_id to"),
        ("config.json", {"rms_norm_eps": "a"}, "sets rms_norm_eps to 'a'; it must be a number above 0"),
        ("config.json", {"final_logit_softcapping": 0}, "sets final_logit_softcapping to 0; it must be a number above"),
        ("config.json", {"final_logit_softcapping": float("nan")}, "it must be a number above 0"),
    ],
)
def test_values_of_a_folder_that_make_no_sense(
    folder: Path, tmp_path: Path, file: str, content: Any, sentence: str
) -> None:
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    if file == "config.json":
        config = json.loads((broken / file).read_text())
        where = config if "eos_token_id" in content else config["text_config"]
        where |= content
        content = config
    (broken / file).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=sentence) as caught:
        redraft.load(broken, device="cpu", dtype="float32")
    assert file in str(caught.value)


def test_a_template_that_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    (broken / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(CheckpointError, match="The chat template is not valid Jinja"):
        redraft.load(broken, device="cpu", dtype="float32")
    (broken / "chat_template.jinja").unlink()
    llm = redraft.load(broken, device="cpu", dtype="float32")
    said = "This model folder has no chat template; it can only continue, fill, repair and score plain text."
    question: list[dict[str, str]] = [{"role": "user", "content": "hi"}]
    for prompt in ("hi", question):
        with pytest.raises(SettingError, match=re.escape(f"{said} Pass a text with raw=True, or token ids.")):
            llm.generate(prompt)
    for ask in (lambda: llm.chat(question), lambda: llm.edit("a b", (0, 1), "c"), lambda: llm.decide("a", ["b", "c"])):
        with pytest.raises(SettingError, match=re.escape(said) + "$"):
            ask()


@pytest.mark.parametrize("vocabulary", [8192, 32768])
def test_a_vocabulary_of_another_size_than_the_tokenizers(tmp_path: Path, vocabulary: int) -> None:
    """Tokens of a padded vocabulary spell nothing; tokens that the model lacks are never taken."""
    folder = write_random_model(tmp_path, canvas=CANVAS, context=192, vocabulary=vocabulary)
    llm = redraft.load(folder, device="cpu", dtype="float32")
    result = llm.generate("a", raw=True, max_tokens=64)
    assert len(result.token_ids) == 64
    assert (max(result.token_ids) >= 16384) == (vocabulary > 16384)
    assert llm.generate("a", raw=True, choices=["hello world", "tokenizers"]).text in ("hello world", "tokenizers")


def test_values_of_a_folder_that_others_write(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    written = {"t_max": 1, "t_min": None, "eos_token_id": 7, "transformers_version": "5", "sampler_config": None}
    (other / "generation_config.json").write_text(json.dumps(written))
    config = json.loads((other / "config.json").read_text())
    config["text_config"] |= {"final_logit_softcapping": 30, "rms_norm_eps": None}
    (other / "config.json").write_text(json.dumps(config))
    llm = redraft.load(other, device="cpu", dtype="float32")
    assert (llm.defaults.t_max, llm.defaults.t_min, llm.eos_ids) == (1, 0.4, (7,))
    (other / "generation_config.json").write_text('{"eos_token_id": null}')
    assert redraft.load(other, device="cpu", dtype="float32").eos_ids == (1,)


@pytest.mark.parametrize(
    "given",
    [{"quantization": "fp4"}, {"device": "cuda:99"}, {"dtype": "fp16"}, {"vocabulary_dtype": "int4"}, {"gpus": 0}],
)
def test_a_wrong_name_fails_before_a_long_download(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=f"^{next(iter(given))} is "):
        redraft.load("someone/some-model", **given)


def test_an_unreachable_hub_is_one_sentence() -> None:
    with pytest.raises(HubError, match="someone/some-model"):
        redraft.load("someone/some-model")


@pytest.mark.parametrize("asked", [{}, {"regex": r"\d+"}, {"logprobs": 1}])
def test_weights_that_are_no_numbers_are_a_sentence(folder: Path, asked: dict[str, Any]) -> None:
    llm = redraft.load(folder, device="cpu", dtype="float32")
    with torch.no_grad():
        next(p for name, p in llm.model.named_parameters() if name.endswith("q_proj.weight"))[0, 0] = math.nan
    with pytest.raises(NotFiniteError, match="its weights, or those of its adapter, are damaged"):
        llm.generate("Hello", max_tokens=8, **asked)
    with pytest.raises(NotFiniteError):
        llm.decide("Is it?", ["yes", "no"])
    for work in (lambda: llm.fill("a", "b"), lambda: llm.edit("a b c", (2, 3))):
        with pytest.raises(NotFiniteError):
            work()


@pytest.mark.parametrize("name", ["q_proj", "k_norm"])
def test_packed_weights_that_are_no_numbers_are_a_sentence(folder: Path, tmp_path: Path, name: str) -> None:
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    model = redraft.load_model(folder, "cpu", "float32")
    with torch.no_grad():
        model.get_parameter(f"layers.0.attention.{name}.weight").view(-1)[0] = math.nan
    redraft.save_model(model, damaged)
    llm = redraft.load(damaged, device="cpu", dtype="float32", quantization="fp8")
    with pytest.raises(NotFiniteError, match="are damaged"):
        llm.generate("Hello", max_tokens=8)


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        (5, "An adapter must be a folder, not of type int."),
        (["x"], "An adapter must be a folder, not of type list."),
        ({"a": 5}, "An adapter must be a folder, not of type int."),
        ({5: "a"}, "An adapter's name is 5; it must be a non-empty string"),
        ({"": "a"}, "An adapter's name is ''; it must be a non-empty string"),
        ({"a\ud800": "a"}, "adapter holds a character that UTF-8 cannot express at index 1"),
    ],
)
def test_an_adapter_is_a_folder_and_has_a_name(folder: Path, adapter: Any, said: str) -> None:
    with pytest.raises(SettingError, match=re.escape(said)) as caught:
        redraft.load(folder, device="cpu", dtype="float32", adapter=adapter)
    assert caught.value.field == "adapter"


def test_every_file_is_read_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's headers and config, and each adapter."""
    save_adapter(random_adapter(redraft.load_model(folder), 1), tmp_path, base_model=str(folder))
    read, headers, tensors = [], checkpoint.read_headers, adapters.load_file
    monkeypatch.setattr(checkpoint, "read_headers", lambda folder: (read.append(folder), headers(folder))[1])
    monkeypatch.setattr(adapters, "load_file", lambda file: (read.append(file.parent), tensors(file))[1])
    llm = redraft.load(folder, device="cpu", dtype="float32", adapter={"one": tmp_path})
    assert llm.adapters == ("one",)
    assert read == [folder, tmp_path]
    read.clear()
    llm.add_adapter("two", tmp_path)
    assert read == [folder, tmp_path]


def test_a_model_is_loaded_without_importing_a_compiler(folder: Path) -> None:
    """It takes half a second, and nothing on a CPU uses it."""
    code = "import sys, redraft; redraft.load(sys.argv[1]); sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, folder], check=True)


def test_an_adapter_of_another_model_is_a_fault_of_its_argument(folder: Path, tmp_path: Path) -> None:
    save_adapter(random_adapter(redraft.load_model("tiny", "cpu"), 1), tmp_path, base_model="tiny")
    with pytest.raises(CheckpointError, match="is for another model") as caught:
        redraft.load(folder, device="cpu", adapter=tmp_path)
    assert caught.value.field == "adapter"
    llm = redraft.load(folder, device="cpu")
    with pytest.raises(CheckpointError, match="is for another model") as caught:
        llm.add_adapter("other", tmp_path)
    assert caught.value.field == "folder"
