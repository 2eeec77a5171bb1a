"""Inline completion for editors: a language server whose completions see the text on both sides of the cursor.

Any editor that speaks `textDocument/inlineCompletion` (LSP 3.18) can start it; it talks over standard input and output:

    python examples/language_server.py                                  # runs the model itself
    python examples/language_server.py --server http://127.0.0.1:8000   # asks `redraft serve`
"""

import argparse
import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any, BinaryIO

Fill = Callable[[str, str], str]
MAX_TOKENS = 16


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


def offset_of(text: str, line: int, character: int) -> int:
    """Character offset of an LSP position, whose columns count UTF-16 units; behind a line it is its end."""
    lines = text.split("\n")
    if line >= len(lines):
        return len(text)
    start = sum(len(one) + 1 for one in lines[:line])
    before = lines[line].encode("utf-16-le")[: 2 * character].decode("utf-16-le", errors="ignore")
    return start + len(before)


class Server:
    """The texts that are open, and the answers to an editor's requests."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._texts: dict[str, str] = {}

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request or None for a notification; `KeyError` for a request that is not known."""
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
                return self._complete(self._texts[document["uri"]], params["position"])
            case "shutdown" | "initialized" | "exit":
                pass
            case _ if not method.startswith("$/"):
                raise KeyError(method)
        return None

    def _complete(self, text: str, position: dict[str, int]) -> dict[str, Any]:
        at = offset_of(text, position["line"], position["character"])
        filling = self._fill(text[:at], text[at:]) if text.strip() else ""
        return {"items": [{"insertText": filling, "range": {"start": position, "end": position}}] if filling else []}


def read_message(source: BinaryIO) -> dict[str, Any] | None:
    """The next message, which a header with its length precedes; None at the end."""
    length = 0
    while line := source.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return json.loads(source.read(length)) if length else None


def serve(server: Server, source: BinaryIO, out: BinaryIO) -> None:
    """Answer until the editor leaves."""
    while (message := read_message(source)) is not None and message.get("method") != "exit":
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message.get("id")}
        try:
            reply["result"] = server.answer(message.get("method", ""), message.get("params") or {})
        except KeyError as error:
            reply["error"] = {"code": -32601, "message": f"unknown: {error}"}
        except Exception as error:  # an editor must learn of any failure and go on
            reply["error"] = {"code": -32603, "message": str(error)}
        if "id" in message:
            content = json.dumps(reply).encode()
            out.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
            out.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", help="address of a running `redraft serve`")
    parser.add_argument("--model", default="tiny")
    given = parser.parse_args()
    fill = remote(given.server, given.model) if given.server else local(given.model)
    serve(Server(fill), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
