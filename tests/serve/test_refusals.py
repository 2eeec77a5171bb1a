"""What the server refuses, and in which words: bodies, paths, hosts and settings."""

import asyncio
import gzip
import json
import socket

import httpx
import pytest
from serving import CHAT, WEATHER, ServerProcess

from redraft.serve.app import create_app
from redraft.serve.service import Service
from redraft.serve.settings import ServeSettings

SCORED = {"model": "random", "echo": True, "logprobs": 1, "max_tokens": 0}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "The body is not valid JSON: Expecting property name enclosed in double quotes at column 2."),
        (b'{\n "model": random}', 400, "The body is not valid JSON: Expecting value at line 2, column 11."),
        (b'{"model": "ran', 400, "The body is not valid JSON: Unterminated string starting at column 11."),
        (b'{"model": "caf\xe9"}', 400, "The body is not valid JSON: byte 14 is not UTF-8."),
        (b"", 400, "A JSON body is required"),
        (b"[]", 400, "The body must be a JSON object"),
        (b"[" * 100_000, 400, "The body is not valid JSON: nested too deep."),
        (b'{"model": "random", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, "UTF-8"),
        (
            b'{"model": "random", "messages": [{"role": "user", "content": "x"}, '
            b'{"role": "assistant", "content": [{"type": "text", "text": "\\ud800"}]}]}',
            400,
            "messages[1].content[0].text holds a character that UTF-8 cannot express at index 0",
        ),
        (b'{"model": "\\ud800", "messages": [{"role": "user", "content": "x"}]}', 404, "is not served here"),
        (b'{"model": "random", "\\ud800": 1, "messages": [{"role": "user", "content": "x"}]}', 400, "unicode"),
        (b'{"model": "random", "": 1, "messages": [{"role": "user", "content": "x"}]}', 400, "Unknown field ''."),
        (b'{"model": "random", "messages": [{"role": "user", "content": "x"}], "t_max": NaN}', 400,
         "not valid JSON: NaN is not a JSON value"),
        (b'{"model": "random", "messages": [{"role": "user", "content": "x"}], "n": 1' + b"0" * 5000 + b"}", 400,
         "The body is not valid JSON: a number with thousands of digits."),
        (b'{"model": "random", "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", '
         b'"arguments": "{\\"a\\": NaN}"}}]}]}', 400, "must be a JSON object (NaN is not a JSON value)."),
        (b'{"model": "random", "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", '
         b'"arguments": "' + b"[" * 100_000 + b'"}}]}]}', 400, "must be a JSON object (nested too deep)."),
        (b"x" * 300_000, 413, "larger than the 200000 bytes"),
    ],
)  # fmt: skip
def test_bad_bodies(http: httpx.Client, body: bytes, status: int, said: str) -> None:
    answer = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 100_000, b'"\xff"', b'{"n": 1' + b"0" * 5000 + b"}"])
