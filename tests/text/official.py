"""The published chat templates, where this machine has them; tests that ask for an absent one are skipped."""

import os
from functools import lru_cache
from pathlib import Path

import pytest

from redraft.text.template import ChatTemplate

SHARED = Path(os.environ.get("REDRAFT_SHARED", Path(__file__).parents[3] / "shared")) / "data"
VERSIONS = ("launch_june", "current_july")
TINY = Path(__file__).parents[2] / "src" / "redraft" / "assets" / "tiny"


@lru_cache
def official(version: str) -> ChatTemplate:
    file = SHARED / "chat_templates" / f"{version}.jinja"
    if not file.is_file():
        pytest.skip("the official chat templates are not on this machine")
    return ChatTemplate(file.read_text(encoding="utf-8"))
