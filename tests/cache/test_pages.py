"""Pages: promises hold under any order of events, prefixes are found as far as both spaces know them."""

import random

import pytest
import torch

from redraft.cache.pages import PAGE, PageManager, PagePool, PageTable, pages_for
from redraft.cache.prefix import prefix_keys
from redraft.text.images import Image, PlacedImage

WINDOW = 400
"""A token sees the 399 before it: up to three pages of the past."""


def written(manager: PageManager, keys: list[bytes], positions: int, *, span: int = PAGE) -> PageTable:
    """A request that has encoded its prompt page by page, as the scheduler does it."""
    table = manager.open(positions, span, keys)
    assert table is not None
    for page in range(len(table.full), len(keys)):
        manager.leave_behind(table, page * PAGE)
        manager.cover(table, (page + 1) * PAGE)
        manager.name(table, page, page + 1)
    manager.leave_behind(table, len(keys) * PAGE)
    return table


class TestPool:
    def test_a_page_is_free_again_when_nobody_holds_it(self) -> None:
        pool = PagePool(2)
        page = pool.take()
        pool.share(page)
        pool.drop(page)
        assert (pool.held, pool.available) == (1, 1)
        pool.drop(page)
        assert (pool.held, pool.available, pool.kept) == (0, 2, 0)
        with pytest.raises(AssertionError):
            pool.drop(page)

    def test_known_pages_are_kept_until_others_need_them_oldest_first(self) -> None:
        pool = PagePool(3)
        pages = [pool.take() for _ in range(3)]
        for page, key in zip(pages, (b"a", b"b", b"c"), strict=True):
            pool.name(page, key)
        for page in (pages[1], pages[0], pages[2]):
            pool.drop(page)
        assert pool.kept == 3
        assert pool.take() == pages[1]
        assert pool.find(b"b") is None
        assert pool.find(b"a") == pages[0]
        pool.share(pages[0])  # in use again: no longer to be given away
        assert pool.take() == pages[2]
        assert pool.available == 0

    def test_the_first_page_with_a_key_keeps_it(self) -> None:
        pool = PagePool(2)
        first, second = pool.take(), pool.take()
        pool.name(first, b"a")
        pool.name(second, b"a")
        pool.name(first, b"b")
        assert (pool.find(b"a"), pool.find(b"b")) == (first, None)
        pool.drop(second)
        assert pool.kept == 0

    def test_forgetting_frees_what_was_kept_and_nothing_else(self) -> None:
        pool = PagePool(2)
        kept, held = pool.take(), pool.take()
        pool.name(kept, b"a")
        pool.name(held, b"b")
        pool.drop(kept)
        pool.forget()
        assert (pool.held, pool.kept, pool.available) == (1, 0, 1)
        assert pool.find(b"b") is None
        pool.drop(held)
        assert (pool.kept, pool.available) == (0, 2)


