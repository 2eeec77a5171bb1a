"""Options that say what an answer must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from redraft.cli.options import number, read_words
from redraft.errors import InputError

_PANEL = "What the answer must be"


def _option(name: str, help: str, metavar: str) -> Any:
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=_PANEL, show_default=False)


@dataclass(frozen=True, kw_only=True)
class ConstraintOptions:
    """The keywords of `redraft.constraints.build` that the command line offers."""

    json_schema: Annotated[
        str | None,
        _option("--json-schema", "JSON that obeys the schema in FILE (- for standard input), or {...} itself.", "FILE"),
    ] = None
    regex: Annotated[str | None, _option("--regex", "Text that PATTERN matches from end to end.", "PATTERN")] = None
    choices: Annotated[list[str] | None, _option("--choices", "One of these; repeat the option for each.", "TEXT")] = (
        None
    )
    template: Annotated[
        str | None,
        _option("--template", 'Text with typed holes, such as "Name: {name:str<40}, age {age:int}".', "TEXT"),
    ] = None
    must_include: Annotated[
        list[str] | None, _option("--must-include", "Must contain this; if repeated, in this order.", "TEXT")
    ] = None
    forbidden: Annotated[
        list[str] | None, _option("--forbidden", "Must not contain this; may be repeated.", "TEXT")
    ] = None
    text_pins: Annotated[
        list[str] | None, _option("--pin", "TEXT stands at this offset, in characters; may be repeated.", "OFFSET:TEXT")
    ] = None

    def given(self, source: str) -> dict[str, Any]:
        """The options given along with the text of `source`, by the names that `LLM.generate` uses.

        Raises `InputError` for a file that is not a schema and a pin that cannot be read.
        """
        if source == self.json_schema == "-":
            raise InputError("Standard input already holds the text; give --json-schema a file.")
        given = {name: value for name, value in vars(self).items() if value not in (None, [])}
        if self.json_schema is not None:
            from redraft.constraints import schema_of

            schema = self.json_schema
            if not schema.lstrip().startswith("{"):
                schema = read_words(schema, "The JSON schema")
            if not schema.strip():
                raise InputError(f"The JSON schema {self.json_schema} is empty.")
            given["json_schema"] = schema_of(schema)
        if self.text_pins:
            given["text_pins"] = pins = dict(map(_pin, self.text_pins))
            if len(pins) < len(self.text_pins):
                raise InputError("Two of --pin have the same offset; give each its own.")
        return given


def _pin(written: str) -> tuple[int, str]:
    """The offset and text of `OFFSET:TEXT`."""
    offset, colon, text = written.partition(":")
    if not (colon and text and offset.isdecimal()):
        raise InputError(f"--pin {written!r} is not OFFSET:TEXT, such as 0:Dear.")
    return number(offset, "--pin"), text
