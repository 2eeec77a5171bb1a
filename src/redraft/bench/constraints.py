"""Constraint measurements: how many JSON schemas compile, how fast, whether every answer obeys, what a step costs.

Answers are drawn without a model: random logits stand in for one that knows nothing about JSON, which is the hard case.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import torch

from redraft.bench.quantile import quantile
from redraft.constraints.answer import AutomatonCanvas, AutomatonConstraint
from redraft.constraints.build import build
from redraft.diffusion.sampler import distribution_under
from redraft.errors import ConstraintError, InputError
from redraft.llm import LLM
from redraft.text.json_lines import fail, read_objects
from redraft.text.tokenizer import Tokenizer

CANVAS = 64
MAX_TOKENS = 2048
"""Schemas whose shortest answer is longer are compiled but not answered."""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}},
    },
    "required": ["name", "age"],
}
MEASURED: dict[str, dict[str, Any]] = {
    "regex": {"regex": r"\d{4}-\d\d-\d\d"},
    "text_with_words": {"must_include": ["lighthouse", "storm"]},
    "small_schema": {"json_schema": {"type": "object", "properties": {"name": {"type": "string"}}}},
    "everyday_schema": {"json_schema": PERSON},
}
"""The constraints with which the cost of a step is measured."""


@dataclass(kw_only=True)
class SchemaFigures:
    """What compiling (and answering) a set of schemas gave; times in seconds, sorted."""

    compile_seconds: list[float] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)
    restrict_seconds: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    invalid: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.compile_seconds) + self.refused.total()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "schemas": self.total,
            "compiled": len(self.compile_seconds),
            "refused": dict(self.refused.most_common()),
            "compile_ms": _quantiles([1e3 * seconds for seconds in self.compile_seconds]),
            "edges": _quantiles(self.edges),
            "restrict_ms": _quantiles([1e3 * seconds for seconds in self.restrict_seconds]),
            "answers": self.answers,
            "invalid": self.invalid,
        }


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    places = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "max": 1.0}
    return {name: round(quantile(values, share), 2) for name, share in places.items()}


def read_schemas(path: str | Path) -> list[tuple[str, Any]]:
    """(name, schema) of every line of a JSONL file with the keys `name` and `schema`. Raises `InputError`."""
    found = []
    for number, record in read_objects(path):
        if "schema" not in record:
            fail(path, number, "there is no schema")
        found.append((str(record.get("name", number)), record["schema"]))
    if not found:
        raise InputError(f"{path} holds no schemas.")
    return found


def measure_schemas(
    tokenizer: Tokenizer,
    schemas: Iterable[tuple[str, Any]],
    *,
    answers: int,
    validate: Callable[[Any, Any], str | None] | None,
) -> SchemaFigures:
    """Compile every schema and write `answers` random answers to each; `validate` says what is wrong with a value."""
    figures = SchemaFigures()
    build(tokenizer, choices=["a"])  # builds what all constraints share once
    for name, schema in schemas:
        started = time.process_time()
        try:
            constraint = build(tokenizer, json_schema=schema)
        except ConstraintError as error:
            reason = str(error).partition(" (at ")[0].rstrip(".")  # wherever it is in a schema
            figures.refused[reason[:100]] += 1
            continue
        assert constraint is not None
        figures.compile_seconds.append(time.process_time() - started)
        figures.edges.append(len(constraint.automaton.source))
        for seed in range(answers if constraint.min_tokens <= MAX_TOKENS else 0):
            text = _answer(tokenizer, constraint, seed, figures)
            figures.answers += 1
            if wrong := problem(schema, text, validate):
                figures.invalid.append(f"{name}: {wrong}")
    return figures


def _answer(tokenizer: Tokenizer, constraint: AutomatonConstraint, seed: int, figures: SchemaFigures) -> str:
    """An answer from random logits, alternating between flat and peaked ones."""
    budget = max(3 * CANVAS, constraint.min_tokens)
    generator = torch.Generator().manual_seed(seed)
    state, ids = constraint.begin(), list[int]()
    while len(ids) < budget and tokenizer.eos_id not in ids:
        canvas = state.canvas(CANVAS, budget - len(ids))
        logits = torch.randn(CANVAS, tokenizer.vocab_size, generator=generator) * (1.0, 5.0)[seed % 2]
        started = time.process_time()
        written = _likeliest(canvas, logits)
        figures.restrict_seconds.append(time.process_time() - started)
        ids += written
        state.advance(written)
    kept = ids[:budget]
    ends = {tokenizer.eos_id, tokenizer.special_ids.get("<turn|>")}
    return tokenizer.decode(kept[: next((i for i, token in enumerate(kept) if token in ends), len(kept))])


def _likeliest(canvas: AutomatonCanvas, logits: torch.Tensor) -> list[int]:
    """The most likely tokens of a whole canvas' logits [L,V]."""
    held = canvas.hold(torch.zeros(len(logits), dtype=torch.long))
    seen = distribution_under(canvas, held, logits.shape[1], lambda rows: logits if rows is None else logits[rows])
    return seen.argmax.tolist()


