"""A ragged forward over segments equals the transformer's own encode and denoise, bit for bit in fp32 on a CPU."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from redraft.cache.paged import PagedKV, page_bytes
from redraft.cache.pages import PAGE, pages_for
from redraft.config import FULL, SLIDING
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.spans import Span, key_units, run_spans
from redraft.model.transformer import Transformer

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other BLAS libraries round otherwise")

CANVAS = 16


@pytest.fixture(scope="module", params=[1, 8, 300], ids=["no past", "short window", "window over a page"])
def model(request: pytest.FixtureRequest) -> Transformer:
    network = Transformer(
        replace(preset("nano"), layer_types=(SLIDING, FULL), sliding_window=request.param, max_position_embeddings=4096)
    )
    initialise(network, 0)
    for layer in network.layers:
        layer.encode_scalar.fill_(0.9)  # type: ignore[union-attr]
        layer.denoise_scalar.fill_(0.8)  # type: ignore[union-attr]
    return network


def tokens(count: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed))


@dataclass
class Paged:
    """One request's pages, scattered over the pool, and what the transformer's own cache makes of the same tokens."""

    model: Transformer
    pages: list[int]
    length: int = 0
    cache: object = None
    last: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = self.model.new_cache(1, 4096)

    def span(self, token_ids: Tensor, *, causal: bool, soft: Tensor | None = None, ahead: int = 0) -> Span:
        return Span(
            start=self.length + ahead,
            token_ids=token_ids,
            causal=causal,
            full=self.pages,
            sliding=self.pages,
            soft=soft,
        )


def expect(request: Paged, token_ids: Tensor) -> Tensor:
    with torch.inference_mode():
        hidden = request.model.encode(token_ids[None], request.cache)[0]  # type: ignore[arg-type]
    request.length += len(token_ids)
    return hidden


def split(hidden: Tensor, spans: list[Span]) -> list[Tensor]:
    return list(hidden.split([span.length for span in spans]))


@pytest.mark.parametrize("fp8", [False, True])
def test_chunks_and_canvases_see_pages_as_they_were_written(model: Transformer, fp8: bool) -> None:
    """In FP8 hidden states move, but only as far as rounding, and not with what stands beside."""
    units = key_units(model) if fp8 else None
    pools = [
        PagedKV(model.config, 12, 12, device=torch.device("cpu"), dtype=torch.float32, units=u) for u in (units, None)
    ]
    canvas, prompt = tokens(CANVAS, 5), tokens(PAGE, 7)
    found = []
    for pool in (*pools, pools[0]):
        request, other = Paged(model, [3, 8]), Paged(model, [5])
        beside = [other.span(tokens(20, 9), causal=True)] if len(found) == 2 else []
        spans = [*beside, request.span(prompt, causal=True), request.span(canvas, causal=False, ahead=PAGE)]
        found.append(split(run_spans(model, pool, spans), spans)[-1])
    ours, exact, again = found
    assert torch.equal(ours, again)
    assert ((ours - exact).norm() / exact.norm() < 0.05) if fp8 else torch.equal(ours, exact)
    assert torch.equal(ours, exact) != fp8


def test_everything_at_once_equals_everything_alone(model: Transformer) -> None:
    """Prompt chunks of unequal length, then commits beside first, later and neighbouring steps."""
    pool = PagedKV(model.config, 12, 12, device=torch.device("cpu"), dtype=torch.float32)
    long, short, fresh = Paged(model, [7, 2, 9]), Paged(model, [4]), Paged(model, [0, 11])
    for first, second in ((tokens(PAGE, 1), tokens(3, 2)), (tokens(200, 3), tokens(1, 4))):
        spans = [long.span(first, causal=True), short.span(second, causal=True)]
        ours = split(run_spans(model, pool, spans), spans)
        assert torch.equal(ours[0], expect(long, first))
        assert torch.equal(ours[1], expect(short, second))
    canvas, commit, soft = tokens(CANVAS, 5), tokens(CANVAS, 6), torch.randn(CANVAS, 64)
    prompt = tokens(PAGE, 7)
    spans = [
        long.span(commit, causal=True),
        long.span(canvas, causal=False, ahead=CANVAS),
        short.span(canvas, causal=False, soft=soft),
        fresh.span(prompt, causal=True),
        fresh.span(canvas, causal=False, ahead=PAGE),
    ]
    ours = split(run_spans(model, pool, spans), spans)
    assert torch.equal(ours[0], expect(long, commit))
    assert torch.equal(ours[3], expect(fresh, prompt))
    with torch.inference_mode():
        for request, at, given in ((long, 1, None), (short, 2, soft[None]), (fresh, 4, None)):
            assert torch.equal(ours[at], model.denoise(canvas[None], request.cache, given)[0])  # type: ignore[arg-type]


def test_two_chunks_of_one_prompt_in_one_forward_equal_two_forwards(model: Transformer) -> None:
    prompt = tokens(2 * PAGE, 8)
    together, apart = (PagedKV(model.config, 4, 4, device=torch.device("cpu"), dtype=torch.float32) for _ in range(2))
    request = Paged(model, [3, 1])
    spans = [request.span(prompt[:PAGE], causal=True), request.span(prompt[PAGE:], causal=True, ahead=PAGE)]
    once = split(run_spans(model, together, spans), spans)
    alone = [run_spans(model, apart, [span]) for span in spans]
    assert all(torch.equal(a, b) for a, b in zip(once, alone, strict=True))


def test_a_page_is_as_large_as_it_is_said_to_be(model: Transformer) -> None:
    pool = PagedKV(model.config, 3, 5, device=torch.device("cpu"), dtype=torch.float32)
    full, sliding = page_bytes(model.config, 4)
    assert sum(2 * keys.nbytes for keys in pool.keys) == 3 * full + 5 * sliding
    half = PagedKV(model.config, 3, 5, device=torch.device("cpu"), dtype=torch.float32, units=key_units(model))
    assert 4 * sum(2 * keys.nbytes for keys in half.keys) == 3 * full + 5 * sliding
    assert pages_for(1) == pages_for(PAGE) == 1
