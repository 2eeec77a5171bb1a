"""The official test suite of JSON Schema: what it calls invalid is never written.

The suite is not part of the repository: REDRAFT_JSON_SCHEMA_SUITE names its folder `tests`, as the repository
JSON-Schema-Test-Suite has it, or `json/tests` of the source distribution of the package `jsonschema`.
"""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redraft.constraints.automaton import Budget
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.spelling import compile_bytes
from redraft.errors import ConstraintError

SUITE = Path(os.environ.get("REDRAFT_JSON_SCHEMA_SUITE", "missing"))
DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
LOOSER = frozenset({"content.json", "hostname.json"})
"""Files of keywords that docs/constraints.md calls annotations, and of a format whose lengths it does not count."""


def _groups(draft: str) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """The name, schema and instances of each group; the schema says which draft it is of."""
    for file in sorted((SUITE / draft).rglob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")) if file.name not in LOOSER else []:
            schema = group["schema"]
            declared = {"$schema": DRAFTS[draft], **schema} if isinstance(schema, dict) else schema
            yield f"{file.name}: {group['description']}", declared, group["tests"]


def _written(value: Any) -> list[bytes]:
    """A value as JSON without spaces, its members in any order."""
    orders = map(dict, itertools.permutations(value.items())) if isinstance(value, dict) else [value]
    return [json.dumps(order, separators=(",", ":"), ensure_ascii=False).encode() for order in orders]


@pytest.mark.parametrize("draft", DRAFTS)
def test_what_the_suite_calls_invalid_is_not_written(draft: str) -> None:
    if not (SUITE / draft).is_dir():
        pytest.skip("REDRAFT_JSON_SCHEMA_SUITE names no folder of tests")
    denied: list[tuple[str, str]] = []
    groups, compiled, valid, matched = 0, 0, 0, 0
    for name, schema, tests in _groups(draft):
        groups += 1
        try:
            dfa = compile_bytes(compile_schema(schema, Budget(), strict=True), Budget())
        except ConstraintError as error:
            empty = " allows no " in str(error)
            denied += [(name, test["description"]) for test in tests if test["valid"] and empty]
            continue
        compiled += 1
        for test in tests:
            found = any(map(dfa.matches, _written(test["data"])))
            assert test["valid"] or not found, (name, test["description"])
            valid, matched = valid + test["valid"], matched + found
    assert not denied
    assert compiled >= 0.75 * groups
    assert matched >= 0.8 * valid
