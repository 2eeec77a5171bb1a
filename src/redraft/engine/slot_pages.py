"""Which pages of keys and values the slots of a GPU runner hold, and the cleaning of pages between requests.

Kernels read whole tiles, also past a request's last token, so no page may hold numbers that are not finite when the
next request gets it. A slot is in doubt from the start of a forward until one has given finite numbers for it. When a
doubtful slot is released, the pages that it alone has held are cleaned: at once, or before the next forward if that
fails. Slots that share others with it are in doubt from then on, whether they have run or not. A page that it gave back
before is cleaned when another slot first writes to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from redraft.cache.pages import PAGE, pages_for
from redraft.config import FULL, SLIDING, LayerType
from redraft.engine.work import Limits, Segment
from redraft.kernels.device_group import DeviceGroup
from redraft.model.packed.pages import Pages

_log = logging.getLogger(__name__)

_KINDS: tuple[LayerType, ...] = (FULL, SLIDING)


class SlotPages:
    """What each slot holds of `stored`, which are every shard's pages.

    `tables`, int32 [C,P] for each kind of layers, has a row for each slot: entry i is the page of its positions
    i*256 .. (i+1)*256; behind the last one are zeros.
    """

    def __init__(self, stored: tuple[Pages, ...], limits: Limits) -> None:
        slots, width = limits.slots, pages_for(limits.context)
        self.stored = stored
        self.tables: dict[LayerType, NDArray[np.int32]] = {kind: np.zeros((slots, width), np.int32) for kind in _KINDS}
        self._held: dict[LayerType, list[tuple[int, ...]]] = {kind: [()] * slots for kind in _KINDS}
        self._touched: dict[LayerType, list[set[int]]] = {kind: [set() for _ in range(slots)] for kind in _KINDS}
        """All pages that a slot has held for its present request."""
        self._unclean: dict[LayerType, set[int]] = {kind: set() for kind in _KINDS}
        """Pages that nobody holds and that may have numbers that are not finite."""
        self._given_back: set[int] = set()
        """Sliding pages that a slot gave back before it was released in doubt; another holds them by now."""
        self._doubtful: set[int] = set()
        """Slots whose last forward gave numbers that are not finite, or no numbers at all, and those that share pages
        with one that was released as such."""

    @property
    def width(self) -> int:
        """Pages of the longest request."""
        return self.tables[FULL].shape[1]

    def assign(self, slot: int, full: Sequence[int], sliding: Sequence[int]) -> None:
        """See `engine.work.Runner`."""
        for kind, pages in zip(_KINDS, (full, sliding), strict=True):
            self._held[kind][slot] = tuple(pages)
            self._touched[kind][slot].update(page for page in pages if page >= 0)
            self.tables[kind][slot, : len(pages)] = pages
            self.tables[kind][slot, len(pages) :] = 0

    def release(self, slot: int) -> bool:
        """See `engine.work.Runner`. Pages that cannot be cleaned now are cleaned before the next forward."""
        doubtful = slot in self._doubtful
        if doubtful:
            for kind, unclean in self._unclean.items():
                unclean |= self._only_in(slot, kind)
            given_back = self._touched[SLIDING][slot].difference(self._held[SLIDING][slot])
            self._given_back |= given_back - self._unclean[SLIDING]
            self._doubtful |= self._sharing(slot)
        self._doubtful.discard(slot)
        self.assign(slot, (), ())
        for touched in self._touched.values():
            touched[slot].clear()
        try:
            return not doubtful or self.clean()
        except Exception as error:
            _log.warning("pages could not be cleaned yet: %s", error)
            return False

    def begin(self, work: Sequence[Segment]) -> None:
        """A forward begins: clean what it needs clean. Its slots' pages may get numbers that are not finite."""
        self._suspect(work)
        self.clean()
        self.doubt(segment.slot for segment in work)

    def doubt(self, slots: Iterable[int]) -> None:
        """Part of a forward begins, of slots that have run since they were assigned pages: these may get numbers that
        are not finite."""
        self._doubtful.update(slots)

    def trust(self, slots: Iterable[int]) -> None:
        """The last forward of these slots gave finite numbers, so everything that they hold is finite."""
        self._doubtful.difference_update(slots)

    def clean(self) -> bool:
        """Zero the values that are not finite in pages that need it. Returns whether there were none."""
        if not any(self._unclean.values()):
            return True
        numbers = {kind: sorted(pages) for kind, pages in self._unclean.items()}
        with DeviceGroup(pages.device for pages in self.stored) as group:
            dirty = group.map(lambda pages: pages.clean(numbers), self.stored)
        clean = not any(map(bool, dirty))
        for unclean in self._unclean.values():
            unclean.clear()
        return clean

    def _suspect(self, work: Sequence[Segment]) -> None:
        """Note pages that segments write to and that another request, of which nothing good is known, has given back.

        Only those of sliding layers are given back before a request ends.
        """
        if not self._doubtful and not self._given_back:
            return
        for segment in work:
            pages = self._held[SLIDING][segment.slot][segment.start // PAGE : pages_for(segment.start + segment.tokens)]
            others = (self._touched[SLIDING][other] for other in self._doubtful if other != segment.slot)
            for suspects in (self._given_back, *others):
                written = suspects.intersection(pages)
                suspects -= written
                self._unclean[SLIDING] |= written

    def _only_in(self, slot: int, kind: LayerType) -> set[int]:
        """The pages that only this slot has held. Shared ones are left alone, so that others notice what is wrong."""
        others = {page for other, pages in enumerate(self._held[kind]) if other != slot for page in pages}
        return self._touched[kind][slot] - others

    def _sharing(self, slot: int) -> set[int]:
        """Other slots that hold a page which this one has held: the last one cleans it, unless it has proved finite."""
        return {
            other
            for kind in _KINDS
            for other, pages in enumerate(self._held[kind])
            if other != slot and not self._touched[kind][slot].isdisjoint(pages)
        }
