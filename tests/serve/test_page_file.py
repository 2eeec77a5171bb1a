"""The file of the page: everything is in it, and its policy allows exactly that."""

import base64
import hashlib
import re

from redraft.serve.page import Page


def test_the_policy_names_every_script_and_style_of_the_page() -> None:
    page = Page.read()
    text, policy = page.body.decode(), page.headers["Content-Security-Policy"]
    for tag in ("script", "style"):
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents]
        assert len(contents) > 1
        assert f"{tag}-src " + " ".join(f"'sha256-{digest}'" for digest in digests) + ";" in policy


def test_the_page_names_no_other_file() -> None:
    text = Page.read().body.decode()
    assert re.findall(r"<script[^>]+>|<link(?! rel=\"icon\")[^>]*>|@import|url\(", text) == []
    assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b", text), "text stays text"
