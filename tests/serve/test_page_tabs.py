"""Fill, Edit and Decide on the page, and what its chat offers with an answer, in a real Chromium."""

import json
from typing import Any

import pytest
from browsing import WAIT, ask, finished, ready
from serving import ServerProcess

SCHEMA = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}


def run(page: Any, tab: str) -> Any:
    """Press the button of a tab and wait for its result or error."""
    page.click(f"#{tab}-send")
    page.wait_for_selector(f"#{tab}-send:not(.stop)", timeout=WAIT)
    return page.locator(f"#{tab}-result")


def test_every_tab_begins_with_an_example_and_its_address_opens_it(page: Any) -> None:
    for tab, field in (("fill", "#fill-text"), ("edit", "#edit-text"), ("decide", "#decide-question")):
        page.click(f"#tab-{tab}")
        assert page.is_visible(field)
        assert not page.is_visible("#prompt")
        assert page.input_value(field).strip()
        assert page.url.endswith(f"#{tab}")
        page.reload()
        ready(page)
        assert page.get_attribute(f"#tab-{tab}", "aria-selected") == "true"
        assert page.is_visible(field)
    page.focus("#tab-decide")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-chat"
    assert page.is_visible("#prompt")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("/")
    page.wait_for_timeout(50)
    assert page.evaluate("document.activeElement.id") == "decide-question"


def test_fillings_stand_between_the_given_text(page: Any) -> None:
    page.click("#tab-fill")
    page.fill("#fill-text", "é𝄞 = 1\n")
    page.press("#fill-text", "End")
    page.click("#fill-hole")
    assert page.input_value("#fill-text").count("<|fill|>") == 1
    page.fill("#fill-text", "𝄞 = <|fill|>;\nport = <|fill|>\n")
    page.fill("#fill-regex", r"é𝄞\d")
    page.fill("#fill-most", "8")
    result = run(page, "fill")
    assert result.locator(".trouble").all_inner_texts() == []
    text = result.locator(".text").text_content()
    first, second = text.removeprefix("𝄞 = ").removesuffix("\n").split(";\nport = ")
    for filling in (first, second):
        assert filling[:2] == "é𝄞"
        assert len(filling) == 3
        assert filling[2:].isdigit()
    assert "".join(result.locator(".filled").all_text_contents()) == first + second
    assert "nats, settled in step" in result.locator(".filled[title]").first.get_attribute("title")
    result.locator("text=Replay").click()
    page.wait_for_selector(".filled.open")
    page.wait_for_function("() => !document.querySelector('.filled.open')", timeout=WAIT)


def test_errors_of_the_server_stand_as_they_are(page: Any) -> None:
    page.click("#tab-fill")
    page.fill("#fill-text", "no hole")
    assert run(page, "fill").inner_text() == page.evaluate(
        """async () => (await (await fetch("/v1/fill", {method: "POST", headers: {"content-type": "application/json"},
             body: JSON.stringify({model: "random", text: "no hole"})})).json()).error.message"""
    )
    page.click("#tab-decide")
    page.fill("#decide-options", "")
    assert "choices" in run(page, "decide").locator("[role=alert]").inner_text()
    page.fill("#decide-options", "yes\nno")
    assert run(page, "decide").locator(".trouble").count() == 0


def test_an_edit_sends_the_chosen_lines_and_shows_what_changed(page: Any) -> None:
    page.click("#tab-edit")
    page.fill("#edit-text", "𝄞 = 1\nb = 2\nc = 3\n")
    page.evaluate("document.getElementById('edit-text').setSelectionRange(8, 15)")
    page.wait_for_function("() => document.getElementById('edit-first').value === '2'")
    assert page.input_value("#edit-last") == "3"
    page.fill("#edit-last", "2")
    page.fill("#edit-ask", "Replace b with total.")
    with page.expect_request("**/v1/edits") as sent:
        result = run(page, "edit")
    body = sent.value.post_data_json
    assert body["text"][slice(*body["span"])] == "b = 2", "characters, not UTF-16 units"
    assert body["instruction"] == "Replace b with total."
    assert result.locator(".trouble").count() == 0
    page.fill("#edit-last", "9")
    assert run(page, "edit").inner_text() == "The lines 2 to 9 are not in the text, which has 3."


def test_lines_that_were_selected_are_forgotten_once_the_text_changes(page: Any) -> None:
    page.click("#tab-edit")
    for typed in (False, True):
        page.focus("#edit-text")
        page.evaluate("document.getElementById('edit-text').setSelectionRange(0, 0)")
        page.keyboard.press("Control+a")
        page.wait_for_function("() => document.getElementById('edit-first').value === '1'")
        if typed:
            page.fill("#edit-last", "2")
            page.evaluate("document.getElementById('edit-text').setSelectionRange(0, 0)")
            page.focus("#edit-text")
        page.keyboard.insert_text("a = 1\nb = 2\nc = 3\n")
        lines = [page.input_value(f"#edit-{end}") for end in ("first", "last")]
        assert lines == (["1", "2"] if typed else ["", ""])


