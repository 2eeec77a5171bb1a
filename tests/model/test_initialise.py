"""Fresh weights: the same for a seed, activations near unit size, loss near that of a uniform guess."""

import math

import torch

from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.transformer import Transformer


def fresh(seed: int) -> Transformer:
    model = Transformer(preset("nano"))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(float("nan"))  # whatever initialise leaves out shows
    initialise(model, seed)
    return model


def test_the_seed_decides_everything() -> None:
    first, same, other = fresh(1).state_dict(), fresh(1).state_dict(), fresh(2).state_dict()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
    assert all(tensor.isfinite().all() for tensor in first.values())


@torch.no_grad()
def test_activations_start_near_unit_size() -> None:
    model = fresh(3)
    ids = torch.randint(0, 256, (4, 32), generator=torch.Generator().manual_seed(0))
    assert 0.9 < model.embed(ids).std() < 1.1
    scores = []
    attention = model.layers[0].attention
    rope = model.rope(torch.arange(32)[None].expand(4, -1))["sliding_attention"]
    q, k, _ = attention.project(model.layers[0].pre_attention_norm(model.embed(ids)), rope)
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2)
    assert 0.7 < scores.std() < 1.3


@torch.no_grad()
def test_the_first_loss_is_near_a_uniform_guess() -> None:
    model = fresh(4)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 256, (8, 16), generator=generator)
    targets = torch.randint(0, 256, (8, 16), generator=generator)
    logits = model.logits(model.denoise(ids, model.new_cache(8, 16)))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert loss < 1.5 * math.log(256)
