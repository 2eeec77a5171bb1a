"""Traces: a JSONL file with a header line and then every record of an answer, for replaying or checking it.

A trace appears under its name only when it is complete, or when Ctrl-C ended it; a failed run leaves none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from redraft.cli.output import facts
from redraft.cli.replace import beside, open_new, take_place
from redraft.diffusion.records import Commit, DenoiseStep, Record, record_from_dict
from redraft.errors import InputError, RedraftError, why

if TYPE_CHECKING:
    from redraft.cli.options import ModelOptions
    from redraft.llm import LLM

VERSION = 1


class TraceWriter:
    """Writes one trace; a context manager. Nothing exists at `path` until it exits.

    A file that is there keeps its permissions, and a symbolic link stays a link.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path, self._temporary = path, beside(path)
        self._header = {"type": "header", "version": VERSION, **header}

    def __enter__(self) -> Self:
        try:
            file = open_new(self._temporary, self._path)
        except OSError as error:
            raise self._failure(error) from error
        # UTF-8 cannot express lone surrogates; JSON writes them like Python's backslash escapes.
        self._file = TextIOWrapper(file, encoding="utf-8", errors="backslashreplace")
        try:
            self._line(self._header)
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        kept = kind is None or issubclass(kind, KeyboardInterrupt)
        try:
            self._file.close()
            if kept:
                take_place(self._temporary, self._path)
        except OSError as error:
            if kept:  # otherwise the original error is reported
                raise self._failure(error) from error
        finally:
            self._temporary.unlink(missing_ok=True)

    def write(self, record: Record) -> None:
        """Append one record."""
        self._line(record.to_dict())

    def turn(self, prompt: str) -> None:
        """Start the next answer of a conversation."""
        self._line({"type": "turn", "prompt": prompt})

    def _line(self, content: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> RedraftError:
        return RedraftError(f"The trace {self._path} cannot be written: {why(error)}.")


@dataclass(slots=True)
class Turn:
    """One answer of a trace and the prompt before it, if the trace has it."""

    prompt: str | None
    records: list[Record] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read: its header and answers."""

    header: dict[str, Any]
    turns: list[Turn]


def read_trace(path: Path) -> Trace:
    """Read and check a whole trace. Raises `InputError` that names the line and what is wrong with it."""
    lines = _objects(path)
    number, header = next(lines, (1, {}))
    if header.get("type") != "header":
        _fail(path, number, "is not the header of a trace")
    if header.get("version") != VERSION:
        _fail(path, number, f"has version {header.get('version')!r}; this redraft reads version {VERSION}")
    _check_header(path, number, header)
    turns = [Turn(header.get("prompt"))]
    for number, content in lines:
        if content.get("type") == "turn":
            turns.append(Turn(str(content.get("prompt"))))
        else:
            turns[-1].records.append(_record(path, number, content, turns[-1]))
    turns = [turn for turn in turns if turn.records]
    if not turns:
        raise InputError(f"The trace {path} holds no records.")
    return Trace(header, turns)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise InputError(f"The trace {path} cannot be read: {why(error)}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"The trace {path} is not UTF-8 text: byte {error.start} cannot be decoded.") from error
    if lines == [""]:
        raise InputError(f"The trace {path} is empty.")
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):  # too deeply nested brackets
            _fail(path, number, "is not valid JSON")
        if not isinstance(content, dict):
            _fail(path, number, "is not a JSON object")
        yield number, content


def _check_header(path: Path, number: int, header: Mapping[str, Any]) -> None:
    settings, ends = header.get("settings", {}), header.get("eos_token_ids", [])
    if not isinstance(settings, dict) or not isinstance(settings.get("steps", 0), int):
        _fail(path, number, "has settings that are not valid")
    if not isinstance(ends, list) or not all(isinstance(token, int) for token in ends):
        _fail(path, number, "has eos_token_ids that are not a list of token ids")


def _record(path: Path, number: int, content: dict[str, Any], turn: Turn) -> Record:
    try:
        record = record_from_dict(content)
        _check(record, turn)
    except (TypeError, ValueError) as error:
        _fail(path, number, f"is not a record: {error}")
    return record


def _check(record: Record, turn: Turn) -> None:
    """Raise `ValueError` for a record that cannot follow the turn's others, or whose fields contradict each other."""
    last = turn.records[-1] if turn.records else None
    for name in ("request_id", "canvas_index", *(("step",) if isinstance(record, DenoiseStep) else ())):
        if not isinstance(getattr(record, name), int):
            raise ValueError(f"{name} is not a number")
    if last is not None and record.request_id != last.request_id:
        raise ValueError(f"it belongs to request {record.request_id}, but a trace holds only one")
    if isinstance(record, Commit):
        # A second commit in a row is held-back text: the next canvas was abandoned before its first step.
        if last is None or record.canvas_index != last.canvas_index + isinstance(last, Commit):
            raise ValueError("it commits a canvas without steps")
        if not isinstance(record.text, str):
            raise ValueError("text is not a string")
        _check_column("token_ids", record.token_ids, int)
        return
    columns = {"canvas": int, "argmax_canvas": int, "accepted": bool, "entropy": (int, float)}
    for name, kind in columns.items():
        _check_column(name, getattr(record, name), kind)
    if len({len(getattr(record, name)) for name in columns}) != 1 or not record.canvas:
        raise ValueError("its sequences differ in length or are empty")


def _check_column(name: str, values: object, kind: type | tuple[type, ...]) -> None:
    if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"{name} has values of the wrong type")


def _fail(path: Path, number: int, reason: str) -> NoReturn:
    raise InputError(f"Line {number} of {path} {reason}.")


def open_trace(
    path: Path | None, llm: LLM, model: ModelOptions, given: Mapping[str, Any], **more: Any
) -> TraceWriter | None:
    """A writer whose header tells `redraft replay` which tokenizer to use; None without a path."""
    from redraft.model.folders import EMBEDDED

    if path is None:
        return None
    header = facts(llm, model, given)
    if model.model != EMBEDDED and os.path.isdir(model.model):
        header["model"] = str(Path(model.model).resolve())
    return TraceWriter(path, {**header, "eos_token_ids": list(llm.eos_ids), **more})
