"""Who may come in with a key, which origins may ask, and what the log keeps to itself."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import CHAT, ScriptedEngine, ServerProcess, scripted_server, server_process, until

from redraft.engine.request import Request
from redraft.errors import EngineError, SettingError
from redraft.llm import LLM
from redraft.serve.auth import read_keys
from redraft.serve.faults import stopping
from redraft.serve.logs import client_fault


@pytest.fixture(scope="module")
def guarded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("\ufefffile-key   # Ann, by a program that marks the byte order\n# nobody's\n", encoding="utf-8")
    options = ("--api-keys", str(keys), "--cors", "https://app.example", "--log-prompts", "--name", "random")
    with server_process(folder, *options, environment={"REDRAFT_API_KEYS": "env-key, other"}) as running:
        yield running


def test_a_wrong_key_is_a_401(guarded: ServerProcess) -> None:
    for headers in (
        {},
        {"authorization": "Bearer nope"},
        {"authorization": "Basic file-key"},
        {"x-api-key": "file-key "[:-2]},
    ):
        answer = httpx.post(f"{guarded.url}/v1/chat/completions", json=CHAT, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"] == {
            "message": "The API key is missing or wrong.", "type": "authentication_error", "param": None,
            "code": "invalid_api_key",
        }  # fmt: skip
    assert httpx.get(f"{guarded.url}/metrics").status_code == 401
    assert httpx.post(f"{guarded.url}/v1/messages", json=CHAT).json()["type"] == "error"


def test_right_keys_and_the_paths_that_need_none(guarded: ServerProcess) -> None:
    for headers in (
        {"authorization": "Bearer file-key"},
        {"authorization": "bearer  env-key"},
        {"x-api-key": "other", "host": "any.example"},  # no name of this machine, but whoever calls has a key
    ):
        assert httpx.get(f"{guarded.url}/v1/models", headers=headers).status_code == 200
    for path in ("/", "/health", "/ready", "/openapi.json"):
        assert httpx.get(guarded.url + path).status_code == 200


def test_cors_for_a_named_origin(guarded: ServerProcess) -> None:
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    assert (
        httpx.options(f"{guarded.url}/v1/models", headers=asked).headers["access-control-allow-origin"]
        == asked["origin"]
    )
    # What the official clients send from a browser; a preflight that refuses one of them refuses the request.
    clients = {"access-control-request-headers": "anthropic-version,authorization,content-type,x-stainless-lang"}
    assert httpx.options(f"{guarded.url}/v1/messages", headers=asked | clients).status_code == 200
    local = httpx.options(
        f"{guarded.url}/v1/messages", headers=asked | {"access-control-request-private-network": "true"}
    )
    assert (local.status_code, local.headers["access-control-allow-private-network"]) == (200, "true")
    wrong = httpx.get(f"{guarded.url}/v1/models", headers={"origin": asked["origin"]})
    assert wrong.status_code == 401
    assert wrong.headers["access-control-allow-origin"] == asked["origin"], "the page there may read why"
    other = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in httpx.options(f"{guarded.url}/v1/models", headers=other).headers


def test_log_lines(server: ServerProcess, guarded: ServerProcess) -> None:
    secret = "Xylophone secrets"
    body = CHAT | {"messages": [{"role": "user", "content": secret}], "user": "ann"}
    for probe in ("/health", "/ready", "/metrics"):
        httpx.get(server.url + probe, headers={"x-request-id": "probe"})
    httpx.post(f"{server.url}/v1/chat/completions", json=body, headers={"x-request-id": "log-me"})
    allowed = {"authorization": "Bearer file-key", "x-request-id": "log-me-too"}
    httpx.post(f"{guarded.url}/v1/chat/completions", json=body | {"n": 2}, headers=allowed)
    line, texts = _line(server, "log-me"), _line(guarded, "log-me-too")
    assert (len(texts["prompts"]), len(texts["texts"])) == (1, 2)
    assert line["path"] == "/v1/chat/completions"
    assert line["user"] == "ann"
    assert line["tokens"] > 0
    assert '"probe"' not in "".join(server.lines)
    assert "Xylophone" not in "".join(server.lines)
    assert secret in "".join(guarded.lines)
    assert "file-key" not in "".join(guarded.lines)
    for path, asked in (
        ("fill", {"prefix": secret, "suffix": "!", "length": 1}),
        ("completions", {"prompt": secret, "suffix": "!", "max_tokens": 1}),
        ("decisions", {"question": secret, "choices": ["yes", "no"]}),
    ):
        for running in (server, guarded):
            headers = {"authorization": "Bearer file-key", "x-request-id": f"log-{path}"}
            body = {"model": "random", **asked}
            assert httpx.post(f"{running.url}/v1/{path}", json=body, headers=headers).status_code == 200
            assert (secret in json.dumps(_line(running, f"log-{path}"))) == (running is guarded), path
    hole = {"model": "random", "prompt": "a", "suffix": "b", "max_tokens": 1, "user": "ben"}
    httpx.post(f"{server.url}/v1/completions", json=hole, headers={"x-request-id": "log-a-hole"})
    assert _line(server, "log-a-hole")["user"] == "ben"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": CHAT["messages"]}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 16}),
        ("/v1/drafts", {"messages": CHAT["messages"]}),
    ],
)
def test_a_stream_that_fails_says_why_in_the_log(
    llm: LLM, caplog: pytest.LogCaptureFixture, path: str, asked: dict[str, Any]
) -> None:
    """Its status was sent before."""
    engine = ScriptedEngine(llm, lambda request: [""])
    engine.finish_reason = "timeout"
    counted = 'redraft_refused_total{reason="timeout"} 1.0'
    with caplog.at_level("INFO", "redraft.serve"), scripted_server(llm, engine) as url:
        answer = httpx.post(f"{url}{path}", json={"model": "other", "stream": True} | asked, timeout=60)
        assert (answer.status_code, "not finished within" in answer.text) == (200, True)
        until(lambda: any(getattr(record, "facts", {}).get("path") == path for record in caplog.records))
        assert counted in httpx.get(f"{url}/metrics").text
    (line,) = [record.facts for record in caplog.records if record.facts["path"] == path]  # type: ignore[attr-defined]
    assert (line["status"], line["error"]) == (200, "timeout")


def test_a_failure_of_the_engine_is_one_line_of_json() -> None:
    code = """
