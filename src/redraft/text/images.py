"""Images in a conversation: from files, data URLs and arrays to the patches that a vision tower reads.

An image is scaled up or down to as many patches as its token budget allows, with sides of whole tokens and its aspect
ratio kept as far as possible. This is what Transformers' Gemma4ImageProcessor does: bicubic, with antialiasing, in 8
bits.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.errors import PromptError, SettingError, why

if TYPE_CHECKING:
    import PIL.Image

BUDGETS = (70, 140, 280, 560, 1120)
"""How many tokens an image may take."""
DETAILS = {"low": BUDGETS[0], "high": BUDGETS[-1]}
"""Other names for two of them; "auto" is the model's own choice."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 64_000_000
"""A file may claim more than this, and decoding it would take all memory."""
MAX_PIXELS_OF_PROMPT = 4 * MAX_PIXELS
"""The limit for all images of a prompt: they are decoded one at a time, a few seconds for each `MAX_PIXELS`."""
_IMAGE_KINDS = ("image", "image_url")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """How a model cuts images: pixels per side of a patch, and patches per side of the square that makes a token.

    `budget` is the most tokens an image takes by default, `longest` the most patches per side.
    """

    patch: int = 16
    square: int = 3
    budget: int = 280
    longest: int = 10240


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Image:
    """An image as a vision tower reads it.

    patches  uint8 [rows * columns, 3 * patch * patch], row by row, each pixel's colours together
    tokens   how many tokens of the prompt it takes
    digest   equal for equal images
    """

    patches: Tensor
    rows: int
    columns: int
    tokens: int
    digest: bytes


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Source:
    """An image that is not decoded yet and of which only the size is known.

    tokens  how many tokens of the prompt it will take
    image   decodes it
    """

    height: int
    width: int
    tokens: int
    image: Callable[[], Image]

    @property
    def pixels(self) -> int:
        return self.height * self.width


@dataclass(frozen=True, slots=True, eq=False)
class PlacedImage:
    """An image in a prompt: its tokens are at positions `start` .. `stop`."""

    start: int
    content: Image

    @property
    def stop(self) -> int:
        return self.start + self.content.tokens

    @property
    def positions(self) -> range:
        """The positions of its tokens."""
        return range(self.start, self.stop)


def cut_outside(images: Iterable[range], first: int, end: int) -> int:
    """Where to end a chunk of a prompt that begins at `first` and should end at `end`: never inside an image.

    If `end` is inside an image, the chunk ends before it, or after it if the image begins at `first`: then the image is
    the chunk.
    """
    cut = next((image for image in images if image.start < end < image.stop), None)
    if cut is None:
        return end
    return cut.stop if cut.start <= first else cut.start


def is_image(part: Mapping[str, Any]) -> bool:
    """Whether a part of a message's content is an image."""
    return part.get("type") in _IMAGE_KINDS


def open_part(part: Mapping[str, Any], grid: Grid) -> Source:
    """The image of a message's part, not decoded yet. Raises `PromptError` if it cannot be read.

    `{"type": "image", "image": ...}` contains a path, the bytes of a file, a PIL image, a uint8 array [H,W,3] or [H,W],
    or a data URL, which may also be given as `url`; `{"type": "image_url", "image_url": {"url": ...}}` contains a data
    URL. `detail` is "low", "auto", "high" or one of `BUDGETS`. An `Image` as `image` is used as it is.
    """
    given: Any = part.get("image_url") if part["type"] == "image_url" else part
    given = {"url": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping):
        raise PromptError("An image_url part must hold a string, or an object with 'url'.")
    budget = _budget(given.get("detail", part.get("detail")), grid)
    if (url := given.get("url")) is not None:
        return open_image(_of_url(url), grid, budget)
    source = given.get("image")
    if source is None and (source := given.get("path")) is None:
        raise PromptError("An image part must hold the image under 'image', 'path' or 'url'.")
    return open_image(source, grid, budget)


