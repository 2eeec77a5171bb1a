"""Which replica gets a request: the one that has its beginning in the cache, unless another has less to do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

BLOCK = 1024
"""Bytes of a request that are compared at a time: about the 256 tokens of a page of keys and values."""
MOST_BLOCKS = 1024
"""Of one request that are looked at; images make some far longer."""
REMEMBERED = 2**17
"""Blocks that are remembered, the latest ones: 128 MiB of requests."""
WORTH = 16
"""Blocks that are known for which a replica may have one open request more than the idlest: 4,096 tokens take an H100
0.06 s to encode, and one canvas more in its forwards holds up all others there by 0.1 s in 32 steps."""


class Chooser:
    """Remembers where beginnings of requests went. Bodies are compared as bytes and not read.

    A conversation that goes on repeats its beginning, and so do requests with one system message or one document.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[int, int] = OrderedDict()
        self._turn = 0

    def choose(self, body: bytes, opened: Sequence[int], able: Sequence[int]) -> int:
        """One of the replicas `able`, by its number; `opened` is how many requests are open at each, by number."""
        chain = list(_chain(body))
        least = min(opened[number] for number in able)
        chosen, known = self._longest(chain)
        if chosen not in able or opened[chosen] > least + known // WORTH:
            idlest = [number for number in able if opened[number] == least]
            chosen = idlest[self._turn % len(idlest)]
            self._turn += 1
        self._remember(chain, chosen)
        return chosen

    def _longest(self, chain: Sequence[int]) -> tuple[int, int]:
        """Where the longest beginning went that is known, and its blocks; nowhere is -1."""
        known = next((number for number in range(len(chain), 0, -1) if chain[number - 1] in self._places), 0)
        return (self._places[chain[known - 1]], known) if known else (-1, 0)

    def _remember(self, chain: Sequence[int], number: int) -> None:
        for link in chain:
            self._places[link] = number
            self._places.move_to_end(link)
        while len(self._places) > REMEMBERED:
            self._places.popitem(last=False)


def _chain(body: bytes) -> Iterator[int]:
    """A hash for each whole block of `body` and all before it. Python's own hash of bytes is keyed anew by process."""
    link = 0
    for start in range(0, min(len(body) // BLOCK, MOST_BLOCKS) * BLOCK, BLOCK):
        link = hash((link, body[start : start + BLOCK]))
        yield link