def test_what_is_no_json_object_has_a_code(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "x", "max_output_tokens": 16, "tools": [
            {"type": "function", "name": "f", "parameters": {"default": "@"}}]}),
        ("/v1/messages", {"max_tokens": 16, "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"a": "@"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]}),
        ("/v1/fill", {"prefix": "x", "suffix": "y", "max_tokens": 2, "json_schema": {"enum": [1, "@"]}}),
        ("/tokenize", {"messages": [
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"a": "@"}}}]}]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_json_cannot_hold_are_refused(
    http: httpx.Client, path: str, body: dict[str, object], number: str
) -> None:
    """However deep they stand in objects of any shape."""
    text = json.dumps({"model": "random", **body}).replace('"@"', number)
    answer = http.post(path, content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert "The body is not valid JSON: " in answer.json()["error"]["message"]
    assert number.removeprefix("-") in answer.json()["error"]["message"]


def test_a_compressed_body_is_refused(http: httpx.Client) -> None:
    headers = {"content-type": "application/json", "content-encoding": "GZIP"}
    answer = http.post("/v1/chat/completions", content=gzip.compress(json.dumps(CHAT).encode()), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")
    assert answer.headers["accept-encoding"] == "identity"
    assert "Content-Encoding 'gzip'" in answer.json()["error"]["message"]
    plain = http.post("/v1/chat/completions", json=CHAT, headers={"content-encoding": "identity"})
    assert plain.status_code == 200
    assert http.get("/v1/models", headers=headers).status_code == 200, "it has no body"


def test_json_must_say_that_it_is_json(http: httpx.Client) -> None:
    """A form on another web page could send anything else without asking first."""
    answer = http.post("/v1/chat/completions", content=json.dumps(CHAT), headers={"content-type": "text/plain"})
    assert answer.status_code == 400
    assert "Content-Type: application/json" in answer.json()["error"]["message"]


def test_a_chunked_body_is_limited_too(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", content=iter([b"x" * 50_000] * 5))
    assert answer.status_code == 413


def test_a_body_that_says_it_is_far_too_large_is_not_waited_for(http: httpx.Client) -> None:
    address = http.base_url.host, http.base_url.port
    with socket.create_connection(address, timeout=120) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nx"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_what_was_sent_is_not_told_back_at_any_length(http: httpx.Client) -> None:
    error = http.post("/v1/chat/completions", json={**CHAT, "preset": "x" * 9000}).json()["error"]
    assert error["message"].startswith("preset")
    assert len(error["message"]) < 1100


def test_unknown_paths_and_methods(http: httpx.Client) -> None:
    meant = {
        "/v2/chat": "",
        "/v1/": "",
        "/chat/completions": "; there is /v1/chat/completions",
        "/v1/v1/messages": "; there is /v1/messages",
        "/v1/chat/completions/": "; there is /v1/chat/completions",
        "//v1/responses": "; there is /v1/responses",
        "/v1//messages": "; there is /v1/messages",
        "/v1/tokenize": "; there is /tokenize",
    }
    for path, instead in meant.items():
        assert (
            http.post(f"{http.base_url}{path}").json()["error"]["message"]
            == f"There is no {path} on this server{instead}."
        )
    wrong = http.get("/v1/chat/completions")
    assert wrong.json()["error"]["message"] == "/v1/chat/completions does not take GET."
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/v1/models", "/metrics", "/nothing"])
def test_head_is_get_without_the_body(http: httpx.Client, path: str) -> None:
    """What `curl -I`, monitors and proxies ask."""
    whole, head = http.get(path), http.head(path)
    assert head.status_code == whole.status_code
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.content == b""
    assert http.get(path).status_code == whole.status_code  # on the same connection


def test_other_host_names_are_refused(http: httpx.Client) -> None:
    """Against DNS rebinding, as long as no key is needed."""
    answer = http.get("/v1/models", headers={"host": "evil.example"})
    assert answer.status_code == 403
    assert http.get("/v1/models", headers={"host": "127.0.0.1.evil.example:80"}).status_code == 403
    for host in ("localhost:1234", "LOCALHOST", "localhost.", "localhost.:80", "[::1]:8973", "[::1]", "::1"):
        assert http.get("/v1/models", headers={"host": host}).status_code == 200, host


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.2", True), ("LOCALHOST", True), ("0.0.0.0", False), ("::", False)]
)
def test_every_address_of_this_machine_alone_is_local(host: str, local: bool) -> None:
    app = create_app(Service(ServeSettings(names=("m",), host=host)))

    async def asked(name: str) -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return (await client.get("/health", headers={"host": name})).status_code

    assert asyncio.run(asked(f"{host.lower()}:8000")) == 200
    assert asyncio.run(asked("evil.example")) == (403 if local else 200)


def test_an_answer_that_may_not_be_empty_is_not_beside_a_constraint_either(http: httpx.Client) -> None:
    for settings in ({"forbid_empty": True}, {"preset": "fast"}):
        answer = http.post("/v1/chat/completions", json=CHAT | settings | {"choices": [""]})
        assert answer.status_code == 400, answer.text
        assert "allows only the empty text" in answer.json()["error"]["message"]
    assert http.post("/v1/chat/completions", json=CHAT | {"choices": [""]}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": 1e-45}, "temperature is 1e-45; it must be 0 or at least 1.25e-06."),
        ({"t_max": 1e39}, "t_max is too large"),
        ({"t_min": 0, "t_max": 1e-300}, "t_max is 1e-300; it must be at least 1e-06."),
    ],
)
def test_extreme_temperatures_are_refused(http: httpx.Client, settings: dict[str, float], said: str) -> None:
    answer = http.post("/v1/chat/completions", json=CHAT | settings)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/drafts", CHAT),
        ("/v1/responses", {"model": "random", "input": "x"}),
        ("/v1/completions", {"model": "random", "prompt": "x"}),
        ("/v1/completions", {"model": "random", "prompt": "x", "suffix": "y", "max_tokens": 4}),
        ("/v1/fill", {"model": "random", "prefix": "x", "suffix": "y", "max_tokens": 4}),
        ("/v1/edits", {"model": "random", "text": "x y", "span": [0, 1], "instruction": "z"}),
    ],
)
@pytest.mark.parametrize(
    ("constraint", "param"),
    [
        ({"json": {"type": "foo"}}, "structured_outputs.json"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"regex": "("}, "structured_outputs.regex"),
        ({"choice": ["\ud800"]}, "structured_outputs.choice"),
    ],
)
def test_structured_outputs_are_named_as_they_were_sent(
    http: httpx.Client, path: str, asked: dict[str, object], constraint: dict[str, object], param: str
) -> None:
    body = json.dumps(asked | {"structured_outputs": constraint})
    answer = http.post(path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"t_max": 1e39}, "t_max"),
        ("/v1/chat/completions", CHAT | {"t_min": 0.9}, "t_min"),
        ("/v1/chat/completions", CHAT | {"temperature": 0.5, "t_max": 0.9}, "temperature"),
        ("/v1/chat/completions", CHAT | {"temperature": 0.5, "t_min": 0.4}, "temperature"),
        ("/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}}, "stream_options"),
        ("/v1/chat/completions", CHAT | {"tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", CHAT | {"choices": ["a"], "forbidden": ["a"]}, "choices"),
        ("/v1/chat/completions", CHAT | {"pins": {"0": "a", "1": "b", "2": ""}}, "pins"),
        ("/v1/chat/completions", CHAT | {"template": "{x:nothing}"}, "template"),
        ("/v1/chat/completions", CHAT | {"choices": ["a"], "regex": "a"}, "choices"),
        ("/v1/drafts", CHAT | {"n": 2}, "n"),
        ("/v1/completions", {"model": "random", "prompt": ""}, "prompt"),
        ("/v1/completions", {"model": "random", "prompt": [10**9]}, "prompt"),
        ("/v1/completions", {"model": "random", "prompt": ["a", ""]}, "prompt[1]"),
        ("/v1/completions", {"model": "random", "prompt": [[5], [10**9]]}, "prompt[1]"),
        ("/v1/completions", {"model": "random", "prompt": [[5], [5] * 10**4], "max_tokens": 9}, "prompt[1]"),
        ("/v1/completions", SCORED | {"prompt": ["a", ""]}, "prompt[1]"),
        ("/v1/completions", SCORED | {"prompt": [[5], [5] * 10**4]}, "prompt[1]"),
        ("/v1/completions", {"model": "random", "prompt": ["a"] * 128, "n": 2}, "n"),
        ("/tokenize", {"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, "messages[0]"),
        ("/tokenize", {}, None),
        ("/tokenize", {"messages": CHAT["messages"], "special": True}, "special"),
        ("/tokenize", {"prompt": "a", "special": True}, "special"),
        ("/tokenize", {"prompt": "a", "text": "a"}, None),
        ("/tokenize", {"prompt": "a", "tools": [WEATHER]}, "tools"),
        ("/tokenize", {"text": "a", "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": CHAT["messages"], "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": False}, "add_generation_prompt"),
        (
            "/tokenize",
            {"messages": CHAT["messages"], "chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking",
        ),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [[5], [10**9]]}, "tokens[1]"),
    ],
)
def test_the_field_at_fault_is_named(http: httpx.Client, path: str, body: dict[str, object], param: str | None) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "messages", "sentence"),
    [
        ("/v1/chat/completions", [{"content": "x"}], "The field 'messages[0].role' is required."),
        ("/v1/messages", [{"role": "tool"}], "messages[0].role is 'tool'; it must be one of 'user', 'assistant'"),
        ("/v1/chat/completions", [{"role": "user", "content": [{"text": "x"}]}],
         "The field 'messages[0].content[0].type' is required."),
        ("/v1/chat/completions", [{"role": "user", "content": [{"type": "audio"}]}],
         "messages[0].content[0].type is 'audio'; it must be one of 'text', 'image_url'"),
    ],
)  # fmt: skip
def test_a_kind_that_is_missing_or_unknown_is_named(
    http: httpx.Client, path: str, messages: list[dict[str, object]], sentence: str
) -> None:
    answer = http.post(path, json={"model": "random", "max_tokens": 1, "messages": messages})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(sentence)


