"""Streamed fillings and edits: drafts as they settle, errors before and after the first of them, clients that leave."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import ServerProcess, server_process, until
from test_two_sided import SLOW, server_that_fills

from redraft.llm import LLM
from redraft.serve.answers import MOST_UNREAD
from redraft.serve.faults import fault_of
from redraft.serve.two_sided_drafts import Drafting, Report

FILL = {"model": "random", "text": "x = retu<|fill|>\r\ny = <|fill|>\r\n", "max_tokens": 4, "steps": 3, "seed": 3}
LINES = "".join(f"value_{i} = {i}\n" for i in range(8))
EDIT = {
    "model": "random",
    "text": f"a\n{LINES}b\n",
    "span": [2, 2 + len(LINES)],
    "instruction": "Change it",
    "steps": 2,
}


def events(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    lines = answer.iter_lines()
    for line in lines:
        if line.startswith("event: "):
            data = next(lines)
            yield line.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def streamed(http: httpx.Client, path: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    with http.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(events(answer))


@pytest.mark.parametrize(("path", "body"), [("/v1/fill", FILL), ("/v1/edits", EDIT)])
def test_drafts_come_before_what_an_answer_at_once_holds(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    told = streamed(http, path, body)
    (first, start), (last, done) = told[0], told[-1]
    assert (first, last) == ("start", "done")
    once = http.post(path, json=body | {"stream": False}).json()
    assert done | {"seconds": 0} == once | {"seconds": 0}
    commits = [data for name, data in told if name == "commit"]
    assert [commit["canvas_index"] for commit in commits] == list(range(start["canvases"]))
    assert start["canvases"] > 1
    assert "".join(commit["text"] for commit in commits) == done["text"]
    steps = [data for name, data in told if name == "denoise"]
    assert {step["canvas_index"] for step in steps} == set(range(start["canvases"]))
    for step in steps:
        lists = (step[name] for name in ("canvas", "argmax_canvas", "accepted", "entropy", "pieces"))
        assert {len(values) for values in lists} == {len(step["pieces"])}
    order = [data["canvas_index"] for name, data in told if name in ("denoise", "commit")]
    assert order == sorted(order)


def test_one_draft_of_every_filling_is_seen_to_its_end(http: httpx.Client) -> None:
    told = streamed(http, "/v1/fill", FILL)
    for number in range(2):
        steps = [data for name, data in told if name == "denoise" and data["canvas_index"] == number]
        assert any(step["converged"] or step["step"] == FILL["steps"] - 1 for step in steps)
        likeliest = [step["step"] for step in steps if step["request_id"] == 0]
        assert likeliest == list(range(len(likeliest)))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/fill", {"text": "no hole"}, "text"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "regex": "("}, "regex"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "t_max": -1}, "t_max"),
        ("/v1/fill", {"prefix": "a", "suffix": "b", "stream": 2}, "stream"),
        ("/v1/edits", {"text": "abc", "span": [2, 9], "instruction": "x"}, "span"),
        ("/v1/edits", {"text": "a\ud800", "span": [0, 1]}, "text"),
        ("/v1/edits/next", {"text": "abc", "cursor": 0}, "stream"),
    ],
)
def test_what_is_refused_is_an_ordinary_error(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    content = json.dumps({"model": "random", "stream": True} | body)
    answer = http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_failure_on_the_way_is_an_event(folder: Path) -> None:
    with started_within_its_time(folder) as (server, told):
        *_, (name, last) = told
        until(lambda: any('"path": "/v1/fill"' in line for line in server.lines))
        assert server.metric("redraft_refused_total") == 1
    assert (name, last["error"]["code"]) == ("error", "timeout")
    (line,) = [json.loads(line) for line in server.lines if '"path": "/v1/fill"' in line]
    assert (line["status"], line["error"]) == (200, "timeout")


@contextlib.contextmanager
def started_within_its_time(folder: Path) -> Iterator[tuple[ServerProcess, list[tuple[str, Any]]]]:
    """A server, and what it told of a filling whose time was over once it had begun; a stalled one needs more time."""
    for seconds in (2, 10, 100):
        with server_process(folder, "--name", "random", "--timeout", str(seconds)) as server:
            with httpx.stream("POST", f"{server.url}/v1/fill", json=SLOW | {"stream": True}) as answer:
                told = list(events(answer))
            if answer.status_code == 200 or seconds == 100:
                yield server, told
                return


def test_a_stream_that_is_open_when_the_grace_ends_is_told_so(folder: Path) -> None:
    with server_process(folder, "--name", "random", "--grace", "0.5") as server, ThreadPoolExecutor(1) as pool:
        with httpx.stream("POST", f"{server.url}/v1/fill", json=SLOW | {"stream": True}, timeout=60) as answer:
            told = events(answer)
            assert next(told)[0] == "start"
            stopped = pool.submit(server.stop, seconds=120)
            *_, (name, last) = told
        assert stopped.result() == 0
    assert (name, last["error"]["code"]) == ("error", "shutting_down")


def test_a_client_that_leaves_ends_the_work(http: httpx.Client, server: ServerProcess) -> None:
    before = server.metric("redraft_cancelled_total")
    with http.stream("POST", "/v1/fill", json=SLOW | {"stream": True}) as answer:
        told = events(answer)
        assert next(told)[0] == "start"
        assert next(told)[0] == "denoise"
    fast = {"model": "random", "prefix": "a", "suffix": "b", "max_tokens": 2, "steps": 1}
    assert http.post("/v1/fill", json=fast).status_code == 200
    until(lambda: server.metric("redraft_cancelled_total") == before + 1)


def test_a_client_that_leaves_before_its_turn_leaves_its_place(llm: LLM) -> None:
    with server_that_fills(llm) as (url, end):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/fill", json=FILL | {"model": "scripted", "stream": True}, timeout=0.5)
        left = 'redraft_requests_total{endpoint="/v1/fill",status="499"} 1.0'
        until(lambda: left in httpx.get(f"{url}/metrics").text)
        end()


def test_what_was_asked_and_answered_is_logged_only_if_wanted(folder: Path) -> None:
    with server_process(folder, "--name", "random", "--log-prompts") as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            *_, (_, done) = streamed(http, "/v1/fill", FILL)
        until(lambda: any('"path": "/v1/fill"' in line for line in server.lines))
    (line,) = [json.loads(line) for line in server.lines if '"path": "/v1/fill"' in line]
    assert line["asked"]["text"] == FILL["text"]
    assert line["answered"]["full_text"] == done["full_text"]


def test_a_client_that_does_not_read_misses_drafts_and_nothing_else() -> None:
    async def work(report: Report) -> dict[str, Any]:
        report("start", {"canvases": 1})
        for number in range(MOST_UNREAD + 10):
            report("denoise", {"step": number})
        report("commit", {"text": "a"})
        return {"text": "a"}

    async def body() -> list[str]:
        drafting = Drafting(work)
        await drafting.begun()
        return [event.splitlines()[0] async for event in drafting.events(fault_of)]

    start, *drafts, commit, done = asyncio.run(body())
    assert (start, commit, done) == ("event: start", "event: commit", "event: done")
    assert drafts == ["event: denoise"] * (MOST_UNREAD - 1)
