"""What equal requests have in common."""

import gc
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from redraft.constraints import build
from redraft.text.tokenizer import Tokenizer


def schema() -> dict[str, object]:
    """Equal ones, but no two the same object."""
    return {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_equal_requests_share_one_constraint(tokenizer: Tokenizer) -> None:
    """And so its canvases: what is sampled together on a GPU has one language."""
    first, second, pinned = (build(tokenizer, json_schema=schema(), pins=pins) for pins in (None, None, {0: "{"}))
    assert first is not None
    assert pinned is not None
    assert first is second
    assert first.begin().canvas(64, 64) is first.begin().canvas(64, 64)
    assert (pinned.pins, first.pins) == ({0: tokenizer.encode("{", special=False)[0]}, {})
    languages = [
        one.begin().canvas(64, 64).tables(torch.device("cpu"), tokenizer.vocab_size)[0] for one in (first, pinned)
    ]
    assert languages[0] is languages[1]


class Words(Sequence[str]):
    """A list of one's own."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def __getitem__(self, index: Any) -> Any:
        return self._words[index]

    def __len__(self) -> int:
        return len(self._words)


def test_lists_of_any_class_are_equal_by_their_entries(tokenizer: Tokenizer) -> None:
    one, same, other = (build(tokenizer, choices=Words(*words)) for words in ("ab", "ab", "ac"))
    assert one is same
    assert one is not other


def test_what_nobody_can_ask_for_any_more_goes_at_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables are on a GPU, whose memory Python's collector knows nothing of."""
    monkeypatch.setattr(sys.modules["redraft.constraints.build"], "CACHED", 1)
    gc.disable()
    try:
        known = []
        for pins in (None, {0: "a"}):
            constraint = build(tokenizer, regex="[a-z]{1,9}", pins=pins)
            assert constraint is not None
            constraint.begin().canvas(64, 64).tables(torch.device("cpu"), tokenizer.vocab_size)
            known.append(weakref.ref(constraint))
            del constraint
        assert [one() is None for one in known] == [False, True]
        build(tokenizer, regex="[a-z]{1,8}")
        assert known[0]() is None
    finally:
        gc.enable()
