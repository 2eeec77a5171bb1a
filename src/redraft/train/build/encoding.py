"""Turning text into token vectors for shards: plain text, and prompts with their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from redraft.train.shards import Document

_BATCH = 512


class Encodes(Protocol):
    """The part of the embedded model's tokenizer that builders need."""

    def encode(self, text: str, *, special: bool = ...) -> list[int]: ...


class Renders(Protocol):
    """The part of its chat template that builders need."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        add_generation_prompt: bool = ...,
    ) -> str: ...


def answered(prompt: Sequence[int], answer: Sequence[int]) -> Document:
    """The document of a prompt and its answer."""
    return Document(tokens=np.array([*prompt, *answer], np.uint16), prompt_length=len(prompt))


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
