"""A real Chromium for tests of the page, and what they all do with it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

WAIT = 60_000


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; without one, or without `playwright`, the test is skipped."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield made
        made.close()


@contextmanager
def opened_page(browser: Any, url: str) -> Iterator[Any]:
    """The page, ready; in the end it must have stayed within its server and without errors."""
    context = browser.new_context(viewport={"width": 1100, "height": 800}, accept_downloads=True)
    opened, trouble = context.new_page(), []
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    opened.on("console", lambda message: trouble.append(message.text) if _is_trouble(message) else None)
    opened.on("request", lambda request: _inside(request.url, url, trouble))
    opened.goto(url)
    ready(opened)
    yield opened
    context.close()
    assert trouble == []


def _is_trouble(message: Any) -> bool:
    """Chromium reports every status above 399 on its console; the page shows those itself."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def _inside(url: str, home: str, trouble: list[str]) -> None:
    if not url.startswith((home, "data:", "blob:")):
        trouble.append(f"outside request to {url}")


def ready(page: Any) -> None:
    page.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)


def ask(page: Any, text: str, max_tokens: int | None = None) -> None:
    """Send a message with a seed, for the random model may by chance end an answer at any token."""
    for field, value in {"seed": "1", "max": "" if max_tokens is None else str(max_tokens)}.items():
        page.evaluate("([id, text]) => { document.getElementById(id).value = text; }", [field, value])
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def finished(page: Any) -> None:
    page.wait_for_selector('body[data-writing="no"]', timeout=WAIT)
