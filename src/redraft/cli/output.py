"""What commands print for machines: one JSON object on one line."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redraft.settings import resolve_settings

if TYPE_CHECKING:
    from redraft.cli.options import ModelOptions
    from redraft.llm import LLM


def print_json(content: Mapping[str, Any]) -> None:
    """One object on one line, for machines; characters outside the output's encoding are escaped."""
    everything = (sys.stdout.encoding or "").lower().startswith("utf")
    line = json.dumps(content, ensure_ascii=not everything).encode("utf-8", "backslashreplace").decode()
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def facts(llm: LLM, model: ModelOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer's JSON says about the model and the settings that produced it."""
    return {
        **model.names,
        "device": str(llm.model.device),
        "dtype": str(llm.model.dtype).removeprefix("torch."),
        "settings": dataclasses.asdict(resolve_settings(llm.defaults, **given)) | {"preset": given.get("preset")},
    }
