"""Answers that obey a token automaton and pins: the `diffusion.constraint` protocols, implemented.

The state after each committed canvas is carried into the next one, and a canvas may only end in a state from which the
rest can still be written within the tokens that are left. So what is committed is always the beginning of a valid
answer, and it is whole when the budget ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from redraft.constraints.chain import NEVER, Chain
from redraft.constraints.tokens import TokenAutomaton
from redraft.constraints.weights import Classes
from redraft.diffusion.sampler import MASKED
from redraft.errors import ConstraintError


class AutomatonConstraint:
    """A `diffusion.constraint.Constraint`: the answer is a string of an automaton, with some tokens pinned.

    `pins` maps token positions of the answer to token ids. Raises `ConstraintError` if the pins fit no valid answer.
    """

    def __init__(self, automaton: TokenAutomaton, pins: Mapping[int, int] | None = None) -> None:
        self.automaton, self.pins = automaton, dict(pins or {})
        self.chain = Chain(automaton)
        self._classes: dict[int, Classes] = {}
        self.behind_pins = max(self.pins, default=-1) + 1
        self.min_tokens = self._shortest()

    def check(self, max_tokens: int) -> None:
        """Raise `ConstraintError`, saying how many tokens it takes, if none of at most `max_tokens` is valid."""
        if self.min_tokens > max_tokens:
            raise ConstraintError(
                f"The shortest answer that obeys the constraint has {self.min_tokens} tokens; "
                f"max_tokens is {max_tokens}."
            )

    def begin(self) -> AnswerState:
        """A fresh answer."""
        return AnswerState(self)

    def classes(self, size: int) -> Classes:
        """The token classes over `size` logits."""
        if size not in self._classes:
            self._classes[size] = Classes(self.automaton, size)
        return self._classes[size]

    def completable(self, max_tokens: int) -> list[np.ndarray]:
        """bool [Q] for every position up to the last pin: states from which an answer of at most `max_tokens` ends."""
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
        """Tokens of the shortest valid answer."""
        automaton, states = self.automaton, {0}
        for position in range(self.behind_pins):
            if position in self.pins:
                states = {automaton.step(state, self.pins[position]) for state in states} - {-1}
            else:
                inside = np.isin(automaton.source, list(states))
                states = set(automaton.target[inside].tolist())
            if not states:
                raise ConstraintError(
                    f"The pin at position {position} contradicts what the rest of the constraint says."
                )
        return self.behind_pins + min(int(automaton.distance[state]) for state in states)


class AnswerState:
    """A `diffusion.constraint.ConstraintState`."""

    def __init__(self, constraint: AutomatonConstraint) -> None:
        self._constraint = constraint
        self._state, self._position = 0, 0
        self._completable: tuple[int, list[np.ndarray]] | None = None

    @property
    def complete(self) -> bool:
        """Whether what is committed is a whole valid answer."""
        return bool(self._constraint.automaton.accept[self._state]) and self._position >= self._constraint.behind_pins

    def canvas(self, length: int, tokens_left: int) -> AutomatonCanvas:
        """The limit of the next canvas."""
        final, gates = self._final(min(length, tokens_left), self._position + tokens_left), {}
        if tokens_left < length:
            gates = {tokens_left: _logs(final)}
            final = np.ones_like(final)
        start = self._position
        pins = {p - start: token for p, token in self._constraint.pins.items() if start <= p < start + length}
        return AutomatonCanvas(self._constraint, self._state, length, pins, _logs(final), gates)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Move on over a committed canvas."""
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
    """A `diffusion.constraint.CanvasConstraint`: one canvas, from the state that the committed text has reached."""

    def __init__(
        self,
        constraint: AutomatonConstraint,
        state: int,
        length: int,
        pins: Mapping[int, int],
        final: np.ndarray,
        gates: dict[int, np.ndarray],
    ) -> None:
        self._constraint, self._length = constraint, length
        self._final, self._gates = final, gates
        self._start = np.full(len(final), NEVER, dtype=np.float32)
        self._start[state] = 0.0
        self._pins = dict(pins)
        self._fixed: tuple[Tensor, Tensor] | None = None

    def hold(self, canvas: Tensor) -> Tensor:
        """The canvas [L] with pinned tokens, and tokens that alone are possible, in place."""
        places, tokens = self._fixed_tokens()
        return canvas.index_copy(0, places.to(canvas.device), tokens.to(canvas.device))

    def free(self, length: int) -> Tensor | None:
        """bool [L]: positions where more than one token can stand."""
        places, _ = self._fixed_tokens()
        if not len(places):
            return None
        mask = torch.ones(length, dtype=torch.bool)
        mask[places] = False
        return mask

    def restrict(self, logits: Tensor) -> Tensor:
        """Tempered logits [L,V] become constrained log-marginals, in place; returns the likeliest valid canvas [L]."""
        for position, token in self._pins.items():
            logits[position] = MASKED
            logits[position, token] = 0.0
        host = logits.detach().float().cpu().numpy()
        chain, classes = self._constraint.chain, self._constraint.classes(logits.shape[1])
        weighed = classes.weigh(host)
        most, total = classes.of_sets(weighed)
        labels = chain.best(most, self._start, self._final, self._gates)
        floor = float(most[np.arange(len(labels)), labels].sum())
        shares = chain.shares(total, self._start, self._final, self._gates, floor)
        best = classes.tokens_of(weighed, labels)
        classes.marginals(host, total, shares)
        if logits.device.type != "cpu":
            logits.copy_(torch.from_numpy(host))
        return torch.from_numpy(best).to(logits.device)

    def _fixed_tokens(self) -> tuple[Tensor, Tensor]:
        if self._fixed is None:
            fixed = self._forced() | self._pins
            places = sorted(fixed)
            self._fixed = (torch.tensor(places, dtype=torch.long), torch.tensor([fixed[p] for p in places]).long())
        return self._fixed

    def _forced(self) -> dict[int, int]:
        """Positions where the automaton leaves one token only, whatever the model says."""
        possible = self._constraint.chain.possible(self._length, self._start, self._final, self._gates)
        return self._constraint.classes(len(self._constraint.automaton.class_of)).forced(possible)


def _logs(states: np.ndarray) -> np.ndarray:
    """0 for True and "never" for False, fp32 [Q]."""
    return np.where(states, np.float32(0), NEVER).astype(np.float32)
