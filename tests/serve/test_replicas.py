"""Several copies of a model behind one address: who gets a request, what clients see, and what becomes of a copy."""

import asyncio
import contextlib
import json
import os
import pickle
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from openai import OpenAI
from serving import CHAT, ENDLESS, ServerProcess, server_process, until

import redraft
from redraft.cli.main import main
from redraft.errors import EngineError, InputError, NotFiniteError, QueueFullError, SettingError
from redraft.serve import settings
from redraft.serve.faults import Fault
from redraft.serve.metrics import Metrics
from redraft.serve.replicas import choosing
from redraft.serve.replicas.choosing import BLOCK, WORTH, Chooser
from redraft.serve.replicas.fleet import _loaded, environments
from redraft.serve.replicas.merging import merged
from redraft.serve.replicas.replica import Replica
from redraft.serve.replicas.router import Router, _request
from redraft.serve.settings import ServeSettings

SLOW = CHAT | {"max_tokens": 320, "steps": 48, "confidence_threshold": 1e-9}


# Who gets a request


def text(length: int, letter: str = "a") -> bytes:
    return letter.encode() * length


def test_a_conversation_goes_back_to_where_it_was() -> None:
    chooser = Chooser()
    first = chooser.choose(text(3 * BLOCK), [0, 0, 0], [0, 1, 2])
    assert chooser.choose(text(3 * BLOCK, "b"), [0, 0, 0], [0, 1, 2]) != first
    longer = text(3 * BLOCK) + text(5 * BLOCK, "c")
    assert all(chooser.choose(longer, [0, 0, 0], [0, 1, 2]) == first for _ in range(5))


def test_the_longest_known_beginning_counts() -> None:
    chooser = Chooser()
    shared = text(2 * BLOCK)
    first = chooser.choose(shared + text(BLOCK, "b"), [0, 0], [0, 1])
    other = chooser.choose(shared + text(BLOCK, "c"), [1, 0] if first == 0 else [0, 1], [0, 1])
    assert other != first
    assert chooser.choose(shared + text(BLOCK, "b") + text(BLOCK, "d"), [0, 0], [0, 1]) == first
    assert chooser.choose(shared + text(BLOCK, "c") + text(BLOCK, "d"), [0, 0], [0, 1]) == other


@pytest.mark.parametrize(("blocks", "more"), [(2, 0), (WORTH, 1), (5 * WORTH + 1, 5)])
def test_a_beginning_is_left_where_others_have_less_to_do_than_it_is_worth(blocks: int, more: int) -> None:
    chooser = Chooser()
    first = chooser.choose(text(blocks * BLOCK), [0, 0], [0, 1])
    busy = [3, 3]
    busy[first] += more
    assert chooser.choose(text(blocks * BLOCK), busy, [0, 1]) == first
    busy[first] += 1
    assert chooser.choose(text(blocks * BLOCK), busy, [0, 1]) == 1 - first


def test_what_has_no_beginning_goes_to_the_idlest_in_turn() -> None:
    chooser = Chooser()
    assert [chooser.choose(b"short", [0, 0, 0], [0, 1, 2]) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    assert {chooser.choose(b"short", [2, 1, 3], [0, 1, 2]) for _ in range(6)} == {1}


def test_only_the_able_are_chosen() -> None:
    chooser = Chooser()
    first = chooser.choose(text(2 * BLOCK), [0, 0], [0, 1])
    assert chooser.choose(text(2 * BLOCK), [0, 0], [1 - first]) == 1 - first


def test_beginnings_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "REMEMBERED", 4)
    chooser = Chooser()
    for letter in "abcdef":
        chooser.choose(text(BLOCK, letter), [0, 0], [1])
    chosen = [chooser.choose(text(BLOCK, letter), [0, 0], [0, 1]) for letter in "fedcb"]
    assert chosen == [1, 1, 1, 1, 0]


def test_a_body_of_any_length_is_looked_at_in_part_only() -> None:
    chooser = Chooser()
    chooser.choose(text((choosing.MOST_BLOCKS + 100) * BLOCK), [0, 0], [0])
    assert len(chooser._places) == choosing.MOST_BLOCKS


# What they find


