"""Images on the command line: files that precede the text of a user's message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from redraft.cli.options import option
from redraft.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Images of a prompt."""

    image: Annotated[list[str] | None, option("--image", "An image before PROMPT; may be repeated.", "FILE")] = None
    image_detail: Annotated[
        str | None,
        option(
            "--image-detail",
            "Tokens that an image may take: low (70), high (1120), 70, 140, 280, 560 or 1120.",
            "WORD",
            default="the model's",
        ),
    ] = None

    def parts(self) -> list[dict[str, Any]]:
        """The given images as parts of a message; read once, so that a bad file fails before a long load."""
        if self.image_detail is not None and not self.image:
            raise InputError("--image-detail needs --image.")
        return [image_part(name, self.image_detail) for name in self.image or ()]


def image_part(name: str, detail: str | None = None) -> dict[str, Any]:
    """The image of a file as a part of a message. Raises `PromptError` or `SettingError` if it cannot be read."""
    from redraft.text.images import Grid, open_part

    chosen = int(detail) if detail is not None and detail.isdecimal() and len(detail) < 5 else detail
    part = {"type": "image", "image": name} | ({} if chosen is None else {"detail": chosen})
    open_part(part, Grid()).image()
    return part


def with_images(text: str, parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a message: its text, preceded by any images."""
    return [*parts, {"type": "text", "text": text}] if parts else text