def test_a_call_without_a_result_in_a_history_is_accepted_but_not_at_its_end(http: httpx.Client) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    said = {"role": "user", "content": "Hello!"}
    chat = [said, {"role": "assistant", "tool_calls": [call]}, said]
    turns = [said, {"role": "assistant", "content": [use]}, said]
    for path, messages in (("/v1/chat/completions", chat), ("/v1/messages", turns)):
        body = {"model": "random", "max_tokens": 16}
        assert http.post(path, json=body | {"messages": messages}).status_code == 200
        answer = http.post(path, json=body | {"messages": messages[:2]})
        assert (answer.status_code, "results must follow it" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/v1/models", "localhost", 200),
        ("HTTP://127.0.0.1:80/v1%2Fmodels?limit=2", "localhost", 200),
        ("http://localhost/v1/models", "evil.example", 200),
        ("http://evil.example/v1/models", "localhost", 403),
        ("http://localhost", "localhost", 200),
        ("http://localhost?a=/b", "localhost", 200),
        ("http:///v1/models", "localhost", 403),
        ("http://localhost/http://localhost/v1/models", "localhost", 404),
        ("ftp://localhost/v1/models", "localhost", 404),
    ],
)
def test_a_request_may_name_a_whole_url(server: ServerProcess, target: str, host: str, status: int) -> None:
    """Its host counts, whatever the header says."""
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), timeout=60) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert int(answer.split()[1]) == status
    if "/v1" in target and status == 200:
        assert b'"object":"list"' in answer
