"""`/v1/fill`, `/v1/edits` and `/v1/decisions` on a real server; what is given comes back byte for byte."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import CHAT, ScriptedEngine, scripted_server, server_process, until

from redraft.engine.async_engine import AsyncEngine
from redraft.engine.settings import EngineSettings
from redraft.llm import LLM

JSON = {"content-type": "application/json"}


def test_fill_between_two_texts_and_at_every_mark(http: httpx.Client) -> None:
    two = {"model": "random", "prefix": "a = 1\r\n", "suffix": "\nprint(a) 🙂", "max_tokens": 6, "seed": 3}
    answer = http.post("/v1/fill", json=two).json()
    assert answer["full_text"] == two["prefix"] + answer["text"] + two["suffix"]
    assert http.post("/v1/fill", json=two).json()["text"] == answer["text"]
    marks = http.post(
        "/v1/fill", json={"model": "random", "text": "x = <|fill|>\ny = <|fill|>\n", "max_tokens": 4}
    ).json()
    assert len(marks["fillings"]) == 2
    assert marks["full_text"].startswith("x = ")


def test_edit_changes_the_span_alone(http: httpx.Client) -> None:
    text = "The quick brown fox.\nIt jumps.\n"
    body = {
        "model": "random",
        "text": text,
        "span": [4, 9],
        "instruction": "make it slow",
        "seed": 1,
        "canvas_length": 64,
    }
    answer = http.post("/v1/edits", json=body).json()
    assert "full_text" in answer, answer
    assert answer["full_text"] == text[:4] + answer["text"] + text[9:]
    assert answer["old"] == "quick"
    proposed = {"model": "random", "text": "fooo = fooo\n", "cursor": 0, "recent": [{"old": "foo", "new": "fooo"}]}
    assert "edit" in http.post("/v1/edits/next", json=proposed).json()


def test_what_a_filling_must_be(http: httpx.Client) -> None:
    body = {"model": "random", "prefix": "x = ", "suffix": "\n", "max_tokens": 8, "steps": 2}
    filled = http.post("/v1/fill", json=body | {"regex": "[0-9]{3}"}).json()
    assert len(filled["text"]) == 3
    assert int(filled["text"]) >= 0
    token = filled["fillings"][0]["tokens"][0]
    assert {"start", "end", "entropy", "settled_step"} <= token.keys()
    edit = {"model": "random", "text": "x = 17\n", "span": [4, 6], "choices": ["18", "19"], "steps": 2}
    edited = http.post("/v1/edits", json=edit).json()
    assert edited["text"] in ("18", "19")
    assert edited["tokens"][0].keys() == token.keys()
    neutral = {"n": 1, "echo": False}
    completion = {"model": "random", "prompt": "x = ", "suffix": "\n", "choices": ["18", "19"]}
    choice = http.post("/v1/completions", json=completion | neutral).json()["choices"][0]
    assert choice["text"] in ("18", "19")


def test_a_newline_stops_a_filling_whatever_the_line_ends_are(http: httpx.Client) -> None:
    body = {"model": "random", "max_tokens": 8, "steps": 2, "regex": "7\nx", "stop": ["\n"]}
    for end in ("\n", "\r\n", "\r"):
        sides = {"prompt": f"a{end}x = ", "suffix": f"{end}b"}
        assert http.post("/v1/completions", json=body | sides).json()["choices"][0]["text"] == "7"


def test_decide_one_and_several(http: httpx.Client) -> None:
    body = {"model": "random", "question": "Is water wet?", "choices": ["yes", "no"]}
    answer = http.post("/v1/decisions", json=body).json()
    assert answer["readings"][0]["choice"] in ("yes", "no")
    assert sum(answer["readings"][0]["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    several = http.post("/v1/decisions", json=body | {"question": ["Is it?", "Was it?"]}).json()
    assert len(several["decisions"]) == 2


# Eleven holes, whose every step is taken: minutes of work.
SLOW = {"text": "a<|fill|>" * 11 + "b", "steps": 10_000, "max_tokens": 12, "entropy_bound": 1e-9,
        "confidence_threshold": 1e-9, "stability_threshold": 10_000, "model": "random"}  # fmt: skip
SLOW_COMPLETION = {name: SLOW[name] for name in SLOW if name != "text"} | {"prompt": "a", "suffix": "b"}


def test_a_filling_whose_client_leaves_makes_room_for_others(http: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/fill", json=SLOW, timeout=1)
    fast = {"model": "random", "prefix": "a", "suffix": "b", "max_tokens": 2, "steps": 1}
    assert http.post("/v1/fill", json=fast).status_code == 200


@pytest.mark.parametrize(("path", "body"), [("/v1/fill", SLOW), ("/v1/completions", SLOW_COMPLETION)])
def test_a_filling_takes_no_longer_than_a_request_may(folder: Path, path: str, body: dict[str, object]) -> None:
    with server_process(folder, "--name", "random", "--timeout", "1") as server:
        answer = httpx.post(server.url + path, json=body)
    assert answer.status_code == 408, answer.text
    assert answer.json()["error"]["message"] == "The answer was not finished within 1 seconds."


def test_a_filling_that_is_open_when_the_grace_ends_is_told_so(folder: Path) -> None:
    sent = threading.Event()
    watched = {"trace": lambda name, info: sent.set() if name == "http11.send_request_body.complete" else None}
    with (
        server_process(folder, "--name", "random", "--grace", "1") as server,
        ThreadPoolExecutor(1) as pool,
        httpx.Client(timeout=120) as http,
    ):
        filling = pool.submit(http.post, f"{server.url}/v1/fill", json=SLOW, extensions=watched)
        assert sent.wait(120)
        time.sleep(1)
        assert server.stop() == 0
    assert filling.result().status_code == 503
    assert filling.result().json()["error"]["code"] == "shutting_down"


WORDS = "word " * 300


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/fill", {"prefix": WORDS, "suffix": "b"}, None),
        ("/v1/fill", {"text": f"a<|fill|>{WORDS}"}, "text"),
        ("/v1/edits", {"text": WORDS, "span": [0, 4]}, "text"),
        ("/v1/edits", {"text": "a b", "span": [0, 1], "instruction": WORDS}, None),
        ("/v1/edits/next", {"text": WORDS, "cursor": 0}, "text"),
        ("/v1/edits/next", {"text": "a b", "cursor": 0, "recent": [{"old": "a", "new": WORDS}]}, None),
        ("/v1/decisions", {"question": WORDS, "choices": ["a", "b"]}, "question"),
        ("/v1/decisions", {"question": ["Is it?", WORDS], "choices": ["a", "b"]}, "question[1]"),
        ("/v1/decisions", {"question": "Is it?", "choices": ["a", WORDS]}, "question"),
        ("/v1/decisions", {"messages": [{"role": "user", "content": WORDS}], "choices": ["a", "b"]}, "messages"),
        ("/v1/completions", {"prompt": WORDS, "suffix": "b"}, None),
    ],
)
def test_texts_and_questions_are_no_longer_than_a_prompt_may_be(
    llm: LLM, path: str, body: dict[str, object], param: str | None
) -> None:
    with scripted_server(llm, ScriptedEngine(llm, lambda request: []), max_prompt=40) as url:
        answer = httpx.post(url + path, json={"model": "other"} | body, timeout=60)
    assert answer.status_code == 400, answer.text
    assert "this server takes at most 40." in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == param


@contextlib.contextmanager
def server_that_fills(llm: LLM) -> Iterator[tuple[str, Callable[[], object]]]:
    """A server in the midst of a filling, its address, and what ends that."""
    engine = AsyncEngine(llm.new_engine(EngineSettings()))
    begun, held = threading.Event(), threading.Event()

    def fill() -> None:
        begun.set()
        held.wait(120)

    with scripted_server(llm, engine) as url, ThreadPoolExecutor(1) as pool:
        filling = pool.submit(asyncio.run, engine.run(fill))
        try:
            assert begun.wait(120)
            yield url, lambda: (held.set(), filling.result())
            assert engine.stats().running == 0
        finally:
            held.set()
    asyncio.run(engine.close(drain=False))


def test_a_request_behind_a_long_filling_hears_when_its_time_is_over(llm: LLM) -> None:
    body = CHAT | {"model": "scripted", "timeout": 0.25}
    with server_that_fills(llm) as (url, end):
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        assert answer.status_code == 408
        assert answer.json()["error"]["message"] == "The answer was not finished within 0.25 seconds."
        end()
        assert httpx.post(f"{url}/v1/chat/completions", json=body | {"timeout": 60}, timeout=60).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_behind_a_long_filling_leaves_its_place(llm: LLM, stream: bool) -> None:
    with server_that_fills(llm) as (url, end):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/chat/completions", json=CHAT | {"model": "scripted", "stream": stream}, timeout=0.5)
        left = 'redraft_requests_total{endpoint="/v1/chat/completions",status="499"} 1.0'
        until(lambda: left in httpx.get(f"{url}/metrics").text)
        end()


@pytest.mark.parametrize(
    ("path", "body", "said", "param"),
    [
        ("/v1/fill", {"text": "no hole"}, "hole", "text"),
        ("/v1/fill", {"prefix": "a"}, "give either prefix and suffix, or text", None),
        ("/v1/fill", {"text": "a<|fill|>" * 129}, "text: has 129 holes; at most 128 are allowed.", "text"),
        ("/v1/fill", {"text": "a<|fill|>" * 128, "seed": -1}, "seed: Input should be", "seed"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "stop": ["x"]}, "Unknown field 'stop'", "stop"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "pins": {"0": "x"}}, "use text_pins", "pins"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "text_pins": {"0": "x", "00": "y"}}, "text_pins.00: String should",
         "text_pins.00"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "regex": "("}, "unbalanced parenthesis", "regex"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "json_schema": "{"}, "is not valid JSON", "json_schema"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "json_object": True, "regex": "a"}, "give one of them", "regex"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "regex": "a{99}", "max_tokens": 2}, "shortest text", "regex"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "max_tokens": 400}, "may have 1 to 15 tokens", "max_tokens"),
        ("/v1/completions", {"prompt": "a", "suffix": "b", "logprobs": 0}, "suffix and logprobs cannot be combined",
         "logprobs"),
        ("/v1/edits/next", {"text": "abc", "cursor": 9}, "has 3 characters", "cursor"),
        ("/v1/edits", {"text": "abc", "span": [2, 9], "instruction": "x"}, "span", "span"),
        ("/v1/edits", {"text": "abc", "span": [0, 1], "instruction": " "}, "The instruction is empty",
         "instruction"),
        ("/v1/decisions", {"choices": ["a", "b"]}, "give either question or messages", None),
        ("/v1/decisions", {"question": "q", "choices": []}, "choices", "choices"),
        ("/v1/decisions", {"question": "\ud800", "choices": ["a", "b"]}, "question holds a character", "question"),
        ("/v1/decisions", {"question": ["q", "\ud800"], "choices": ["a", "b"]}, "question[1] holds", "question[1]"),
        ("/v1/decisions", {"question": "q", "choices": ["\ud800", "a"]}, "choices[0] holds", "choices[0]"),
        ("/v1/decisions", {"question": "q", "choices": {"a": ["b", "\ud800"]}}, "choices.a[1] holds", "choices.a[1]"),
        ("/v1/decisions", {"question": "q", "choices": {"a": ["b", "c"]}, "template": "\ud800{a}"},
         "template holds a character that UTF-8 cannot express at index 0", "template"),
        ("/v1/edits", {"text": "abc", "span": [0, 1], "instruction": "\ud800"}, "instruction holds", "instruction"),
        ("/v1/edits", {"text": "a\ud800", "span": [0, 1], "instruction": "x"}, "text holds", "text"),
        ("/v1/edits/next", {"text": "abc", "cursor": 1, "recent": [{"old": "\ud800", "new": "a"}]},
         "recent[0].old holds a character that UTF-8 cannot express at index 0", "recent[0].old"),
        ("/v1/fill", {"prefix": "a", "suffix": "\ud800"}, "suffix holds", "suffix"),
        ("/v1/completions", {"prompt": "a", "suffix": "\ud800"}, "suffix holds", "suffix"),
        ("/v1/decisions", {"question": ["q", ""], "choices": ["a", "b"]}, "empty", "question[1]"),
        ("/v1/decisions", {"question": "q", "choices": {"a b": ["c", "d"]}}, "the slot 'a b'", "choices"),
    ],
)  # fmt: skip
def test_bad_requests_are_400(
    http: httpx.Client, path: str, body: dict[str, object], said: str, param: str | None
) -> None:
    answer = http.post(path, content=json.dumps({"model": "random"} | body), headers=JSON)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == param


LONG = "word " * 5000


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/decisions", {"question": LONG, "choices": ["a", "b"]}, "question"),
        ("/v1/decisions", {"question": ["q", LONG], "choices": ["a", "b"]}, "question[1]"),
        ("/v1/decisions", {"messages": [{"role": "user", "content": LONG}], "choices": ["a", "b"]}, "messages"),
        ("/v1/edits", {"text": "abc", "span": [0, 1], "instruction": LONG}, None),
    ],
)
def test_what_is_too_long_has_the_code_that_says_so(
    http: httpx.Client, path: str, body: dict[str, object], param: str | None
) -> None:
    error = http.post(path, json={"model": "random"} | body).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param), error
