"""`redraft bench card`: everything that a GPU has to show, in one command and limited time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from redraft.cli.bench_results import Results, print_results
from redraft.cli.options import JsonAlone, at_least, option
from redraft.errors import SettingError


def card(
    seconds: Annotated[int, option("--seconds", "Seconds for everything.", "N")] = 570,
    tests: Annotated[
        Path | None,
        option("--tests", "A checkout's tests folder; runs those that need a GPU.", "FOLDER", default="none"),
    ] = None,
    results: Results = None,
    json: JsonAlone = False,
) -> None:
    """Check and time this GPU: errors and times of every kernel, steps in every format, and the tests.

    Ends with one line of JSON: each goal for an H200 with the measured value, and every run.
    """
    from rich.console import Console

    from redraft.bench.card import Card, measure_card
    from redraft.bench.gpu import check_gpu
    from redraft.outputs import make_folder

    at_least(1, seconds=seconds)
    if tests is not None and not (tests / "gpu").is_dir():
        raise SettingError(f"{tests} has no folder gpu; --tests must be the tests folder of a checkout.")
    check_gpu()
    make_folder(results)
    console = Console(highlight=False, quiet=json)
    found = measure_card(Card(seconds, lambda line: console.print(line, markup=False)), tests)
    print_results("card", [found], results)
