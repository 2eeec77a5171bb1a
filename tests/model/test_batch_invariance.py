"""A request's numbers do not depend on its neighbours: bit for bit, in fp32 on a CPU, with one thread and with two.

This holds where matrix products treat every row alike once they have 16 of them, as MKL's do.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from redraft.config import FULL, SLIDING
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.transformer import Transformer

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other BLAS libraries round otherwise")

COUNTS = [3, 70, 17, 1]
CANVAS = 16


@pytest.fixture(scope="module", params=["nano", "tiny"])
def model(request: pytest.FixtureRequest) -> Transformer:
    small = {"layer_types": (SLIDING, FULL), "sliding_window": 8, "vocab_size": 256}
    model = Transformer(replace(preset(request.param), **small))
    initialise(model, 0)
    return model


def tokens(count: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def run(model: Transformer, rows: list[int]) -> list[list[Tensor]]:
    """Encode, denoise twice, commit and denoise again; every intermediate result of each row."""
    cache = model.new_cache(len(rows), 128)
    counts = [COUNTS[row] for row in rows]
    prompts = torch.zeros(len(rows), max(counts), dtype=torch.long)
    for place, row in enumerate(rows):
        prompts[place, : COUNTS[row]] = tokens(COUNTS[row], row)
    canvas = torch.stack([tokens(CANVAS, 10 + row) for row in rows])
    encoded = model.encode(prompts, cache, counts)
    first = model.denoise(canvas, cache)
    logits = model.logits(first)
    soft = model.soft_embeddings(logits / 0.7)
    second = model.denoise(canvas, cache, soft)
    committed = model.encode(canvas, cache)
    after = model.denoise(canvas, cache)
    results = [[part[place] for part in (first, logits, soft, second, committed, after)] for place in range(len(rows))]
    return [[encoded[place, :count], *rest] for place, (count, rest) in enumerate(zip(counts, results, strict=True))]


def test_a_batch_of_four_equals_four_alone(model: Transformer, threads: int) -> None:
    together = run(model, [0, 1, 2, 3])
    for row in range(4):
        (alone,) = run(model, [row])
        assert [torch.equal(a, b) for a, b in zip(alone, together[row], strict=True)] == [True] * len(alone)


def test_the_order_of_neighbours_does_not_matter(model: Transformer, threads: int) -> None:
    one, other = run(model, [0, 1, 2, 3]), run(model, [2, 0])
    assert all(torch.equal(a, b) for a, b in zip(one[2], other[0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[1], strict=True))