class TestPrefixes:
    def test_nobody_begins_with_pages_that_were_unnamed(self) -> None:
        """Those that were taken over included, while another request goes on with them."""
        manager = PageManager(20, 20, WINDOW)
        keys = prefix_keys(list(range(4 * PAGE)))
        first = written(manager, keys, 5 * PAGE)
        second = manager.open(5 * PAGE, PAGE, keys)
        assert second is not None
        assert second.reused == 4
        manager.unname(second)
        manager.close(second)
        third = manager.open(5 * PAGE, PAGE, keys)
        assert third is not None
        assert third.reused == 0
        for table in (first, third):
            manager.close(table)
        assert (manager.full.held, manager.full.kept, manager.full.available) == (0, 0, 20)

    def test_nor_with_pages_that_were_given_back_before(self) -> None:
        """A window has passed them, so that the table holds them no more; they were named all the same."""
        manager = PageManager(20, 20, WINDOW)
        keys = prefix_keys(list(range(6 * PAGE)))
        first = written(manager, keys, 6 * PAGE)
        assert -1 in first.sliding
        manager.unname(first)
        assert not any(pool.find(key) is not None for key in keys for pool in (manager.full, manager.sliding))
        manager.close(first)
        assert (manager.sliding.held, manager.sliding.kept, manager.sliding.available) == (0, 0, 20)

    def test_keys_depend_on_everything_before(self) -> None:
        one = prefix_keys([1] * PAGE + [2] * PAGE + [9])
        other = prefix_keys([3] * PAGE + [2] * PAGE)
        assert len(one) == len(other) == 2
        assert not set(one) & set(other)
        assert prefix_keys([1] * (2 * PAGE - 1)) == one[:1]

    def test_the_same_prompt_is_found_again(self) -> None:
        manager = PageManager(20, 20, WINDOW)
        keys = prefix_keys(list(range(6 * PAGE)))
        manager.close(written(manager, keys, 7 * PAGE))
        again = manager.open(7 * PAGE, PAGE, keys)
        assert again is not None
        assert again.reused == 6
        assert again.sliding[:4] == [-1] * 4  # position 6 * 256 sees the 399 tokens before it: pages 4 and 5
        assert min(again.sliding[4:]) >= 0

    def test_a_window_that_ends_with_a_page_needs_none_before_it(self) -> None:
        manager = PageManager(20, 20, PAGE + 1)
        keys = prefix_keys(list(range(6 * PAGE)))
        manager.close(written(manager, keys, 7 * PAGE))
        again = manager.open(7 * PAGE, PAGE, keys)
        assert again is not None
        assert again.sliding[:5] == [-1] * 5
        assert again.sliding[5] >= 0

    def test_the_beginning_of_a_prompt_is_known_longest(self) -> None:
        manager = PageManager(3, 3, 4 * PAGE)
        keys = prefix_keys(list(range(3 * PAGE)))
        manager.close(written(manager, keys, 3 * PAGE, span=3 * PAGE))
        other = manager.open(PAGE, PAGE, ())
        assert other is not None
        manager.cover(other, PAGE)
        for pool in (manager.full, manager.sliding):
            assert [pool.find(key) is not None for key in keys] == [True, True, False]

    def test_nothing_is_known_once_forgotten(self) -> None:
        manager = PageManager(20, 20, WINDOW)
        keys = prefix_keys(list(range(2 * PAGE)))
        manager.close(written(manager, keys, 3 * PAGE))
        manager.forget()
        assert manager.full.kept == manager.sliding.kept == 0
        assert not any(pool.find(key) is not None for key in keys for pool in (manager.full, manager.sliding))

    def test_a_shorter_common_beginning_is_found_while_its_window_is_known(self) -> None:
        manager = PageManager(20, 20, WINDOW)
        tokens = list(range(6 * PAGE))
        manager.close(written(manager, prefix_keys(tokens), 7 * PAGE))
        forked = prefix_keys([*tokens[: 3 * PAGE], *([0] * PAGE)])
        table = manager.open(5 * PAGE, PAGE, forked)
        assert table is not None
        assert table.reused == 3

    @pytest.mark.parametrize(("unknown", "reused"), [(3, 3), (2, 2), (1, 4), (0, 4)])
    def test_a_prefix_is_resumed_where_the_window_behind_it_is_known(self, unknown: int, reused: int) -> None:
        """All four pages are known in the full space, all but one in the sliding one; a window reaches two back."""
        manager = PageManager(20, 20, WINDOW)
        keys = prefix_keys(list(range(4 * PAGE)))
        table = manager.open(5 * PAGE, 4 * PAGE, keys)
        assert table is not None
        manager.cover(table, 4 * PAGE)
        for page, key in enumerate(keys):
            manager.full.name(table.full[page], key)
            if page != unknown:
                manager.sliding.name(table.sliding[page], key)
        manager.close(table)
        again = manager.open(5 * PAGE, PAGE, keys)
        assert again is not None
        assert again.reused == reused

    def test_a_page_that_another_request_wrote_meanwhile_is_adopted(self) -> None:
        manager = PageManager(20, 20, WINDOW)
        keys = prefix_keys(list(range(2 * PAGE)))
        late = manager.open(3 * PAGE, PAGE, keys)
        assert late is not None
        assert not manager.adopt(late)
        early = written(manager, keys, 3 * PAGE)
        assert manager.adopt(late)
        assert manager.adopt(late)
        assert not manager.adopt(late)
        assert late.full == early.full


def test_a_page_is_given_back_when_the_next_token_does_not_see_its_last_one() -> None:
    manager = PageManager(20, 20, WINDOW)
    table = manager.open(5 * PAGE, 5 * PAGE, ())
    assert table is not None
    manager.cover(table, 5 * PAGE)
    assert not manager.leave_behind(table, PAGE - 1 + WINDOW - 1)
    assert manager.leave_behind(table, PAGE - 1 + WINDOW)
    assert [page < 0 for page in table.sliding] == [True, *[False] * 4]


