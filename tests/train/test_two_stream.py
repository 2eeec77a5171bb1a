"""Packing many documents and canvases into one pass computes what `encode` and `denoise` compute one at a time."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.config import ModelConfig
from redraft.diffusion.corruption import Corruption, corrupt, generator_for, noise_levels
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.train.batch import Batch
from redraft.train.experts import balance_loss
from redraft.train.masks import NO_CANVAS, Visibility, block_counts, block_mask
from redraft.train.objective import BatchLosses
from redraft.train.packing import Packer
from redraft.train.recipe import ObjectiveSettings, Recipe, SourceSettings
from redraft.train.two_stream import TwoStream


def noisy(batch: Batch, vocab_size: int) -> Corruption:
    level = torch.linspace(0.1, 1.0, batch.canvas_start.numel()).view(batch.canvas_start.shape)
    return corrupt(batch.canvas_target, batch.noise_region, level, vocab_size, generator_for("cpu", 1))


def packed(model: Transformer, batch: Batch, objective: ObjectiveSettings, *, sparse: bool = False) -> BatchLosses:
    stream = TwoStream(model, objective, compiled=False, sparse=sparse)
    return losses(stream, batch, noisy(batch, model.config.vocab_size))


def losses(stream: TwoStream, batch: Batch, noise: Corruption) -> BatchLosses:
    return stream.losses(batch, noise, generator_for("cpu", 2), stream.conditioned_rows(len(batch.tokens), 1, 2))


def clean_of(batch: Batch, row: int, document: int) -> Tensor:
    return batch.tokens[row][batch.document[row] == document]


def soft_of(model: Transformer, hidden: Tensor, target: Tensor, region: Tensor) -> Tensor:
    soft = model.soft_embeddings(model.logits(hidden).detach())
    return torch.where(region[..., None], soft, model.embed(target))


def canvas_losses(
    model: Transformer, batch: Batch, row: int, slot: int, noise: Corruption, conditioned: bool
) -> Tensor:
    """Token losses [C] of one canvas through the public model alone."""
    document, start = int(batch.canvas_document[row, slot]), int(batch.canvas_start[row, slot])
    past = clean_of(batch, row, document)[:start]
    cache = model.new_cache(1, len(past) + 1)
    if len(past):
        model.encode(past[None], cache)
    canvas, target = noise.tokens[row, slot][None], batch.canvas_target[row, slot][None]
    soft = None
    if conditioned:
        first = model.denoise(canvas, cache)
        soft = soft_of(model, first, target, batch.noise_region[row, slot][None])
    logits = model.logits(model.denoise(canvas, cache, soft))
    return F.cross_entropy(logits[0], target[0], reduction="none")


def encoder_losses(model: Transformer, batch: Batch) -> Tensor:
    """Mean next-token loss over all documents, each encoded alone."""
    losses = []
    for row in range(len(batch.tokens)):
        for document in range(int(batch.document[row].max()) + 1):
            tokens = clean_of(batch, row, document)
            hidden = model.encode(tokens[None], model.new_cache(1, len(tokens)))
            losses.append(F.cross_entropy(model.logits(hidden)[0, :-1], tokens[1:], reduction="none"))
    return torch.cat(losses).mean()


def gradients(model: Transformer) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def test_one_packed_pass_equals_canvases_one_at_a_time(model: Transformer, batch: Batch, config: ModelConfig) -> None:
    outcome = packed(model, batch, ObjectiveSettings(balance_weight=0.0, encoder_weight=0.7))
    outcome.loss.backward()
    ours = gradients(model)

    noise = noisy(batch, config.vocab_size)
    weight = batch.canvas_weight / batch.canvas_weight.sum()
    decoder = torch.zeros(())
    for row in range(2):
        for slot in range(4):
            losses = canvas_losses(model, batch, row, slot, noise, conditioned=row == 0)
            torch.testing.assert_close(outcome.token_loss[row, slot], losses.detach(), atol=2e-5, rtol=1e-5)
            decoder = decoder + (weight[row, slot] * losses).sum()
    encoder = encoder_losses(model, batch)
    (decoder + 0.7 * encoder).backward()
    theirs = gradients(model)

    torch.testing.assert_close(outcome.decoder, decoder.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outcome.encoder, encoder.detach(), atol=1e-5, rtol=1e-5)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@torch.no_grad()
def test_padding_and_empty_canvases_leave_the_balance_alone(model: Transformer, batch: Batch) -> None:
    more = {name: tensor.clone() for name, tensor in batch.tensors().items()}
    for name, filling in (("tokens", 0), ("document", -1), ("position", 30), ("encoder_weight", 0)):
        more[name] = F.pad(more[name], (0, 12), value=filling)
    for name, filling in (("canvas_document", -2), ("canvas_start", 0), ("full_noise", 0)):
        more[name] = F.pad(more[name], (0, 3), value=filling)
    for name in ("canvas_target", "noise_region", "canvas_weight"):
        more[name] = F.pad(more[name], (0, 0, 0, 3))
    objective, padded = ObjectiveSettings(self_conditioning=0.0), Batch(**more)
    noise = noisy(batch, model.config.vocab_size)
    filled = Corruption(
        tokens=F.pad(noise.tokens, (0, 0, 0, 3)), level=F.pad(noise.level, (0, 3), value=0.5),
        replaced=F.pad(noise.replaced, (0, 0, 0, 3)),
    )  # fmt: skip
    stream = TwoStream(model, objective, compiled=False, sparse=False)
    torch.testing.assert_close(losses(stream, padded, filled).balance, losses(stream, batch, noise).balance)


def test_the_balance_is_the_mean_of_all_layers_in_both_streams(
    model: Transformer, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[Tensor] = []

    def recorded(*arguments: Tensor) -> Tensor:
        parts.append(balance_loss(*arguments))
        return parts[-1]

    monkeypatch.setattr("redraft.train.layer_pass.balance_loss", recorded)
    outcome = packed(model, batch, ObjectiveSettings(self_conditioning=0.0, balance_weight=0.7))
    assert len(parts) == 2 * len(model.layers)
    mean = torch.stack(parts).mean()
    torch.testing.assert_close(outcome.balance, mean.detach())
    torch.testing.assert_close(outcome.loss.detach(), outcome.decoder + outcome.encoder + 0.7 * outcome.balance)
    routers = [parameter for name, parameter in model.named_parameters() if name.endswith("router.proj.weight")]
    without = packed(model, batch, ObjectiveSettings(self_conditioning=0.0, balance_weight=0.0)).loss
    found = torch.autograd.grad(outcome.loss - without, routers, retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(0.7 * mean, routers), atol=1e-6, rtol=1e-4)


@torch.no_grad()  # attention over block masks has no backward pass on CPUs
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_block_sparse_attention_equals_the_dense_twin(model: Transformer, batch: Batch) -> None:
    objective = ObjectiveSettings()
    dense, sparse = (packed(model, batch, objective, sparse=sparse) for sparse in (False, True))
    torch.testing.assert_close(dense.token_loss, sparse.token_loss, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(dense.loss, sparse.loss, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoding", [False, True])
def test_block_tables_mark_every_tile_as_the_dense_mask_does(encoding: bool) -> None:
    """Queries of the clean stream, which has no canvases, have the key of none as their own."""
    rng = torch.Generator().manual_seed(0)
    low = torch.randint(0, 100, (2, 290), generator=rng, dtype=torch.int32)
    code = torch.arange(520, dtype=torch.int32).repeat(2, 1)
    own = torch.full_like(low, NO_CANVAS) if encoding else code[:, :290] + 230
    seen = Visibility(low=low, high=low + 300, own=own, code=code, clean=520, canvas=1)
    visible = ((code[:, None] >= low[..., None]) & (code[:, None] < low[..., None] + 300)) | (
        code[:, None] == own[..., None]
    )
    dense = F.pad(visible, (0, 120, 0, 94)).view(2, 3, 128, 5, 128)
    mask = block_mask(seen, block_counts(seen.low, seen.high, seen.own, seen.code))
    for b, q in ((b, q) for b in range(2) for q in range(3)):
        partial = set(mask.kv_indices[b, 0, q, : mask.kv_num_blocks[b, 0, q]].tolist())
        full = set(mask.full_kv_indices[b, 0, q, : mask.full_kv_num_blocks[b, 0, q]].tolist())
        tiles = {k: dense[b, q, :, k] for k in range(5)}
        assert full == {k for k, tile in tiles.items() if tile.all()}
        assert partial == {k for k, tile in tiles.items() if tile.any() and not tile.all()}
    assert mask.full_kv_num_blocks.sum() > 0


@pytest.mark.parametrize(("share", "conditioned"), [(0.0, 0), (0.5, 1), (1.0, 2)])
def test_self_conditioning_reaches_exactly_the_first_rows(
    model: Transformer, batch: Batch, share: float, conditioned: int
) -> None:
    none = packed(model, batch, ObjectiveSettings(self_conditioning=0.0))
    some = packed(model, batch, ObjectiveSettings(self_conditioning=share))
    changed = [not torch.equal(a, b) for a, b in zip(none.token_loss, some.token_loss, strict=True)]
    assert changed == [row < conditioned for row in range(2)]


def test_a_fractional_share_of_rows_is_rounded_both_ways(model: Transformer, batch: Batch) -> None:
    one = Batch(**{name: tensor[:1] for name, tensor in batch.tensors().items()})
    stream = TwoStream(model, ObjectiveSettings(), compiled=False)
    counts = [stream.conditioned_rows(1, 0, step) for step in range(400)]
    assert 0.4 < sum(counts) / 400 < 0.6
    assert counts == [stream.conditioned_rows(1, 0, step) for step in range(400)]
    assert {stream.conditioned_rows(4, 0, step) for step in range(20)} == {2}
    unconditioned = packed(model, one, ObjectiveSettings(self_conditioning=0.0)).token_loss
    for step in (counts.index(0), counts.index(1)):
        noise, found = noisy(one, model.config.vocab_size), stream.conditioned_rows(1, 0, step)
        token_loss = stream.losses(one, noise, generator_for("cpu", step), found).token_loss
        assert torch.equal(token_loss, unconditioned) == (not found)


def test_noise_levels_do_not_depend_on_whether_a_row_is_conditioned(model: Transformer, batch: Batch) -> None:
    one = Batch(**{name: tensor[:1] for name, tensor in batch.tensors().items()})
    stream = TwoStream(model, ObjectiveSettings(), compiled=False)
    levels: list[list[float]] = [[], []]
    for step in range(200):
        noise = stream.objective.noisy(one, generator_for("cpu", 0, step))
        levels[stream.conditioned_rows(1, 0, step)].append(float(noise.level[0, 0]))
    assert all(min(found) < 0.1 and max(found) > 0.9 for found in levels)


def test_a_lower_first_pass_temperature_changes_only_conditioned_rows(model: Transformer, batch: Batch) -> None:
    plain = packed(model, batch, ObjectiveSettings()).token_loss
    cooled = packed(model, batch, ObjectiveSettings(temperature_low=0.4)).token_loss
    assert not torch.equal(plain[0], cooled[0])
    assert torch.equal(plain[1], cooled[1])


def rolled_out(batch: Batch, *shares: float) -> Batch:
    """The batch with a share of rollouts for each of its rows."""
    return dataclasses.replace(batch, rollout=torch.tensor(shares))


def test_rolled_out_canvases_hold_the_models_surest_tokens(model: Transformer, batch: Batch) -> None:
    """At a boundless bound the second pass begins with the first one's argmax, and with the given text around it."""
    noise = noisy(batch, model.config.vocab_size)
    objective, batch = ObjectiveSettings(self_conditioning=0.5, rollout_bound=(1e6, 1e6)), rolled_out(batch, 1.0, 1.0)
    with torch.no_grad():
        model.norm.weight.mul_(20.0)  # surer than fresh weights are
        outcome = losses(TwoStream(model, objective, compiled=False), batch, noise)
        for slot in range(4):
            document, start = int(batch.canvas_document[0, slot]), int(batch.canvas_start[0, slot])
            past, region = clean_of(batch, 0, document)[:start], batch.noise_region[0, slot]
            cache = model.new_cache(1, len(past) + 1)
            model.encode(past[None], cache)
            logits = model.logits(model.denoise(noise.tokens[0, slot][None], cache))[0]
            expected = torch.where(region, logits.argmax(-1), batch.canvas_target[0, slot])
            assert torch.equal(outcome.noise.tokens[0, slot], expected)
    assert torch.equal(outcome.noise.replaced[0], outcome.noise.tokens[0] != batch.canvas_target[0])
    assert torch.equal(outcome.noise.tokens[1], noise.tokens[1])


