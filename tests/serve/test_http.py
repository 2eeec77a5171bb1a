"""Plain HTTP: who may come in, what is too large, what errors look like, and what the server tells about itself."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from serving import CHAT, ENDLESS, ScriptedEngine, ServerProcess, scripted_server, until

from redraft.constraints.answer import AutomatonConstraint
from redraft.engine.async_engine import AsyncEngine
from redraft.engine.request import Request
from redraft.engine.settings import EngineSettings
from redraft.errors import EngineError, QueueFullError
from redraft.llm import LLM
from redraft.serve.answers import Answers
from redraft.serve.body import read_body
from redraft.serve.faults import Fault
from redraft.serve.http import EventStream
from redraft.serve.metrics import Metrics
from redraft.serve.planning import Planner
from redraft.serve.service import Service
from redraft.serve.settings import ServeSettings
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer


def test_health_ready_and_models(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok", "phase": "ready", "version": "0.1.0"}
    assert http.get("/ready").json() == {"status": "ready"}
    assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["random", "gpt-4o"]


def test_as_many_as_may_be_open_find_room_in_the_queue(llm: LLM) -> None:
    service = Service(ServeSettings(names=("random",), max_open=400, grace=0))

    async def life() -> None:
        await service.load(lambda: llm)
        ids = [service.engine.next_id() for _ in range(400)]
        streams = await service.engine.submit([llm.request([2, 50], request_id=one, max_tokens=16) for one in ids])
        assert len(streams) == 400
        await service.stop(0)

    asyncio.run(life())


def test_request_ids_come_back(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = http.get("/health", headers={"x-request-id": "x" * 500}).headers
    assert made["x-request-id"].startswith("req_")
    assert made["request-id"] == made["x-request-id"]


def test_no_cors_by_default(http: httpx.Client) -> None:
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in http.options("/v1/chat/completions", headers=headers).headers
    assert "access-control-allow-origin" not in http.get("/v1/models", headers=headers).headers


def test_metrics_speak_of_canvases(http: httpx.Client, server: ServerProcess) -> None:
    before = {name: server.metric(name) for name in ("redraft_canvases_total", "redraft_steps_per_canvas_count")}
    stats = http.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["redraft"]["stats"]
    assert server.metric("redraft_canvases_total") == before["redraft_canvases_total"] + stats["canvases"]
    assert (
        server.metric("redraft_steps_per_canvas_count") == before["redraft_steps_per_canvas_count"] + stats["canvases"]
    )
    text = http.get("/metrics").text
    for name in (
        "redraft_tokens_per_forward_bucket", "redraft_first_canvas_seconds_bucket", "redraft_queue_seconds_bucket",
        "redraft_canvases_in_forward", 'redraft_pages{space="full",use="used"}', "redraft_prefix_hit_tokens_total",
        "redraft_cancelled_total", "redraft_refused_total",
        'redraft_requests_total{endpoint="/v1/chat/completions",status="200"}',
    ):  # fmt: skip
        assert name in text, name


def test_prompts_are_counted_once_their_requests_have_ended(llm: LLM) -> None:
    engine = llm.new_engine(EngineSettings(slots=1))
    metrics = Metrics(engine.stats)
    for request_id in (1, 2):
        engine.add(llm.request([2, 50, 60], request_id=request_id, max_tokens=16), lambda event: None)
    engine.step()
    engine.cancel(2)  # which never had a slot
    begun = metrics.text().decode().splitlines()
    engine.cancel(1)
    ended = metrics.text().decode().splitlines()
    help = "# HELP redraft_prompt_tokens_total Prompt tokens of requests that had a slot and have ended."
    assert {help, "redraft_prompt_tokens_total 0.0"} <= set(begun)
    assert {help, "redraft_prompt_tokens_total 3.0"} <= set(ended)


def test_made_up_paths_are_one_label(http: httpx.Client) -> None:
    for number in range(3):
        http.get(f"/made/up/{number}")
        http.get(f"/v1/models/made/up/{number}")
    text = http.get("/metrics").text
    assert 'redraft_requests_total{endpoint="/v1/models/{name:path}",status="404"}' in text
    assert 'redraft_requests_total{endpoint="other",status="404"}' in text
    assert "/made/up" not in text


def test_drafts_show_every_step_before_what_is_committed(http: httpx.Client, llm: LLM) -> None:
    with http.stream("POST", "/v1/drafts", json=CHAT | {"max_tokens": 32}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        events = list(_events(answer))
    kinds = [kind for kind, _ in events]
    assert kinds[0] == "start"
    assert kinds[-1] == "done"
    steps, commits = ([data for name, data in events if name == kind] for kind in ("denoise", "commit"))
    expected = [record.to_dict() for record in llm.stream(CHAT["messages"], seed=1, max_tokens=32)]  # type: ignore[arg-type]
    assert [step["argmax_canvas"] for step in steps] == [
        list(r["argmax_canvas"]) for r in expected if r["type"] == "denoise"
    ]
    assert [commit["text"] for commit in commits] == [r["text"] for r in expected if r["type"] == "commit"]
    for step in steps:
        assert "".join(step["pieces"]) == llm.tokenizer.decode(step["argmax_canvas"])
    for step, record in zip(steps, (r for r in expected if r["type"] == "denoise"), strict=True):
        assert step["entropy"] == [round(value, 4) for value in record["entropy"]]
    assert len(events[-1][1]["confidence"]) == events[-1][1]["stats"]["tokens"]
    assert events[-1][1]["stats"]["steps"] == [sum(s["canvas_index"] == i for s in steps) for i in range(len(commits))]


def _events(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def test_a_client_that_leaves_costs_nothing_more(http: httpx.Client, server: ServerProcess) -> None:
    before, refused = server.metric("redraft_cancelled_total"), server.metric("redraft_refused_total")
    with http.stream("POST", "/v1/chat/completions", json=ENDLESS | {"stream": True}) as answer:
        next(answer.iter_lines())
    until(lambda: server.metric("redraft_cancelled_total") == before + 1)
    assert 'redraft_requests_total{endpoint="/v1/chat/completions",status="499"}' in http.get("/metrics").text
    body = json.dumps(ENDLESS).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as raw:  # not streamed: hangs up
        lines = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
        raw.sendall(head.encode() + body)
        until(lambda: server.metric("redraft_running") == 1)
    until(lambda: server.metric("redraft_cancelled_total") == before + 2)
    until(lambda: server.metric("redraft_running") == 0)
    steps = server.metric("redraft_canvas_steps_total")
    time.sleep(0.5)
    assert server.metric("redraft_canvas_steps_total") == steps, "nobody reads, but the model works on"
    assert server.metric("redraft_refused_total") == refused


def test_timeouts_cut_an_answer_or_end_it(llm: LLM) -> None:
    """An answer of four canvases, of which the second is there when a hundred seconds are over."""
    inner = llm.new_engine(EngineSettings())
    inner._clock = lambda: 110.0 * (inner.counters.canvases >= 2)
    engine, asked = AsyncEngine(inner), CHAT | {"model": "other", "max_tokens": 64, "confidence_threshold": 1e-9}
    with scripted_server(llm, engine) as url:
        cut = httpx.post(f"{url}/v1/chat/completions", json=asked | {"timeout": 100})
        nothing = httpx.post(f"{url}/v1/chat/completions", json=asked | {"timeout": 1e-6})
    asyncio.run(engine.close(drain=False))
    choice = cut.json()["choices"][0]
    assert (choice["finish_reason"], choice["redraft"]["ending"]) == ("length", "timeout")
    assert 0 < choice["redraft"]["stats"]["tokens"] < 64
    assert nothing.status_code == 408


# ---- A full queue and a broken engine. ----


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/drafts"])
def test_every_event_is_one_line_for_every_client(llm: LLM, path: str) -> None:
    said = "one\u2028two\u2029three\x85four\r\nfive\x0csix"
    with scripted_server(llm, ScriptedEngine(llm, lambda request: [said])) as url:
        body = CHAT | {"model": "scripted", "stream": True}
        with httpx.stream("POST", url + path, json={name: body[name] for name in body if name != "seed"}) as answer:
            lines = list(answer.iter_lines())  # which splits as str.splitlines does
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert {line.partition(":")[0] for line in lines} <= {"", "data", "event"}
    assert said in [_said(one) for one in data]


def _said(event: dict[str, Any]) -> str | None:
    """The text of an event of any of the streams."""
    delta = event["choices"][0]["delta"] if "choices" in event else event.get("delta", {})
    return event.get("text") or delta.get("content") or delta.get("text")


@pytest.mark.parametrize(("seconds", "told"), [(2.4, "3"), (0.0, "1")])
def test_a_full_queue_is_a_429_with_a_time_to_come_back(llm: LLM, seconds: float, told: str) -> None:
    engine = ScriptedEngine(llm, lambda request: ["x"])
    engine.refusal = QueueFullError("256 requests wait already.", seconds)
    with scripted_server(llm, engine) as url:
        for stream in (False, True):
            answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT | {"model": "other", "stream": stream})
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == told
            assert answer.json()["error"]["code"] == "queue_full"


def test_as_many_as_may_be_open_and_not_one_more(llm: LLM) -> None:
    engine = ScriptedEngine(llm, lambda request: ["x"])
    engine.go_on.clear()
    with scripted_server(llm, engine, max_open=1) as url, httpx.Client(base_url=url, timeout=120) as client:
        with client.stream("POST", "/v1/chat/completions", json=CHAT | {"model": "other", "stream": True}) as first:
            assert first.status_code == 200
            assert httpx.post(f"{url}/v1/chat/completions", json=CHAT | {"model": "other"}).status_code == 429
            assert httpx.get(f"{url}/v1/models").status_code == 200
            engine.go_on.set()
            first.read()
        assert httpx.post(f"{url}/v1/chat/completions", json=CHAT | {"model": "other"}).status_code == 200


def test_requests_that_are_only_counted_have_places_of_their_own(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on, encode = threading.Event(), threading.Event(), Tokenizer.encode

    def waiting(self: Tokenizer, text: str, **options: Any) -> list[int]:
        reading.set()
        assert go_on.wait(120)
        return encode(self, text, **options)

    with scripted_server(llm, ScriptedEngine(llm, lambda request: ["x"]), max_open=1) as url:
        with ThreadPoolExecutor(1) as pool:
            monkeypatch.setattr(Tokenizer, "encode", waiting)
            first = pool.submit(httpx.post, f"{url}/tokenize", json={"text": "a"})
            assert reading.wait(120)
            assert httpx.post(f"{url}/detokenize", json={"tokens": [5]}).status_code == 429
            go_on.set()
            assert first.result().status_code == 200
        assert httpx.post(f"{url}/v1/chat/completions", json=CHAT | {"model": "other"}).status_code == 200


@pytest.mark.parametrize("n", [1, 2])
def test_an_answer_that_fails_on_its_way_is_counted(llm: LLM, n: int) -> None:
    def fails(request: Request) -> Sequence[str]:
        raise EngineError("A forward failed.")

    with scripted_server(llm, ScriptedEngine(llm, fails)) as url:
        for stream in (False, True):
            httpx.post(f"{url}/v1/chat/completions", json=CHAT | {"model": "other", "stream": stream, "n": n})
        text = httpx.get(f"{url}/metrics").text
    assert 'redraft_answers_total{ending="failed"} 2.0' in text
    assert 'redraft_request_seconds_count{endpoint="/v1/chat/completions"} 2.0' in text


def test_a_broken_engine_is_a_500_without_details(llm: LLM) -> None:
    engine = ScriptedEngine(llm, lambda request: ["x"])
    engine.refusal = EngineError("A forward failed with RuntimeError: secret.")
    with scripted_server(llm, engine) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT | {"model": "other"})
        engine.healthy = False
        ready = httpx.get(f"{url}/ready")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "api_error"
    assert "secret" not in answer.text
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "engine_stopped")


def begins_with(engine: ScriptedEngine, token: int) -> list[bool]:
    """Of every request that came, whether what its answer must be may begin with a token."""
    constraints = [request.constraint for request in engine.requests]
    assert all(isinstance(constraint, AutomatonConstraint) for constraint in constraints)
    return [constraint.automaton.step(0, token) > 0 for constraint in constraints]


def test_every_prompt_that_ends_inside_a_thought_has_it_closed_first(llm: LLM) -> None:
    opened = [*llm.tokenizer.encode("<|turn>model\n<|channel>thought\n")]
    engine = ScriptedEngine(llm, lambda request: ["x"])
    body = {"model": "other", "prompt": [[5, 6], opened], "regex": "ab"}
    with scripted_server(llm, engine) as url:
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
    assert begins_with(engine, llm.tokenizer.special_id("<channel|>")) == [False, True]


@pytest.mark.parametrize(
    ("path", "asked"), [("chat/completions", {"thinking": True}), ("messages", {"thinking": {"type": "enabled"}})]
)
def test_a_constraint_of_redrafts_own_leaves_room_for_a_thought(llm: LLM, path: str, asked: dict[str, Any]) -> None:
    template = ChatTemplate("{{ messages[0].content }}{% if enable_thinking %}<|think|>{% endif %}")
    thinker = LLM(llm.model, llm.tokenizer, template, path=llm.path, eos_ids=llm.eos_ids)
    engine = ScriptedEngine(thinker, lambda request: ["x"])
    body = CHAT | {"model": "other", "regex": "ab"}
    with scripted_server(thinker, engine) as url:
        for fields in ({}, asked):
            assert httpx.post(f"{url}/v1/{path}", json=body | fields).status_code == 200
    assert begins_with(engine, llm.tokenizer.special_id("<|channel>")) == [False, True]


@pytest.mark.parametrize(("path", "asked"), [("chat/completions", {"messages": CHAT["messages"]}),
                                             ("completions", {"prompt": "Hello!"})])  # fmt: skip
def test_what_may_have_begun_a_stop_string_is_in_an_answer_that_time_cut(
    llm: LLM, path: str, asked: dict[str, Any]
) -> None:
    body = {"model": "other", "n": 2, "seed": 1, "max_tokens": 48, "confidence_threshold": 1e-9} | asked
    with _impatient_server(llm) as ask:
        written = ask(path, body)
        held = body | {"stop": [text[-4:] + "never" for text in written]}
        assert ask(path, held) == written
        assert ask(path, held | {"stream": True}) == written


@contextlib.contextmanager
def _impatient_server(llm: LLM) -> Iterator[Callable[[str, dict[str, Any]], list[str]]]:
    """Asks a server on which time is over when both answers of a request have two of their three canvases."""
    inner, begun = llm.new_engine(EngineSettings()), 0
    inner._clock = lambda: 1e6 * (inner.counters.canvases >= begun + 4)

    def ask(path: str, body: dict[str, Any]) -> list[str]:
        nonlocal begun
        begun = inner.counters.canvases
        answer = httpx.post(f"{url}/v1/{path}", json=body, timeout=60)
        lines = answer.text.split("\n") if body.get("stream") else [f"data: {answer.text}"]
        texts = ["", ""]
        for choice in (one for line in lines if line.startswith("data: {") for one in json.loads(line[6:])["choices"]):
            texts[choice["index"]] += _text_of(choice)
        return texts

    engine = AsyncEngine(inner)
    with scripted_server(llm, engine) as url:
        yield ask
    asyncio.run(engine.close(drain=False))


def _text_of(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else (choice.get("message") or choice["delta"]).get("content") or ""


def test_every_request_with_a_body_has_a_door(http: httpx.Client) -> None:
    """Without one it would be let in while the model loads, and any number of them at a time."""
    posts = {path: item["post"] for path, item in http.get("/openapi.json").json()["paths"].items() if "post" in item}
    assert len(posts) > 8
    assert {
        path: item.get("tags") for path, item in posts.items() if item.get("tags") not in (["answers"], ["tokens"])
    } == {}


def test_a_body_is_kept_for_those_who_have_a_place_alone() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"abc", "more_body": False}

    assert asyncio.run(read_body({}, receive, 3)) == b"abc"
    assert asyncio.run(read_body({}, receive, 3, keep=False)) == b""
    with pytest.raises(Fault, match="larger than the 2 bytes"):
        asyncio.run(read_body({}, receive, 2, keep=False))


def test_a_body_that_is_too_large_is_read_so_that_its_client_hears_so_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redraft.serve.body._DRAIN", 6)

    def pieces_read(length: bytes, sent: int) -> int:
        read = 0

        async def receive() -> dict[str, Any]:
            nonlocal read
            read += 1
            return {"type": "http.request", "body": b"abc", "more_body": read < sent}

        with pytest.raises(Fault, match="larger than the 3 bytes"):
            asyncio.run(read_body({b"content-length": length}, receive, 3))
        return read

    assert [pieces_read(b"6", 2), pieces_read(b"10", 2), pieces_read(b"", 99)] == [2, 0, 4]


def test_a_body_that_does_not_come_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.serve.body.BODY_SECONDS", 0.01)
    with pytest.raises(Fault, match="did not arrive in time") as caught:
        asyncio.run(read_body({}, lambda: asyncio.sleep(20), 3))  # type: ignore[arg-type]
    assert caught.value.status == 408


@pytest.mark.parametrize(("path", "status"), [("/health", 405), ("/nowhere", 404), ("/v1/models", 405)])
def test_a_body_that_nobody_reads_changes_nothing(http: httpx.Client, path: str, status: int) -> None:
    assert http.post(path, content=b" " * 20_000).status_code == status


def test_answers_that_are_closed_cost_nothing_more(llm: LLM) -> None:
    async def closed(n: int) -> tuple[list[int], list[int]]:
        engine = ScriptedEngine(llm, lambda request: ["One, ", "two."])
        planner = Planner(llm, engine, ServeSettings(names=("random",)))  # type: ignore[arg-type]
        plan = planner.plan([llm.read_prompt([5, 6])], settings={}, constraints={}, n=n)
        answers = Answers(plan, await engine.submit(plan.requests, most_unread=9))
        events = answers.events()
        for _ in range(n):
            await anext(events)
        await answers.close()
        return sorted(engine.closed), [request.request_id for request in plan.requests]

    for n in (1, 2):
        ended, begun = asyncio.run(closed(n))
        assert ended == begun


def test_work_behind_a_stream_ends_however_its_sending_does() -> None:
    closed = []

    async def events() -> AsyncGenerator[str]:
        try:
            yield "data: 1\n\n"
        finally:
            closed.append("events")

    async def close() -> None:
        closed.append("work")

    async def send(message: Any) -> None:
        raise RuntimeError("unexpected")

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def answer() -> None:
        stream = events()
        await anext(stream)
        await EventStream(stream, close)({"type": "http"}, receive, send)

    with pytest.raises(RuntimeError, match="unexpected"):
        asyncio.run(answer())
    assert closed == ["events", "work"]


def test_a_stream_whose_client_does_not_read_breaks_off() -> None:
    closed = asyncio.Event()

    async def events() -> AsyncGenerator[str]:
        yield "data: 1\n\n"

    async def close() -> None:
        closed.set()

    async def stuck(message: Any = None) -> Any:
        await asyncio.sleep(120)

    answer = EventStream(events(), close, limit=0.01)({"type": "http"}, stuck, stuck)
    asyncio.run(asyncio.wait_for(answer, 60))
    assert closed.is_set()


def test_a_path_with_a_slash_too_many_is_not_redirected(http: httpx.Client) -> None:
    """A redirect would name the host that the client did, without TLS behind a proxy."""
    assert http.get("/health/").status_code == 404
