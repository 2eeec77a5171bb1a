"""Images in Python and on the command line: every way to give one, every way to be told that it cannot be read."""

import io
import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import redraft
from drawn import asked_about, data_url, drawn, file_of
from random_adapter import random_adapter
from random_model import write_random_model
from redraft.cli.main import main
from redraft.diffusion.prefill import prefill
from redraft.errors import CheckpointError, PromptError, SettingError
from redraft.llm import LLM
from redraft.model.adapters import save_adapter
from redraft.model.checkpoint import Checkpoint
from redraft.model.inference import load_packed
from redraft.model.quantize import quantize_folder
from redraft.model.vision import ImageEmbeddings
from redraft.model.weight_settings import WeightSettings
from redraft.text.images import Grid, open_part, prepare
from redraft.train.export import export_model

SETTINGS: dict[str, Any] = {"max_tokens": 16, "seed": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("sees"), canvas=16, context=2048, sees=True)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return redraft.load(folder, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def blind(folder: Path) -> LLM:
    return redraft.load(folder, device="cpu", dtype="float32", vision=False)


def test_images_whose_parts_do_not_see_each_other_are_refused(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    del config["text_config"]["use_bidirectional_attention"]
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="use_bidirectional_attention to None"):
        redraft.load_model(other, "cpu", "float32")
    assert redraft.load_model(other, "cpu", "float32", vision=False).vision is None


def test_an_image_may_be_given_in_many_ways(tmp_path: Path) -> None:
    picture = drawn()
    (tmp_path / "a.png").write_bytes(file_of(picture))
    array = np.array(picture)
    parts: list[dict[str, Any]] = [
        {"type": "image", "image": source}
        for source in (picture, file_of(picture), bytearray(file_of(picture)), file_of(picture, "BMP"), array,
                       torch.from_numpy(array), tmp_path / "a.png", str(tmp_path / "a.png"), data_url(picture))
    ]  # fmt: skip
    parts += [
        {"type": "image", "path": str(tmp_path / "a.png")},
        {"type": "image", "url": data_url(picture)},
        {"type": "image_url", "image_url": data_url(picture)},
        {"type": "image_url", "image_url": {"url": data_url(picture), "detail": "auto"}},
    ]
    assert len({open_part(part, Grid()).image().digest for part in parts}) == 1


def test_colours_and_the_way_up_are_those_that_are_seen() -> None:
    grey = drawn().convert("L")
    expected = prepare(np.array(grey.convert("RGB")), Grid()).digest
    assert prepare(grey, Grid()).digest == prepare(np.array(grey), Grid()).digest == expected
    turned = drawn().transpose(Image.Transpose.ROTATE_90)
    notes = Image.Exif()
    notes[0x0112] = 6  # the camera was held upright
    held = io.BytesIO()
    turned.save(held, "PNG", exif=notes)
    assert prepare(held.getvalue(), Grid()).digest == prepare(drawn(), Grid()).digest


def test_detail_says_how_many_tokens_an_image_takes() -> None:
    found = [open_part({"type": "image", "image": drawn(), "detail": detail}, Grid()).tokens
             for detail in ("low", 70, None, "auto", 280, 560, "high", 1120)]  # fmt: skip
    assert found == [60, 60, 252, 252, 252, 540, 1075, 1075]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"image": "nowhere.png"}, "The image nowhere.png cannot be read: No such file"),
        ({"image": b"no image"}, "only PNG, JPEG, WEBP, GIF, BMP files can"),
        ({"image": 7}, "not a int"),
        ({"image": np.zeros((4, 4, 3))}, "must be uint8 [height, width, 3], not float64 [4, 4, 3]"),
        ({"image": np.zeros((4, 4, 4), np.uint8)}, "not uint8 [4, 4, 4]"),
        ({"image": np.zeros((0, 4, 3), np.uint8)}, "not uint8 [0, 4, 3]"),
        ({"image": Image.new("RGB", (0, 4))}, "no pixels"),
        ({"image": "https://example.com/a.png"}, "nothing is fetched"),
        ({"url": "a.png"}, "must be a data URL"),
        ({}, "under 'image', 'path' or 'url'"),
        ({"type": "image_url", "image_url": 7}, "a string, or an object with 'url'"),
    ],
)
def test_what_is_no_image_is_a_sentence(llm: LLM, part: dict[str, Any], said: str) -> None:
    messages = [{"role": "user", "content": [{"type": "image", **part}]}]
    with pytest.raises(PromptError, match=re.escape(said)):
        llm.generate(messages)


@pytest.mark.parametrize("detail", ["much", 100, 280.0, True, [], "280"])
def test_an_unknown_detail_is_refused(llm: LLM, detail: Any) -> None:
    with pytest.raises(SettingError, match="must be low, auto, high, or one of 70"):
        llm.generate(asked_about(drawn(), detail=detail))