@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (1.0, 1.0)])
def test_only_rows_of_sources_with_rollouts_are_rolled_out(
    model: Transformer, batch: Batch, shares: tuple[float, float]
) -> None:
    noise, batch = noisy(batch, model.config.vocab_size), rolled_out(batch, *shares)
    outcome = packed(model, batch, ObjectiveSettings(self_conditioning=1.0))
    for row, share in enumerate(shares):
        kept = [torch.equal(getattr(outcome.noise, n)[row], getattr(noise, n)[row]) for n in ("tokens", "replaced")]
        assert kept == [share == 0.0] * 2


def test_sources_of_one_batch_differ_in_rollouts(recipe: Recipe) -> None:
    """From the recipe to the noise: only the canvases of the source that says so begin with a draft."""
    shares = {"still": 0.0, "rolled": 1.0}
    sources = tuple(SourceSettings(name=n, kind="reverse", share=1.0, rollout=r) for n, r in shares.items())
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, sources=sources))
    batch = Batch.from_arrays(Packer(recipe).batch(0)).to(torch.device("cpu"))
    model = Transformer(recipe.model)
    initialise(model, 3)
    stream = TwoStream(model, ObjectiveSettings(self_conditioning=1.0), compiled=False)
    rolled, plain = (stream(b, 1, 2).noise.tokens for b in (batch, dataclasses.replace(batch, rollout=None)))
    changed = (rolled != plain).flatten(1).any(1)
    assert batch.source.bincount().tolist() == [2, 2]
    assert torch.equal(changed, batch.source == 1)