import logging
from redraft.serve import logs
logs.configure()
try:
    1 // 0
except ZeroDivisionError as error:
    logging.getLogger("redraft.engine.async_engine").exception("a forward failed: %s", error)
logging.getLogger("redraft").warning("vision tensors are left out")
logs.logger.info("ready")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    failed, left_out, ready = (json.loads(line) for line in done.stderr.splitlines())
    assert (failed["message"], failed["error"]) == ("a forward failed: integer division or modulo by zero",
                                                    "ZeroDivisionError")  # fmt: skip
    assert failed["places"]
    assert left_out["message"] == "vision tensors are left out"
    assert ready["level"] == "info"


def _fail(request: Request) -> list[str]:
    raise EngineError("A forward failed with RuntimeError: secret.")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/drafts"]
)
def test_the_log_has_the_id_of_a_request_that_failed(
    llm: LLM, caplog: pytest.LogCaptureFixture, path: str, stream: bool
) -> None:
    asked: dict[str, Any] = {"messages": CHAT["messages"], "max_tokens": 16}
    if path == "/v1/completions":
        asked = {"prompt": "Hello!", "max_tokens": 16}
    if path == "/v1/responses":
        asked = {"input": "Hello!", "max_output_tokens": 16}
    body = {"model": "other", **({} if path == "/v1/drafts" else {"stream": stream}), **asked}
    with scripted_server(llm, ScriptedEngine(llm, _fail)) as url:
        answer = httpx.post(url + path, json=body, headers={"x-request-id": "find-me"})
    assert "its log has the request id" in answer.text
    if path == "/v1/messages":
        assert '"request_id":"find-me"' in answer.text
    facts = [getattr(record, "facts", {}) for record in caplog.records]
    assert [fact["id"] for fact in facts if fact.get("event") == "failure"] == ["find-me"]


def test_what_the_client_is_told_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Such as an answer that the server's end has cut off."""
    assert client_fault("find-me", stopping()).status == 503
    assert caplog.records == []


def _line(server: ServerProcess, request_id: str) -> dict[str, Any]:
    """The log line of a request; it may be written a moment after the answer is read."""

    def found() -> list[dict[str, Any]]:
        told = [json.loads(line) for line in server.lines if line.startswith("{")]
        return [facts for facts in told if facts.get("id") == request_id]

    until(lambda: bool(found()))
    return found()[0]


def test_keys_are_read_or_refused(tmp_path: Path) -> None:
    """A variable that was meant to hold keys and holds none must not open the server."""
    file = tmp_path / "keys"
    file.write_text("# all keys\nsk-a#b\nsk-c  # Ana's\n")
    assert read_keys(file, {"REDRAFT_API_KEYS": "x, y,"}) == ("x", "y", "sk-a#b", "sk-c")
    assert read_keys(None, {}) == ()
    for empty in ("", ",", " "):
        with pytest.raises(SettingError, match="is set but holds no keys"):
            read_keys(None, {"REDRAFT_API_KEYS": empty})
    file.write_text("sk-a sk-b\n")
    with pytest.raises(SettingError, match="without spaces"):
        read_keys(file, {})
    file.write_bytes(b"sk-a\xff")
    with pytest.raises(SettingError, match="cannot be read: byte 4 is not UTF-8 text"):
        read_keys(file, {})