def test_every_replica_gets_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environments("auto", 2) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 2,GPU-abc")
    assert [place["CUDA_VISIBLE_DEVICES"] for place in environments("cuda", 3)] == ["5", "2", "GPU-abc"]
    with pytest.raises(
        SettingError, match="--replicas is 4; each replica needs a GPU, but this machine has 3 CUDA devices"
    ):
        environments("cuda", 4)
    assert environments("cuda", 1, 3) == [{"CUDA_VISIBLE_DEVICES": "5,2,GPU-abc"}]
    with pytest.raises(SettingError, match="each replica needs 2 GPUs, but this machine has 3 CUDA devices"):
        environments("cuda", 2, 2)
    with pytest.raises(SettingError, match="device is 'gpu'; it must be"):
        environments("gpu", 2)
    with pytest.raises(SettingError, match="--device cuda:1 is a single GPU"):
        environments("cuda:1", 2)


def test_processors_are_shared_out_unless_the_user_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environments("cpu", 2) == [{"OMP_NUM_THREADS": "4"}] * 2
    assert environments("cpu", 16)[0] == {"OMP_NUM_THREADS": "1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environments("cpu", 2) == [{}, {}]


@pytest.mark.parametrize("option", ["--replicas", "--gpus"])
@pytest.mark.parametrize("count", ["0", "-1"])
def test_there_is_one_at_least(option: str, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of the GPUs of each of several copies."""
    assert main(["serve", "--replicas", "2", option, count]) == 2
    assert capsys.readouterr().err == f"error: {option} is {count}; it must be at least 1.\n"


def test_what_keeps_a_model_from_loading_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--replicas", "2", "--device", "cpu", "--port", "0", "--model", str(tmp_path)]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert str(tmp_path) in said


# Metrics


def counted(requests: int) -> str:
    metrics = Metrics(lambda: None)
    metrics.requests.labels("/v1/drafts", "200").inc(requests)
    metrics.seconds.labels("/v1/drafts").observe(requests)
    return metrics.text().decode()


def test_metrics_of_all_replicas_stand_in_one_text() -> None:
    lines = merged({"0": counted(2), "1": counted(3)}, {"0": True, "1": True}).decode().splitlines()
    assert 'redraft_requests_total{endpoint="/v1/drafts",replica="0",status="200"} 2.0' in lines
    assert 'redraft_requests_total{endpoint="/v1/drafts",replica="1",status="200"} 3.0' in lines
    assert 'redraft_request_seconds_sum{endpoint="/v1/drafts",replica="1"} 3.0' in lines
    kinds = [line for line in lines if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)), "every family is described once"
    assert "# TYPE redraft_requests_total counter" in kinds


# The router alone


class Standing:
    """A replica that answers with a script and has no process."""

    def __init__(self, answer: Callable[[httpx.Request], Any]) -> None:
        self.transport, self.ready, self.alive, self.opened = httpx.MockTransport(answer), True, True, 0

    def working(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def endless(request: httpx.Request) -> httpx.Response:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"more"

    return httpx.Response(200, content=pieces())


def silent(request: httpx.Request) -> httpx.Response:
    assert request.extensions["timeout"], "nobody waits for it forever"
    raise httpx.ReadTimeout("it starts")


def through(router: Router) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(router), base_url="http://localhost")


def test_metrics_do_not_wait_for_a_replica_that_only_starts_and_say_so() -> None:
    replicas: list[Any] = [Standing(lambda request: httpx.Response(200, text=counted(2))), Standing(silent)]

    async def ask() -> str:
        async with through(Router(replicas, ServeSettings(names=("m",)))) as client:
            return (await client.get("/metrics")).text

    text = asyncio.run(ask())
    assert 'redraft_requests_total{endpoint="/v1/drafts",replica="0",status="200"} 2.0' in text
    told = [line for line in text.splitlines() if 'replica="1"' in line or line.startswith("redraft_replica_up")]
    assert told == ['redraft_replica_up{replica="0"} 1.0', 'redraft_replica_up{replica="1"} 0.0']


def test_no_more_requests_are_held_than_the_replicas_would_take() -> None:
    async def slow(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.2)
        return httpx.Response(200, content=(piece async for piece in pieces()))

    async def pieces() -> AsyncIterator[bytes]:
        yield b"done"

    async def ask() -> list[int]:
        async with through(Router([Standing(slow)], ServeSettings(names=("m",), max_open=2))) as client:  # type: ignore[list-item]
            answers = await asyncio.gather(*(client.post("/v1/drafts", content=b"{}") for _ in range(6)))
            last = await client.post("/v1/drafts", content=b"{}")
        return sorted(answer.status_code for answer in [*answers, last])

    assert asyncio.run(ask()) == [200] * 5 + [429] * 2


def test_a_client_that_does_not_read_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SPARE_SECONDS", 0.0)
    router = Router([Standing(endless)], ServeSettings(names=("m",), timeout=0.1))  # type: ignore[list-item]
    scope = {"type": "http", "method": "GET", "path": "/health", "raw_path": b"/health", "query_string": b"",
             "headers": []}  # fmt: skip
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        return next(asked, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    asyncio.run(asyncio.wait_for(router(scope, receive, send), 60))
    assert router._held == 0


@pytest.mark.parametrize(
    ("replicas", "path", "status"),
    [([], "/v1/drafts", 429), ([Standing(lambda request: httpx.Response(200, text=counted(2)))], "/metrics", 200)],
)
def test_what_the_router_says_itself_has_the_headers_of_a_servers_answer(
    replicas: list[Any], path: str, status: int
) -> None:
    """The id, and those without which a browser shows nothing of it to a page from elsewhere."""

    async def ask() -> httpx.Response:
        router = Router(replicas, ServeSettings(names=("m",), origins=("https://app.example",)))
        async with through(router) as client:
            return await client.get(path, headers={"x-request-id": "mine", "origin": "https://app.example"})

    answer = asyncio.run(ask())
    assert answer.status_code == status
    assert (answer.headers["x-request-id"], answer.headers["request-id"]) == ("mine", "mine")
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "request-id" in answer.headers["access-control-expose-headers"]


def test_what_old_clients_and_proxies_send_is_passed_on_or_refused() -> None:
    """Requests without a host, as in HTTP/1.0, and targets that are no path."""
    scope = {"method": "GET", "path": "/health", "raw_path": b"/health", "query_string": b"", "headers": []}
    assert _request(scope, b"").headers["host"] == "localhost"
    assert _request(scope | {"headers": [(b"host", b"x.example")]}, b"").headers["host"] == "x.example"
    for target in (b"*", b"http://127.0.0.1/health"):
        with pytest.raises(Fault, match="on this server"):
            _request(scope | {"path": target.decode(), "raw_path": target}, b"")


def test_errors_come_whole_through_the_pipe() -> None:
    for error in (NotFiniteError(), QueueFullError("full", 2.5), SettingError("wrong", "field"), EngineError("gone")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


# Processes


def test_ctrl_c_is_left_to_the_router_while_one_starts(tmp_path: Path) -> None:
    """A terminal sends it to all processes; one that is not yet listening goes on until the router ends it."""
    load = partial(redraft.load, tmp_path / "none")
    replica = Replica(ServeSettings(names=("m",), replica=0), load, tmp_path / "0", {})
    replica.tell(signal.SIGINT)
    with pytest.raises(InputError, match="none"):
        asyncio.run(_loaded(replica))
    replica.kill()


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[ServerProcess]:
    """A server with two replicas."""
    options = ("--replicas", "2", "--name", "random", "--max-body", "200000")
    with server_process(folder, *options) as running:
        yield running


def ask(server: ServerProcess, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=CHAT | body, timeout=120)


def by_replica(server: ServerProcess, name: str) -> list[float]:
    """A metric's value at either replica."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(name)]
    return [sum(float(line.split()[-1]) for line in found if f'replica="{number}"' in line) for number in (0, 1)]


def test_an_answer_is_that_of_a_single_server(pair: ServerProcess, server: ServerProcess) -> None:
    for seed in range(4):  # they take turns
        answers = [ask(one, seed=seed).json()["choices"][0] for one in (pair, server)]
        assert answers[0]["message"] == answers[1]["message"]
        assert answers[0]["redraft"]["stats"]["steps"] == answers[1]["redraft"]["stats"]["steps"]
    assert min(by_replica(pair, "redraft_canvases_total")) > 0


def test_a_line_of_the_log_says_who_wrote_it(pair: ServerProcess) -> None:
    assert [ask(pair, seed=seed).status_code for seed in range(4)] == [200] * 4
    until(lambda: {json.loads(line)["replica"] for line in pair.lines if '"event": "request"' in line} >= {0, 1})


def test_streams_come_as_they_are_made(pair: ServerProcess, server: ServerProcess) -> None:
    events = []
    for one in (pair, server):
        with httpx.stream("POST", f"{one.url}/v1/drafts", json=CHAT, timeout=120) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-cache"
            events.append([line for line in answer.iter_lines() if line.startswith("event")])
    assert events[0] == events[1]
    assert "event: denoise" in events[0]


def test_a_client_of_the_field_works(pair: ServerProcess) -> None:
    client = OpenAI(base_url=f"{pair.url}/v1", api_key="unused")
    assert [model.id for model in client.models.list()] == ["random"]
    stream = client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    assert list(stream)[-1].usage.completion_tokens > 0


def test_the_same_beginning_is_encoded_once(pair: ServerProcess) -> None:
    before = by_replica(pair, "redraft_prefix_hit_tokens_total")
    long = [{"role": "user", "content": "The same words again and again. " * 90}]
    for turn in range(3):
        assert ask(pair, messages=[*long, {"role": "user", "content": f"Question {turn}?"}]).status_code == 200
    after = by_replica(pair, "redraft_prefix_hit_tokens_total")
    gained = sorted(new - old for old, new in zip(before, after, strict=True))
    assert gained[0] == 0, "the other one knows nothing of it"
    assert gained[1] >= 2 * 256


def test_requests_at_once_are_shared_out(pair: ServerProcess) -> None:
    with contextlib.ExitStack() as open_ones:
        for _ in range(4):
            answer = httpx.stream("POST", f"{pair.url}/v1/drafts", json=ENDLESS)
            assert open_ones.enter_context(answer).status_code == 200
        until(lambda: by_replica(pair, "redraft_running") == [2, 2])
    until(lambda: by_replica(pair, "redraft_running") == [0, 0])


def test_refusals_are_the_replicas_own(pair: ServerProcess, server: ServerProcess) -> None:
    bad: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"json": CHAT | {"stepps": 4}}),
        ("/v1/chat/completions", {"json": CHAT | {"model": "other"}}),
        ("/v1/messages", {"json": {"model": "random"}}),
        ("/nowhere", {"json": {}}),
        ("/v1/chat/completions", {"content": b"{"}),
        ("/v1/chat/completions", {"content": b" " * 300_000}),
        ("/v1/messages", {"content": b" " * 300_000}),
        ("/v1/models", {"json": {}}),
    ]
    for path, body in bad:
        told = [httpx.post(f"{one.url}{path}", headers={"x-request-id": "mine"}, **body) for one in (pair, server)]
        assert told[0].status_code == told[1].status_code >= 400
        if told[0].status_code != 404:  # which lists the names that are served
            assert told[0].json() == told[1].json()
    until(lambda: sum('"status": 413' in line and '"id": "mine"' in line for line in pair.lines) == 2)
    refused = 'redraft_refused_total{reason="body_too_large",replica="router"} 2.0'
    assert refused in httpx.get(f"{pair.url}/metrics").text


