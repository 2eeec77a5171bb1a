"""What each canvas position may hold: the one mechanism behind fill, pins and forbidden tokens."""

from redraft.constraints.pins import Allowed

__all__ = ["Allowed"]
