"""Deciding: which of several choices, and how sure, for the price of a forward pass.

form   templates, slots and the tree of their choices      asking       questions as prompts
read   label odds from a short pinned canvas                calibration  from odds to how sure one should be
"""

from redraft.deciding.api import Choices, decide
from redraft.deciding.asking import Question
from redraft.deciding.calibration import fit_temperature
from redraft.deciding.result import Decision, Reading

__all__ = ["Choices", "Decision", "Question", "Reading", "decide", "fit_temperature"]
