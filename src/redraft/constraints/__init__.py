"""What an answer may contain: one mechanism behind pins, choices, patterns, JSON schema, templates and tool calls."""

from redraft.constraints.build import NAMES, build, schema_of
from redraft.constraints.pins import Allowed
from redraft.constraints.template import read_template

__all__ = ["NAMES", "Allowed", "build", "read_template", "schema_of"]