def open_image(source: Any, grid: Grid, budget: int | None = None) -> Source:
    """An image from anything that `open_part` accepts as `image`. Raises `PromptError`."""
    if isinstance(source, Image):
        height, width = source.rows * grid.patch, source.columns * grid.patch
        return Source(height=height, width=width, tokens=source.tokens, image=lambda: source)
    (height, width), pixels = _opened(source)
    if not height * width:
        raise PromptError("An image has no pixels.")
    size = scaled_size(height, width, grid, budget or grid.budget)
    rows, columns = (side // grid.patch for side in size)
    if max(rows, columns) > grid.longest:
        raise PromptError(
            f"An image of {columns} x {rows} patches is too long; this model sees at most {grid.longest} a side."
        )
    tokens = rows * columns // grid.square**2  # the same if it lies on its side, which only decoding shows
    return Source(height=height, width=width, tokens=tokens, image=lambda: _cut(pixels(), grid, budget))


def prepare(source: Any, grid: Grid, budget: int | None = None) -> Image:
    """An image, cut into patches, from anything that `open_part` accepts as `image`. Raises `PromptError`."""
    return open_image(source, grid, budget).image()


def _cut(pixels: Tensor, grid: Grid, budget: int | None) -> Image:
    """Pixels [3,H,W] scaled and cut into patches."""
    size = scaled_size(pixels.shape[1], pixels.shape[2], grid, budget or grid.budget)
    rows, columns = (side // grid.patch for side in size)
    if size != tuple(pixels.shape[1:]):
        pixels = F.interpolate(pixels[None], size, mode="bicubic", antialias=True)[0]
    patches = pixels.view(3, rows, grid.patch, columns, grid.patch).permute(1, 3, 2, 4, 0).reshape(rows * columns, -1)
    content = blake2b(f"{rows}x{columns}".encode(), digest_size=16)
    content.update(patches.numpy().data)
    tokens = rows * columns // grid.square**2
    return Image(patches=patches, rows=rows, columns=columns, tokens=tokens, digest=content.digest())


def scaled_size(height: int, width: int, grid: Grid, budget: int) -> tuple[int, int]:
    """Height and width, in pixels and whole tokens, to which an image is scaled for a budget of tokens.

    A side that would shrink to nothing becomes one token, and the other is cut to the budget.
    """
    side = grid.patch * grid.square
    factor = math.sqrt(budget * side**2 / (height * width))
    high, wide = math.floor(factor * height / side), math.floor(factor * width / side)
    if not high:
        return side, min(width // height, budget) * side
    if not wide:
        return min(height // width, budget) * side, side
    return high * side, wide * side


def _budget(detail: Any, grid: Grid) -> int:
    if detail in (None, "auto"):
        return grid.budget
    found = DETAILS.get(detail, detail) if isinstance(detail, str) else detail
    if type(found) is not int or found not in BUDGETS:
        known = ", ".join(map(str, BUDGETS))
        raise SettingError(f"An image's detail is {detail!r}; it must be low, auto, high, or one of {known} tokens.")
    return found


def _of_url(url: Any) -> bytes:
    """The content of a data URL; nothing is fetched over the network."""
    if not isinstance(url, str) or not _is_data(url):
        raise PromptError("An image's URL must be a data URL (data:image/png;base64,...); nothing is fetched.")
    kind, comma, content = url.partition(",")
    if not comma or not kind.lower().endswith(";base64"):
        raise PromptError("An image's data URL must hold base64.")
    try:
        return base64.b64decode("".join(content.split()), validate=True)  # some encoders break lines
    except (binascii.Error, ValueError) as error:
        raise PromptError(f"An image's base64 cannot be read: {error}.") from error


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


def _opened(source: Any) -> tuple[tuple[int, int], Callable[[], Tensor]]:
    """Height and width of any source, and its decoder to uint8 [3,H,W] ([3,W,H] if it lies on its side)."""
    if isinstance(source, str) and (_is_data(source) or "://" in source):
        source = _of_url(source)
    if isinstance(source, str | Path):
        source = _file(Path(source))
    if isinstance(source, bytes | bytearray):
        with _decoding(), _open_file(source) as image:
            width, height = image.size
        if width * height > MAX_PIXELS:
            raise PromptError(f"An image has {width * height:,} pixels; at most {MAX_PIXELS:,} can be read.")
        return (height, width), partial(_decoded, source)
    if hasattr(source, "convert"):  # a PIL image, which cannot exist without Pillow
        width, height = source.size
        return (height, width), partial(_colours, source)
    if isinstance(source, np.ndarray | Tensor):
        pixels = _array(source)
        return (pixels.shape[1], pixels.shape[2]), lambda: pixels
    raise PromptError(
        f"An image must be a path, bytes of a file, a data URL, a PIL image or an array, not a {type(source).__name__}."
    )


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise PromptError(f"The image {path} cannot be read: {why(error)}.") from error


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except (PromptError, SettingError):
        raise
    except Exception as error:  # decoders may raise anything
        raise PromptError(_decoding_error(error)) from error


def _decoding_error(error: Exception) -> str:
    """What is wrong with an image, from the exception of its decoder."""
    from PIL import Image as files
    from PIL import UnidentifiedImageError

    if isinstance(error, files.DecompressionBombError):
        return f"An image has too many pixels; at most {MAX_PIXELS:,} can be read."
    if isinstance(error, UnidentifiedImageError):
        return f"An image cannot be read; only {', '.join(FORMATS)} files can."
    return "An image cannot be read; its file is damaged or truncated."


def _open_file(content: bytes | bytearray) -> PIL.Image.Image:
    try:
        from PIL import Image as files
    except ImportError as error:
        raise SettingError("Images in files need Pillow: pip install 'redraft[images]'.") from error
    return files.open(io.BytesIO(content), formats=FORMATS)


def _decoded(content: bytes | bytearray) -> Tensor:
    with _decoding(), _open_file(content) as image:
        return _colours(image)


def _colours(image: PIL.Image.Image) -> Tensor:
    """The image in RGB, rotated as the camera noted, with transparent areas on white."""
    from PIL import Image as files
    from PIL import ImageOps

    with _decoding():
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I;16"):  # Pillow would clip it at 255
            image = files.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        elif image.mode in ("I", "F"):
            raise PromptError(f"An image's pixels have Pillow's mode {image.mode}, whose range is not defined.")
        if "A" in image.getbands() or image.info.get("transparency") is not None:
            clear = image.convert("RGBA")
            image = files.alpha_composite(files.new("RGBA", clear.size, "white"), clear)
        return _array(np.array(image.convert("RGB")))


def _array(values: np.ndarray[Any, Any] | Tensor) -> Tensor:
    """uint8 [H,W,3] or [H,W] as [3,H,W]."""
    if isinstance(values, np.ndarray) and values.dtype == np.uint8:
        values = torch.from_numpy(np.require(values, requirements=["C", "W"]))  # torch warns about read-only arrays
    if not isinstance(values, Tensor) or values.dtype != torch.uint8:
        kind = str(values.dtype).removeprefix("torch.")
        raise PromptError(f"An image's array must be uint8 [height, width, 3], not {kind} {list(values.shape)}.")
    pixels = values.cpu()
    if pixels.ndim == 2:
        pixels = pixels[..., None].expand(-1, -1, 3)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.numel():
        raise PromptError(f"An image's array must be uint8 [height, width, 3], not uint8 {list(values.shape)}.")
    return pixels.permute(2, 0, 1).contiguous()
