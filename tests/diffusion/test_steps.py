"""Denoising steps against the fp32 oracle, and their independence of the batch."""

import dataclasses

import numpy as np
import pytest
import torch

from redraft.constraints import Allowed
from redraft.diffusion import sampler
from redraft.diffusion.prefill import prefill
from redraft.diffusion.records import DenoiseStep, record_from_dict
from redraft.diffusion.sampler import Prediction
from redraft.diffusion.step import StepRule, begin, decide
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


@pytest.mark.parametrize("bias", [{}, {3: -100.0}, {7: 2.5, 8: 2.5, 9: -1.0}, {20: 100, 21: 100}])
def test_a_bias_equals_the_reference(model: Transformer, bias: dict[int, float]) -> None:
    """Wherever the rows of a canvas are divided into tiles; tokens are banned that would be written."""
    (free,) = together(model, [PROMPT], [5])
    banned = {int(token): -100 for token in free[-1].argmax_canvas[:4]}
    settings = dataclasses.replace(SETTINGS, logit_bias=banned | bias)  # type: ignore[arg-type]
    expected = list(Reference(model).generate(PROMPT, settings, length=LENGTH))
    with pytest.MonkeyPatch.context() as patch:
        for elements in (sampler.TILE_ELEMENTS, 3 * model.config.vocab_size):
            patch.setattr(sampler, "TILE_ELEMENTS", elements)
            (ours,) = together(model, [PROMPT], [5], settings)
            assert_same(ours, expected)
    assert not banned.keys() & {int(token) for result in ours for token in result.argmax_canvas}
    if 20 in bias:
        assert {int(token) for result in ours for token in result.argmax_canvas} == {20, 21}


@pytest.mark.parametrize("threshold", [1, 3])
def test_stability_needs_more_than_one_step(model: Transformer, threshold: int) -> None:
    """All candidates are kept, and at such a temperature they are the likeliest tokens, so a short canvas settles."""
    cold = dataclasses.replace(SETTINGS, t_min=0.01, t_max=0.02, entropy_bound=99.0, confidence_threshold=50.0)
    settings = dataclasses.replace(cold, stability_threshold=threshold, steps=48, max_tokens=2)
    (ours,) = take_steps(model, [PROMPT], settings, seeds=[5], length=2)
    assert threshold + 1 <= len(ours) < 48
    assert_same(ours, list(Reference(model).generate(PROMPT, settings, length=2)))


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


@pytest.mark.parametrize("stop_at_eos", [False, True])
def test_neither_pins_nor_a_dead_tail_count(model: Transformer, stop_at_eos: bool) -> None:
    """Position 0 is pinned, 1 is sure, and behind the end of text at 2 nothing is."""
    rule = StepRule(
        temperature=1.0, last=True, entropy_bound=0.1, stability_threshold=0, confidence_threshold=0.1,
        stop_at_eos=stop_at_eos, eos_ids=(1,), constraint=Allowed(4, {0: 9}),
    )  # fmt: skip
    draft, entropy = torch.tensor([9, 5, 1, 7]), torch.tensor([0.5, 0.0, 0.1, 2.0])
    _, outcome = decide(Prediction(draft, draft, entropy, None), begin(draft, None), rule, draft)
    assert bool(outcome.converged) is stop_at_eos


def test_tokens_that_may_not_come_first_may_come_later(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the rows of a canvas are divided into tiles."""
    hidden = torch.randn(LENGTH, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    uniform = torch.full((LENGTH,), 0.5, dtype=torch.float64)
    free = sampler.predict(model, hidden, uniform, 1.0, want_soft=True)
    barred = sorted(set(free.argmax.tolist()))
    whole = sampler.predict(model, hidden, uniform, 1.0, None, barred, want_soft=True)
    monkeypatch.setattr(sampler, "TILE_ELEMENTS", 3 * model.config.vocab_size)
    tiles = sampler.predict(model, hidden, uniform, 1.0, None, barred, want_soft=True)
    assert whole.argmax[0] not in barred
    for seen in (whole, tiles):
        assert torch.equal(seen.argmax[1:], free.argmax[1:])
        assert torch.equal(seen.argmax, whole.argmax)


def test_prompts_of_any_lengths_are_encoded_together(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has ended keeps its last state while longer ones go on."""
    monkeypatch.setattr("redraft.diffusion.prefill.CHUNK", 4)
    prompts = [PROMPT, PROMPT[:3], PROMPT[:8]]
    last = prefill(model, model.new_cache(3, 64), prompts)
    for prompt, mine in zip(prompts, last, strict=True):
        torch.testing.assert_close(mine[None], prefill(model, model.new_cache(1, 64), [prompt]), atol=1e-5, rtol=1e-5)


def test_records_survive_json(model: Transformer) -> None:
    record = next(Reference(model).generate(PROMPT, SETTINGS, length=LENGTH))
    assert record_from_dict(record.to_dict()) == record
    with pytest.raises(ValueError, match="unknown record type"):
        record_from_dict({"type": "other"})
