"""Images in a prompt: taken out of messages before these are rendered, put back where the template marks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft.errors import PromptError
from redraft.text.images import Grid, Image, PlacedImage, is_image, read_part
from redraft.text.messages import check_messages


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model reads it: token ids, and the images whose embeddings take the place of some of them."""

    ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def ids_alone(self) -> list[int]:
        """The ids, for what reads nothing else. Raises `PromptError` if there are images."""
        if self.images:
            raise PromptError("Images can be read by generate, stream and chat; here text alone can.")
        return list(self.ids)


def take_images(
    messages: Sequence[Mapping[str, Any]], grid: Grid | None
) -> tuple[Sequence[Mapping[str, Any]], list[Image]]:
    """The messages with their images taken out, of which only the place is left, and the images in order.

    `grid` is None for a model that sees none. Raises `PromptError` for what the model cannot take.
    """
    check_messages(messages)
    media = [part for message in messages for part in _parts(message) if part["type"] != "text"]
    if other := [part["type"] for part in media if not is_image(part)]:
        raise PromptError(f"A message holds {other[0]}; text and images can be read.")
    if media and grid is None:
        raise PromptError("A message holds an image, and this model reads text alone: it has no vision tower.")
    if grid is None or not media:
        return messages, []
    return [_without_images(message) for message in messages], [read_part(part, grid) for part in media]


def place_images(ids: Sequence[int], images: Sequence[Image], marks: tuple[int, int, int]) -> EncodedPrompt:
    """A prompt in which every mark of an image is widened to the image's tokens, between two marks of their own.

    `marks` are `ModelConfig.image_marks`. Raises `PromptError` unless there are as many as images.
    """
    opening, part, closing = marks
    if ids.count(part) != len(images):
        raise PromptError("This model's chat template does not say where the images of these messages stand.")
    whole: list[int] = []
    placed: list[PlacedImage] = []
    for token in ids:
        if token != part:
            whole.append(token)
            continue
        image = images[len(placed)]
        placed.append(PlacedImage(len(whole) + 1, image))
        whole += [opening, *[part] * image.tokens, closing]
    return EncodedPrompt(tuple(whole), tuple(placed))


def _parts(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of a message's content; a mere text has none."""
    content = message.get("content")
    yield from content if isinstance(content, Sequence) and not isinstance(content, str | bytes) else ()


def _without_images(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every template knows an image as `image`, and looks at nothing else of it."""
    if not any(map(is_image, _parts(message))):
        return message
    return {**message, "content": [{"type": "image"} if is_image(part) else part for part in _parts(message)]}
