"""Pictures for tests, drawn here, and what a message holds of them."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image


def drawn(seed: int = 0, height: int = 60, width: int = 100) -> Image.Image:
    """Coarse random colours, blurred."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def file_of(picture: Image.Image, format: str = "PNG") -> bytes:
    held = io.BytesIO()
    picture.save(held, format)
    return held.getvalue()


def base64_of(picture: Image.Image) -> str:
    return base64.b64encode(file_of(picture)).decode()


def data_url(picture: Image.Image) -> str:
    return f"data:image/png;base64,{base64_of(picture)}"


def asked_about(*images: Any, text: str = "What is this?", **more: Any) -> list[dict[str, Any]]:
    """A user's message with images before its words."""
    parts = [{"type": "image", "image": image, **more} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
