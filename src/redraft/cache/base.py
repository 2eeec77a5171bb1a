"""The interface of every store of committed keys and values, whatever its layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from redraft.errors import PromptError


class KVCache(ABC):
    """Committed keys and values of requests, each of its own length in `lengths`, up to `capacity` tokens each."""

    def __init__(self, batch_size: int, capacity: int) -> None:
        self.capacity = capacity
        self.lengths = [0] * batch_size

    @property
    def batch_size(self) -> int:
        """The number of requests in the cache."""
        return len(self.lengths)

    @abstractmethod
    def select(self, rows: list[int]) -> Self:
        """A read-only view of some of this cache's requests, in the given order, sharing all storage."""

    @abstractmethod
    def copy(self, rows: list[int]) -> Self:
        """A copy of some of this cache's requests, in the given order; extending it does not change this cache."""

    def advance(self, counts: list[int]) -> None:
        """Grow the lengths, after every layer has written."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def check_room(self, counts: list[int]) -> None:
        """Raise `PromptError` if a request would outgrow the capacity."""
        for length, count in zip(self.lengths, counts, strict=True):
            if length + count > self.capacity:
                raise PromptError(f"{length + count} tokens do not fit in a cache of {self.capacity}.")
