"""Counting the passes of a model over one canvas or one text."""

from collections.abc import Callable
from typing import Any

import pytest

from redraft.llm import LLM


def watched_passes(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A function that counts the canvases and texts (of at most 512 tokens) that the model saw since its last call."""
    seen: list[int] = []
    for name in ("encode", "denoise"):
        forward = getattr(type(llm.model), name)

        def watched(self: Any, tokens: Any, *given: Any, forward: Any = forward) -> Any:
            seen.append(len(tokens))
            return forward(self, tokens, *given)

        monkeypatch.setattr(type(llm.model), name, watched)

    def since() -> int:
        count = sum(seen)
        seen.clear()
        return count

    return since
