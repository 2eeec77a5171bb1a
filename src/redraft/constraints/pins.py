"""Fixed tokens and forbidden tokens of one canvas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from redraft.constraints.chain import Ends
from redraft.constraints.device import automaton_tables, canvas_tables
from redraft.constraints.resident import resident_ids
from redraft.constraints.tokens import TokenAutomaton
from redraft.diffusion.sampler import Distribution
from redraft.kernels.triton.constrained import AutomatonTables, CanvasTables
from redraft.kernels.vocabulary import NEVER


class Allowed:
    """A `diffusion.constraint.TabledConstraint`: positions pinned to one token, and tokens forbidden at positions.

    A pinned position's distribution is entirely on its token, so its entropy is 0, it is always accepted, its soft
    embedding is the token's, and the committed canvas contains it.
    """

    def __init__(
        self, length: int, pins: Mapping[int, int] | None = None, forbidden: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        self._length, self._pins = length, dict(sorted((pins or {}).items()))
        self._never = {place: tuple(sorted(set(ids))) for place, ids in (forbidden or {}).items()}
        free = tuple(place for place in range(length) if place not in self._pins)
        places, tokens = tuple(self._pins), tuple(self._pins.values())
        self._places, self._tokens, self._rows = map(resident_ids, (places, tokens, free))
        self._forbidden = {
            row: resident_ids(self._never[place]) for row, place in enumerate(free) if place in self._never
        }
        self._tables: dict[torch.device, CanvasTables] = {}

    def tokens(self, device: torch.device) -> None:
        """Any token may appear somewhere."""
        return None

    def hold(self, canvas: Tensor) -> Tensor:
        """The canvas [L] with every pinned token in place."""
        return canvas.index_copy(0, self._places.on(canvas.device), self._tokens.on(canvas.device))

    def restrict(self, logits: Tensor) -> Distribution:
        """Remove forbidden tokens from the free positions' logits [F,V]."""
        for row, ids in self._forbidden.items():
            logits[row, ids.on(logits.device)] = NEVER
        return Distribution.of(logits)

    def free(self, length: int, device: torch.device) -> Tensor | None:
        """int64 [F], the positions that are not pinned; None if none are."""
        assert length == self._length
        return self._rows.on(device) if self._pins else None

    def tables(self, device: torch.device, vocab_size: int) -> tuple[AutomatonTables, CanvasTables]:
        """An automaton of one state, with one set for each distinct list of forbidden tokens."""
        kinds = tuple(sorted({(), *self._never.values()}))
        if device not in self._tables:  # every step asks, and copies make the host wait
            self._tables[device] = self._canvas_tables(device, kinds)
        return _automaton(device, vocab_size, kinds), self._tables[device]

    def _canvas_tables(self, device: torch.device, kinds: Sequence[tuple[int, ...]]) -> CanvasTables:
        possible = np.zeros((self._length, len(kinds)), dtype=bool)
        held = np.full(self._length, -1)
        for place in range(self._length):
            possible[place, kinds.index(self._never.get(place, ()))] = True
        for place, token in self._pins.items():
            held[place] = token
        return canvas_tables(device, possible, held, Ends(0, np.ones(1, dtype=bool)))


@lru_cache(maxsize=16)
def _automaton(device: torch.device, vocab_size: int, kinds: tuple[tuple[int, ...], ...]) -> AutomatonTables:
    """The tables of sets that each leave out the tokens of one of `kinds`."""
    out = np.zeros((vocab_size, len(kinds)), dtype=bool)
    for column, ids in enumerate(kinds):
        out[list(ids), column] = True
    patterns, class_of = np.unique(out, axis=0, return_inverse=True)  # [C,U]
    members = [np.flatnonzero(~patterns[:, column]) for column in range(len(kinds))]
    none = np.zeros(len(kinds), dtype=np.int64)
    automaton = TokenAutomaton(
        accept=np.ones(1, dtype=bool),
        distance=np.zeros(1, dtype=np.int64),
        class_of=class_of.reshape(-1),
        classes=len(patterns),
        source=none,
        target=none,
        label=np.arange(len(kinds)),
        set_first=np.cumsum([0, *map(len, members)]),
        set_class=np.concatenate(members),
    )
    return automaton_tables(device, automaton, automaton.class_of)
