"""JSON Schema to expressions: `compile_schema`. docs/constraints.md lists the enforced keywords."""

from redraft.constraints.json_schema.keywords import check_json
from redraft.constraints.json_schema.numbers import parse_number
from redraft.constraints.json_schema.unfolding import compile_schema

__all__ = ["check_json", "compile_schema", "parse_number"]
