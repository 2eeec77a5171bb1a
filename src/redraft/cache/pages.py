"""Which request holds which pages of keys and values: reference counts, pages kept for reuse, and promised pages.

A page holds `PAGE` consecutive tokens of one request in every layer of its space. There are two spaces, because the two
kinds of layers need different pasts: full layers keep every page of a request, sliding layers only those still within
their window. Pure Python; the tensors live elsewhere (`paged.py`), addressed by page number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

PAGE = 256
"""Tokens per page."""


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE)


class PagePool:
    """The pages of one space.

    A page is free, held (by one or more requests), or kept: no one holds it, but its content is known by a key and may
    be held again. When no page is free, kept pages are given away, the longest unused first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._kept)

    @property
    def held(self) -> int:
        """Pages that requests hold."""
        return self.count - self.available

    @property
    def kept(self) -> int:
        """Pages that no one holds, kept for reuse."""
        return len(self._kept)

    def take(self) -> int:
        """A page of unknown content, held once."""
        page = self._free.pop() if self._free else self._evict()
        self._holders[page] = 1
        return page

    def grow(self, count: int) -> None:
        """Add this many free pages."""
        self._free += range(self.count + count - 1, self.count - 1, -1)
        self._holders += [0] * count
        self.count += count

    def shared(self, page: int) -> bool:
        """Whether more than one request holds a page."""
        return self._holders[page] > 1

    def share(self, page: int) -> None:
        """Hold a page that is already held or kept."""
        self._kept.pop(page, None)
        self._holders[page] += 1

    def drop(self, page: int) -> None:
        """Stop holding a page. The last holder leaves it kept, as most recently used, if it has a key, else free."""
        assert self._holders[page] > 0, f"page {page} is not held"
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if page in self._key_of:
            self._kept[page] = None
        else:
            self._free.append(page)

    def name(self, page: int, key: bytes) -> None:
        """Make a page known by `key`. Does nothing if another page already has the key, or the page has one."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key

    def unname(self, key: bytes) -> None:
        """Forget the key, if a page is known by it."""
        if (page := self._page_of.pop(key, None)) is None:
            return
        del self._key_of[page]
        if page in self._kept:
            del self._kept[page]
            self._free.append(page)

    def find(self, key: bytes) -> int | None:
        """The page known by `key`."""
        return self._page_of.get(key)

    def forget(self) -> None:
        """Forget all keys; kept pages become free."""
        self._free += self._kept
        self._kept.clear()
        self._page_of.clear()
        self._key_of.clear()

    def _evict(self) -> int:
        assert self._kept, "no page is left; admission must prevent this"
        page, _ = self._kept.popitem(last=False)
        del self._page_of[self._key_of.pop(page)]
        return page


def drop_unseen(pool: PagePool, pages: list[int], seen: int) -> bool:
    """Drop the pages that a table still holds and that end at or before position `seen`; returns whether any did.

    Their entries become -1.
    """
    index = min(max(0, seen) // PAGE, len(pages)) - 1
    changed = index >= 0 and pages[index] >= 0
    while index >= 0 and pages[index] >= 0:
        pool.drop(pages[index])
        pages[index] = -1
        index -= 1
    return changed


@dataclass(slots=True)
class PageTable:
    """One request's pages: entry i of each list holds its positions i*PAGE .. (i+1)*PAGE; -1 has been given back.

    `full_total` and `sliding_most` are the most it may hold; `reused` counts the pages found by their keys. The reused
    beginning of a prompt never has a `broken` number of pages: it would end inside an image.
    """

    keys: Sequence[bytes] = ()
    full_total: int = 0
    sliding_most: int = 0
    broken: Container[int] = ()
    full: list[int] = field(default_factory=list)
    sliding: list[int] = field(default_factory=list)
    reused: int = 0

    @property
    def full_left(self) -> int:
        """Pages of the full layers that the request may still take."""
        return self.full_total - len(self.full)

    @property
    def sliding_held(self) -> int:
        """Pages of the sliding layers that it holds: the last ones, as pages are given back from the front."""
        return next((count for count, page in enumerate(reversed(self.sliding)) if page < 0), len(self.sliding))

    @property
    def borrows(self) -> bool:
        """Whether it holds more pages of the sliding layers than were promised to it."""
        return self.sliding_held > self.sliding_most


class PageManager:
    """Page tables of all requests, backed by two pools of fixed size.

    A request is admitted only if every page it may ever need can be promised to it, and while nobody holds more than
    was promised. So taking a page never fails.
    """

    def __init__(self, full_pages: int, sliding_pages: int, window: int) -> None:
        self.full, self.sliding = PagePool(full_pages), PagePool(sliding_pages)
        self._past = window - 1
        self._full_promised = 0
        self._sliding_promised = 0

    def sliding_most(self, positions: int, span: int) -> int:
        """The most sliding pages held at a time by a request of `positions` that adds at most `span` per forward."""
        return min(pages_for(positions), pages_for(self._past + span) + 1)

    def open(self, positions: int, span: int, keys: Sequence[bytes], broken: Container[int] = ()) -> PageTable | None:
        """A table for a request of `positions`, starting with existing pages of its prefix; None if there is no room.

        `keys` are the prefix keys of its prompt's whole pages; the reused prefix never has a `broken` number of pages.
        """
        table = PageTable(keys, pages_for(positions), self.sliding_most(positions, span), broken)
        if self._sliding_promised + table.sliding_most > self.sliding.count:
            return None
        self._reuse_prefix(table)
        if self.full.available < self._full_promised + table.full_left:
            self._drop_all(table)
            return None
        self._full_promised += table.full_left
        self._sliding_promised += table.sliding_most
        return table

    @property
    def spare(self) -> int:
        """Sliding pages promised to no one: they may be borrowed, but must be back before the next admission."""
        return self.sliding.count - self._sliding_promised

    def most_covered(self, table: PageTable, position: int, spare: int) -> int:
        """How far a table can be covered with `spare` extra pages, once pages unseen from `position` on are dropped."""
        return (max(0, position - self._past) // PAGE + table.sliding_most + spare) * PAGE

    def cover(self, table: PageTable, positions: int, spare: int = 0) -> bool:
        """Take pages until the table covers `positions`, with at most `spare` sliding pages more than were promised.

        Returns whether the table changed.
        """
        missing = pages_for(positions) - len(table.full)
        if missing <= 0:
            return False
        assert missing <= table.full_left
        for _ in range(missing):
            table.full.append(self.full.take())
            self._full_promised -= 1
            table.sliding.append(self.sliding.take())
        assert table.sliding_held <= table.sliding_most + spare
        return True

    def adopt(self, table: PageTable) -> bool:
        """Hold the next prompt page (or all up to a count that is not broken) if others have written it meanwhile.

        Returns whether it did.
        """
        first = len(table.full)
        count = next((count for count in range(first + 1, len(table.keys) + 1) if count not in table.broken), first)
        pages = [(self.full.find(key), self.sliding.find(key)) for key in table.keys[first:count]]
        if not pages or any(None in pair for pair in pages):
            return False
        for full, sliding in pages:
            assert full is not None
            assert sliding is not None
            self._share(table, full, sliding)
        self._full_promised -= len(pages)
        return True

    def name(self, table: PageTable, first: int, stop: int) -> None:
        """Let others use pages first .. stop of a prompt, which have been written."""
        for index in range(first, min(stop, len(table.keys))):
            self.full.name(table.full[index], table.keys[index])
            self.sliding.name(table.sliding[index], table.keys[index])

    def unname(self, table: PageTable) -> None:
        """Stop others from reusing pages of this table, whoever wrote them, including those given back."""
        for pool in (self.full, self.sliding):
            for key in table.keys:
                pool.unname(key)
        table.keys = ()

    def leave_behind(self, table: PageTable, position: int) -> bool:
        """Give back the sliding pages that no token from `position` on can see; returns whether the table changed."""
        return drop_unseen(self.sliding, table.sliding, position - self._past)

    def close(self, table: PageTable) -> None:
        """End a request: its pages are kept if their content is known by a key, else they become free."""
        self._full_promised -= table.full_left
        self._sliding_promised -= table.sliding_most
        self._drop_all(table)

    def forget(self) -> None:
        """Forget the contents of all pages; kept pages become free."""
        self.full.forget()
        self.sliding.forget()

    def _reuse_prefix(self, table: PageTable) -> None:
        count = self._known(table.keys, table.broken)
        reach = self._reach(count)
        for index, key in enumerate(table.keys[:count]):
            full, sliding = self.full.find(key), self.sliding.find(key) if index >= reach else -1
            assert full is not None
            assert sliding is not None
            self._share(table, full, sliding)

    def _share(self, table: PageTable, full: int, sliding: int) -> None:
        self.full.share(full)
        if sliding >= 0:
            self.sliding.share(sliding)
        table.full.append(full)
        table.sliding.append(sliding)
        table.reused += 1

    def _known(self, keys: Sequence[bytes], broken: Container[int]) -> int:
        """The most pages that can be reused: known in the full space, and in the sliding one within the window."""
        most = next((i for i, key in enumerate(keys) if self.full.find(key) is None), len(keys))
        counts = (count for count in range(most, 0, -1) if count not in broken)
        return next((count for count in counts if self._slides(keys[self._reach(count) : count])), 0)

    def _slides(self, keys: Sequence[bytes]) -> bool:
        """Whether all of these pages are known in the sliding space."""
        return all(self.sliding.find(key) is not None for key in keys)

    def _reach(self, pages: int) -> int:
        """The first sliding page that a token after `pages` pages sees."""
        return max(0, pages * PAGE - self._past) // PAGE

    def _drop_all(self, table: PageTable) -> None:
        """Drop all pages, last pages first, so that the beginnings of prompts, which are shared more, last longest."""
        for page in reversed(table.full):
            self.full.drop(page)
        for page in reversed(table.sliding):
            if page >= 0:
                self.sliding.drop(page)
        table.full, table.sliding = [], []