def test_a_truncated_file_is_called_that() -> None:
    with pytest.raises(PromptError, match="its file is damaged or truncated"):
        prepare(file_of(drawn())[:-40], Grid())


def test_a_file_that_pillow_refuses_for_its_size_is_called_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(PromptError, match="An image has too many pixels; at most"):
        prepare(file_of(drawn()), Grid())


def test_a_file_that_would_take_all_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.text.images.MAX_PIXELS", 5_999)
    with pytest.raises(PromptError, match="has 6,000 pixels; at most 5,999 can be read"):
        prepare(file_of(drawn()), Grid())


def test_too_many_images_are_refused_before_any_is_decoded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = file_of(drawn())[:-200]
    with pytest.raises(PromptError, match="take 2,268 tokens; the context holds only 2,048"):
        llm.generate(asked_about(*[damaged] * 9))
    monkeypatch.setattr("redraft.text.placing.MAX_PIXELS_OF_PROMPT", 11_999)
    with pytest.raises(PromptError, match="have 12,000 pixels; at most 11,999 can be read"):
        llm.generate(asked_about(damaged, damaged))
    with pytest.raises(PromptError, match="An image cannot be read"):
        llm.generate(asked_about(damaged))


def test_an_image_longer_than_a_forward_is_refused(folder: Path) -> None:
    """A packed model's forward holds 32 canvases, of 16 tokens here."""
    packed = redraft.load(folder, device="cpu", quantization="fp8")
    with pytest.raises(PromptError, match="An image of 540 tokens is encoded at once, but a forward has only 512"):
        packed.generate(asked_about(drawn(), detail=560), max_tokens=16)
    assert packed.generate(asked_about(drawn(), detail="low"), max_tokens=16).stats.tokens <= 16


def test_arrays_lie_in_memory_as_they_like() -> None:
    picture = np.array(drawn())
    mirrored = prepare(picture[:, ::-1].copy(), Grid()).digest
    assert prepare(picture[:, ::-1], Grid()).digest == mirrored != prepare(picture, Grid()).digest
    assert prepare(picture[..., ::-1], Grid()).digest == prepare(picture[..., ::-1].copy(), Grid()).digest


def test_16_bits_of_grey_are_read_as_8() -> None:
    grey = np.linspace(0, 65535, 6000).astype(np.uint16).reshape(60, 100)
    expected = prepare((grey >> 8).astype(np.uint8), Grid()).digest
    assert prepare(Image.fromarray(grey), Grid()).digest == expected
    assert prepare(file_of(Image.fromarray(grey)), Grid()).digest == expected
    with pytest.raises(PromptError, match="mode F"):
        prepare(Image.fromarray(grey.astype(np.float32)), Grid())


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_lies_on_white(mode: str) -> None:
    """As the reference has it."""
    from transformers.image_transforms import convert_to_rgb

    clear = drawn().convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    given = clear.quantize() if mode == "P" else clear.convert(mode)
    expected = convert_to_rgb(Image.open(io.BytesIO(file_of(given))), return_numpy=True)
    assert prepare(file_of(given), Grid()).digest == prepare(np.ascontiguousarray(expected), Grid()).digest


def test_without_pillow_arrays_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = np.array(drawn())
    encoded = file_of(drawn())
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert prepare(picture, Grid()).tokens == 252
    with pytest.raises(SettingError, match=re.escape("pip install 'redraft[images]'")):
        prepare(encoded, Grid())


def test_answers_follow_what_is_shown(llm: LLM) -> None:
    answers = [llm.generate(asked_about(drawn(seed)), **SETTINGS) for seed in range(4)]
    assert len({answer.token_ids for answer in answers}) > 1
    assert answers[0].stats.prompt_tokens > 252
    again = llm.generate(asked_about(drawn(0)), **SETTINGS)
    assert again.token_ids == answers[0].token_ids
    together = llm.generate_batch([asked_about(drawn(seed)) for seed in range(4)], **SETTINGS)
    assert [one.token_ids for one in together] == [one.token_ids for one in answers]
    assert llm.chat(asked_about(drawn(2)), **SETTINGS).result.token_ids == answers[2].token_ids
    assert llm.generate(llm.read_chat(asked_about(drawn(2))), **SETTINGS).token_ids == answers[2].token_ids


def test_decisions_follow_what_is_shown(llm: LLM) -> None:
    asked = [asked_about(drawn(seed), text="Answer with yes or no.") for seed in (0, 1, 0)]
    found = llm.decide(asked, ["yes", "no"])
    assert isinstance(found, list)
    odds = [one.readings[0].raw["yes"] for one in found]
    assert odds[0] == pytest.approx(odds[2], rel=1e-4)
    assert odds[0] != pytest.approx(odds[1], rel=1e-4)


