"""Images in a prompt: taken out of the messages before rendering, put back where the template marks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft.errors import TOO_LONG, PromptError
from redraft.text.images import MAX_PIXELS_OF_PROMPT, Grid, Image, PlacedImage, Source, is_image, open_part
from redraft.text.messages import check_messages


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model reads it: token ids, and the images whose embeddings replace some of them.

    `chat` says that the answer is a turn of a conversation, so it may hold thoughts and calls; `begun` that the prompt
    ends with the beginning of the answer, which continues in the middle of a text.
    """

    ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    begun: bool = False
    chat: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def ids_alone(self) -> list[int]:
        """The ids, for code that reads nothing else. Raises `PromptError` if there are images."""
        if self.images:
            raise PromptError("Images can be read by generate, stream, chat and decide; here only text can.")
        return list(self.ids)


def take_images(
    messages: Sequence[Mapping[str, Any]], grid: Grid | None, context: int | None = None
) -> tuple[Sequence[Mapping[str, Any]], list[Image]]:
    """The messages with placeholders for their images, and the images in order.

    `grid` is None for a model without vision; `context` is how many tokens a prompt may have. Raises `PromptError` for
    anything the model cannot take, before decoding.
    """
    check_messages(messages)
    media = [part for message in messages for part in parts_of(message) if part["type"] != "text"]
    if other := [part["type"] for part in media if not is_image(part)]:
        raise PromptError(f"A message holds {other[0]}; only text and images can be read.")
    if media and grid is None:
        raise PromptError("A message holds an image, but this model reads only text: it has no vision tower.")
    if grid is None or not media:
        return messages, []
    return [_without_images(message) for message in messages], _decoded(
        [open_part(part, grid) for part in media], context
    )


def decoded_images(messages: Sequence[Mapping[str, Any]], grid: Grid | None, context: int | None = None) -> Any:
    """The messages with each image as an `Image`, which is not decoded again. Raises like `take_images`."""
    images = iter(take_images(messages, grid, context)[1])

    def kept(part: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"type": "image", "image": next(images)} if is_image(part) else part

    return [
        {**message, "content": [kept(part) for part in parts]} if (parts := list(parts_of(message))) else message
        for message in messages
    ]


def _decoded(sources: Sequence[Source], context: int | None) -> list[Image]:
    """The decoded images, unless there are too many."""
    tokens, pixels = sum(source.tokens for source in sources), sum(source.pixels for source in sources)
    if context is not None and tokens > context:
        sentence = f"The images of these messages take {tokens:,} tokens; the context holds only {context:,}."
        raise PromptError(sentence, code=TOO_LONG)
    if pixels > MAX_PIXELS_OF_PROMPT:
        raise PromptError(
            f"The images of these messages have {pixels:,} pixels; at most {MAX_PIXELS_OF_PROMPT:,} can be read."
        )
    return [source.image() for source in sources]


def place_images(ids: Sequence[int], images: Sequence[Image], marks: tuple[int, int, int]) -> EncodedPrompt:
    """A prompt in which every image mark is expanded to the image's tokens, between two marks of their own.

    `marks` are `ModelConfig.image_marks`. Raises `PromptError` unless there are as many marks as images.
    """
    opening, part, closing = marks
    if ids.count(part) != len(images):
        raise PromptError("This model's chat template does not say where the images of these messages go.")
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


def parts_of(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of a message's content; plain text has none."""
    content = message.get("content")
    yield from content if isinstance(content, Sequence) and not isinstance(content, str | bytes) else ()


def _without_images(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every template recognises an image by `image` and looks at nothing else in it."""
    if not any(map(is_image, parts_of(message))):
        return message
    return {**message, "content": [{"type": "image"} if is_image(part) else part for part in parts_of(message)]}
