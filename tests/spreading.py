"""Where long tests stand among the others when several workers share them."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def spread(tests: list[T], is_long: Callable[[T], bool], workers: int) -> list[T]:
    """The long ones in turn at the start of each worker's share: a contiguous part of the list (`--dist worksteal`)."""
    long, ordered = list(filter(is_long, tests)), [test for test in tests if not is_long(test)]
    for worker in range(workers):
        start = worker * len(tests) // workers
        ordered[start:start] = long[worker::workers]
    return ordered
