"""Answers that obey a token automaton and pins: the implementation of the `diffusion.constraint` protocols.

The state after each committed canvas is carried into the next one, and a canvas may only end in a state from which the
rest can still be written within the tokens that are left. So committed text is always the beginning of a valid answer,
and it is complete when the budget ends.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Self
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from redraft.constraints.automaton import Budget
from redraft.constraints.chain import LEAST, Chain, Ends
from redraft.constraints.device import automaton_tables, canvas_tables, restrict
from redraft.constraints.resident import Resident
from redraft.constraints.tokens import TokenAutomaton
from redraft.constraints.weights import Classes
from redraft.diffusion.sampler import Distribution
from redraft.errors import ConstraintError
from redraft.kernels.triton.constrained import AutomatonTables, CanvasTables
from redraft.kernels.vocabulary import NEVER

CPU = torch.device("cpu")

FEW = 8
"""The head covers only a constraint's own tokens if they are at most 1/FEW of the vocabulary."""
ALIGNED = 16
"""On a GPU, table rows start at multiples of this many numbers."""
TABLES = 4
"""An automaton and everything derived from it take about this many times the automaton's own memory."""


class AutomatonConstraint:
    """A `diffusion.constraint.Constraint`: the answer is a string of an automaton, with some tokens pinned.

    `pins` maps token positions of the answer to token ids. Raises `ConstraintError` if the pins fit no valid answer.
    """

    def __init__(self, automaton: TokenAutomaton, pins: Mapping[int, int] | None = None) -> None:
        self.automaton, self.chain = automaton, Chain(automaton)
        self._classes: dict[int, Classes] = {}
        self._automaton_tables: dict[tuple[torch.device, int], AutomatonTables] = {}
        self._pin(pins or {})

    def _pin(self, pins: Mapping[int, int]) -> None:
        self.pins, self.behind_pins = dict(pins), max(pins, default=-1) + 1
        self.canvases: WeakValueDictionary[tuple[int, int, int, int], AutomatonCanvas] = WeakValueDictionary()
        self.keep(0)
        self.min_tokens = self._shortest()

    def keep(self, count: int) -> None:
        """Keep the newest `count` canvases alive even while nobody writes them, so that equal requests reuse them.

        The canvases hold a reference to this object, which would keep both alive until Python's collector runs. So the
        default is to keep none.
        """
        self.newest = deque[AutomatonCanvas](maxlen=count)

    def pinned(self, pins: Mapping[int, int]) -> Self:
        """A copy with these pins that shares the tables. Raises `ConstraintError` if they fit no valid answer."""
        other = copy.copy(self)
        other._pin(pins)
        return other

    @property
    def nbytes(self) -> int:
        """Approximate memory of the automaton and of the tables that are built from it on first use."""
        return TABLES * self.automaton.nbytes

    def check(self, max_tokens: int) -> None:
        """Raise `ConstraintError` with the number of tokens needed if no answer of at most `max_tokens` is valid."""
        if self.min_tokens > max_tokens:
            raise ConstraintError(
                f"max_tokens is {max_tokens}, but the shortest answer that obeys the constraint has "
                f"{self.min_tokens} tokens.",
                "max_tokens",
            )

    def begin(self) -> AnswerState:
        """A fresh answer."""
        return AnswerState(self)

    def exactly(self, length: int) -> AutomatonCanvas:
        """The constraint of a canvas whose `length` tokens are a complete answer, without a closing token."""
        final = self.automaton.accept.copy()
        final[self.automaton.end] = False
        return AutomatonCanvas(self, Ends(0, final), length, self.pins)

    def lengths(self, longest: int) -> set[int]:
        """The lengths in tokens, up to `longest`, that a complete answer can have."""
        automaton, found = self.automaton, set[int]()
        here = np.arange(automaton.states) == 0
        for length in range(longest + 1):
            here[automaton.end] = False
            if (here & automaton.accept).any():
                found.add(length)
            here = np.isin(np.arange(automaton.states), automaton.target[here[automaton.source]])
        return found

    @cached_property
    def tokens(self) -> Resident | None:
        """The tokens [W] that may appear anywhere, ascending; None if they are too large a part of the vocabulary.

        Padded with some forbidden tokens to a count that GPU matrix products handle well.
        """
        alive = self.automaton.class_of < self.automaton.classes
        live, dead = np.flatnonzero(alive), np.flatnonzero(~alive)
        if len(live) > len(self.automaton.class_of) // FEW:
            return None
        return Resident(torch.from_numpy(np.sort(np.concatenate([live, dead[: -len(live) % ALIGNED]]))))

    def classes(self, width: int) -> Classes:
        """The token classes of `width` logits: of `tokens` alone, or of a whole vocabulary."""
        if width not in self._classes:
            self._classes[width] = Classes(self.automaton, self._class_of(width))
        return self._classes[width]

    def on_device(self, device: torch.device, width: int) -> AutomatonTables:
        """The tables for `width` logits on their device."""
        if (device, width) not in self._automaton_tables:
            few = self.tokens
            tokens = few.on(device) if few is not None and len(few) == width else None
            made = automaton_tables(device, self.automaton, self._class_of(width), tokens)
            return self._automaton_tables.setdefault((device, width), made)  # another thread may have been first
        return self._automaton_tables[device, width]

    def _class_of(self, width: int) -> np.ndarray:
        automaton, few = self.automaton, self.tokens
        chosen = slice(width) if few is None or len(few) != width else few.on(CPU).numpy()
        known = automaton.class_of[chosen]
        return np.concatenate([known, np.full(width - len(known), automaton.classes)])

    def completable(self, max_tokens: int) -> list[np.ndarray]:
        """bool [Q] for every position up to the last pin: states that can still end an answer within `max_tokens`."""
        automaton = self.automaton
        can = (automaton.distance >= 0) & (automaton.distance <= max_tokens - self.behind_pins)
        found = [can]
        for position in range(self.behind_pins - 1, -1, -1):
            before = np.zeros(automaton.states, dtype=bool)
            if position in self.pins:
                after = [automaton.step(state, self.pins[position]) for state in range(automaton.states)]
                before = np.array([state >= 0 and can[state] for state in after])
            else:
                before[automaton.source[can[automaton.target]]] = True
            can = before
            found.append(can)
        return found[::-1]

    def _shortest(self) -> int:
        """The number of tokens in the shortest valid answer."""
        automaton, budget = self.automaton, Budget()
        here = np.arange(automaton.states) == 0
        place = 0
        for position in sorted(self.pins):
            here = self._after(here, position - place, budget)
            reached = {automaton.step(state, self.pins[position]) for state in np.flatnonzero(here).tolist()} - {-1}
            if not reached:
                raise ConstraintError(f"The pin at position {position} contradicts the rest of the constraint.")
            here = np.zeros_like(here)
            here[list(reached)] = True
            place = position + 1
        return place + int(automaton.distance[here].min())

    def _after(self, here: np.ndarray, count: int, budget: Budget) -> np.ndarray:
        """bool [Q]: states that `count` arbitrary tokens lead to from those of `here`.

        Sooner or later the sets of states repeat, and whole rounds of that cycle can be skipped. Noticing it takes one
        earlier set, which is renewed after 1, 2, 4, … tokens.
        """
        earlier, since, until = here, 0, 1
        while count:
            budget.check(0, "The pins")
            before, here = here, np.zeros_like(here)
            here[self.automaton.target[before[self.automaton.source]]] = True
            count, since = count - 1, since + 1
            if np.array_equal(here, earlier):
                count %= since
            elif since == until:
                earlier, since, until = here, 0, 2 * until
        return here