def test_a_share_of_a_rows_canvases_is_rolled_out(model: Transformer, batch: Batch) -> None:
    rows = Batch(**{name: tensor[:1].repeat(64, *[1] * (tensor.ndim - 1)) for name, tensor in batch.tensors().items()})
    noise, rows = noisy(rows, model.config.vocab_size), rolled_out(rows, *[0.25] * 64)
    outcome = packed(model, rows, ObjectiveSettings(self_conditioning=1.0))
    changed = (outcome.noise.tokens != noise.tokens).any(-1)
    assert 0.15 < float(changed.float().mean()) < 0.35


def test_a_smaller_bound_keeps_fewer_tokens_and_renoises_the_rest(model: Transformer, batch: Batch) -> None:
    noise, batch = noisy(batch, model.config.vocab_size), rolled_out(batch, 1.0, 1.0)
    with torch.no_grad():
        model.norm.weight.mul_(20.0)
        kept = []
        for bound in (1e-6, 2.0, 1e6):
            objective = ObjectiveSettings(self_conditioning=1.0, rollout_bound=(bound, bound))
            outcome = losses(TwoStream(model, objective, compiled=False), batch, noise)
            kept.append(outcome.noise.tokens)
            assert torch.equal(outcome.noise.tokens[~batch.noise_region], batch.canvas_target[~batch.noise_region])
    same = [int((tokens == kept[-1]).sum()) for tokens in kept]
    assert same[0] < same[1] < same[2]


