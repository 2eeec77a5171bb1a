"""Fillings and edits on the page while they are made: drafts in their places, stops, failures, reloads."""

import json
from typing import Any

import pytest
from browsing import WAIT, ready
from serving import ServerProcess, until

SEEN = """tab => {
  window.seen = [];
  const draw = drawPieces;
  drawPieces = (box, ...more) => {
    draw(box, ...more);
    seen.push([$(`${tab}-result`).querySelector(".text").textContent, box.textContent]);
  };
}"""
UNENDING = """() => { settled = async (answer, take) => {
  for await (const told of events(answer)) take(...told);
  return new Promise(() => {});
}; }"""
STEP = {
    "type": "denoise", "request_id": 0, "canvas_index": 0, "step": 0, "canvas": [1, 2], "argmax_canvas": [1, 2],
    "accepted": [True, False], "entropy": [0.0, 2.6], "temperature": 0.8, "converged": False, "pieces": ["a", "\n"],
}  # fmt: skip


def pressed(page: Any, tab: str) -> None:
    page.click(f"#{tab}-send")
    page.wait_for_selector(f"#{tab}-send:not(.stop)", timeout=WAIT)


def event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def test_drafts_of_fillings_stand_between_the_given_text(page: Any) -> None:
    page.click("#tab-fill")
    page.fill("#fill-text", "𝄞 = <|fill|>;\nport = <|fill|>\n")
    page.fill("#fill-most", "8")
    page.evaluate(SEEN, "fill")
    pressed(page, "fill")
    seen = page.evaluate("seen")
    assert len(seen) > 1
    for text, draft in seen:
        assert text.startswith("𝄞 = ")
        assert ";\nport = " in text
        assert text.endswith("\n")
        assert draft in text
    result = page.locator("#fill-result")
    assert result.locator(".place").count() == 0
    first = result.locator(".text").text_content().removeprefix("𝄞 = ").partition(";\nport = ")[0]
    assert seen[-1][0].startswith(f"𝄞 = {first};\nport = "), "the text that was chosen, not the last draft"


def test_drafts_of_an_edit_stand_between_the_lines_around_it(page: Any) -> None:
    page.click("#tab-edit")
    page.fill("#edit-text", "".join(f"𝄞{letter}\n" for letter in "abcdefghijk"))
    page.fill("#edit-first", "6")
    page.fill("#edit-last", "6")
    page.evaluate(SEEN, "edit")
    pressed(page, "edit")
    seen = page.evaluate("seen")
    assert seen
    for text, draft in seen:
        assert text == f"⋯\n𝄞c\n𝄞d\n𝄞e\n{draft}\n𝄞g\n𝄞h\n𝄞i\n⋯"
    page.fill("#edit-last", "11")
    page.evaluate("seen.length = 0")
    pressed(page, "edit")
    texts = [text for text, _ in page.evaluate("seen")]
    assert texts
    assert all(text.startswith("⋯\n𝄞c\n𝄞d\n𝄞e\n") for text in texts)
    assert "\n⋯\n" in texts[0], "the parts that are still to come"
    assert "\n⋯\n" not in texts[-1][2:]


def test_a_draft_has_the_colours_of_the_chat(page: Any) -> None:
    page.click("#tab-fill")
    page.fill("#fill-text", "x = <|fill|>, <|fill|>")
    body = event("start", {"canvases": 2}) + event("denoise", STEP)
    page.route("**/v1/fill", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.evaluate(UNENDING)
    page.click("#fill-send")
    page.wait_for_selector("#fill-result .place .tok")
    place = page.locator("#fill-result .place").first
    assert place.locator(".tok").all_text_contents() == ["a", "↵"]
    assert "u5" in place.locator(".tok").nth(1).get_attribute("class")
    assert "u5" not in place.locator(".tok").nth(0).get_attribute("class")
    page.wait_for_selector("#fill-result .facts:has-text('hole 1 of 2 · step 1 · 1 of 2 settled')")
    assert page.locator("#fill-result .place:empty").count() == 1


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (event("error", {"error": {"message": "It failed."}}), "It failed."),
        ("", "The connection ended before the answer did."),
    ],
)
def test_a_stream_that_fails_says_so(page: Any, end: str, said: str) -> None:
    page.click("#tab-edit")
    body = event("start", {"canvases": 1}) + event("denoise", STEP) + end
    page.route("**/v1/edits", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    pressed(page, "edit")
    assert page.inner_text("#edit-result") == said


def test_a_filling_that_is_stopped_ends_on_the_server(page: Any, server: ServerProcess) -> None:
    page.click("#tab-fill")
    page.fill("#fill-text", "a<|fill|>" * 100)
    page.click("#fill-send")
    page.wait_for_selector("#fill-result .place .tok", timeout=WAIT)
    before = server.metric("redraft_cancelled_total")
    page.keyboard.press("Escape")
    page.wait_for_selector("#fill-result:has-text('stopped')")
    until(lambda: server.metric("redraft_cancelled_total") == before + 1)


def test_what_was_typed_survives_a_reload(page: Any) -> None:
    typed = {"fill-text": "x = <|fill|>\n", "fill-most": "3", "edit-text": "a\nb\n", "edit-ask": "", "edit-last": "1",
             "decide-question": "Is it?", "decide-options": "yes\nno"}  # fmt: skip
    for field, text in typed.items():
        page.click(f"#tab-{field.partition('-')[0]}")
        page.fill(f"#{field}", text)
    page.check("#decide-calibrate")
    page.reload()
    ready(page)
    assert {field: page.input_value(f"#{field}") for field in typed} == typed
    assert page.is_checked("#decide-calibrate")
    page.click("#decide-ideas button >> nth=0")
    page.reload()
    ready(page)
    assert page.input_value("#decide-question") == "What is the capital of France?"
