"""Editing: a span of a text is changed, and everything else stays the same, byte for byte.

spans      characters, lines, tokens and diffs     drafts     what the span begins as
reading    what the model is shown before it       api        the edit itself
following  the next edit after some others         result     what editing returns
"""

from redraft.editing.api import edit
from redraft.editing.following import NextEdit, RecentEdit, edits_between, next_edit
from redraft.editing.result import EditResult
from redraft.editing.spans import line_span

__all__ = ["EditResult", "NextEdit", "RecentEdit", "edit", "edits_between", "line_span", "next_edit"]