def test_given_tokens_take_nothing_of_the_bound(model: Transformer, batch: Batch) -> None:
    """The hole in row 1 has two tokens and six given ones; the bound has room for the surer of the two and no more."""
    noise, slot = noisy(batch, model.config.vocab_size), 2
    with torch.no_grad():
        past, region = clean_of(batch, 1, 0)[: int(batch.canvas_start[1, slot])], batch.noise_region[1, slot]
        cache = model.new_cache(1, len(past))
        model.encode(past[None], cache)
        logits = model.logits(model.denoise(noise.tokens[1, slot][None], cache))[0]
        bound = float(torch.distributions.Categorical(logits=logits).entropy()[region].min()) * 1.001
        objective = ObjectiveSettings(self_conditioning=1.0, rollout_bound=(bound, bound))
        tokens = losses(TwoStream(model, objective, compiled=False), rolled_out(batch, 0.0, 1.0), noise).noise.tokens
    assert region.sum() == 2
    assert torch.equal(tokens[1, slot][region], logits.argmax(-1)[region])


def test_padding_and_later_tokens_never_matter(model: Transformer, batch: Batch) -> None:
    tokens = batch.tokens.clone()
    tokens[0, 20:] = 0  # padding
    tokens[0, 16:20] = 0  # another document than that of the first three canvases
    tokens[0, 10:16] = 7  # behind position 1 of document 1, whose canvases start at 3 and 7: the second may change
    before = packed(model, batch, ObjectiveSettings(self_conditioning=0.0))
    after = packed(model, dataclasses.replace(batch, tokens=tokens), ObjectiveSettings(self_conditioning=0.0))
    assert torch.equal(before.token_loss[0, 0], after.token_loss[0, 0])
    assert not torch.equal(before.token_loss[0, 2], after.token_loss[0, 2])
    assert torch.equal(before.token_loss[1], after.token_loss[1])