def test_a_decision_sees_what_an_answer_sees(llm: LLM) -> None:
    """An image of more tokens than a chunk, against the whole prompt in one piece."""
    prompt = llm.read_chat(asked_about(drawn(), detail="high", text="word " * 300))
    assert prompt.images[0].stop > 1000
    whole, pieces = (llm.model.new_cache(1, len(prompt)) for _ in range(2))
    with torch.inference_mode():
        seen = [ImageEmbeddings(image.start, llm.model.embed_image(image.content)) for image in prompt.images]
        expected = llm.model.encode(torch.tensor([prompt.ids]), whole, images=[seen])[:, -1]
    torch.testing.assert_close(prefill(llm.model, pieces, [prompt.ids], [prompt.images]), expected, atol=1e-4, rtol=0)


def test_a_model_without_eyes_says_so(blind: LLM, folder: Path) -> None:
    assert blind.model.vision is None
    with pytest.raises(PromptError, match="this model reads only text: it has no vision tower"):
        blind.generate(asked_about(drawn()))
    sighted = redraft.load(folder, device="cpu", dtype="float32")
    assert blind.generate("Hello", **SETTINGS).token_ids == sighted.generate("Hello", **SETTINGS).token_ids


def test_other_media_are_refused(llm: LLM) -> None:
    with pytest.raises(PromptError, match="holds audio; only text and images can be read"):
        llm.generate([{"role": "user", "content": [{"type": "audio", "audio": b""}]}])


def test_ids_alone_cannot_hold_images(llm: LLM) -> None:
    with pytest.raises(PromptError, match="Images can be read by generate, stream, chat and decide"):
        llm.encode_chat(asked_about(drawn()))


def test_the_name_of_the_mark_shows_nothing(llm: LLM) -> None:
    prompt = llm.read_chat([{"role": "user", "content": "<|image|><|image>"}])
    assert not set(prompt.ids) & set(llm.model.config.image_marks)


@pytest.mark.parametrize("format", [None, "fp8"])
def test_stored_and_packed_models_see(folder: Path, llm: LLM, tmp_path: Path, format: str | None) -> None:
    place = folder
    if format is not None:
        place = tmp_path / format
        quantize_folder(folder, place, format)
    picture = prepare(drawn(), Grid())
    settings = WeightSettings(device="cpu", dtype="float32")
    packed = load_packed(Checkpoint(place), settings)
    assert torch.equal(packed.embed_image(picture), llm.model.embed_image(picture))
    assert load_packed(Checkpoint(place, vision=False), settings).vision is None


def test_an_adapter_may_change_what_is_seen(folder: Path, llm: LLM, tmp_path: Path) -> None:
    adapter = random_adapter(llm.model, 3, r"vision\.layers\.\d\.(attention\.q_proj|mlp\.up_proj)")
    save_adapter(adapter, tmp_path / "a", base_model=str(folder))
    picture = prepare(drawn(), Grid())
    given: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
    folded = redraft.load(folder, adapter=tmp_path / "a", **given)
    named = redraft.load(folder, adapter={"x": tmp_path / "a"}, **given)
    assert not torch.allclose(folded.model.embed_image(picture), llm.model.embed_image(picture), atol=1e-3)
    assert torch.equal(named.model.embed_image(picture), llm.model.embed_image(picture))
    assert torch.equal(named.with_adapter("x").model.embed_image(picture), folded.model.embed_image(picture))
    with pytest.raises(CheckpointError, match="only the vision tower, which is not loaded"):
        redraft.load(folder, adapter=tmp_path / "a", vision=False, **given)
    both = random_adapter(llm.model, 3, r"q_proj")
    assert any(name.startswith("vision.") for name in both.factors)
    save_adapter(both, tmp_path / "b", base_model=str(folder))
    blind = redraft.load(folder, adapter=tmp_path / "b", vision=False, **given)
    sighted = redraft.load(folder, adapter=tmp_path / "b", **given)
    assert (
        blind.generate([2, 50], max_tokens=16, steps=2).tokens
        == sighted.generate([2, 50], max_tokens=16, steps=2).tokens
    )