def test_a_diff_shows_lines_and_words_and_leaves_out_what_is_far(page: Any) -> None:
    before = "".join(f"line {i}\n" for i in range(20)) + "total = <b>1</b>\nend\n"
    after = before.replace("total", "result").replace("line 2\n", "")
    rows = page.evaluate(
        """([before, after]) => [...drawDiff(before, after).children].map(row => [
             row.className, row.textContent, [...row.querySelectorAll("mark")].map(mark => mark.textContent).join("")
           ])""",
        [before, after],
    )
    assert [row for row in rows if row[0] != "stays"] == [
        ["gone", "\u2212line 2", "line 2"],
        ["gone", "\u2212total = <b>1</b>", "total"],
        ["come", "+result = <b>1</b>", "result"],
    ]
    stays = [text.strip() for name, text, _ in rows if name == "stays"]
    assert stays == ["line 0", "line 1", "line 3", "line 4", "line 5", "⋯", "line 17", "line 18", "line 19", "end"]
    assert page.evaluate("drawDiff('a', 'a\\n').querySelectorAll('.come').length") == 1


def test_a_decision_is_shown_as_the_probability_of_every_option(page: Any) -> None:
    page.click("#tab-decide")
    page.fill("#decide-question", "Which?")
    page.fill("#decide-options", " one \n\n<i>two</i>\nthree")
    page.press("#decide-options", "Control+Enter")
    page.wait_for_selector("#decide-result .bars", timeout=WAIT)
    bars = page.locator("#decide-result .bars li")
    assert set(bars.locator(".option").all_text_contents()) == {"one", "<i>two</i>", "three"}
    shares = [float(share.removesuffix("%")) for share in bars.locator(".share").all_text_contents()]
    assert shares == sorted(shares, reverse=True)
    assert abs(sum(shares) - 100) < 0.2
    width = bars.first.locator("i").evaluate("bar => 100 * bar.offsetWidth / bar.parentElement.offsetWidth")
    assert abs(width - shares[0]) < 1


def test_escape_stops_what_a_tab_waits_for(page: Any) -> None:
    page.route("**/v1/fill", lambda route: None)
    page.click("#tab-fill")
    page.click("#fill-send")
    page.wait_for_selector("#fill-send:has-text('Stop')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#fill-result:has-text('stopped')")
    assert page.inner_text("#fill-send") == "Fill"


def test_a_schema_constrains_answers_in_the_chat(page: Any) -> None:
    page.click("#shape summary")
    assert page.inner_text("#schema-state") == "off"
    page.fill("#schema", json.dumps(SCHEMA))
    assert page.inner_text("#schema-state") == "on"
    ask(page, "Are you sure?", 16)
    finished(page)
    assert type(json.loads(page.inner_text(".answer .text"))["sure"]) is bool
    page.fill("#schema", "{")
    ask(page, "Are you sure?", 16)
    finished(page)
    assert page.inner_text(".trouble").startswith("json_schema is not valid JSON: ")


def test_an_answer_can_be_copied_and_asked_for_again(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "Hello!", 16)
    finished(page)
    text = page.evaluate("turns[0].text")
    page.click(".answer >> text=Copy")
    page.wait_for_selector(".answer >> text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == text
    page.evaluate("document.getElementById('length').value = '7'")
    page.click(".answer >> text=Retry")
    page.wait_for_selector(".trouble:has-text('canvas_length is 7')")
    assert page.evaluate("turns[0].text") == text, "the last answer is still there"
    page.evaluate("() => { $('length').value = ''; $('seed').value = '2'; }")
    page.click(".answer >> text=Retry")
    finished(page)
    assert page.locator(".user").all_inner_texts() == ["Hello!"]
    assert "seed 2" in page.inner_text(".answer .facts")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tabs_fit_a_phone_and_every_field_has_a_name(browser: Any, server: ServerProcess, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    phone = context.new_page()
    phone.goto(server.url)
    ready(phone)
    for tab in ("fill", "edit", "decide"):
        phone.click(f"#tab-{tab}")
        run(phone, tab)
        assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert phone.locator("main").evaluate("main => main.scrollWidth <= main.clientWidth")
        names = phone.evaluate(
            """() => [...document.querySelectorAll("button, textarea, input:not([type=file])")]
                 .filter(e => e.offsetParent)
                 .map(e => e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent)"""
        )
        assert all(name and name.strip() for name in names)
    context.close()
