"""Who holds which page of keys and values: reference counts, pages kept for reuse, and what a request may still take.

A page holds `PAGE` consecutive tokens of one request in every layer of its space. There are two spaces, because the two
kinds of layers need different pasts: full layers keep every page of a request, sliding layers only those their window
still reaches. Pure Python; the tensors live elsewhere (`paged.py`), addressed by page number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

PAGE = 256
"""Tokens of a page."""


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE)


class PagePool:
    """The pages of one space.

    A page is free, held (by one or more requests), or kept: nobody holds it, but its content is known by a key and may
    be held again. Kept pages are given away, the longest unused first, when no page is free.
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
        """Pages that nobody holds, kept for reuse."""
        return len(self._kept)

    def take(self) -> int:
        """A page of unknown content, held once."""
        page = self._free.pop() if self._free else self._evict()
        self._holders[page] = 1
        return page

    def grow(self, count: int) -> None:
        """Have so many pages more, which are free."""
        self._free += range(self.count + count - 1, self.count - 1, -1)
        self._holders += [0] * count
        self.count += count

    def shared(self, page: int) -> bool:
        """Whether more than one request holds a page."""
        return self._holders[page] > 1

    def share(self, page: int) -> None:
        """Hold a page that is held or kept already."""
        self._kept.pop(page, None)
        self._holders[page] += 1

    def drop(self, page: int) -> None:
        """Hold a page no longer. With a key it is kept, as the most recently used; without, it is free."""
        assert self._holders[page] > 0, f"page {page} is not held"
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if page in self._key_of:
            self._kept[page] = None
        else:
            self._free.append(page)

    def name(self, page: int, key: bytes) -> None:
        """Make a page known by `key`. A key that another page has already changes nothing."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key

    def unname(self, key: bytes) -> None:
        """Make the page that is known by `key` unknown, if there is one."""
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
    """Drop the pages of a table that end at position `seen` or before, as far as it holds them; whether there were any.

    Entries become -1.
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

    `full_total` and `sliding_most` are what it may hold at most; `reused` counts the pages that came from the index,
    which end the prompt's known beginning behind no number of pages that is `broken`.
    """

    keys: Sequence[bytes]
    full_total: int
    sliding_most: int
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
        """Pages of the sliding layers that it holds: the last ones, as the first are given back first."""
        return next((count for count, page in enumerate(reversed(self.sliding)) if page < 0), len(self.sliding))


class PageManager:
    """Page tables of all requests, out of two pools of fixed size.

    A request is let in only when every page it may ever need can be promised to it, so that taking a page never fails.
    """

    def __init__(self, full_pages: int, sliding_pages: int, window: int, *, reuse: bool = True) -> None:
        self.full, self.sliding = PagePool(full_pages), PagePool(sliding_pages)
        self._past = window - 1
        self._reuse = reuse
        self._full_promised = 0
        self._sliding_promised = 0

    def sliding_most(self, positions: int, span: int) -> int:
        """Sliding pages held at a time by a request of `positions` that adds at most `span` in one forward."""
        return min(pages_for(positions), pages_for(self._past + span) + 1)

    def open(self, positions: int, span: int, keys: Sequence[bytes], broken: Container[int] = ()) -> PageTable | None:
        """A table for a request of `positions`, beginning with the kept or held pages of its prefix; None: no room now.

        `keys` are the prefix keys of its prompt's whole pages; the prefix never ends behind a `broken` number of them.
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
        """Sliding pages that are promised to nobody: who takes one has to give it back before anybody is let in."""
        return self.sliding.count - self._sliding_promised

    def most_covered(self, table: PageTable, position: int, spare: int) -> int:
        """Up to where a table that has left behind all before `position` can be covered with so many spare pages."""
        return (max(0, position - self._past) // PAGE + table.sliding_most + spare) * PAGE

    def cover(self, table: PageTable, positions: int, spare: int = 0) -> bool:
        """Take pages until the table covers `positions`, of the sliding ones at most `spare` more than were promised.

        Returns whether it changed.
        """
        missing = pages_for(positions) - len(table.full)
        if missing <= 0:
            return False
        assert missing <= table.full_left
        self._full_promised -= missing
        for _ in range(missing):
            table.full.append(self.full.take())
            table.sliding.append(self.sliding.take())
        assert table.sliding_held <= table.sliding_most + spare
        return True

    def adopt(self, table: PageTable) -> bool:
        """Hold the next prompt page, or pages up to one that is not broken, if others have written them meanwhile.

        Returns whether it did.
        """
        first = len(table.full)
        count = next((count for count in range(first + 1, len(table.keys) + 1) if count not in table.broken), first)
        pages = [(self.full.find(key), self.sliding.find(key)) for key in table.keys[first:count]]
        if not self._reuse or not pages or any(None in pair for pair in pages):
            return False
        for full, sliding in pages:
            assert full is not None
            assert sliding is not None
            self._share(table, full, sliding)
        self._full_promised -= len(pages)
        return True

    def name(self, table: PageTable, first: int, stop: int) -> None:
        """Pages first .. stop of a prompt have been written: others may use them."""
        if self._reuse:
            for index in range(first, min(stop, len(table.keys))):
                self.full.name(table.full[index], table.keys[index])
                self.sliding.name(table.sliding[index], table.keys[index])

    def unname(self, table: PageTable) -> None:
        """Let nobody else begin with pages of this table, whoever has written them, those given back included."""
        for pool in (self.full, self.sliding):
            for key in table.keys:
                pool.unname(key)
        table.keys = ()

    def leave_behind(self, table: PageTable, position: int) -> bool:
        """Give back the sliding pages that no token from `position` on can see; returns whether the table changed."""
        return drop_unseen(self.sliding, table.sliding, position - self._past)

    def close(self, table: PageTable) -> None:
        """The request has ended: its pages are kept where their content is known, else free."""
        self._full_promised -= table.full_left
        self._sliding_promised -= table.sliding_most
        self._drop_all(table)

    def forget(self) -> None:
        """Forget what kept pages hold."""
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
        """The most pages to begin with: known in the full space, and in the sliding one as far as a window."""
        if not self._reuse:
            return 0
        most = next((i for i, key in enumerate(keys) if self.full.find(key) is None), len(keys))
        counts = (count for count in range(most, 0, -1) if count not in broken)
        return next((count for count in counts if self._slides(keys[self._reach(count) : count])), 0)

    def _slides(self, keys: Sequence[bytes]) -> bool:
        """Whether all of these pages are known in the sliding space."""
        return all(self.sliding.find(key) is not None for key in keys)

    def _reach(self, pages: int) -> int:
        """The first sliding page that a token behind `pages` pages sees."""
        return max(0, pages * PAGE - self._past) // PAGE

    def _drop_all(self, table: PageTable) -> None:
        """Last pages first, so that the beginnings of prompts, which more requests share, are kept longest."""
        for page in reversed(table.full):
            self.full.drop(page)
        for page in reversed(table.sliding):
            if page >= 0:
                self.sliding.drop(page)
        table.full, table.sliding = [], []
