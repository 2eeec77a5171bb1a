"""The server as a process: where it listens, how it stops, and what is told to requests that are open then."""

import asyncio
import contextlib
import functools
import json
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import CHAT, ENDLESS, server_process, until
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from redraft.cli.main import main
from redraft.engine.async_engine import MOST_FAILURES
from redraft.serve import server
from redraft.serve.app import create_app
from redraft.serve.server import _Connection, _Server, listen
from redraft.serve.service import Service
from redraft.serve.settings import ServeSettings


def idle_server(replica: int | None = None) -> _Server:
    """A server that is never run."""
    settings = ServeSettings(names=("random",), grace=30, replica=replica)
    service = Service(settings)
    return _Server(create_app(service), lambda: asyncio.sleep(0), service.stop, settings)


def test_a_client_that_does_not_read_gets_the_grace_once() -> None:
    """What is left for the connections when it is over are seconds, however long it was."""
    assert idle_server().config.timeout_graceful_shutdown == 5


def test_a_second_ctrl_c_is_not_taken_back_by_what_follows() -> None:
    server = idle_server()
    forced = []
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        server.handle_exit(number, None)
        forced.append(server.force_exit)
    assert forced == [False, False, True, True]


def test_a_copy_does_not_wait_if_it_sees_what_follows_a_signal_before_it() -> None:
    """Of several signals that came, Python handles the lowest number first."""
    server = idle_server(replica=0)
    for number in (signal.SIGINT, signal.SIGTERM):
        server.handle_exit(number, None)
    assert server.force_exit


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        ([b""], 0),
        ([b"GET / HTTP/1.1\r\n", *[b"A: b\r\n"] * 6], 0),
        ([b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\n"], 1),
        ([b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2], 2),
        ([b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"], 1),
    ],
)
def test_a_connection_is_closed_when_no_request_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: list[bytes], answers: int
) -> None:
    """However slowly its bytes come; a request that is being answered is waited for. Nothing is worth a warning."""
    monkeypatch.setattr(server, "KEEP_SECONDS", 0.2)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.4)
        await Response("told")(scope, receive, send)

    async def answered() -> bytes:
        settings = ServeSettings(names=("random",))
        config = _Server(slow, lambda: asyncio.sleep(0), lambda grace: asyncio.sleep(0), settings).config
        config.load()
        connection = functools.partial(_Connection, config, ServerState(), {})
        async with await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0) as listening:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            with contextlib.suppress(ConnectionError), contextlib.closing(writer):
                for data in sent:
                    writer.write(data)
                    await asyncio.sleep(0.1)
                return await asyncio.wait_for(reader.read(), 60)
            return b""

    assert asyncio.run(answered()).count(b"told") == answers
    assert caplog.messages == []


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such limit")
def test_a_connection_whose_client_reads_nothing_breaks() -> None:
    """Closing it would wait for what is left to send, and keep it and its file for as long as the client likes."""
    with listen(ServeSettings(names=("m",), port=0, timeout=0.1)) as listener, socket.socket() as client:
        listener.listen()
        client.connect(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    connection.send(bytes(2**16))
            writable = select.poll()
            writable.register(connection, select.POLLOUT)
            assert writable.poll(60_000)
            with pytest.raises(TimeoutError):
                connection.send(b"more")


def test_as_many_connections_are_taken_as_the_system_lets_a_process_have() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
        server._allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("twice", [False, True])
def test_what_is_open_when_the_grace_ends_is_told_so(folder: Path, twice: bool) -> None:
    options = ("--name", "random", "--grace", "600" if twice else "1")
    with server_process(folder, *options) as server, ThreadPoolExecutor(3) as pool:
        ask = functools.partial(httpx.post, f"{server.url}/v1/chat/completions", timeout=120)
        whole, stream = pool.submit(ask, json=ENDLESS), pool.submit(ask, json=ENDLESS | {"stream": True})
        until(lambda: server.metric("redraft_running") == 2)
        server.process.send_signal(signal.SIGINT)
        told = [whole]
        if twice:  # else it may end at any time
            until(server.stopping)
            told.append(pool.submit(ask, json=ENDLESS))
            assert told[-1].result().headers["retry-after"] == "1"
            server.process.send_signal(signal.SIGINT)
        assert server.process.wait(120) == 0
    for one in told:
        assert (one.result().status_code, one.result().json()["error"]["code"]) == (503, "shutting_down")
    assert stream.result().status_code == 200
    assert '"code":"shutting_down"' in stream.result().text
    assert "[DONE]" not in stream.result().text


READS_FOR_EVER = """
import os
import sys
from redraft.cli.main import main
from redraft.llm import LLM
from redraft.serve.service import Service

admit = Service.admit

def noted(*given):
    os.write(1, b"let in\\n")  # at once: printing writes the line's end by itself, behind another thread's line
    return admit(*given)

def read(*request, **how):
    os.write(1, b"reading\\n")
    while True:
        pass

Service.admit, LLM.read_chat = noted, read
sys.exit(main(["serve", "--model", sys.argv[1], "--name", "random", "--port", "0", "--grace", "0.5", "--json"]))
"""


def test_requests_that_are_still_read_when_the_grace_ends_are_told_so(folder: Path) -> None:
    """More of them than are read at a time, one whose body does not come, and one that only asks how long it is."""
    command = [sys.executable, "-c", READS_FOR_EVER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, ThreadPoolExecutor(9) as pool:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            paths = ["/v1/chat/completions"] * 8 + ["/v1/messages/count_tokens"]
            bodies = [{name: CHAT[name] for name in ("model", "messages")} for _ in paths]
            asked = [
                pool.submit(httpx.post, url + path, json=body, timeout=60)
                for path, body in zip(paths, bodies, strict=True)
            ]
            with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as slow:
                slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
                told = sorted(server.stdout.readline() for _ in range(16))
                assert told == ["let in\n"] * 10 + ["reading\n"] * 6
                server.send_signal(signal.SIGTERM)
                assert server.wait(120) == 0
                assert b"503" in slow.recv(4096).partition(b"\r\n")[0]
        finally:
            server.kill()
    assert [one.result().status_code for one in asked] == [503] * 9
    assert "The server is shutting down." in asked[0].result().json()["error"]["message"]


def test_short_answers_are_not_held_back() -> None:
    """Else each waits some 40 ms for the client to acknowledge the one before."""

    async def is_sent_at_once() -> bool:
        accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        listener = listen(ServeSettings(names=("m",), port=0))
        async with await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listener):
            _, client = await asyncio.open_connection(*listener.getsockname())
            server = await accepted
            at_once = server.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for writer in (client, server):
                writer.close()
                await writer.wait_closed()
            return bool(at_once)

    assert asyncio.run(is_sent_at_once())


def test_the_command_says_what_is_wrong_before_it_loads(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = str(taken.getsockname()[1])
    for options, code, said in (
        (("--port", port), 1, f"Cannot listen on 127.0.0.1:{port}"),
        (("--port", "70000"), 2, "port is 70000"),
        (("--api-keys", str(tmp_path / "none")), 2, "none cannot be read: No such file"),
        (("--policy", "best"), 2, "policy is 'best'"),
        (("--cors", "https://app.example/"), 2, "origin 'https://app.example/' is not one that a browser sends"),
        (("--grace", "inf"), 2, "grace is too large or not a number"),
        (("--grace", "nan"), 2, "grace is too large or not a number"),
        (("--timeout", "nan"), 2, "timeout is too large or not a number"),
        (("--memory-gb", "inf"), 2, "memory_gb is too large or not a number"),
        (("--kv-cache-dtype", "fp4"), 2, "kv_cache_dtype is 'fp4'"),
        (("--vocabulary-dtype", "fp8"), 2, "vocabulary_dtype is 'fp8'; that needs a GPU"),
        (("--model", str(tmp_path)), 2, "config.json"),
    ):
        assert main(["serve", "--model", str(folder), "--port", "0", *options]) == code
        assert said in capsys.readouterr().err
    taken.close()


BROKEN_GPU = """
import sys
import redraft
from redraft.serve.server import listen, serve
from redraft.serve.settings import ServeSettings

def load():
    def fail(work, meanwhile):
        raise RuntimeError("unusable")

    def new_engine(settings):
        engine = new(settings)
        engine.runner.run = fail
        return engine

    llm = redraft.load(sys.argv[1], device="cpu", dtype="float32")
    new, llm.new_engine = llm.new_engine, new_engine
    return llm

settings = ServeSettings(names=("random",), port=0)
listener = listen(settings)
serve(settings, load, listener, ready=lambda device: print(listener.getsockname()[1], flush=True))
"""


def test_a_server_whose_engine_has_stopped_ends(folder: Path) -> None:
    """So that whoever supervises it starts it again."""
    command = [sys.executable, "-c", BROKEN_GPU, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1/chat/completions"
        codes = [httpx.post(url, json=CHAT, timeout=60).status_code for _ in range(MOST_FAILURES)]
        _, said = process.communicate(timeout=120)
    assert codes == [500] * MOST_FAILURES
    assert process.returncode == 1
    assert said.splitlines()[-1].endswith(
        "EngineError: The engine has stopped after repeated failures; the log says why."
    )


LOADED = """
import gc, sys
import redraft
from redraft.serve.server import listen, serve
from redraft.serve.settings import ServeSettings

settings = ServeSettings(names=("random",), port=0)
load = lambda: redraft.load(sys.argv[1], device="cpu", dtype="float32")
serve(settings, load, listen(settings), ready=lambda device: print(gc.get_freeze_count(), flush=True))
print(gc.get_freeze_count())
"""


def test_what_is_loaded_is_not_looked_through_for_garbage(folder: Path) -> None:
    """A request of many small parts would have it looked through again and again, in which time nobody is answered.

    Once the server has ended it is let go, or libraries say at the end of the process that something leaks.
    """
    command = [sys.executable, "-c", LOADED, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 100_000
        process.terminate()
        assert process.wait(120) == 0
        assert int(process.stdout.readline()) == 0
