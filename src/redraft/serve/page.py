"""The page at `/`: one file, with headers that stop a browser from loading anything else."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

_TAG = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Page:
    """The bytes of the page and its headers."""

    body: bytes
    headers: dict[str, str]

    @classmethod
    def read(cls) -> Page:
        """Read the page from the package."""
        text = files("redraft.serve").joinpath("page.html").read_text(encoding="utf-8")
        return cls(text.encode("utf-8"), _headers(text))


def _headers(text: str) -> dict[str, str]:
    """A policy that allows only the page's own script and style, by their digests."""
    digests: dict[str, list[str]] = {"script": [], "style": []}
    for tag, content in _TAG.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode()
        digests[tag].append(f"'sha256-{digest}'")
    policy = (
        f"default-src 'none'; script-src {' '.join(digests['script'])}; style-src {' '.join(digests['style'])}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
