"""Inline completion for editors: a language server whose completions see the text on both sides of the cursor.

Any editor that speaks `textDocument/inlineCompletion` (LSP 3.18) can start it; it talks over standard input and output:

    python examples/language_server.py                                  # runs the model itself
    python examples/language_server.py --server http://127.0.0.1:8000   # asks `redraft serve`
"""

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Callable
from typing import Any, BinaryIO

Fill = Callable[[str, str], str]
MAX_TOKENS = 16
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
"""JSON-RPC's codes."""
LINE_END = re.compile(r"\r\n|\r|\n")


def local(model: str) -> Fill:
    """Fill with a model in this process; it is loaded when it is first needed."""
    loaded: list[Any] = []

    def fill(prefix: str, suffix: str) -> str:
        if not loaded:
            import redraft

            loaded.append(redraft.load(model))
        return loaded[0].fill(prefix, suffix, max_tokens=MAX_TOKENS).text

    return fill


def remote(server: str, model: str) -> Fill:
    """Fill by one HTTP call."""

    def fill(prefix: str, suffix: str) -> str:
        body = {"model": model, "prefix": prefix, "suffix": suffix, "max_tokens": MAX_TOKENS}
        request = urllib.request.Request(
            f"{server.rstrip('/')}/v1/fill", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["text"]

    return fill


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def place_of(text: str, line: int, character: int) -> tuple[int, dict[str, int]]:
    """The character offset of an LSP position, whose columns count UTF-16 units, and the position moved into the text.

    Behind a line's end it is that end, and behind the last line the text's.
    """
    starts = [0, *(end.end() for end in LINE_END.finditer(text))]
    if line >= len(starts):
        line, character = len(starts) - 1, 2 * len(text)
    line, character = max(line, 0), max(character, 0)
    content = LINE_END.split(text[starts[line] :], maxsplit=1)[0]
    before = content.encode("utf-16-le")[: 2 * character].decode("utf-16-le", errors="ignore")
    return starts[line] + len(before), {"line": line, "character": len(before.encode("utf-16-le")) // 2}


class Server:
    """The texts that are open, and the answers to an editor's requests."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._texts: dict[str, str] = {}
        self.shut_down = False

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request or None for a notification; raises `Refused`."""
        if self.shut_down:
            raise Refused(INVALID_REQUEST, "the server has been shut down")
        document = params.get("textDocument", {})
        match method:
            case "initialize":
                return {"capabilities": {"textDocumentSync": 1, "inlineCompletionProvider": True}}
            case "textDocument/didOpen":
                self._texts[document["uri"]] = document["text"]
            case "textDocument/didChange":
                self._texts[document["uri"]] = params["contentChanges"][-1]["text"]
            case "textDocument/didClose":
                self._texts.pop(document["uri"], None)
            case "textDocument/inlineCompletion":
                if (text := self._texts.get(document["uri"])) is None:
                    raise Refused(INVALID_PARAMS, f"{document['uri']} is not open")
                return self._complete(text, params["position"])
            case "shutdown":
                self.shut_down = True
            case "initialized":
                pass
            case _:
                raise Refused(METHOD_NOT_FOUND, f"unknown: {method}")
        return None

    def _complete(self, text: str, position: dict[str, int]) -> dict[str, Any]:
        at, here = place_of(text, position["line"], position["character"])
        filling = self._fill(text[:at], text[at:]) if text.strip() else ""
        return {"items": [{"insertText": filling, "range": {"start": here, "end": here}}] if filling else []}


def read_message(source: BinaryIO) -> bytes | None:
    """The next message, which a header with its length precedes; None at the end. Raises `ValueError` for no length."""
    length = b""
    for line in iter(source.readline, b""):
        if not line.strip():
            if (size := int(length)) < 0:
                raise ValueError
            return source.read(size)
        name, _, value = line.partition(b":")
        length = value if name.lower() == b"content-length" else length
    return None


def parsed(content: bytes) -> dict[str, Any]:
    """A message. Raises `Refused` for what is none."""
    try:
        message = json.loads(content)
    except ValueError as error:
        raise Refused(PARSE_ERROR, f"no JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        raise Refused(INVALID_REQUEST, "a message is an object with a method")
    return message


def serve(server: Server, source: BinaryIO, out: BinaryIO) -> None:
    """Answer until the editor leaves."""
    while (content := read_message(source)) is not None:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": None}
        wanted = True
        try:
            message = parsed(content)
            if message["method"] == "exit":
                return
            wanted = "id" in message
            reply["id"] = message.get("id")
            reply["result"] = server.answer(message["method"], message.get("params") or {})
        except Refused as error:
            reply["error"] = {"code": error.code, "message": str(error)}
        except KeyError as error:
            reply["error"] = {"code": INVALID_PARAMS, "message": f"there is no {error}"}
        except Exception as error:  # an editor must learn of any failure and go on
            reply["error"] = {"code": INTERNAL_ERROR, "message": f"{type(error).__name__}: {error}"}
        if wanted:
            answer = json.dumps(reply).encode()
            out.write(b"Content-Length: %d\r\n\r\n%s" % (len(answer), answer))
            out.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", help="address of a running `redraft serve`")
    parser.add_argument("--model", default="tiny")
    given = parser.parse_args()
    if given.server and not given.server.startswith(("http://", "https://")):
        parser.error(f"--server is {given.server!r}; it must begin with http:// or https://.")
    fill = remote(given.server, given.model) if given.server else local(given.model)
    server = Server(fill)
    try:
        serve(server, sys.stdin.buffer, sys.stdout.buffer)
    except ValueError:
        print("A message came without a Content-Length that can be read.", file=sys.stderr)
        return 1
    return 0 if server.shut_down else 1  # as the protocol has it


if __name__ == "__main__":
    sys.exit(main())
