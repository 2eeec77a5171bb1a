"""Evaluations of what a model can do, each with its reader.

Sudoku, tools, their results, extraction and small talk are a `TASK`; infilling, editing and deciding have their own
``evaluate``. Others measure what steps and number formats do to the scores.
"""

from redraft.eval.files import DATA
from redraft.eval.result import EvalResult, ItemRecord

__all__ = ["DATA", "EvalResult", "ItemRecord"]
