"""Chooses a replica for each request: the one that has its beginning cached, unless that one is too busy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

BLOCK = 1024
"""Bytes of a request compared at a time: about the 256 tokens of a page of keys and values."""
MOST_BLOCKS = 1024
"""Most blocks of a request that are compared; images make some requests far longer."""
REMEMBERED = 2**17
"""Number of the latest blocks that are remembered: 128 MiB of requests."""
WORTH = 16
"""Known blocks that justify one open request more than the idlest replica has: 4,096 tokens take an H100 0.06 s to
encode, and one more canvas in its forward passes delays all others there by 0.1 s in 32 steps."""


class Chooser:
    """Remembers where the beginnings of requests went. Bodies are compared as bytes, without parsing them.

    Each turn of a conversation repeats its beginning; so do requests with the same system message or document.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[int, int] = OrderedDict()
        self._turn = 0

    def choose(self, body: bytes, opened: Sequence[int], able: Sequence[int]) -> int:
        """Choose one of the replicas `able`, by number; `opened[number]` is how many requests a replica has open."""
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
        """Find where the longest known beginning went (-1 for nowhere), and how many blocks it has."""
        known = next((number for number in range(len(chain), 0, -1) if chain[number - 1] in self._places), 0)
        return (self._places[chain[known - 1]], known) if known else (-1, 0)

    def _remember(self, chain: Sequence[int], number: int) -> None:
        for link in chain:
            self._places[link] = number
            self._places.move_to_end(link)
        while len(self._places) > REMEMBERED:
            self._places.popitem(last=False)


def _chain(body: bytes) -> Iterator[int]:
    """Yield a hash of each whole block of `body` and all before it. Python keys its hash of bytes anew per process."""
    link = 0
    for start in range(0, min(len(body) // BLOCK, MOST_BLOCKS) * BLOCK, BLOCK):
        link = hash((link, body[start : start + BLOCK]))
        yield link
