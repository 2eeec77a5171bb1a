"""Which parts of a schema occur inside themselves: how far these are unfolded has to be limited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

Part = TypeVar("Part", bound=Hashable)


class Recursion(Generic[Part]):
    """Which parts contain each other, of those that `inside` names; others inside of them do not count.

    group  parts that occur inside each other share a number
    turns  few parts, of which at least one is on every cycle
    """

    def __init__(self, inside: Mapping[Part, Iterable[Part]]) -> None:
        waiting = components(inside)
        self.group = {part: number for number, parts in enumerate(waiting) for part in parts}
        self.turns = set[Part]()
        while waiting:
            parts = {part: dict.fromkeys(inside[part]) for part in waiting.pop()}
            within = {part: [other for other in others if other in parts] for part, others in parts.items()}
            arriving = Counter(other for others in within.values() for other in others)
            if not arriving:
                continue
            turn = max(within, key=lambda part: (part in within[part], len(within[part]) * arriving[part]))
            self.turns.add(turn)
            del within[turn]
            waiting += components(within)


def components(inside: Mapping[Part, Iterable[Part]]) -> list[list[Part]]:
    """The strongly connected components, by Tarjan's algorithm; in each, parts come in the order they are met in."""
    order: dict[Part, int] = {}
    lowest: dict[Part, int] = {}
    waiting, found, done = list[Part](), list[list[Part]](), set[Part]()
    for first in inside:
        path = [] if first in order else [first]
        rest = {part: iter(inside[part]) for part in path}
        while path:
            part = path[-1]
            if part not in order:
                order[part] = lowest[part] = len(order)
                waiting.append(part)
            for other in rest[part]:
                if other in inside and other not in order:
                    path.append(other)
                    rest[other] = iter(inside[other])
                    break
                if other in order and other not in done:
                    lowest[part] = min(lowest[part], lowest[other])
            else:
                path.pop()
                if path:
                    lowest[path[-1]] = min(lowest[path[-1]], lowest[part])
                if lowest[part] == order[part]:
                    place = waiting.index(part)
                    found.append(waiting[place:])
                    done.update(waiting[place:])
                    del waiting[place:]
    return found
