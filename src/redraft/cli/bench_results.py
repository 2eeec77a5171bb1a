"""How the commands of `redraft bench` show and keep what they measured."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from redraft.cli.options import option
from redraft.cli.output import print_json

Results = Annotated[Path | None, option("--results", "Write dated files (JSON, a chart) there.", "FOLDER")]


def command_line() -> str:
    """The command that is running, for its results."""
    return shlex.join(["redraft", *sys.argv[1:]])


def print_results(name: str, records: Sequence[Mapping[str, Any]], folder: Path | None) -> None:
    """Write the records to dated files in `folder`, if given, and print them as one line of JSON in any case.

    Raises `OSError` after printing if the files cannot be written.
    """
    from redraft.bench.results import write_results

    written = {}
    try:
        if folder is not None:
            written["files"] = [str(file) for file in write_results(name, records, folder)]
    finally:
        print_json({**(records[0] if len(records) == 1 else {"bench": name, "results": records}), **written})


def number_table(title: str, *columns: str, gap: int = 3) -> Any:
    """A table without lines, whose columns after the first are numbers."""
    from rich.table import Table

    table = Table(title, box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(column, justify="right")
    return table
