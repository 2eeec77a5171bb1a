"""Evaluations of what a model can do: Sudoku, infilling and tool calls, each with its reader and ``evaluate``."""

from redraft.eval.files import DATA
from redraft.eval.result import EvalResult, ItemRecord

__all__ = ["DATA", "EvalResult", "ItemRecord"]
