"""The page in a real Chromium: type, watch drafts arrive, scrub, stop, reload, traces, keys, a phone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import WAIT, ask, finished
from serving import ServerProcess, server_process

from drawn import drawn, file_of
from random_model import write_random_model
from redraft.cli.trace import read_trace
from redraft.llm import LLM


def test_drafts_arrive_and_can_be_stopped(page: Any) -> None:
    page.fill("#steps", "96")  # thousands of steps in all, so that it still writes when it is stopped
    ask(page, "Tell me everything.")
    page.wait_for_selector(".answer .tok", timeout=WAIT)
    early, steps = page.inner_text(".answer .text"), int(page.get_attribute("#scrub", "max"))
    page.wait_for_function("steps => Number(document.getElementById('scrub').max) > steps + 9", arg=steps, timeout=WAIT)
    assert page.inner_text(".answer .text") != early, "the canvas flickers"
    assert page.inner_text("#send") == "Stop"
    page.keyboard.press("Escape")
    finished(page)
    assert "stopped after" in page.inner_text(".answer .facts")
    assert page.inner_text("#where") == "what was committed"
    assert page.inner_text("#send") == "Send"


def test_a_server_that_has_gone_is_shown_and_found_again(page: Any) -> None:
    page.context.set_offline(True)
    page.fill("#prompt", "Hello!")
    page.press("#prompt", "Enter")
    page.wait_for_selector('#model[data-state="error"]:has-text("no connection")', timeout=WAIT)
    assert page.inner_text(".trouble") == "The server cannot be reached."
    assert page.input_value("#prompt") == "Hello!"
    page.context.set_offline(False)
    page.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
    ask(page, "Hello!", 16)
    finished(page)
    assert "tok/s" in page.inner_text(".answer .facts")


def test_a_server_that_ends_during_an_answer(browser: Any, folder: Path) -> None:
    context = browser.new_context()
    opened = context.new_page()
    with server_process(folder) as server:
        opened.goto(server.url)
        opened.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
        opened.fill("#steps", "96")
        ask(opened, "Hello!")
        opened.wait_for_selector(".answer .tok", timeout=WAIT)
        server.process.kill()
        finished(opened)
    assert opened.inner_text(".trouble") == "The connection ended before the answer did."
    assert opened.inner_text("#where") == "what was committed"
    opened.evaluate("() => { turns[0].text = ''; selected = -1; draw(); }")
    assert opened.inner_text(".answer .text") == "(nothing was committed)"
    context.close()


def test_a_server_that_cannot_yet_name_its_model_is_asked_again(browser: Any, server: ServerProcess) -> None:
    context = browser.new_context()
    opened = context.new_page()
    opened.route("**/v1/models", lambda route: route.fulfill(status=503, json={"error": {"message": "Not yet."}}))
    opened.goto(server.url)
    opened.wait_for_selector("#model:has-text('Not yet.')", timeout=WAIT)
    opened.unroute("**/v1/models")
    opened.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
    context.close()


def test_the_timeline_goes_back_to_every_step(page: Any) -> None:
    ask(page, "Hello!", 48)
    finished(page)
    final = page.inner_text(".answer .text")
    assert "tok/s" in page.inner_text(".answer .facts")
    assert "tok/s" in page.inner_text("#preset-speed")
    assert page.inner_text("#where") == "the finished answer"
    page.focus("#scrub")
    page.keyboard.press("Home")
    assert page.inner_text("#where").startswith("canvas 1 · step 1 ·")
    assert page.locator(".answer .tok").count() > 0
    assert page.inner_text(".answer .text") != final
    page.keyboard.press("End")
    assert page.inner_text(".answer .text") == final
    page.click("#play")
    page.wait_for_selector(".answer .tok")
    page.wait_for_selector('#play[aria-label="Play the steps"]', timeout=WAIT)
    assert page.inner_text(".answer .text") == final


def test_a_reload_keeps_conversation_and_steps(page: Any) -> None:
    ask(page, "Hello!", 32)
    finished(page)
    page.fill("#steps", "7")
    before = page.inner_text("#talk")
    page.reload()
    page.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
    assert page.inner_text("#talk") == before
    assert page.inner_text("#steps-name") == "7"
    page.focus("#scrub")
    page.keyboard.press("Home")
    assert page.inner_text("#where").startswith("canvas 1 · step 1 ·")
    ask(page, "And again?", 16)
    finished(page)
    assert page.locator(".answer").count() == 2
    page.click("#new")
    assert page.locator(".answer").count() == 0


def test_traces_go_out_and_come_back(page: Any, tmp_path: Path, llm: LLM) -> None:
    ask(page, "Hello!", 32)
    finished(page)
    text = page.inner_text(".answer .text")
    with page.expect_download() as download:
        page.click("text=Save trace")
    file = tmp_path / "saved.jsonl"
    download.value.save_as(file)
    trace = read_trace(file)
    assert [type(record).__name__ for record in trace.turns[0].records].count("Commit") == 2
    page.click("#new")
    drop(page, file)
    page.wait_for_selector('.answer:has-text("replay of saved.jsonl")')
    page.focus("#scrub")
    page.keyboard.press("End")
    assert page.inner_text(".answer .text") == text
    bad = tmp_path / "bad.jsonl"
    bad.write_text("no json\n")
    drop(page, bad)
    page.wait_for_selector('.trouble:has-text("Line 1 of bad.jsonl is not JSON")')
    header, commit = '{"type": "header", "version": 1}', '{"type": "commit"}'
    for line in ("null", '{"type": "denoise", "argmax_canvas": [5, 6]}', commit):
        bad.write_text(f"{header}\n{line}\n")
        drop(page, bad)
        page.wait_for_selector('.trouble:has-text("Line 2 of bad.jsonl is not a whole record")')
        page.click("#new")


def drop(page: Any, file: Path) -> None:
    """Drag a file from the desktop and drop it on the page."""
    data = page.evaluate_handle(
        "([text, name]) => { const data = new DataTransfer(); data.items.add(new File([text], name)); return data; }",
        [file.read_text(encoding="utf-8"), file.name],
    )
    page.dispatch_event("body", "dragenter", {"dataTransfer": data})
    assert "dropping" in page.get_attribute("body", "class")
    page.dispatch_event("body", "drop", {"dataTransfer": data})


def test_errors_are_said_and_nothing_is_lost(page: Any) -> None:
    page.evaluate("() => { document.getElementById('length').value = '7'; }")
    ask(page, "Hello!")
    page.wait_for_selector('.trouble:has-text("canvas_length is 7")')
    finished(page)
    assert page.locator(".answer").count() == 0
    page.evaluate("() => { document.getElementById('length').value = ''; }")
    ask(page, "Hello!", 16)
    finished(page)
    assert page.locator(".trouble").count() == 0
    assert page.locator(".answer").count() == 1


def test_the_view_stays_at_the_end_while_an_answer_settles(page: Any) -> None:
    page.fill("#steps", "96")
    page.set_viewport_size({"width": 400, "height": 700})
    page.evaluate("document.getElementById('length').value = '128'")  # a draft much longer than the empty answer
    ask(page, "word " * 200)
    _wait_for_steps(page, 3)
    below = "main => main.scrollHeight - main.scrollTop - main.clientHeight"
    page.wait_for_function(f"() => ({below})(document.getElementById('main')) < 2", timeout=WAIT)
    page.hover("main")
    for _ in range(10):
        page.mouse.wheel(0, -100)
        page.wait_for_timeout(50)
    _wait_for_steps(page, int(page.get_attribute("#scrub", "max")) + 3)
    assert page.locator("main").evaluate(below) > 300, "whoever reads further up is left there"
    page.keyboard.press("Escape")
    finished(page)


def _wait_for_steps(page: Any, least: int) -> None:
    page.wait_for_function("least => document.getElementById('scrub').max >= least", arg=least, timeout=WAIT)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(browser: Any, server: ServerProcess, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    phone = context.new_page()
    phone.goto(server.url)
    phone.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
    ask(phone, "A rather long message, so that it has to wrap on a phone.", 32)
    finished(phone)
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert phone.locator("#model").evaluate("name => name.scrollWidth <= name.clientWidth"), "the name is cut off"
    phone.click("summary:has-text('Settings')")
    for name in ("#prompt", "#send", "#preset", "#steps", "#scrub", "#play"):
        box = phone.locator(name).bounding_box()
        assert box["x"] >= 0, name
        assert box["x"] + box["width"] <= 360, name
        assert box["y"] + box["height"] <= 740, name
    background = phone.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == (scheme == "dark")
    context.close()


def test_no_long_word_widens_the_conversation(page: Any, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 400, "height": 700})
    word = "x" * 200
    step = {"canvas_index": 0, "step": 0, "canvas": [5], "argmax_canvas": [5], "accepted": [True], "entropy": [0.0]}
    records = [
        {"type": "header", "version": 1, "prompt": word},
        {"type": "denoise", "temperature": 0.5, "converged": True, **step},
        {"type": "commit", "canvas_index": 0, "text": word, "token_ids": [5]},
    ]
    (tmp_path / f"{word}.jsonl").write_text("\n".join(map(json.dumps, records)))
    page.set_input_files("#file", tmp_path / f"{word}.jsonl")
    page.wait_for_selector(".answer .facts:has-text('replay of')", timeout=WAIT)
    page.evaluate("word => { turns[0].reasoning = word; trouble(word); }", word)
    page.click(".thought summary")
    assert page.locator("main").evaluate("main => main.scrollWidth - main.clientWidth") == 0


def test_thoughts_that_were_opened_stay_open(page: Any) -> None:
    ask(page, "Hello!", 16)
    finished(page)
    page.evaluate("() => { turns[0].reasoning = 'Hm.'; draw(); }")
    assert not page.is_visible(".thought div")
    for opened in (True, False):
        page.click(".thought summary")
        ask(page, "And now?", 16)
        finished(page)
        assert page.is_visible(".thought div") == opened


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(page: Any) -> None:
    names = page.evaluate(
        """() => [...document.querySelectorAll("button, textarea, input:not([type=file])")].filter(e => e.offsetParent)
             .map(e => e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent)"""
    )
    assert all(name and name.strip() for name in names)
    seen = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id"))
    assert {"prompt", "send", "preset", "steps", "open", "theme", "new"} <= seen


@pytest.mark.parametrize("typed", [["sesame"], ["the key → sesame", "sesame"]], ids=["right", "no header holds it"])
def test_a_key_is_asked_for_until_it_is_right(browser: Any, folder: Path, typed: list[str]) -> None:
    with server_process(folder, environment={"REDRAFT_API_KEYS": "sesame"}) as guarded:
        page = browser.new_page()
        page.goto(guarded.url)
        for key in typed:
            page.wait_for_selector("#ask[open]", timeout=WAIT)
            page.fill("#key", key)
            page.press("#key", "Enter")
        page.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
        page.close()


@pytest.mark.parametrize(("field", "text", "named"), [("seed", "x7", "seed"), ("max", "8 tokens", "max_tokens")])
def test_what_is_no_number_is_refused_and_not_left_out(page: Any, field: str, text: str, named: str) -> None:
    page.evaluate("([id, text]) => { document.getElementById(id).value = text; }", [field, text])
    page.fill("#prompt", "Hello!")
    page.press("#prompt", "Enter")
    page.wait_for_selector(f'.trouble:has-text("{named}: Input should be a valid integer")')


def test_a_question_that_was_refused_can_be_sent_again(page: Any) -> None:
    page.evaluate("() => { document.getElementById('length').value = '7'; }")
    ask(page, "A question of many words.")
    page.wait_for_selector(".trouble")
    finished(page)
    assert page.input_value("#prompt") == "A question of many words."
    page.evaluate("() => { document.getElementById('length').value = ''; }")
    page.press("#prompt", "Enter")
    finished(page)
    assert page.inner_text(".user") == "A question of many words."
    assert page.input_value("#prompt") == ""


def test_a_reload_while_an_answer_is_written_stops_it(page: Any) -> None:
    page.fill("#steps", "96")
    ask(page, "Tell me everything.")
    page.wait_for_selector(".answer .tok", timeout=WAIT)
    page.reload()
    page.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
    assert page.inner_text(".user") == "Tell me everything."
    assert "stopped after" in page.inner_text(".answer .facts")
    page.focus("#scrub")
    page.keyboard.press("Home")
    assert page.inner_text("#where").startswith("canvas 1 · step 1 ·")


def test_a_speed_stands_with_the_dials_that_were_asked_with(page: Any) -> None:
    page.fill("#preset", "0")
    ask(page, "Hello!", 200)
    page.fill("#preset", "2")
    finished(page)
    assert page.inner_text("#preset-speed").count("tok/s") == 1
    assert "tok/s" in page.inner_text("#preset-speed span:first-child")
    page.fill("#steps", "3")
    ask(page, "Hello!", 16)
    finished(page)
    assert page.inner_text("#preset-speed").count("tok/s") == 1, "three steps are no preset"
    assert "measured at 3 steps" in page.inner_text("#steps-speed")


def test_a_tab_keeps_its_own_conversation_and_a_new_one_begins_with_the_latest(page: Any) -> None:
    ask(page, "The first tab's question", 16)
    finished(page)
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
    assert other.inner_text(".user") == "The first tab's question"
    other.click("#new")
    ask(other, "The second tab's question", 16)
    finished(other)
    page.reload()
    assert page.inner_text(".user") == "The first tab's question"
    assert page.locator("#timeline").is_visible(), "the steps are still those of its answer"
    page.click("#new")
    other.reload()
    assert other.inner_text(".user") == "The second tab's question"
    page.reload()
    assert page.locator(".user").count() == 0


def test_keys_work_with_shift_and_behind_a_checkbox(page: Any) -> None:
    page.fill("#steps", "16")
    ask(page, "Hello!", 48)
    finished(page)
    page.focus("#scrub")
    page.keyboard.press("Shift+P")
    assert page.get_attribute("#play", "aria-label") == "Pause"
    page.click("summary:has-text('Settings')")
    page.focus("#thinking")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "prompt"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose model sees images."""
    folder = write_random_model(tmp_path_factory.mktemp("sees"), canvas=16, context=4096, sees=True)
    with server_process(folder, "--name", "sees") as running:
        yield running


