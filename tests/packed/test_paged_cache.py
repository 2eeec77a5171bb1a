"""Forwards of a packed model outside the engine: the cache in pages against the plain one."""

import gc
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.cache.paged import page_bytes
from redraft.config import FULL, SLIDING, ModelConfig
from redraft.errors import PromptError
from redraft.model.packed.paged_cache import GROWTH, SPARED, PageStore, request_bytes
from redraft.model.packed.paged_forward import PagedForward
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.transformer import Transformer
from redraft.model.vision import ImageEmbeddings

pytestmark = pytest.mark.usefixtures("inference")


@pytest.fixture(scope="module")
def config(all_experts: ModelConfig) -> ModelConfig:
    return all_experts


def _ids(seed: int, *shape: int) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed))


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Both:
    """A plain model and a packed one that do the same, and must agree wherever a number means something."""

    def __init__(self, plain: Transformer, packed: PackedTransformer, caches: tuple[KVCache, KVCache]) -> None:
        self.models, self.caches = (plain, packed), caches

    @classmethod
    def of(cls, plain: Transformer, packed: PackedTransformer, requests: int) -> "Both":
        return cls(plain, packed, (plain.new_cache(requests, 1200), packed.paged.new_cache(requests, 1200)))

    def select(self, rows: list[int]) -> "Both":
        return Both(*self.models, tuple(cache.select(rows) for cache in self.caches))  # type: ignore[arg-type]

    def copy(self, rows: list[int]) -> "Both":
        return Both(*self.models, tuple(cache.copy(rows) for cache in self.caches))  # type: ignore[arg-type]

    def encode(self, ids: Tensor, counts: list[int], images: list[list[ImageEmbeddings]] | None = None) -> None:
        hidden = [
            model.encode(ids, cache, counts, images) for model, cache in zip(self.models, self.caches, strict=True)
        ]
        self._agree(hidden, counts)
        assert self.caches[0].lengths == self.caches[1].lengths

    def denoise(self, canvas: Tensor, soft: Tensor | None = None, counts: list[int] | None = None) -> None:
        hidden = [
            model.denoise(canvas, cache, soft, counts) for model, cache in zip(self.models, self.caches, strict=True)
        ]
        self._agree(hidden, counts or [canvas.shape[1]] * len(canvas))

    def _agree(self, hidden: list[Tensor], counts: list[int]) -> None:
        assert hidden[0].shape == hidden[1].shape
        for row, count in enumerate(counts):
            torch.testing.assert_close(hidden[1][row, :count], hidden[0][row, :count], atol=3e-5, rtol=3e-4)


def test_room_is_that_of_the_fullest_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [9, 2, 5]
    devices = tuple(torch.device("cuda", number) for number in range(len(free)))
    store = PageStore.__new__(PageStore)
    store._model = SimpleNamespace(device=devices[0], devices=devices)  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (SPARED + free[device.index], 0))
    assert store._free_bytes() == min(free)


def test_requests_of_many_lengths(plain: Transformer, packed: PackedTransformer) -> None:
    both = Both.of(plain, packed, 3)
    both.encode(_ids(1, 3, 700), [700, 3, 0])  # some pages and windows long; the last one has nothing yet
    both.encode(_ids(2, 3, 40), [17, 40, 5])
    both.denoise(_ids(3, 3, 70), _normal(4, 3, 70, plain.config.hidden_size), [70, 16, 33])
    both.encode(_ids(5, 3, 300), [300, 0, 260])
    both.denoise(_ids(6, 3, 300))


def test_copies_share_their_past_and_nothing_else(plain: Transformer, packed: PackedTransformer) -> None:
    both = Both.of(plain, packed, 2)
    both.encode(_ids(1, 2, 250), [250, 100])
    guesses = both.select([0, 0, 1, 0])
    guesses.denoise(_ids(2, 4, 20))  # over the end of a page
    guesses.select([3, 1]).denoise(_ids(3, 2, 20))
    texts = both.copy([0, 0, 1])
    texts.encode(_ids(4, 3, 30), [30, 4, 9])
    guesses.denoise(_ids(5, 4, 20))
    texts.copy([2, 0]).encode(_ids(6, 2, 8), [8, 8])
    texts.denoise(_ids(7, 3, 16))
    both.encode(_ids(8, 2, 20), [20, 20])
    texts.denoise(_ids(9, 3, 16))
    both.denoise(_ids(10, 2, 16))


def test_tokens_of_an_image_see_each_other(plain: Transformer, packed: PackedTransformer) -> None:
    both, width = Both.of(plain, packed, 2), plain.config.hidden_size
    both.encode(_ids(1, 2, 10), [10, 6])
    images = [
        [ImageEmbeddings(12, _normal(2, 60, width)), ImageEmbeddings(200, _normal(3, 90, width))],
        [ImageEmbeddings(6, _normal(4, 5, width))],
    ]
    both.encode(_ids(5, 2, 300), [300, 40], images)  # the second stands in two segments
    both.encode(_ids(6, 2, 3), [3, 3], [[], images[0][:0]])
    both.denoise(_ids(7, 2, 16))


def test_prompts_and_canvases_of_one_size_take_one_forward(plain: Transformer, packed: PackedTransformer) -> None:
    """So a graph captured for one kind serves the other."""
    packed.paged = PagedForward(packed.packed)
    both = Both.of(plain, packed, 2)
    for seed in range(2):
        both.encode(_ids(seed, 2, 30), [30, 4])
        both.denoise(_ids(seed, 2, 20))
    assert list(packed.paged._shapes) == [(2, 64)]


