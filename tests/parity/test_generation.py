"""The sampler and the whole loop against `transformers` (DiffusionGemmaForBlockDiffusion.generate, dynamic cache)."""

import dataclasses
from typing import Any

import pytest
import torch
from parity_steps import new_engine, replay_their_draws, their_config

from redraft.diffusion import sampler
from redraft.diffusion.prefill import prefill
from redraft.diffusion.records import DenoiseStep
from redraft.diffusion.schedule import temperature
from redraft.engine.request import Finished, Request
from redraft.model import Transformer
from redraft.model.weights import load_model
from redraft.settings import GenerationSettings, settings_from_dict

CANVAS, VOCAB, WINDOW = 8, 99, 8
PROMPT = [5, 17, 33, 2, 90, 41, 8, 77, 61, 12, 54, 3, 29]  # longer than the window


@pytest.fixture(scope="module")
def theirs() -> Any:
    """A random model of theirs with damped self-conditioning, so that rounding does not grow from step to step."""
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig
    from transformers.models.gemma4 import Gemma4VisionConfig

    text = DiffusionGemmaTextConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, sliding_window=WINDOW,
        num_experts=4, top_k_experts=2, moe_intermediate_size=24, max_position_embeddings=512,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], use_bidirectional_attention="vision",
    )  # fmt: skip
    vision = Gemma4VisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8, position_embedding_size=16,
    )  # fmt: skip
    torch.manual_seed(1)
    marks = {"boi_token_id": 96, "image_token_id": 97, "eoi_token_id": 98}
    config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=CANVAS, **marks)
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.model.decoder.self_conditioning.down_proj.weight.data.mul_(0.02)
    return model


@pytest.fixture(scope="module")
def ours(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    folder = tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    return load_model(folder, device="cpu", dtype="float32")


@pytest.mark.parametrize("name", ["stability_threshold", "confidence_threshold", "t_min", "t_max"])
def test_a_setting_of_null_has_its_default(theirs: Any, name: str) -> None:
    written = {"stability_threshold": 0, "confidence_threshold": 100.0, "t_min": 0.5, "t_max": 0.9} | {name: None}
    known, _ = theirs._prepare_generation_config(type(theirs.generation_config)(**written))
    settings = settings_from_dict(written)
    assert {key: getattr(settings, key) for key in written} == {key: getattr(known, key) for key in written}


@pytest.mark.parametrize("step", [0, 3, 11])
def test_one_step_with_their_inputs(theirs: Any, ours: Transformer, step: int) -> None:
    """Same canvas and self-conditioning in: same argmax, entropy and acceptance out."""
    torch.manual_seed(step)
    canvas = torch.randint(VOCAB, (1, CANVAS))
    previous = torch.randn(1, CANVAS, VOCAB) * 3 if step else None
    config = their_config(CANVAS, entropy_bound=4.0)
    with torch.inference_mode():
        past = theirs.model.encoder(input_ids=torch.tensor([PROMPT])).past_key_values
        raw = theirs(
            decoder_input_ids=canvas,
            self_conditioning_logits=previous,
            past_key_values=past,
            decoder_position_ids=torch.arange(len(PROMPT), len(PROMPT) + CANVAS)[None],
        ).logits
        processed = theirs._prepare_logits_processor(config, None)(None, raw, cur_step=torch.tensor(12 - step))
        their_sampler = theirs._prepare_sampler(config)
        their_sampler.accept_canvas(canvas, canvas, processed, None)

        cache = ours.new_cache(1, 64)
        prefill(ours, cache, [PROMPT])
        hidden = ours.denoise(canvas, cache, None if previous is None else ours.soft_embeddings(previous))
        heat = temperature(step, t_min=0.4, t_max=0.8, steps=12)
        uniform = torch.rand(CANVAS, dtype=torch.float64)
        seen = sampler.predict(ours, hidden[0], uniform, heat, want_soft=True)
        logits = ours.logits(hidden)
    torch.testing.assert_close(logits, raw, atol=1e-4, rtol=0)
    assert torch.equal(seen.argmax[None], processed.argmax(-1))
    torch.testing.assert_close(
        seen.entropy[None], torch.distributions.Categorical(logits=processed).entropy(), atol=1e-4, rtol=0
    )
    assert torch.equal(sampler.accept(seen.entropy[None], 4.0), their_sampler.accepted_token_mask)


CASES = [
    {},
    {"entropy_bound": 2.0, "confidence_threshold": 1.0},
    {"entropy_bound": 8.0, "confidence_threshold": 2.5, "max_new_tokens": 20},
    {"stability_threshold": 0, "confidence_threshold": 3.0},
    {"stability_threshold": 2, "confidence_threshold": 9.0, "t_min": 0.3, "t_max": 1.2},
    {"eos_token_id": list(range(40, 60)), "entropy_bound": 1.0},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(case) or "defaults")
def test_a_whole_generation_is_token_identical(
    theirs: Any, ours: Transformer, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaying their draws (torch's global generator, in their order) gives their tokens and their step counts."""
    config = their_config(CANVAS, **case)
    torch.manual_seed(7)
    expected = theirs.generate(torch.tensor([PROMPT]), generation_config=config)

    replay_their_draws(monkeypatch, VOCAB)
    torch.manual_seed(7)
    eos = tuple(case.get("eos_token_id", ()))
    settings = GenerationSettings(
        steps=12, stretch_schedule=True, max_tokens=3 * CANVAS,
        **{name: value for name, value in case.items() if name not in ("eos_token_id", "max_new_tokens")},
    )  # fmt: skip
    engine = new_engine(ours, eos)
    events = list(engine.answer([Request(request_id=0, prompt=tuple(PROMPT), settings=settings)]))
    records = [event for event in events if isinstance(event, DenoiseStep)]
    end = events[-1]
    assert isinstance(end, Finished)
    new = expected.sequences[0, len(PROMPT) :].tolist()
    kept = new[: next((i for i, token in enumerate(new) if token in eos), len(new))]
    assert list(end.token_ids) == kept
    non_pad = sum(token != 0 for token in new)
    assert non_pad / len(records) == pytest.approx(float(expected.tokens_per_forward[0]))


def test_a_step_cap_does_not_stretch_the_schedule() -> None:
    capped = GenerationSettings(steps=8)
    assert capped.temperature_steps == 48
    assert dataclasses.replace(capped, stretch_schedule=True).temperature_steps == 8