def test_images_are_shown_with_a_message_and_stay_in_the_conversation(
    browser: Any, seeing: ServerProcess, tmp_path: Path
) -> None:
    for seed, (height, width) in enumerate(((60, 100), (1200, 4000))):
        (tmp_path / f"{seed}.png").write_bytes(file_of(drawn(seed, height, width)))
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    page, asked, trouble = context.new_page(), list[dict[str, Any]](), list[str]()
    page.on("request", lambda request: asked.append(request.post_data_json) if "drafts" in request.url else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(seeing.url)
    page.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
    assert page.is_visible("#clip")
    page.set_input_files("#pick", [tmp_path / "0.png", tmp_path / "1.png"])
    page.wait_for_selector("#shown button:nth-child(2)")
    page.click("#shown button:nth-child(1)")
    assert page.locator("#shown img").count() == 1, "the first was taken away"
    ask(page, "What is this?", 16)
    finished(page)
    image, words = asked[0]["messages"][-1]["content"]
    assert image["image_url"]["url"].startswith("data:image/jpeg;base64,"), "it was scaled"
    assert page.evaluate("document.querySelector('.user img').naturalWidth") == 1536
    assert words == {"type": "text", "text": "What is this?"}
    assert page.locator("#shown img").count() == 0
    page.reload()
    page.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
    ask(page, "And now?", 16)
    finished(page)
    assert asked[1]["messages"][0]["content"] == [image, words]
    assert page.locator(".trouble").count() == 0
    (tmp_path / "no.png").write_bytes(b"no image")
    page.set_input_files("#pick", tmp_path / "no.png")
    page.wait_for_selector('.trouble:has-text("no.png is not an image that can be read")')
    context.close()
    assert trouble == []


@pytest.mark.parametrize("thinks", [False, True])
def test_thinking_is_offered_where_the_model_can(page: Any, thinks: bool) -> None:
    def told(route: Any) -> None:
        found = route.fetch().json()
        found["data"][0]["thinking"] |= thinks
        route.fulfill(json=found)

    page.route("**/v1/models", told)
    page.reload()
    page.wait_for_selector('#model[data-state="ready"]', timeout=WAIT)
    page.click("details.more summary")
    assert page.is_visible("#seed")
    assert page.is_visible("#thinking") == thinks


def test_a_model_without_eyes_offers_no_images(page: Any) -> None:
    assert not page.is_visible("#clip")