@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("position", [0, PAGE, WINDOW - 1, WINDOW + PAGE - 2, WINDOW + PAGE - 1, 10 * PAGE + 7])
def test_a_table_reaches_as_far_as_its_promised_and_borrowed_pages(position: int, spare: int) -> None:
    manager = PageManager(40, 40, WINDOW)
    table = manager.open(40 * PAGE, PAGE, ())
    assert table is not None
    for here in range(0, position + 1, PAGE):
        manager.leave_behind(table, here)
        manager.cover(table, here + PAGE)
    manager.leave_behind(table, position)
    manager.cover(table, manager.most_covered(table, position, spare), spare)
    assert table.sliding_held == table.sliding_most + spare


@pytest.mark.parametrize(("full", "sliding"), [(40, 26), (20, 90)])
@pytest.mark.parametrize("seed", range(20))
def test_promises_hold_in_any_order_of_events(seed: int, full: int, sliding: int) -> None:
    """Requests of all lengths open, grow, finish and are broken off; taking a page never fails and none is lost."""
    luck = random.Random(seed)
    manager = PageManager(full, sliding, WINDOW)
    prompts = [[luck.randrange(9) for _ in range(luck.randrange(1, 9 * PAGE))] for _ in range(3)]
    live: list[tuple[PageTable, int, int]] = []  # table, committed positions, positions in all
    for _ in range(600):
        if luck.random() < 0.3:
            prompt = luck.choice(prompts)[: luck.randrange(1, 9 * PAGE)]
            positions = len(prompt) + luck.randrange(1, 600)
            table = manager.open(positions, 2 * PAGE, prefix_keys(prompt))
            if table is not None:
                live.append((table, len(table.full) * PAGE, positions))
        elif live:
            at = luck.randrange(len(live))
            table, committed, positions = live.pop(at)
            while len(table.full) * PAGE == committed and manager.adopt(table):
                committed += PAGE
                manager.leave_behind(table, committed)
            if committed == positions or luck.random() < 0.1:
                manager.close(table)
                continue
            manager.leave_behind(table, committed)
            stop = min(positions, committed // PAGE * PAGE + luck.choice((PAGE, 2 * PAGE)))
            manager.cover(table, stop)
            manager.name(table, committed // PAGE, stop // PAGE)
            live.append((table, stop, positions))
        check(manager, [table for table, _, _ in live])
    for table, _, _ in live:
        manager.close(table)
    check(manager, [])
    assert manager.full.held == manager.sliding.held == 0
    assert manager._full_promised == manager._sliding_promised == 0


def check(manager: PageManager, tables: list[PageTable]) -> None:
    for pool, lists in ((manager.full, [t.full for t in tables]), (manager.sliding, [t.sliding for t in tables])):
        held = {page for pages in lists for page in pages if page >= 0}
        assert pool.held == len(held)
    assert manager.full.available >= sum(table.full_left for table in tables) == manager._full_promised
    assert all(sum(page >= 0 for page in table.sliding) <= table.sliding_most for table in tables)
    assert all(len(table.full) == len(table.sliding) <= pages_for(10**6) for table in tables)


def test_pages_that_could_not_be_taken_are_still_promised() -> None:
    """Only if the books were wrong before: they do not get worse."""
    manager = PageManager(8, 2, window=PAGE)
    table = manager.open(2 * PAGE, PAGE, ())
    assert table is not None
    manager.sliding.take()
    with pytest.raises(AssertionError, match="no page is left"):
        manager.cover(table, 2 * PAGE)
    manager.close(table)
    assert manager._full_promised == manager._sliding_promised == 0


def test_the_same_image_elsewhere_is_another_prefix() -> None:
    ids = [7, 9, 8, 7, 9, 8] + [3] * PAGE
    picture = Image(patches=torch.zeros(1, 1), rows=1, columns=1, tokens=1, digest=b"d" * 32)
    first, second = (PlacedImage(start=start, content=picture) for start in (1, 4))
    assert prefix_keys(ids, None, [first]) != prefix_keys(ids, None, [second])
    assert prefix_keys(ids, None, [first]) == prefix_keys(ids, None, [first])