def test_merged_and_trained_models_still_see(folder: Path, llm: LLM, tmp_path: Path) -> None:
    adapter = random_adapter(llm.model, 3, r"^layers\.0\.attention\.q_proj")
    save_adapter(adapter, tmp_path / "a", base_model=str(folder))
    assert main(["merge", str(folder), str(tmp_path / "a"), str(tmp_path / "merged")]) == 0
    text = redraft.load_model(folder, "cpu", "float32", vision=False)
    export_model(text, tmp_path / "trained", tokenizer=str(folder), init=str(folder))
    for name, exact in (("merged", True), ("trained", False)):
        seen = redraft.load_model(tmp_path / name, "cpu", "float32").embed_image(prepare(drawn(), Grid()))
        expected = llm.model.embed_image(prepare(drawn(), Grid()))
        torch.testing.assert_close(seen, expected, atol=0 if exact else 0.05, rtol=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vision_config": None}, "holds a vision tower, which its config.json does not describe"),
        ({"image_token_id": 999_999}, "must be token ids; 999999 is not one"),
        ({"vision_soft_tokens_per_image": 100}, "vision_soft_tokens_per_image is 100"),
        ({"vision_config": {"use_clipped_linears": True}}, "use_clipped_linears is not supported; vision=False loads"),
        ({"vision_config": {"hidden_size": 64}}, "misshapen"),
        (
            {"vision_config": {"num_key_value_heads": 3}},
            "2 attention heads are not a multiple of its 3 key/value heads",
        ),
        ({"vision_config": {"rms_norm_eps": "x"}}, "vision_config needs numbers above 0 for rms_norm_eps"),
        ({"vision_config": {"rms_norm_eps": None}}, "vision_config needs numbers above 0 for rms_norm_eps"),
        ({"vision_config": {"rms_norm_eps": math.nan}}, "vision_config needs numbers above 0 for rms_norm_eps"),
        ({"vision_config": {"rope_parameters": {"rope_theta": 0}}}, "needs numbers above 0 for rope_theta"),
        ({"vision_config": {"rope_parameters": [1]}}, "rope_parameters [1] are not supported; vision=False loads"),
        ({"vision_config": {"rope_parameters": {"rope_type": "linear"}}}, "{'rope_type': 'linear'} are not supported"),
    ],
)
def test_a_tower_that_its_config_does_not_fit_is_a_sentence(
    folder: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    for name, value in change.items():
        config[name] = config[name] | value if isinstance(value, dict) else value
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=re.escape(said)):
        redraft.load_model(tmp_path, "cpu")
    assert redraft.load_model(tmp_path, "cpu", vision=False).vision is None


class TestCommandLine:
    @pytest.fixture
    def picture(self, tmp_path: Path) -> Path:
        (tmp_path / "a.png").write_bytes(file_of(drawn()))
        return tmp_path / "a.png"

    def test_generate(self, folder: Path, llm: LLM, picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ["--model", str(folder), "--dtype", "float32", "--max-tokens", "16", "--seed", "5", "--json"]
        for detail, more in ((None, []), (70, ["--image-detail", "low"]), (140, ["--image-detail", "140"])):
            assert main(["generate", "What is this?", "--image", str(picture), *more, *options]) == 0
            found = json.loads(capsys.readouterr().out)
            expected = llm.generate(asked_about(drawn(), detail=detail), **SETTINGS)
            assert found["token_ids"] == list(expected.token_ids)
            assert found["stats"]["prompt_tokens"] == expected.stats.prompt_tokens

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--image", "nowhere.png"], "The image nowhere.png cannot be read: No such file"),
            (["--image-detail", "low"], "--image-detail needs --image"),
            (["--image", "{}", "--image-detail", "much"], "detail is 'much'"),
            (["--image", "{}", "--raw"], "--image needs the chat format"),
            (["--image", "{}", "--text-only"], "this model reads only text"),
        ],
    )
    def test_bad_images_are_code_2(
        self, folder: Path, picture: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = [option.format(picture) for option in options]
        assert main(["generate", "What is this?", "--model", str(folder), *given]) == 2
        assert said in capsys.readouterr().err

    def test_chat_shows_images_with_the_next_message(
        self, folder: Path, llm: LLM, picture: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        typed = f"/image {picture}\nWhat is this?\nAnd now?\n"
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        options = ["--model", str(folder), "--dtype", "float32", "--max-tokens", "16", "--seed", "5", "--json"]
        assert main(["chat", *options]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        first = llm.generate(asked_about(drawn()), **SETTINGS)
        assert found["answers"][0]["token_ids"] == list(first.token_ids)
        assert [part["type"] for part in found["messages"][0]["content"]] == ["image", "text"]
        assert found["messages"][2]["content"] == "And now?"
        assert found["answers"][1]["stats"]["prompt_tokens"] > found["answers"][0]["stats"]["prompt_tokens"]

    def test_a_person_is_told_what_is_no_image(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = io.StringIO("/image nowhere.png\n/image\n/quit\n")
        monkeypatch.setattr(source, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stdin", source)
        assert main(["chat", "--model", str(folder)]) == 0
        told = " ".join(capsys.readouterr().err.split())
        assert "The image nowhere.png cannot be read" in told
        assert "/image needs the name of a file" in told
