"""The page at `/`: one file made of those in `web/`, with headers that stop a browser from loading anything else."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

_LINKED = re.compile(r'<link rel="stylesheet" href="(?P<style>[\w.]+)">|<script src="(?P<script>[\w.]+)"></script>')


@dataclass(frozen=True, slots=True)
class Page:
    """The bytes of the page and its headers."""

    body: bytes
    headers: dict[str, str]

    @classmethod
    def read(cls) -> Page:
        """Read the page from the package, with the styles and scripts that it names put in their places."""
        folder = files("redraft.serve").joinpath("web")
        digests: dict[str, list[str]] = {"style": [], "script": []}

        def put_in(linked: re.Match[str]) -> str:
            kind = linked.lastgroup or ""
            content = folder.joinpath(linked[kind]).read_text(encoding="utf-8")
            digests[kind].append(_digest(content))
            return f"<{kind}>{content}</{kind}>"

        text = _LINKED.sub(put_in, folder.joinpath("index.html").read_text(encoding="utf-8"))
        return cls(text.encode("utf-8"), _headers(digests["script"], digests["style"]))


def _digest(content: str) -> str:
    """The digest of a script or style as a content policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode()}'"


def _headers(scripts: list[str], styles: list[str]) -> dict[str, str]:
    """A policy that allows only the page's own scripts and styles, by their digests."""
    policy = (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src {' '.join(styles)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
