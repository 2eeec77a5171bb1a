"""A decoder for tests of engines."""

from collections.abc import Sequence


class Spelled:
    """A tokenizer's decoder that spells every token in three characters."""

    def __init__(self) -> None:
        self.special_ids: dict[str, int] = {}

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"{token:02x} " for token in token_ids)