class AnswerState:
    """A `diffusion.constraint.ConstraintState`."""

    def __init__(self, constraint: AutomatonConstraint) -> None:
        self._constraint = constraint
        self._state, self._position = 0, 0
        self._completable: tuple[int, list[np.ndarray]] | None = None

    @property
    def closed(self) -> bool:
        """Whether the committed text is a complete valid answer that only its closing token can follow."""
        automaton = self._constraint.automaton  # no pin can come after it
        after = automaton.target[automaton.source == self._state]
        return bool(automaton.accept[self._state] and (after == automaton.end).all())

    def canvas(self, length: int, tokens_left: int) -> AutomatonCanvas:
        """The constraint of the next canvas; answers at the same point share one object."""
        known, place = self._constraint.canvases, (self._state, self._position, length, tokens_left)
        found = known.get(place)
        if found is None:
            found = known[place] = self._new_canvas(length, tokens_left)
            self._constraint.newest.append(found)
        return found

    def _new_canvas(self, length: int, tokens_left: int) -> AutomatonCanvas:
        ends = Ends(self._state, self._final(min(length, tokens_left), self._position + tokens_left))
        if tokens_left < length:
            ends = Ends(self._state, np.ones_like(ends.final), (tokens_left, ends.final))
        start = self._position
        pins = {p - start: token for p, token in self._constraint.pins.items() if start <= p < start + length}
        return AutomatonCanvas(self._constraint, ends, length, pins)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Advance over the tokens of a committed canvas."""
        for token in token_ids:
            self._state = self._constraint.automaton.step(self._state, int(token))
            assert self._state >= 0, "a committed canvas broke its constraint"
        self._position += len(token_ids)

    def _final(self, length: int, max_tokens: int) -> np.ndarray:
        """bool [Q]: states in which the next `length` tokens may end."""
        if self._completable is None or self._completable[0] != max_tokens:
            self._completable = (max_tokens, self._constraint.completable(max_tokens))
        place, sets = self._position + length, self._completable[1]
        if place < len(sets):
            return sets[place]
        distance = self._constraint.automaton.distance
        return (distance >= 0) & (distance <= max_tokens - place)


class AutomatonCanvas:
    """A `diffusion.constraint.TabledConstraint`: one canvas, from the state that the committed text has reached.

    What is possible at each position, regardless of probability, is worked out once. That shows which positions have no
    choice, and between which positions the dynamic programme has to run at all.
    """

    def __init__(self, constraint: AutomatonConstraint, ends: Ends, length: int, pins: Mapping[int, int]) -> None:
        self._constraint, self._length = constraint, length
        chain = constraint.chain
        allowed = self._allowed(pins) if pins else None
        self._possible, states = chain.possible(allowed, length, ends)  # [L,U]
        fixed = constraint.classes(len(constraint.automaton.class_of)).forced(self._possible) | dict(pins)
        self._places = Resident(torch.tensor(sorted(fixed), dtype=torch.long))
        self._fixed = Resident(torch.tensor([fixed[place] for place in sorted(fixed)], dtype=torch.long))
        self._free = np.setdiff1d(np.arange(length), sorted(fixed))  # [F]
        self._rows = Resident(torch.from_numpy(self._free))
        self._open, self._inner = ends.inside(states)
        self._ends = ends
        self._fixed_tokens = fixed
        self._tables: dict[torch.device, CanvasTables] = {}

    def tokens(self, device: torch.device) -> Tensor | None:
        """See `AutomatonConstraint.tokens`."""
        few = self._constraint.tokens
        return None if few is None else few.on(device)

    def hold(self, canvas: Tensor) -> Tensor:
        """The canvas [L] with its pinned tokens, and the tokens that are the only possible ones, set in place."""
        return canvas.index_copy(0, self._places.on(canvas.device), self._fixed.on(canvas.device))

    def free(self, length: int, device: torch.device) -> Tensor | None:
        """int64 [F]: positions where more than one token is possible."""
        assert length == self._length
        return self._rows.on(device) if len(self._places) else None

    def restrict(self, logits: Tensor) -> Distribution:
        """The constrained distribution of the free positions' tempered logits [F,W], with the best string's part."""
        seen = self._restrict_linear(logits) if logits.device.type == "cpu" else None
        return self._on_device(logits) if seen is None else seen

    def _restrict_linear(self, logits: Tensor) -> Distribution | None:
        """`restrict` in linear space, with sums of weights instead of logarithms; None where fp64 cannot hold them."""
        chain, classes = self._constraint.chain, self._constraint.classes(logits.shape[1])
        weighed = classes.weigh(logits)
        if not weighed.most.all():
            return None
        most, total = classes.of_sets(weighed)
        total *= self._possible[self._free]  # what is impossible there may weigh e^1000 times more
        if not total.max(1).min() >= LEAST:  # also catches logits that are NaN; logarithms keep them NaN
            return None
        logs = np.where(self._possible, 0.0, NEVER)  # [L,U]
        logs[self._free] += most
        sums = self._possible.astype(np.float64)
        sums[self._free] = total
        labels, shares = logs.argmax(1), np.zeros_like(sums)
        shares[np.arange(self._length), labels] = 1.0  # where one state leads to one other
        if self._open.stop:
            labels[self._open], score = chain.best(logs[self._open], self._inner)
            found = chain.shares(sums[self._open], self._inner)
            if found is None or found[1] < score - 0.05:  # the sum over all ways cannot be less than the best one
                return None
            shares[self._open] = found[0]
        return classes.restricted(logits, weighed, shares[self._free], labels[self._free])

    def _on_device(self, logits: Tensor) -> Distribution:
        """With sums of logarithms, on whatever device the logits are."""
        device, width = logits.device, logits.shape[1]
        automaton = self._constraint.on_device(device, width)
        return restrict(logits, self._rows.on(device), automaton, self._tables_on(device))

    def tables(self, device: torch.device, vocab_size: int) -> tuple[AutomatonTables, CanvasTables]:
        """See `TabledConstraint.tables`."""
        few = self._constraint.tokens
        automaton = self._constraint.on_device(device, vocab_size if few is None else len(few))
        return automaton, self._tables_on(device)

    def _tables_on(self, device: torch.device) -> CanvasTables:
        if device not in self._tables:
            self._tables[device] = canvas_tables(device, self._possible, self._held_columns(), self._ends)
        return self._tables[device]

    def _held_columns(self) -> np.ndarray:
        """int64 [L]: the column of the only possible token at each position, -1 where there is a choice."""
        few, held = self._constraint.tokens, np.full(self._length, -1)
        for place, token in self._fixed_tokens.items():
            held[place] = token if few is None else np.searchsorted(few.on(CPU).numpy(), token)
        return held

    def _allowed(self, pins: Mapping[int, int]) -> np.ndarray:
        """bool [L,U]: the sets that contain the pinned tokens."""
        automaton = self._constraint.automaton
        allowed = np.ones((self._length, automaton.sets), dtype=bool)
        for place, token in pins.items():
            kind = automaton.class_of[token] if token < len(automaton.class_of) else automaton.classes
            allowed[place] = np.logical_or.reduceat(automaton.set_class == kind, automaton.set_first[:-1])
        return allowed