def problem(schema: Any, text: str, validate: Callable[[Any, Any], str | None] | None) -> str | None:
    """What is wrong with a text as an answer; None if it is fine."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{error} in {text[:80]!r}"
    return validate(schema, value) if validate is not None else None


def validator() -> Callable[[Any, Any], str | None]:
    """Validation with the `jsonschema` package, including formats, by the draft that a schema names.

    `multipleOf` is judged on decimals: to doubles 0.07 is no multiple of 0.01. Raises `InputError` without the package.
    """
    try:
        import jsonschema
        from jsonschema.validators import extend, validator_for
    except ImportError as error:
        raise InputError("Validating answers needs the package jsonschema; install it or ask for 0 answers.") from error

    def multiple_of(judge: Any, divisor: float, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
        if judge.is_type(value, "number") and Fraction(str(value)) % Fraction(str(divisor)):
            yield jsonschema.ValidationError(f"{value!r} is not a multiple of {divisor}")

    def validate(schema: Any, value: Any) -> str | None:
        drafts = (validator_for(schema, default=jsonschema.Draft202012Validator), jsonschema.Draft7Validator,
                  jsonschema.Draft4Validator)  # fmt: skip
        for draft in drafts:
            try:
                draft.check_schema(schema)
            except jsonschema.SchemaError:
                continue
            judge = extend(draft, {"multipleOf": multiple_of}, format_checker=draft.FORMAT_CHECKER)
            found = next(iter(judge(schema, format_checker=draft.FORMAT_CHECKER).iter_errors(value)), None)
            return None if found is None else found.message[:200]
        return None  # the schema itself is malformed in every draft

    return validate


def measure_overhead(
    llm: LLM, constraints: Mapping[str, Mapping[str, Any]], *, repetitions: int
) -> dict[str, float | dict[str, float]]:
    """Milliseconds of a denoising step of one canvas, and for each constraint its step time and relative overhead.

    On a CPU this is process time, on a GPU wall-clock time.
    """
    names = ("", *constraints)
    runs: dict[str, list[float]] = {name: [] for name in names}
    clock = time.process_time if llm.model.device.type == "cpu" else time.perf_counter
    for _ in range(repetitions + 1):  # in turn, so that other load on the machine affects all alike
        for name in names:
            runs[name].append(1e3 * _step_seconds(llm, constraints.get(name, {}), clock))
    plain = median(runs[""][1:])
    found: dict[str, float | dict[str, float]] = {"step_ms": round(plain, 2)}
    for name in constraints:
        limited = median(runs[name][1:])
        found[name] = {"step_ms": round(limited, 2), "overhead": round(limited / plain - 1, 4)}
    return found


def _step_seconds(llm: LLM, wanted: Mapping[str, Any], clock: Callable[[], float]) -> float:
    """Seconds per step, in an answer of one canvas that takes all its steps."""
    settings = {"steps": 8, "max_tokens": llm.model.config.canvas_length}
    never = {"confidence_threshold": 1e-12, "stability_threshold": settings["steps"]}
    started = clock()
    result = llm.generate("Write down a person as JSON.", **settings, **never, **wanted)
    return (clock() - started) / result.stats.forwards
