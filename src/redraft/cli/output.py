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
    sys.stdout.write(json_line(content, ascii=not everything) + "\n")
    sys.stdout.flush()


def json_line(content: Mapping[str, Any], *, ascii: bool = False) -> str:
    """The same as text, without a line end; lone surrogates, which UTF-8 cannot express, are escaped."""
    return json.dumps(content, ensure_ascii=ascii).encode("utf-8", "backslashreplace").decode()


def facts(llm: LLM, model: ModelOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer's JSON says about the model and the settings that produced it."""
    return {
        **model.names,
        "device": str(llm.model.device),
        "dtype": str(llm.model.dtype).removeprefix("torch."),
        "settings": dataclasses.asdict(resolve_settings(llm.defaults, **given)) | {"preset": given.get("preset")},
    }
