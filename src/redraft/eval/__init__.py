"""Evaluations of what a model can do, each with its reader and ``evaluate``: Sudoku, infilling, tools, small talk."""

from redraft.eval.files import DATA
from redraft.eval.result import EvalResult, ItemRecord

__all__ = ["DATA", "EvalResult", "ItemRecord"]
