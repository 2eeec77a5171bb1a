"""Filling: several holes in one text, byte-exact on all sides, with lengths that need not be given.

seams      token healing                       hole, context      what the model sees of one hole
settle     denoising free positions only       lengths            which length it is
obeying    constraints on a hole's text        spare              a length that the model chooses itself
reporting  steps and texts as they come        api                all holes of a text
"""

from redraft.filling.api import fill, fill_settings
from redraft.filling.obeying import CONSTRAINTS
from redraft.filling.reporting import HoleStep
from redraft.filling.result import Filling, FillResult
from redraft.text.pieces import HOLE, split_pieces

__all__ = ["CONSTRAINTS", "HOLE", "FillResult", "Filling", "HoleStep", "fill", "fill_settings", "split_pieces"]
