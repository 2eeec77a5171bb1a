"""How far a schema is written out: what is infinite, or has too high limits, is cut off."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import localcontext
from typing import Any

from redraft.constraints.automaton import Budget, BudgetError, TooManyStatesError
from redraft.constraints.expression import NOTHING, Expression, text
from redraft.constraints.json_schema.compiler import MAX_PARTS, Compiler, Key, TooLarge, Unfolding
from redraft.constraints.json_schema.numbers import EXACT
from redraft.constraints.json_schema.patterns import Patterns
from redraft.constraints.json_schema.reader import Reader
from redraft.constraints.json_schema.recursion import Recursion
from redraft.constraints.json_schema.references import Document
from redraft.constraints.json_schema.shapes import Node, Number, Object, Raw, String, Values, closed, key_of
from redraft.constraints.json_schema.strings import Strings
from redraft.constraints.json_schema.style import JSON, Style
from redraft.errors import ConstraintError

MAX_JOINT = 2_000
"""How many alternatives are looked at that several schemas together allow at one place, until these are cut off."""
ENOUGH_STATES = 5_000
"""An unfolding of at most about this many states is accepted at once; otherwise the next, smaller one is tried."""
COUNTED_STATES = 10_000
"""A schema may take about this many states if that lets it keep its limits on numbers of items."""
ENOUGH_ITEMS = 64
"""Limits on numbers of items are not lowered below this if there are enough states."""
_TOO_MANY = f"The schema unfolds into more than {MAX_PARTS} parts; split it."
_PLACE = text("0")
"""Stands for an expression that is not written."""
UNFOLDINGS = (
    Unfolding(recursion=2, anything=2, string=2048, counted=1000),
    Unfolding(recursion=1, anything=1, string=512, counted=400),
    Unfolding(recursion=1, anything=0, string=256, counted=200),
    Unfolding(recursion=0, anything=0, string=128, counted=100),
    Unfolding(recursion=0, anything=0, string=128, counted=100, whole=False),
)
"""The last one is tried only where no other fits."""


def compile_schema(schema: Any, budget: Budget, *, strict: bool, style: Style = JSON, also: Raw = True) -> Expression:
    """The expression of the JSON texts, or texts in another `style`, that obey a schema (a dict or a bool), and `also`.

    Raises `ConstraintError` naming the keyword that cannot be enforced (with `strict=False` it is left out), and for
    schemas that allow nothing or are too large.
    """
    if not isinstance(schema, Mapping | bool):
        raise ConstraintError(f"A schema must be an object or a bool, not {type(schema).__name__}.")
    with localcontext(EXACT):
        return _compiled(schema, also, budget, strict, style)


def _compiled(schema: Raw, also: Raw, budget: Budget, strict: bool, style: Style) -> Expression:
    """The expression under the first unfolding that is small enough, with limits as high as it has room for."""
    patterns = Patterns(budget, strict=strict)
    document, strings = Document(schema, budget), Strings(style, patterns, budget)
    reader, node = Reader(document, patterns, budget, strict=strict), (document.root, also)
    try:
        recursion = _Outline(reader, strings, budget, style).recursion(node)
    except TooLarge:
        raise ConstraintError(_TOO_MANY) from None
    best: tuple[Expression, Compiler] | None = None
    for unfolding in UNFOLDINGS:
        if best is not None and not unfolding.whole and best[0].spelled <= budget.states:
            break
        compiler = Compiler(reader, strings, budget, unfolding, style, recursion)
        try:
            found = compiler.node(node)
            while best is None and found is NOTHING:  # the shortest value may be deeper
                compiler = compiler.going_on()
                found = compiler.node(node)
        except (TooLarge, TooManyStatesError) as error:
            if unfolding is UNFOLDINGS[-1] and best is None and isinstance(error, TooManyStatesError):
                raise
            continue
        if found is NOTHING:
            break
        if best is None or found.spelled <= max(best[0].spelled, budget.states):
            best = found, compiler
        if found.size <= ENOUGH_STATES and found.spelled <= budget.states:
            break
    if best is None:
        raise ConstraintError(_TOO_MANY)
    return _counted_on(*best, node, budget)


def _counted_on(found: Expression, compiler: Compiler, node: Node, budget: Budget) -> Expression:
    """The same expression or a wider one: limits that were lowered are raised again while there are enough states."""
    while 0 < compiler.lowered < ENOUGH_ITEMS:
        compiler = compiler.counting_on()
        try:
            wider = compiler.node(node)
        except (TooLarge, TooManyStatesError):
            break
        if wider.size > COUNTED_STATES or wider.spelled > budget.states:
            break
        found = wider
    return found


class _Outline(Compiler):
    """Finds out which nodes are inside each other, without writing them."""

    def __init__(self, reader: Reader, strings: Strings, budget: Budget, style: Style) -> None:
        super().__init__(reader, strings, budget, UNFOLDINGS[0], style, Recursion({}))
        self._nodes = dict[Key, Node]()
        self._found = list[Key]()
        self._joint = 0

    def recursion(self, node: Node) -> Recursion[Key]:
        """Which nodes occur inside themselves, from one on."""
        self.node(node)
        waiting, inside = deque(self._nodes), dict[Key, list[Key]]()
        while waiting:  # those near the first node come first
            key = waiting.popleft()
            if key not in inside and (len(key) < 2 or self._joint < MAX_JOINT):
                inside[key] = self._parts_of(key)
                waiting += inside[key]
        return Recursion(inside)

    def node(self, node: Node) -> Expression:
        node = self._reader.plain(node)
        self._found.append(key_of(node))
        self._nodes.setdefault(self._found[-1], node)
        if len(self._nodes) > MAX_PARTS:
            raise TooLarge
        return _PLACE

    def _parts_of(self, key: Key) -> list[Key]:
        """The nodes inside of one. What cannot be enforced there is told when it is written."""
        self._budget.check(0, "The schema")
        self._found, self._inside = [], [self._nodes[key]]
        with _unless_too_long():
            shapes = self._reader.shapes(self._nodes[key])
            self._joint += len(shapes) if len(key) > 1 else 0
            for shape in shapes:
                with _unless_too_long():
                    self._shape(shape)
        return self._found

    def _object(self, shape: Object) -> Expression:
        self._members(shape)
        if not closed(shape):
            self._entries(shape)
        return _PLACE

    def _string(self, shape: String) -> Expression:
        return _PLACE

    def _number(self, shape: Number) -> Expression:
        return _PLACE

    def _values(self, shape: Values) -> Expression:
        return _PLACE

    def _name(self, shape: Object, like: tuple[str, ...], unlike: tuple[str, ...], taken: list[str]) -> Expression:
        return _PLACE


@contextmanager
def _unless_too_long() -> Iterator[None]:
    """Leaves errors to the writing of what they are about, except that there is no time left."""
    try:
        yield
    except TooManyStatesError:
        pass
    except BudgetError:
        raise
    except ConstraintError:
        pass
