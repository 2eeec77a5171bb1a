"""`redraft bench calls`: what fill, edit, decide and log-probabilities cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from redraft.cli.bench_gpu import Quantization, Random
from redraft.cli.bench_results import Results, command_line, number_table, print_results
from redraft.cli.options import JsonAlone, ModelOptions, at_least, option
from redraft.errors import SettingError

if TYPE_CHECKING:
    from redraft.llm import LLM


def calls(
    model: Annotated[str, option("--model", "tiny, a folder, a hub id, or a shape: 26b-a4b.", "MODEL")] = "tiny",
    random_weights: Random = False,
    tokenizer: Annotated[Path | None, option("--tokenizer", "A tokenizer.json, for random weights.", "FILE")] = None,
    quantization: Quantization = None,
    repeats: Annotated[int, option("--repeats", "How often each call is measured.", "N")] = 5,
    device: Annotated[str, option("--device", "auto, cpu or cuda:N.", "DEVICE")] = "auto",
    results: Results = None,
    json: JsonAlone = False,
) -> None:
    """Milliseconds of whole calls: fill, edit, decide, and a canvas with and without log-probabilities.

    The first call of each kind is listed separately, because it may compile kernels. Prints a table and a line of JSON.
    """
    from redraft.bench.calls import calls as calls_of
    from redraft.bench.calls import measure_call
    from redraft.bench.machine import device_facts, versions
    from redraft.outputs import make_folder

    at_least(1, repeats=repeats)
    make_folder(results)
    llm = _llm(model, random_weights, tokenizer, quantization, device)
    found = [measure_call(name, call, repeats) for name, call in calls_of(llm).items()]
    record = {
        "bench": "calls",
        "model": model,
        "random_weights": random_weights,
        "quantization": quantization,
        **device_facts(llm.model.device),
        "versions": versions(),
        "command": command_line(),
        "calls": [one.to_dict() for one in found],
    }
    if not json:
        _print(record["calls"])
    print_results("calls", [record], results)


def _llm(model: str, random: bool, tokenizer: Path | None, quantization: str | None, device: str) -> LLM:
    """The model to measure: loaded, or random weights of a shape with a tokenizer and the template of `tiny`."""
    if not random:
        if tokenizer is not None:
            raise SettingError("--tokenizer needs --random-weights; a model has its own tokenizer.")
        return ModelOptions(model=model, device=device, quantization=quantization).load()
    if tokenizer is None:
        raise SettingError("Random weights have no tokenizer; give --tokenizer too.")
    from redraft.bench.gpu import require_gpu
    from redraft.bench.random_weights import random_llm

    return random_llm(model, tokenizer, device=require_gpu(device), quantization=quantization)


def _print(calls: list[dict[str, Any]]) -> None:
    from rich.console import Console

    table = number_table("call", "ms", "from", "to", "first")
    for call in calls:
        low, high = call["ms_spread"]["min"], call["ms_spread"]["max"]
        table.add_row(call["call"], *(f"{value:,.1f}" for value in (call["ms"], low, high, call["first_ms"])))
    Console(highlight=False).print(table)