def test_pages_come_back(packed: PackedTransformer) -> None:
    packed.paged = PagedForward(packed.packed)
    store, cache = packed.paged.store, packed.paged.new_cache(1, 4000)
    for _ in range(3):
        branches = cache.copy([0] * 6)
        packed.encode(_ids(1, 6, 20), branches)
        packed.denoise(_ids(2, 4, 16), branches.select([0, 0, 1, 2]))
        del branches
        gc.collect()
        assert [pool.held for pool in store.pools.values()] == [0, 0]
        assert [len(keys) for keys in store.pages[0].keys] == [GROWTH] * packed.config.num_hidden_layers
    for chunk in range(10):
        packed.encode(_ids(chunk, 1, 256), cache)
    assert store.pools[FULL].held == 10
    assert store.pools[SLIDING].held == 1  # a window reaches few of them
    cache = packed.paged.new_cache(20, 300)  # more pages than there are
    packed.encode(_ids(3, 20, 300), cache)
    assert store.pools[FULL].held == 40
    assert len(store.pages[0].keys[0]) == store.pools[packed.config.layer_types[0]].count >= 40


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("part", ["paged_cache._grown", "paged_cache.PageStore._copy"])
def test_where_memory_ends_nothing_is_lost(
    plain: Transformer, packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch, part: str, after: int
) -> None:
    """While pages are added, or copied: requests hold what they held, and it goes on when there is memory again."""
    packed.paged = PagedForward(packed.packed)
    store, both = packed.paged.store, Both.of(plain, packed, 1)
    both.encode(_ids(1, 1, 300), [300])
    held = {kind: pool.held for kind, pool in store.pools.items()}
    texts = both.copy([0] * 40)
    for _ in range(2):
        with monkeypatch.context() as patch:
            _ends_after(patch, f"redraft.model.packed.{part}", after)
            with pytest.raises(torch.OutOfMemoryError):
                packed.encode(_ids(2, 40, 20), texts.caches[1])  # type: ignore[arg-type]
    texts.encode(_ids(2, 40, 20), [20] * 40)
    both.denoise(_ids(3, 1, 16))
    del texts
    gc.collect()
    assert {kind: pool.held for kind, pool in store.pools.items()} == held


def _ends_after(patch: pytest.MonkeyPatch, name: str, calls: int) -> None:
    work, left = pkgutil.resolve_name(name), iter(range(calls))

    def ending(*arguments: object) -> object:
        if next(left, None) is None:
            raise torch.OutOfMemoryError("no memory")
        return work(*arguments)

    patch.setattr(name, ending)


def test_where_memory_is_short_fewer_canvases_share_a_forward(
    packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 256 rows or 64, that take two pages each; what they come to is the same. One at a time is always tried."""

    def read(room: int, rows: int) -> tuple[list[int], Tensor]:
        packed.paged = paged = PagedForward(packed.packed)
        store, each = paged.store, page_bytes(packed.config, packed.dtype.itemsize)
        monkeypatch.setattr(store, "_free_bytes", lambda: room * sum(each) - _taken(store, each))
        cache = paged.new_cache(1, 1200)
        packed.encode(_ids(1, 1, 300), cache)
        sizes, run = list[int](), paged._run
        monkeypatch.setattr(paged, "_run", lambda kind, ids, *given: sizes.append(len(ids)) or run(kind, ids, *given))
        canvases = packed.denoise(_ids(2, 20, rows), cache.select([0] * 20))
        return sizes, canvases

    for rows in (20, 250):
        assert read(2, rows)[0] == [1] * 20
        few, found = read(12, rows)
        assert few == [5] * 4
        whole, expected = read(1000, rows)
        assert whole == [16, 4]
        torch.testing.assert_close(found, expected, atol=0, rtol=0)


def _taken(store: PageStore, each: tuple[int, int]) -> int:
    return store.pools[FULL].count * each[0] + store.pools[SLIDING].count * each[1]


def test_threads_have_caches_of_their_own(packed: PackedTransformer) -> None:
    @torch.inference_mode()
    def read(seed: int) -> Tensor:
        cache = packed.paged.new_cache(1, 700)
        packed.encode(_ids(seed, 1, 300), cache)
        texts = cache.copy([0, 0])
        packed.encode(_ids(seed + 1, 2, 20), texts, [20, 9])
        return packed.denoise(_ids(seed + 2, 2, 40), texts)

    packed.paged = PagedForward(packed.packed)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(read, range(12)))
    for seed, hidden in enumerate(found):
        torch.testing.assert_close(hidden, read(seed), atol=0, rtol=0)


def test_what_does_not_fit_is_refused(packed: PackedTransformer) -> None:
    cache = packed.paged.new_cache(1, 20)
    packed.encode(_ids(1, 1, 18), cache)
    with pytest.raises(PromptError, match="21 tokens do not fit in a cache of 20"):
        packed.encode(_ids(2, 1, 3), cache)
    packed.denoise(_ids(3, 1, 300), cache)  # a canvas is not committed


def test_bytes_of_a_request_are_those_of_its_pages(packed: PackedTransformer) -> None:
    for tokens in (1, 256, 257, 1000):
        packed.paged = PagedForward(packed.packed)
        store, cache = packed.paged.store, packed.paged.new_cache(1, tokens)
        most = 0
        for first in range(0, tokens, 250):
            packed.encode(_ids(1, 1, min(250, tokens - first)), cache)
            made = 0
            for number, (keys, values) in enumerate(zip(store.pages[0].keys, store.pages[0].values, strict=True)):
                held = store.pools[packed.config.layer_types[number]].held
                made += held * sum(pool[0].numel() * pool.element_size() for pool in (keys, values))
            most = max(most, made)
        assert most <= request_bytes(packed.packed, tokens) <= 1.5 * most
