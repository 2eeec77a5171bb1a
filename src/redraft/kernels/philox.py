"""Philox-4x32-10 (Salmon et al., 2011): random words that are a pure function of a key and a counter.

How words become numbers is also defined here, once for all eager code that draws them.
"""

from __future__ import annotations

from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(seed: Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four independent 32-bit words (as int64) per element; `seed` and the counters broadcast, all int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = ((p1 >> 32) & _WORD) ^ c1 ^ k0, ((p0 >> 32) & _WORD) ^ c3 ^ k1
        c1, c3 = p1 & _WORD, p0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def as_uniform(words: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """The first two words as fp64 numbers in [0,1), 53 bits each."""
    return (words[0] * 2**21 + (words[1] >> 11)).double() * 2.0**-53


def as_tokens(words: tuple[Tensor, Tensor, Tensor, Tensor], vocab: int) -> Tensor:
    """The third word as uniform token ids below `vocab`, int64."""
    return words[2] * vocab >> 32
