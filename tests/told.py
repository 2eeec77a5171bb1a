"""What fillings and edits tell while they are made."""

from redraft.diffusion.records import Commit
from redraft.filling import HoleStep


class Told(list[HoleStep | Commit]):
    """All records, for `on_record=told.append`."""

    @property
    def steps(self) -> list[HoleStep]:
        return [record for record in self if isinstance(record, HoleStep)]

    @property
    def commits(self) -> list[Commit]:
        return [record for record in self if isinstance(record, Commit)]
