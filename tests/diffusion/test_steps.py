"""Denoising steps against the fp32 oracle, and their independence of the batch."""

import dataclasses

import numpy as np
import pytest
import torch

from redraft.constraints import Allowed
from redraft.diffusion.prefill import prefill
from redraft.diffusion.records import DenoiseStep, record_from_dict
from redraft.engine.work import DenoiseResult
from redraft.model import Transformer
from redraft.model.presets import preset
from redraft.reference import Reference
from redraft.settings import GenerationSettings
from steps import take_steps

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


def together(
    model: Transformer, prompts: list[list[int]], seeds: list[int], settings: GenerationSettings = SETTINGS
) -> list[list[DenoiseResult]]:
    return take_steps(model, prompts, settings, seeds=seeds, length=LENGTH)


def assert_same(ours: list[DenoiseResult], reference: list[DenoiseStep]) -> None:
    """Equal decisions; entropies to rounding."""
    for mine, theirs in zip(ours, reference, strict=True):
        assert mine.entropy == pytest.approx(theirs.entropy, abs=2e-3)
        for name in ("canvas", "argmax_canvas", "accepted", "converged"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name


def test_every_step_equals_the_reference(model: Transformer) -> None:
    (ours,) = together(model, [PROMPT], [5])
    assert len(ours) == 6
    assert_same(ours, list(Reference(model).generate(PROMPT, SETTINGS, length=LENGTH)))


def test_an_adaptive_stop_equals_the_reference(model: Transformer) -> None:
    settings = dataclasses.replace(SETTINGS, stability_threshold=0, steps=12)
    means = [sum(result.entropy) / LENGTH for result in together(model, [PROMPT], [5], settings)[0]]
    surest = min(range(1, 8), key=means.__getitem__)
    settings = dataclasses.replace(settings, confidence_threshold=float(means[surest]) + 1e-3)
    (ours,) = together(model, [PROMPT], [5], settings)
    assert 1 < len(ours) <= surest + 1 < 12
    assert ours[-1].converged
    assert_same(ours, list(Reference(model).generate(PROMPT, settings, length=LENGTH)))


def test_stability_needs_two_steps(model: Transformer) -> None:
    settings = dataclasses.replace(SETTINGS, confidence_threshold=50.0, steps=48)
    (ours,) = together(model, [PROMPT], [5], settings)
    assert len(ours) >= 2
    assert_same(ours, list(Reference(model).generate(PROMPT, settings, length=LENGTH)))


def test_neighbours_change_nothing(model: Transformer) -> None:
    prompts = [PROMPT, PROMPT[:3], [*PROMPT, *PROMPT], [9]]
    settings = dataclasses.replace(SETTINGS, confidence_threshold=3.0)
    for i, steps in enumerate(together(model, prompts, [0, 1, 2, 3], settings)):
        (alone,) = together(model, [prompts[i]], [i], settings)
        assert [dataclasses.replace(result, slot=i) for result in alone] == steps


def test_the_seed_decides(model: Transformer) -> None:
    one, two, again = (together(model, [PROMPT], [seed]) for seed in (1, 2, 1))
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
    limit = Allowed(LENGTH, pins, {3: [5, 6]})
    (records,) = take_steps(model, [PROMPT], SETTINGS, seeds=[1], length=LENGTH, constraints=[limit])
    assert len(records) == SETTINGS.steps
    for record in records:
        for position, token in pins.items():
            assert record.canvas[position] == record.argmax_canvas[position] == token
            assert record.entropy[position] == 0
            assert record.accepted[position]
        assert record.argmax_canvas[3] not in (5, 6)


def test_pinned_positions_do_not_count_as_confident(model: Transformer) -> None:
    """With all but one position pinned, the mean entropy is that position's alone."""
    pins = Allowed(LENGTH, {position: 20 for position in range(1, LENGTH)})
    settings = dataclasses.replace(SETTINGS, stability_threshold=0, steps=1)

    def first(settings: GenerationSettings) -> DenoiseResult:
        return take_steps(model, [PROMPT], settings, seeds=[1], length=LENGTH, constraints=[pins])[0][0]

    entropy = first(settings).entropy[0]
    for threshold, done in ((entropy * 1.01, True), (entropy * 0.99, False)):
        assert first(dataclasses.replace(settings, confidence_threshold=float(threshold))).converged is done


def test_records_survive_json(model: Transformer) -> None:
    record = next(Reference(model).generate(PROMPT, SETTINGS, length=LENGTH))
    assert record_from_dict(record.to_dict()) == record
    with pytest.raises(ValueError, match="unknown record type"):
        record_from_dict({"type": "other"})
