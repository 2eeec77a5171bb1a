"""JSON schemas as automata over bytes, and what these are compared with."""

import json
from collections.abc import Iterable
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from redraft.constraints.automaton import Budget, Dfa
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.spelling import compile_bytes


def compiled(schema: Any, *, strict: bool = True, **options: Any) -> Dfa:
    """The automaton of a schema."""
    return compile_bytes(compile_schema(schema, Budget(), strict=strict, **options), Budget())


def written(value: Any) -> bytes:
    """A value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def check_exact(schema: Any, values: Iterable[Any]) -> None:
    """Of the values, the automaton accepts those that the `jsonschema` package finds valid."""
    dfa, judge = compiled(schema), validator_for(schema, default=Draft202012Validator)
    for value in values:
        assert dfa.matches(written(value)) == judge(schema).is_valid(value), value
