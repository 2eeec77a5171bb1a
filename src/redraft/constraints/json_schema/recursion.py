"""Which parts of a schema occur inside themselves: how far these are unfolded has to be limited."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Part = TypeVar("Part", bound=Hashable)


class Recursion(Generic[Part]):
    """The strongly connected components of what can be reached from `root`, by Tarjan's algorithm.

    group  parts that occur inside each other share a number
    turns  at least one part of every cycle
    """

    def __init__(self, root: Part, inside: Callable[[Part], Iterable[Part]]) -> None:
        self.group: dict[Part, int] = {}
        self.turns: set[Part] = set()
        self._order, self._lowest = {root: 0}, {root: 0}
        path, waiting = [(root, iter(inside(root)))], [root]
        begun = {root}
        while path:
            part, rest = path[-1]
            after = next((other for other in rest if self._is_new(part, other, begun)), None)
            if after is not None:
                self._order[after] = self._lowest[after] = len(self._order)
                path.append((after, iter(inside(after))))
                waiting.append(after)
                begun.add(after)
                continue
            path.pop()
            begun.remove(part)
            if path:
                self._reaches(path[-1][0], self._lowest[part])
            if self._lowest[part] == self._order[part]:
                place = waiting.index(part)
                self.group.update(dict.fromkeys(waiting[place:], self._order[part]))
                del waiting[place:]

    def _is_new(self, part: Part, other: Part, begun: set[Part]) -> bool:
        """Whether `other`, which is inside `part`, has not been met yet."""
        if other not in self._order:
            return True
        if other in begun:
            self.turns.add(other)
        if other not in self.group:
            self._reaches(part, self._order[other])
        return False

    def _reaches(self, part: Part, order: int) -> None:
        self._lowest[part] = min(self._lowest[part], order)