def test_a_client_that_leaves_stops_costing(pair: ServerProcess) -> None:
    before = sum(by_replica(pair, "redraft_cancelled_total"))
    with httpx.stream("POST", f"{pair.url}/v1/drafts", json=ENDLESS) as answer:
        lines = answer.iter_lines()  # whoever drops it hangs up
        next(lines)
        until(lambda: sum(by_replica(pair, "redraft_running")) == 1)
    until(lambda: sum(by_replica(pair, "redraft_running")) == 0)
    until(lambda: sum(by_replica(pair, "redraft_cancelled_total")) > before)


def test_keys_are_asked_for(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    options = ("--replicas", "2", "--api-keys", str(tmp_path / "keys"), "--name", "random")
    with server_process(folder, *options) as server:
        key = {"authorization": "Bearer secret"}
        large = httpx.post(f"{server.url}/v1/chat/completions", content=b" " * 5 * 2**20)
        assert large.status_code == 401, "nobody reads it"
        assert ask(server).status_code == httpx.get(f"{server.url}/metrics").status_code == 401
        assert httpx.get(f"{server.url}/metrics", headers=key).text.count("# TYPE redraft_requests_total") == 1
        assert httpx.get(f"{server.url}/health").status_code == 200


def replicas_of(server: ServerProcess) -> list[psutil.Process]:
    """The processes of its replicas."""
    found = []
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


def told_of_replicas(server: ServerProcess) -> list[tuple[str, str]]:
    """What the log says of replicas that have ended, and why."""
    lines = [json.loads(line) for line in server.lines if '"event": "replica_' in line]
    return [(line["event"], line.get("why", "")) for line in lines]


def test_one_that_ends_is_missed_by_nobody_else_and_starts_again(folder: Path) -> None:
    with server_process(folder, "--replicas", "2", "--name", "random") as server:
        replicas = replicas_of(server)
        with ThreadPoolExecutor(2) as pool:
            endless = pool.submit(ask, server, **ENDLESS)
            until(lambda: sum(by_replica(server, "redraft_running")) == 1)
            number = by_replica(server, "redraft_running").index(1)
            other = pool.submit(ask, server, **SLOW)
            until(lambda: by_replica(server, "redraft_running") == [1, 1] or other.done())
            replicas[number].kill()
            told = endless.result()
            assert (told.status_code, told.json()["error"]["code"]) == (502, "replica_ended")
            assert other.result().status_code == 200
        assert all(ask(server, seed=seed).status_code == 200 for seed in range(4))
        until(lambda: [event for event, _ in told_of_replicas(server)] == ["replica_lost", "replica_back"])
        assert all(ask(server, seed=seed).status_code == 200 for seed in range(4))
        assert min(by_replica(server, "redraft_answers_total")) >= 1, "it has answered since"
        assert replicas[1 - number] in replicas_of(server)


def test_one_that_cannot_be_started_again_is_given_up(folder: Path, tmp_path: Path) -> None:
    model = shutil.copytree(folder, tmp_path / "model")
    with server_process(model, "--replicas", "2", "--name", "random") as server:
        (model / "config.json").unlink()
        first, second = replicas_of(server)
        first.kill()
        until(lambda: [event for event, _ in told_of_replicas(server)] == ["replica_lost", "replica_given_up"])
        assert "config.json" in told_of_replicas(server)[-1][1]
        assert ask(server).status_code == 200
        second.kill()
        assert server.process.wait(120) == 1
        until(lambda: server.lines[-1] == "error: Every replica has ended; the log says why.\n")


def test_open_requests_end_before_the_server_does(folder: Path) -> None:
    with server_process(folder, "--replicas", "2", "--name", "random") as server, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, server, max_tokens=200, steps=16, confidence_threshold=1e-9) for _ in range(2)]
        until(lambda: sum(one.done() for one in waiting) + sum(by_replica(server, "redraft_running")) >= 2)
        server.process.send_signal(signal.SIGTERM)
        assert [one.result().status_code for one in waiting] == [200, 200]
        assert server.process.wait(120) == 0


def test_a_second_ctrl_c_waits_for_nobody(folder: Path) -> None:
    options = ("--replicas", "2", "--name", "random", "--grace", "600")
    with server_process(folder, *options) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, **ENDLESS)
        until(lambda: sum(by_replica(server, "redraft_running")) == 1)
        server.process.send_signal(signal.SIGINT)
        until(lambda: len(replicas_of(server)) == 1 and server.stopping())  # the idle one has ended
        late = ask(server)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(120) == 0
        assert waiting.result().json()["error"]["code"] == "shutting_down"


def test_replicas_do_not_outlive_the_server(folder: Path) -> None:
    with server_process(folder, "--replicas", "2", "--name", "random") as server:
        left = replicas_of(server)
        server.process.kill()
        assert psutil.wait_procs(left, timeout=120)[1] == []
