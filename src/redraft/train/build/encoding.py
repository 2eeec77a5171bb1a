"""Turning plain text into token vectors for shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

_BATCH = 512


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a `tokenizer.json` for plain text: special strings in the text are read as ordinary characters."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode_plain(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[np.ndarray]:
    """Token vectors (uint16 [n]) of `texts`, each beginning with `<bos>`."""
    bos = tokenizer.token_to_id("<bos>")
    for start in range(0, len(texts), _BATCH):
        for encoding in tokenizer.encode_batch_fast(list(texts[start : start + _BATCH]), add_special_tokens=False):
            yield np.array([bos, *encoding.ids], dtype=np.uint16)