def test_encoder_share_draws_only_weighted_positions(model: Transformer, batch: Batch) -> None:
    whole = packed(model, batch, ObjectiveSettings())
    half = packed(model, batch, ObjectiveSettings(encoder_share=0.25))
    off = packed(model, batch, ObjectiveSettings(encoder_weight=0.0))
    assert 0.5 < float(half.encoder / whole.encoder) < 1.5
    assert float(half.encoder) != float(whole.encoder)
    assert float(off.encoder) == 0.0
    assert torch.equal(off.token_loss, whole.token_loss)
    weight = batch.encoder_weight
    all_of_them = packed(model, batch, ObjectiveSettings(encoder_share=int((weight > 0).sum()) / weight.numel()))
    torch.testing.assert_close(all_of_them.encoder, whole.encoder)


def weighted(outcome: BatchLosses, weight: Tensor) -> Tensor:
    return (outcome.token_loss * weight).sum()


def test_loss_variants_follow_their_definitions(model: Transformer, batch: Batch) -> None:
    noise = noisy(batch, model.config.vocab_size)
    plain = {"self_conditioning": 0.0, "encoder_weight": 0.0}
    weight = batch.canvas_weight / batch.canvas_weight.sum()
    base = packed(model, batch, ObjectiveSettings(**plain))
    factor = (1 / (1 - noise.level)).clamp(max=4.0)[..., None]
    reweighted = packed(model, batch, ObjectiveSettings(loss="reweighted", weight_clip=4.0, **plain))
    torch.testing.assert_close(reweighted.decoder, weighted(base, weight * factor))
    kept = packed(model, batch, ObjectiveSettings(kept_weight=0.0, **plain))
    torch.testing.assert_close(kept.decoder, weighted(base, weight * noise.replaced))
    both = packed(model, batch, ObjectiveSettings(loss="reweighted-loo", weight_clip=4.0, **plain))
    loo = packed(model, batch, ObjectiveSettings(loss="loo", **plain))
    torch.testing.assert_close(both.decoder, weighted(loo, weight * factor))


def test_the_leave_one_out_loss_raises_the_shown_tokens_logit(model: Transformer, batch: Batch) -> None:
    """log(1 + V alpha / (1 - alpha)) is the log odds of a token that was kept with probability alpha."""
    noise, vocab = noisy(batch, model.config.vocab_size), model.config.vocab_size
    outcome = packed(model, batch, ObjectiveSettings(loss="loo", self_conditioning=0.0))
    for row, slot in ((0, 1), (1, 0)):
        document, start = int(batch.canvas_document[row, slot]), int(batch.canvas_start[row, slot])
        past, cache = clean_of(batch, row, document)[:start], model.new_cache(1, 32)
        model.encode(past[None], cache)
        logits = model.logits(model.denoise(noise.tokens[row, slot][None], cache))[0]
        alpha = 1 - noise.level[row, slot]
        logits += F.one_hot(noise.tokens[row, slot], vocab) * torch.log(1 + vocab * alpha / (1 - alpha))
        expected = F.cross_entropy(logits, batch.canvas_target[row, slot], reduction="none")
        torch.testing.assert_close(outcome.token_loss[row, slot], expected.detach(), atol=2e-5, rtol=1e-5)


def test_absorbing_corruption_puts_the_mask_token(model: Transformer, batch: Batch) -> None:
    stream = TwoStream(model, ObjectiveSettings(corruption="absorbing", mask_token=4), compiled=False)
    noise = stream(batch, 1, 2).noise
    assert (noise.tokens[noise.replaced] == 4).all()
    assert torch.equal(noise.tokens[~noise.replaced], batch.canvas_target[~noise.replaced])
    rolled = ObjectiveSettings(corruption="absorbing", self_conditioning=1.0, rollout_bound=(1e-6, 1e-6))
    noise = TwoStream(model, rolled, compiled=False)(rolled_out(batch, 1.0, 1.0), 1, 2).noise
    assert (noise.tokens[batch.noise_region] == 4).float().mean() > 0.8


@pytest.mark.parametrize(("spread", "mean"), [("uniform", 0.5), ("high", 2 / 3), ("low", 1 / 3)])
def test_noise_levels_are_spread_as_asked(spread: str, mean: float) -> None:
    level = noise_levels(torch.zeros(4000), 1e-4, generator_for("cpu", 1), spread)
    assert abs(float(level.mean()) - mean) < 0.02
    assert 0 < float(level.min()) < float(level.max()) < 1
