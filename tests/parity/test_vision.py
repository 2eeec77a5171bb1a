"""Images against transformers 5.23: the tower, the encoder's mask, and whole generations (`generate`, dynamic cache).

Called directly, its encoder computes the mask for images and throws it away; `generate` hands the mask in, and so does
this file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity_steps import new_engine, replay_their_draws, their_config
from PIL import Image as Pil
from reference_model import randomise, reference_config
from torch import Tensor
from transformers import DiffusionGemmaConfig, DynamicCache
from transformers.models.diffusion_gemma import DiffusionGemmaForBlockDiffusion as Reference
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from redraft.engine.request import Finished, Request
from redraft.model.transformer import Transformer
from redraft.model.vision import ImageEmbeddings
from redraft.model.weights import load_model, save_model
from redraft.reference import Reference as Oracle
from redraft.settings import GenerationSettings
from redraft.text.images import BUDGETS, Grid, Image, PlacedImage, prepare
from redraft.text.placing import EncodedPrompt, place_images

OPENING, PART, CLOSING = 125, 126, 127
CANVAS = 16
GRID = Grid(budget=70)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def theirs() -> Reference:
    """The reference with eyes: a tower with grouped heads, standardized features and no default."""
    raw = reference_config(CANVAS).to_dict()
    raw["vision_config"] |= {
        "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 12, "global_head_dim": 12, "position_embedding_size": 256,
        "standardize": True, "rms_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }  # fmt: skip
    torch.manual_seed(0)
    model = Reference(DiffusionGemmaConfig(**raw)).eval()
    with torch.no_grad():
        randomise(model)
        tower = model.model.encoder.vision_tower
        tower.std_bias.normal_()
        tower.std_scale.normal_(1.0, 0.1)
        model.model.decoder.self_conditioning.down_proj.weight.mul_(0.02)  # or rounding grows from step to step
    return model


@pytest.fixture(scope="module")
def folder(theirs: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("seeing")
    theirs.save_pretrained(where)
    return where


@pytest.fixture(scope="module")
def ours(folder: Path) -> Transformer:
    return load_model(folder, "cpu", "float32")


def image(height: int, width: int, seed: int = 0, grid: Grid = GRID) -> Image:
    """Random pixels, blurred, so that scaling them says something."""
    small = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return prepare(Pil.fromarray(small).resize((width, height), Pil.Resampling.BICUBIC), grid)


def their_pixels(*images: Image, budget: int = GRID.budget) -> dict[str, Tensor]:
    """Patches as their processor hands them over, padded to the budget."""
    pixels = torch.zeros(len(images), 9 * budget, 768)
    places = torch.full((len(images), 9 * budget, 2), -1)
    for row, one in enumerate(images):
        count, at = len(one.patches), torch.arange(len(one.patches))
        pixels[row, :count] = one.patches.float() / 255
        places[row, :count] = torch.stack((at % one.columns, at // one.columns), 1)
    return {"pixel_values": pixels, "image_position_ids": places}


def prompt_with(*images: Image) -> EncodedPrompt:
    """Words, then the images, each behind a word, then words."""
    ids = [5, 17, 33, *[token for n in range(len(images)) for token in (40 + n, PART)], 90, 41, 8]
    return place_images(ids, images, (OPENING, PART, CLOSING))


def their_encode(theirs: Reference, prompt: EncodedPrompt, cache: DynamicCache) -> Tensor:
    ids = torch.tensor([prompt.ids])
    kinds = (ids == PART).int()
    masks = theirs.model.encoder.create_masks_for_generate(
        config=theirs.config.get_text_config(),
        inputs_embeds=torch.empty(1, ids.shape[1], 0),
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        position_ids=torch.arange(ids.shape[1])[None],
        mm_token_type_ids=kinds,
    )
    pixels = their_pixels(*(placed.content for placed in prompt.images))
    return theirs.model.encoder(input_ids=ids, attention_mask=masks, past_key_values=cache, **pixels).last_hidden_state


def seen_by(model: Transformer, prompt: EncodedPrompt) -> list[ImageEmbeddings]:
    return [ImageEmbeddings(placed.start, model.embed_image(placed.content)) for placed in prompt.images]


@pytest.mark.parametrize(("height", "width"), [(48, 48), (480, 640), (37, 1000), (900, 300)])
def test_the_tower_sees_what_theirs_sees(theirs: Reference, ours: Transformer, height: int, width: int) -> None:
    shown = image(height, width)
    pixels = their_pixels(shown)
    features = theirs.model.encoder.get_image_features(pixels["pixel_values"], pixels["image_position_ids"])
    seen = ours.embed_image(shown)
    assert seen.shape == (shown.tokens, 64)
    assert features.pooler_output.abs().max() > 0.5
    assert (seen - features.pooler_output).abs().max() <= 1e-5


@pytest.mark.parametrize("sizes", [[(96, 96)], [(480, 640)], [(96, 96), (640, 300)]], ids=str)
def test_images_among_words_are_encoded_as_theirs(
    theirs: Reference, ours: Transformer, sizes: list[tuple[int, int]]
) -> None:
    """Images are longer than the window of 8, and their parts see each other all the same."""
    prompt = prompt_with(*(image(*size, seed=n) for n, size in enumerate(sizes)))
    past, cache = DynamicCache(config=theirs.config.text_config), ours.new_cache(1, 256)
    expected = their_encode(theirs, prompt, past)
    seen = seen_by(ours, prompt)
    assert (ours.encode(torch.tensor([prompt.ids]), cache, images=[seen]) - expected).abs().max() <= 1e-4

    canvas = torch.randint(0, 125, (1, CANVAS), generator=torch.Generator().manual_seed(3))
    logits = theirs(decoder_input_ids=canvas, past_key_values=past).logits
    assert (ours.logits(ours.denoise(canvas, cache)) - logits).abs().max() <= 1e-4
    oracle = Oracle(ours)
    hidden, _ = oracle.encode(torch.tensor(prompt.ids), [(one.start, one.embeddings) for one in seen])
    assert (hidden - expected[0]).abs().max() <= 1e-4


def test_what_an_image_shows_reaches_the_answer(ours: Transformer) -> None:
    canvas = torch.randint(0, 125, (1, CANVAS), generator=torch.Generator().manual_seed(3))
    drafts = []
    for seed in (0, 1):
        prompt, cache = prompt_with(image(96, 96, seed)), ours.new_cache(1, 256)
        ours.encode(torch.tensor([prompt.ids]), cache, images=[seen_by(ours, prompt)])
        drafts.append(ours.denoise(canvas, cache))
    assert (drafts[0] - drafts[1]).abs().max() > 0.01


@pytest.mark.parametrize("count", [1, 2])
def test_a_whole_generation_about_images_is_token_identical(
    theirs: Reference, ours: Transformer, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [image(96 + 48 * n, 240, seed=n) for n in range(count)]
    prompt = prompt_with(*images)
    ids = torch.tensor([prompt.ids])
    config = their_config(CANVAS, entropy_bound=2.0, confidence_threshold=1.0)
    torch.manual_seed(7)
    expected = theirs.generate(
        ids, generation_config=config, mm_token_type_ids=(ids == PART).int(), **their_pixels(*images)
    )
    replay_their_draws(monkeypatch, ours.config.vocab_size)
    torch.manual_seed(7)
    settings = GenerationSettings(
        steps=12, stretch_schedule=True, max_tokens=3 * CANVAS, entropy_bound=2.0, confidence_threshold=1.0
    )
    request = Request(request_id=0, prompt=prompt.ids, images=prompt.images, settings=settings, drafts=False)
    end = list(new_engine(ours, ()).answer([request]))[-1]
    assert isinstance(end, Finished)
    assert list(end.token_ids) == expected.sequences[0, len(prompt) :].tolist()


def test_what_we_save_sees_what_it_saw(theirs: Reference, ours: Transformer, tmp_path: Path) -> None:
    save_model(ours, tmp_path)
    loaded, info = Reference.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    original = theirs.state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in loaded.state_dict().items())


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(("height", "width"), [(30, 50), (480, 640), (1000, 37), (48, 48), (3, 900), (768, 768)])
def test_images_are_cut_as_their_processor_cuts_them(height: int, width: int, budget: int) -> None:
    """Theirs scales by Pillow here, ours by torch, as theirs does where there is torchvision: two levels apart."""
    random = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    shown = Pil.fromarray(random)
    expected: Any = Gemma4ImageProcessorPil(max_soft_tokens=budget)(shown, return_tensors="pt")
    cut = prepare(shown, Grid(), budget)
    count = len(cut.patches)
    at = torch.arange(count)
    assert cut.tokens == int(expected["num_soft_tokens_per_image"][0]) == count // 9
    assert torch.equal(torch.stack((at % cut.columns, at // cut.columns), 1), expected["image_position_ids"][0, :count])
    apart = (cut.patches.float() - 255 * expected["pixel_values"][0, :count]).abs()
    assert apart.max() <= 2.01
    assert apart.mean() < 0.02


def test_an_image_has_one_place(ours: Transformer) -> None:
    prompt = prompt_with(image(96, 96), image(48, 480))
    assert [prompt.ids[placed.start - 1] for placed in prompt.images] == [OPENING] * 2
    assert [prompt.ids[placed.stop] for placed in prompt.images] == [CLOSING] * 2
    assert all(set(prompt.ids[placed.start : placed.stop]) == {PART} for placed in prompt.images)
    assert isinstance(prompt.images[0], PlacedImage)
    assert ours.config.image_marks == (OPENING, PART, CLOSING)
