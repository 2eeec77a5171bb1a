"""Names of prompt prefixes: prompts that begin alike have the same keys up to the first difference."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from redraft.cache.pages import PAGE
from redraft.text.images import PlacedImage


def prefix_keys(
    token_ids: Sequence[int], adapter: str | None = None, images: Sequence[PlacedImage] = ()
) -> list[bytes]:
    """One key per whole page of a prompt.

    A key stands for all tokens up to the end of its page, the images that begin among them, where they do, and the
    adapter. It is a cryptographic hash, because a collision would show one user's text to another.
    """
    keys: list[bytes] = []
    key = b"" if adapter is None else blake2b(adapter.encode()).digest()
    for start in range(0, len(token_ids) - PAGE + 1, PAGE):
        page = array("q", token_ids[start : start + PAGE]).tobytes()
        begun = [image for image in images if start <= image.start < start + PAGE]
        seen = b"".join(image.start.to_bytes(4, "little") + image.content.digest for image in begun)
        key = blake2b(key + page + seen, digest_size=16).digest()
        keys.append(key)
    return keys
