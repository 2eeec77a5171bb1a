"""Evaluations of what a model can do, each with its reader: Sudoku, tools, their results and small talk as a `TASK`,
infilling and deciding with an ``evaluate`` of their own; and what steps and number formats do to them."""

from redraft.eval.files import DATA
from redraft.eval.result import EvalResult, ItemRecord

__all__ = ["DATA", "EvalResult", "ItemRecord"]
