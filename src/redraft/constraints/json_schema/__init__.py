"""JSON Schema to expressions: `compile_schema`. docs/constraints.md lists the enforced keywords."""

from redraft.constraints.json_schema.compiler import compile_schema

__all__ = ["compile_schema"]
