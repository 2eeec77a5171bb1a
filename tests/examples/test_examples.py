"""The examples do what they say: a language server over pipes, and a router."""

import importlib.util
import io
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import redraft

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def talk(server: ModuleType, fill: Any, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What the language server answers to some messages."""
    source, out = io.BytesIO(), io.BytesIO()
    for message in messages:
        content = json.dumps(message).encode()
        source.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
    source.seek(0)
    server.serve(server.Server(fill), source, out)
    out.seek(0)
    return [json.loads(content) for content in iter(lambda: server.read_message(out), None)]


def document(**more: Any) -> dict[str, Any]:
    return {"textDocument": {"uri": "file:///a.py", **more}}


def complete(number: int, line: int, character: int) -> dict[str, Any]:
    position = {"line": line, "character": character}
    return {"id": number, "method": "textDocument/inlineCompletion", "params": document() | {"position": position}}


def test_a_completion_sees_both_sides_of_the_cursor() -> None:
    """Columns count UTF-16 units: the emoji takes two."""
    server, seen = example("language_server"), []

    def fill(prefix: str, suffix: str) -> str:
        seen.append((prefix, suffix))
        return "x + 1"

    opened = {"method": "textDocument/didOpen", "params": document(text="# 🙂\nreturn \n")}
    changed = {"method": "textDocument/didChange", "params": document() | {"contentChanges": [{"text": "a = '🙂'\n"}]}}
    replies = talk(
        server, fill, {"id": 0, "method": "initialize", "params": {}}, opened, complete(1, 1, 7), changed,
        complete(2, 0, 7), {"method": "$/progress"}, {"id": 3, "method": "shutdown"}, {"method": "exit"},
    )  # fmt: skip
    assert [reply["id"] for reply in replies] == [0, 1, 2, 3]
    assert replies[0]["result"]["capabilities"]["inlineCompletionProvider"] is True
    assert replies[1]["result"]["items"][0]["insertText"] == "x + 1"
    assert seen == [("# 🙂\nreturn ", "\n"), ("a = '🙂", "'\n")]


def test_an_editor_learns_of_what_fails() -> None:
    def fill(prefix: str, suffix: str) -> str:
        raise ValueError("no model")

    opened = {"method": "textDocument/didOpen", "params": document(text="x")}
    replies = talk(example("language_server"), fill, opened, complete(1, 0, 1), {"id": 2, "method": "unheard/of"})
    assert [reply["error"]["code"] for reply in replies] == [-32603, -32601]


@pytest.mark.parametrize(("line", "character", "offset"), [(0, 0, 0), (0, 9, 2), (1, 1, 4), (9, 0, 6)])
def test_positions(line: int, character: int, offset: int) -> None:
    assert example("language_server").place_of("ab\ncde", line, character)[0] == offset


@pytest.mark.parametrize(
    ("given", "moved"), [((-1, 1), (0, 1)), ((1, -2), (1, 0)), ((0, 9), (0, 2)), ((7, 0), (1, 4)), ((1, 3), (1, 3))]
)
def test_positions_are_moved_into_the_text(given: tuple[int, int], moved: tuple[int, int]) -> None:
    place = example("language_server").place_of("ab\nc🙂de"[:6], *given)[1]
    assert (place["line"], place["character"]) == moved


@pytest.mark.parametrize("line", [0, 1, 2])
def test_lines_end_as_the_protocol_says(line: int) -> None:
    """A completion must not come between a carriage return and its newline."""
    offset, place = example("language_server").place_of("abc\r\nde\rf", line, 99)
    assert (offset, place) == [(3, {"line": 0, "character": 3}), (7, {"line": 1, "character": 2}),
                               (9, {"line": 2, "character": 1})][line]  # fmt: skip


def test_an_address_of_no_server_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["language_server.py", "--server", "localhost:8000"])
    with pytest.raises(SystemExit):
        example("language_server").main()
    assert "it must begin with http:// or https://" in capsys.readouterr().err


def test_requests_that_the_protocol_has_an_error_for() -> None:
    opened = {"method": "textDocument/didOpen", "params": document(text="x")}
    without = {"id": 1, "method": "textDocument/inlineCompletion", "params": document()}
    replies = talk(
        example("language_server"), lambda prefix, suffix: "", opened, without, {"id": 2, "method": "$/unheard"},
        {"id": 3, "method": "shutdown"}, complete(4, 0, 0), {"method": "exit"},
    )  # fmt: skip
    assert [reply.get("error", {}).get("code") for reply in replies] == [-32602, -32601, None, -32600]


@pytest.mark.parametrize(("content", "code"), [(b"{bad", -32700), (b"[1]", -32600), (b"{}", -32600), (b"\xff", -32700)])
def test_what_is_no_message_is_answered_and_the_next_one_is_read(content: bytes, code: int) -> None:
    module, out = example("language_server"), io.BytesIO()
    after = json.dumps({"id": 1, "method": "shutdown"}).encode()
    framed = b"".join(b"Content-Length: %d\r\n\r\n%s" % (len(one), one) for one in (content, after))
    server = module.Server(lambda prefix, suffix: "")
    module.serve(server, io.BytesIO(framed), out)
    assert b'"id": null' in out.getvalue()
    assert f'"code": {code}'.encode() in out.getvalue()
    assert server.shut_down


def test_a_document_that_is_not_open_is_no_unknown_method() -> None:
    (reply,) = talk(example("language_server"), lambda prefix, suffix: "", complete(1, 0, 0))
    assert reply["error"]["code"] == -32602


def test_it_fills_with_a_model_of_its_own() -> None:
    assert example("language_server").local("tiny")("def add(a, b):\n    return a +", "\n") != ""


def test_the_router_finds_the_handlers() -> None:
    router = example("router")
    llm = redraft.load("tiny", device="cpu", dtype="float32")
    routed = [router.route(llm, request)[0] for request in router.REQUESTS]
    assert routed == ["water_plants", "play_music", "get_weather", "book_table"]


def test_a_booking_is_found_in_a_text() -> None:
    found = example("extract").extract(redraft.load("tiny"), "A table for six in Paris on Friday, please.")
    assert (found.city, found.day, found.people) == ("Paris", "Friday", 6)
