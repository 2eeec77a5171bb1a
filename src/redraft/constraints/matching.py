"""Where a match of an expression can end, in the order in which a backtracking matcher would try the ends.

What may follow depends on where a part ends and not on how it got there. So every (part, start) is examined once, and
of several ways to the same end only the first counts. This gives the same split as backtracking, in time polynomial in
the text (packrat parsing, with all ends instead of one). Anchors and look-ahead leave ends out and change no order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from redraft.constraints.automaton import Budget
from redraft.constraints.expression import Alt, Chars, Counted, Expression, Literal, Machine, Mark, Ranges, Repeat, Seq

_WORK = "Matching the template"
_CHECKED_EVERY = 256
"""The budget is checked each time that about this many ends have been looked for."""


def split(parts: Sequence[Expression], text: str, budget: Budget) -> list[str] | None:
    """The text cut into a match of each part, earlier parts choosing first; None if that is impossible.

    Raises `ConstraintError` if it takes too long.
    """
    ends = _Ends(text, budget)
    cuts, untried, dead = [0], [iter(ends.of(parts[0], 0))], set[tuple[int, int]]()
    while untried:
        budget.check(0, _WORK)
        done = len(untried)
        for end in untried[-1]:
            if done == len(parts) and end == len(text):
                return [text[start:stop] for start, stop in pairwise([*cuts, end])]
            if done < len(parts) and (done, end) not in dead:
                dead.add((done, end))  # unless the call finds a complete split
                cuts.append(end)
                untried.append(iter(ends.of(parts[done], end)))
                break
        else:
            untried.pop()
            cuts.pop()
    return None


class _Ends:
    """Where the parts of expressions can end in one text."""

    def __init__(self, text: str, budget: Budget) -> None:
        self._text, self._budget, self._work = text, budget, 0
        self._known: dict[tuple[Expression, int], Sequence[int]] = {}

    def of(self, part: Expression, start: int) -> Sequence[int]:
        """All ends of matches that begin at `start`, the preferred ones first."""
        known = self._known.get((part, start))
        if known is None:
            self._worked()
            known = self._known[part, start] = self._found(part, start)
        return known

    def _worked(self) -> None:
        self._work += 1
        if self._work % _CHECKED_EVERY == 0:
            self._budget.check(0, _WORK)

    def _found(self, part: Expression, start: int) -> Sequence[int]:
        match part:
            case Chars(ranges):
                return self._run(ranges, 1, 1, start)
            case Literal(string):
                return (start + len(string),) if self._text.startswith(string, start) else ()
            case Seq(parts):
                return self._sequence(parts, start)
            case Alt(parts):
                return list(dict.fromkeys(end for option in parts for end in self.of(option, start)))
            case Repeat(Chars(ranges), least, most, lazy):
                ends = self._run(ranges, least, most, start)
                return ends if lazy else ends[::-1]
            case Repeat():
                return list(self._repeated(part, start))
            case Counted(ranges, _, most):
                return self._run(ranges, 0, most, start)  # free text, the shorter the better
            case Mark():  # an anchor: the automaton of its regular expression knows where it holds
                return (start,)
            case Machine(dfa, None, source) if source is not None:
                allowed = {start + length for length in dfa.prefixes(map(ord, self._text[start:]))}
                return [end for end in self.of(source, start) if end in allowed]
        raise TypeError(f"{type(part).__name__} cannot stand in plain text.")

    def _run(self, ranges: Ranges, least: int, most: int | None, start: int) -> range:
        """The ends of `least` to `most` characters of a set, the shortest first."""
        found = _run_of(ranges).match(self._text, start)
        assert found is not None  # it may be empty
        longest = found.end() if most is None else min(found.end(), start + most)
        return range(start + least, longest + 1)

    def _sequence(self, parts: Sequence[Expression], start: int) -> Sequence[int]:
        ends: Sequence[int] = (start,)
        for part in parts:
            ends = list(dict.fromkeys(end for place in ends for end in self.of(part, place)))
        return ends

    def _repeated(self, node: Repeat, start: int) -> dict[int, None]:
        """Depth first over (repetitions so far, place); those beyond `least` count only where there is a `most`."""
        found: dict[int, None] = {}
        seen: set[tuple[int, int]] = set()
        stack = [(0, start, False)]
        while stack:
            self._worked()
            count, place, is_end = stack.pop()
            if is_end:
                found.setdefault(place)
            elif (count, place) not in seen:
                seen.add((count, place))
                more = list(self._once_more(node, count, place))
                ended = [(count, place, True)] if count >= node.least else []
                stack.extend(reversed([*ended, *more] if node.lazy else [*more, *ended]))
        return found

    def _once_more(self, node: Repeat, count: int, place: int) -> Iterator[tuple[int, int, bool]]:
        """(repetitions, place, whether it ends there) after one more repetition.

        A repetition that reads nothing ends it, unless more are required; requirements beyond the text's length read
        nothing too.
        """
        if node.most is not None and count >= node.most:
            return
        for end in self.of(node.part, place):
            if end == place and count >= node.least:
                yield count, place, True
            else:
                after = count + 1 if end > place else max(count + 1, node.least - (len(self._text) - place))
                yield min(after, node.least) if node.most is None else after, end, False


@lru_cache(maxsize=256)
def _run_of(ranges: Ranges) -> re.Pattern[str]:
    return re.compile("[" + "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in ranges) + "]*")
