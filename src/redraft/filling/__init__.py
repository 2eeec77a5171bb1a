"""Filling: several holes in one text, byte-exact on all sides, of lengths that are found.

seams    token healing                         hole, context      what the model sees of one hole
settle   denoising free positions only         scoring, lengths   which length it is       api   all holes of a text
"""

from redraft.filling.api import fill
from redraft.filling.result import Filling, FillResult
from redraft.text.pieces import HOLE, split_pieces

__all__ = ["HOLE", "FillResult", "Filling", "fill", "split_pieces"]
