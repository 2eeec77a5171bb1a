"""`redraft bench constraints`: JSON schemas compiled and obeyed, and what a constrained step costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from redraft.cli.bench_results import Results, command_line, print_results
from redraft.cli.options import JsonAlone, ModelOptions, at_least, option
from redraft.errors import InputError


def constraints(
    file: Annotated[
        Path | None,
        typer.Argument(help="JSONL with name and schema; without it, only a step is timed.", metavar="FILE"),
    ] = None,
    model: Annotated[str, option("--model", "tiny, a folder, or a hub id.", "MODEL")] = "tiny",
    tokenizer: Annotated[
        Path | None, option("--tokenizer", "Another tokenizer.json; no step is timed.", "FILE")
    ] = None,
    limit: Annotated[int | None, option("--limit", "Only the first N schemas.", "N", default="all")] = None,
    answers: Annotated[int, option("--answers", "Random answers to each schema, which are validated.", "N")] = 2,
    written: Annotated[
        int | None,
        option("--written", "Every Nth schema is answered by the model and by random weights.", "N", default="none"),
    ] = None,
    seconds: Annotated[float, option("--seconds", "Longest time for each model's answers.", "S")] = 240.0,
    results: Results = None,
    repetitions: Annotated[int, option("--repetitions", "Timed answers of each kind.", "N")] = 3,
    device: Annotated[str, option("--device", "Where a step is timed: cpu or cuda.", "DEVICE")] = "cpu",
    json: JsonAlone = False,
) -> None:
    """Compile JSON schemas, validate answers, and time a denoising step with and without a constraint.

    Answers come from random logits, and with --written from the model and from random weights at 1, 4 and 16 steps and
    canvases of 16, 64, 128 and 256 tokens in turn.

    The last line is JSON. Times are of this process alone.
    """
    from redraft.bench.constraints import MEASURED, measure_overhead, measure_schemas, read_schemas, validator
    from redraft.bench.machine import processor
    from redraft.bench.schema_answers import measure_answers, with_random_weights
    from redraft.outputs import make_folder
    from redraft.text.tokenizer import Tokenizer

    at_least(1, limit=limit, repetitions=repetitions, written=written, seconds=seconds)
    at_least(0, answers=answers)
    make_folder(results)
    for name, value in (("--tokenizer", tokenizer), ("--limit", limit), ("--written", written)):
        if file is None and value is not None:
            raise InputError(f"{name} needs a FILE of schemas.")
    if tokenizer is not None and written is not None:
        raise InputError("--written needs a model, and --tokenizer stands in for one; give one of them.")
    schemas = [] if file is None else read_schemas(file)[:limit]
    llm = None if tokenizer is not None else _options(model, device).load()
    found: dict[str, Any] = {"model": model if tokenizer is None else tokenizer.name}
    if file is not None:
        words = Tokenizer.from_file(tokenizer) if tokenizer is not None else None
        used = words or (llm.tokenizer if llm is not None else None)
        assert used is not None
        figures = measure_schemas(used, schemas, answers=answers, validate=validator() if answers else None)
        found |= {"vocabulary": used.vocab_size} | figures.to_dict()
        if llm is not None and written is not None:
            for name, writer in (("model", llm), ("random_weights", with_random_weights(llm))):
                answers_of = measure_answers(writer, schemas[::written], validate=validator(), seconds=seconds)
                found[f"written_by_{name}"] = answers_of.to_dict()
    if llm is not None:
        found |= {"device": device} | measure_overhead(llm, MEASURED, repetitions=repetitions)
    for name, value in () if json else found.items():
        print(f"{name:18} {value}")
    found |= {"processor": processor(), "command": command_line()}
    print_results("constraints", [found], results)


def _options(model: str, device: str) -> ModelOptions:
    """fp32 on a CPU, the stored dtype elsewhere."""
    return ModelOptions(model=model, device=device, dtype="float32" if device == "cpu" else "auto")
