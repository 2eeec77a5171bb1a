"""Our forward passes against transformers 5.23 `DiffusionGemmaForBlockDiffusion` (dynamic cache, eager attention).

The weights are those of reference_model.py, fp32. Prompts are shorter than, as long as and longer than the window of 8.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.diffusion_gemma import DiffusionGemmaForBlockDiffusion as Reference

from redraft.model.transformer import Transformer

TOLERANCE = 1e-4
PROMPTS = [1, 5, 7, 8, 9, 21]
CANVAS = 16


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def tokens(count: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 128, (1, count), generator=torch.Generator().manual_seed(seed))


def reference_encode(reference: Reference, ids: Tensor, cache: DynamicCache) -> Tensor:
    return reference.model.encoder(input_ids=ids, past_key_values=cache).last_hidden_state


def reference_denoise(reference: Reference, canvas: Tensor, cache: DynamicCache, logits: Tensor | None) -> Tensor:
    """Soft-capped logits of the reference's decoder."""
    return reference(decoder_input_ids=canvas, past_key_values=cache, self_conditioning_logits=logits).logits


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max().item() <= TOLERANCE


@pytest.mark.parametrize("count", PROMPTS)
def test_encode(reference: Reference, model: Transformer, count: int) -> None:
    ids = tokens(count)
    theirs = reference_encode(reference, ids, DynamicCache(config=reference.config.text_config))
    assert_close(model.encode(ids, model.new_cache(1, 64)), theirs)


@pytest.mark.parametrize("count", PROMPTS)
def test_denoise_and_commit_three_canvases_with_and_without_soft_embeddings(
    reference: Reference, model: Transformer, count: int
) -> None:
    ids, cache = tokens(count), DynamicCache(config=reference.config.text_config)
    own_cache = model.new_cache(1, 128)
    reference_encode(reference, ids, cache)
    model.encode(ids, own_cache)
    for canvas_index in range(3):
        first, second, final = (tokens(CANVAS, seed=10 * canvas_index + i) for i in (2, 3, 4))
        theirs = reference_denoise(reference, first, cache, None)
        assert theirs.abs().max() > 1.7, "the soft cap of 2 does not bite"
        assert_close(model.logits(model.denoise(first, own_cache)), theirs)

        soft = model.soft_embeddings(theirs / 0.7)
        theirs = reference_denoise(reference, second, cache, theirs / 0.7)
        assert_close(model.logits(model.denoise(second, own_cache, soft)), theirs)

        committed = reference_encode(reference, final, cache)
        assert_close(model.encode(final, own_cache), committed)


def test_zero_soft_embeddings_are_the_same_as_none(model: Transformer) -> None:
    cache, canvas = model.new_cache(1, 64), tokens(CANVAS)
    model.encode(tokens(9), cache)
    plain = model.denoise(canvas, cache)
    assert torch.equal(model.denoise(canvas, cache, torch.zeros_like(plain)), plain)


def test_denoise_leaves_the_cache_as_it_is(model: Transformer) -> None:
    cache, canvas = model.new_cache(1, 64), tokens(CANVAS)
    model.encode(tokens(21), cache)
    first = model.denoise(canvas, cache)
    model.denoise(tokens(CANVAS, seed=9), cache)
    assert cache.lengths == [21]
    assert torch.equal(model.denoise(canvas, cache), first)


@pytest.mark.parametrize("chunks", [(20, 1), (1, 20), (5, 3, 13), (8, 8, 5), (1,) * 21])
def test_chunked_encode_equals_whole(model: Transformer, chunks: tuple[int, ...]) -> None:
    ids = tokens(21)
    whole, cache = model.new_cache(1, 64), model.new_cache(1, 64)
    expected = model.encode(ids, whole)
    hidden = torch.cat([model.encode(part, cache) for part in ids.split(chunks, 1)], 1)
    assert_close(hidden, expected)
    canvas = tokens(CANVAS, seed=5)
    assert_close(model.denoise(canvas, cache), model.denoise(canvas, whole))


def test_right_padded_rows_equal_single_rows(model: Transformer) -> None:
    counts = [3, 21, 8, 12]
    batch = torch.zeros(len(counts), max(counts), dtype=torch.long)
    canvases = torch.cat([tokens(CANVAS, seed=row) for row in range(4)])
    cache = model.new_cache(len(counts), 64)
    for row, count in enumerate(counts):
        batch[row, :count] = tokens(count, seed=20 + row)
    together = model.encode(batch, cache, counts)
    drafts = model.denoise(canvases, cache)
    for row, count in enumerate(counts):
        alone = model.new_cache(1, 64)
        assert_close(together[row : row + 1, :count], model.encode(batch[row : row + 1, :count], alone))
        assert_close(drafts[row : row + 1], model.denoise(canvases[row : row + 1], alone))
