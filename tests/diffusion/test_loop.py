"""The denoising loop against the fp32 oracle, and its independence of the batch."""

import dataclasses

import pytest
import torch

from redraft.config import GenerationSettings
from redraft.constraints import Allowed
from redraft.diffusion.loop import CanvasJob, denoise_canvases
from redraft.diffusion.prefill import prefill
from redraft.diffusion.records import DenoiseStep, record_from_dict
from redraft.model import Transformer
from redraft.model.presets import preset
from redraft.reference import Reference

LENGTH = 16


@pytest.fixture(scope="module")
def model() -> Transformer:
    """A random model whose self-conditioning is damped, so that rounding noise does not grow from step to step."""
    torch.manual_seed(0)
    network = Transformer(preset("nano")).eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
        else:
            torch.nn.init.uniform_(parameter, 0.7, 1.3)
    network.self_conditioning.down_proj.weight.mul_(0.05)
    for layer in network.layers:
        layer.encode_scalar.fill_(0.9)  # type: ignore[union-attr]
        layer.denoise_scalar.fill_(0.8)  # type: ignore[union-attr]
    return network


SETTINGS = GenerationSettings(max_tokens=LENGTH, steps=6, confidence_threshold=1e-9, entropy_bound=3.0, seed=5)
PROMPT = list(range(7, 30))  # longer than the window of 8


def steps_of(
    model: Transformer, prompts: list[list[int]], seeds: list[int], settings: GenerationSettings
) -> list[DenoiseStep]:
    """Every step of the first canvas behind each prompt."""
    cache = model.new_cache(len(prompts), 128)
    prefill(model, cache, prompts)
    job = CanvasJob(length=LENGTH, canvas_index=0, seeds=seeds, request_ids=list(range(len(prompts))))
    return list(denoise_canvases(model, cache, job, settings))


def test_every_step_equals_the_reference(model: Transformer) -> None:
    ours = steps_of(model, [PROMPT], [5], SETTINGS)
    reference = list(Reference(model).generate(PROMPT, SETTINGS, length=LENGTH))
    assert len(ours) == len(reference) == 6
    for mine, theirs in zip(ours, reference, strict=True):
        assert mine.entropy == pytest.approx(theirs.entropy, abs=2e-3)
        exact = {"entropy": (), "temperature": 0.0}
        assert dataclasses.replace(mine, **exact) == dataclasses.replace(theirs, **exact)
        assert mine.temperature == pytest.approx(theirs.temperature)


def test_an_adaptive_stop_equals_the_reference(model: Transformer) -> None:
    settings = dataclasses.replace(SETTINGS, confidence_threshold=50.0, max_tokens=LENGTH, steps=48)
    ours = steps_of(model, [PROMPT], [5], settings)
    reference = list(Reference(model).generate(PROMPT, settings, length=LENGTH))
    assert [record.converged for record in ours] == [record.converged for record in reference]
    assert len(ours) >= 2, "stability needs two steps"


def test_neighbours_change_nothing(model: Transformer) -> None:
    prompts = [PROMPT, PROMPT[:3], [*PROMPT, *PROMPT], [9]]
    settings = dataclasses.replace(SETTINGS, confidence_threshold=3.0)
    together: dict[int, list[DenoiseStep]] = {}
    for record in steps_of(model, prompts, [0, 1, 2, 3], settings):
        together.setdefault(record.request_id, []).append(record)
    for i, prompt in enumerate(prompts):
        alone = steps_of(model, [prompt], [i], settings)
        assert [dataclasses.replace(record, request_id=i) for record in alone] == together[i]


def test_the_seed_decides(model: Transformer) -> None:
    one, two, again = (steps_of(model, [PROMPT], [seed], SETTINGS) for seed in (1, 2, 1))
    assert one == again
    assert one != two


def test_a_commit_equals_a_fresh_prefill(model: Transformer) -> None:
    canvas = torch.arange(40, 40 + LENGTH)[None]
    grown, whole = model.new_cache(1, 64), model.new_cache(1, 64)
    prefill(model, grown, [PROMPT])
    with torch.inference_mode():
        model.encode(canvas, grown)
    prefill(model, whole, [[*PROMPT, *canvas[0].tolist()]])
    with torch.inference_mode():
        torch.testing.assert_close(model.denoise(canvas, grown), model.denoise(canvas, whole), atol=1e-5, rtol=1e-5)


def test_pins_hold_in_input_distribution_and_output(model: Transformer) -> None:
    pins = {0: 11, 7: 3, 15: 90}
    cache = model.new_cache(1, 64)
    prefill(model, cache, [PROMPT])
    job = CanvasJob(length=LENGTH, canvas_index=0, seeds=[1], request_ids=[0], constraints=[Allowed(pins, {3: [5, 6]})])
    records = list(denoise_canvases(model, cache, job, SETTINGS))
    assert len(records) == SETTINGS.steps
    for record in records:
        for position, token in pins.items():
            assert record.canvas[position] == record.argmax_canvas[position] == token
            assert record.entropy[position] == 0
            assert record.accepted[position]
        assert record.argmax_canvas[3] not in (5, 6)


def test_pinned_positions_do_not_count_as_confident(model: Transformer) -> None:
    """With all but one position pinned, the mean entropy is that position's alone."""
    cache = model.new_cache(1, 64)
    prefill(model, cache, [PROMPT])
    pins = {position: 20 for position in range(1, LENGTH)}
    job = CanvasJob(length=LENGTH, canvas_index=0, seeds=[1], request_ids=[0], constraints=[Allowed(pins)])
    settings = dataclasses.replace(SETTINGS, stability_threshold=0, steps=1)
    (record,) = denoise_canvases(model, cache, job, settings)
    for threshold, done in ((record.entropy[0] * 1.01, True), (record.entropy[0] * 0.99, False)):
        again = dataclasses.replace(settings, confidence_threshold=threshold)
        assert next(iter(denoise_canvases(model, cache, job, again))).converged is done


def test_records_survive_json(model: Transformer) -> None:
    record = steps_of(model, [PROMPT], [5], SETTINGS)[0]
    assert record_from_dict(record.to_dict()) == record
    with pytest.raises(ValueError, match="unknown record type"):
        record_from_dict({"type": "other"})
