"""A server under load, seen from its clients: streamed chat answers over HTTP, closed loop or open loop.

Closed loop: a fixed number of clients, each of which asks again as soon as it has its answer. Open loop: requests
arrive at random times at a given rate, whether the server keeps up or not. Canvases arrive whole, so a reader waits for
the first canvas and for the end; gaps between single tokens mean nothing here.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Literal
from urllib.parse import urlsplit

from redraft.bench.quantile import quantile
from redraft.errors import InputError
from redraft.text.json_lines import fail, read_objects

DEFAULT_LENGTHS = ((32, 32), (32, 128), (128, 64), (256, 128), (512, 64))
"""(prompt tokens, max_tokens) if no file names others."""


@dataclass(frozen=True, slots=True)
class ChatQuestion:
    """One request: a prompt of real text, and how long its answer may be."""

    prompt: str
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedAnswer:
    """One answer as its client saw it: seconds since it was due until its `first` canvas, and until it was `whole`."""

    first: float
    whole: float
    tokens: int
    steps: int
    canvases: int
    forwards: int


@dataclass(kw_only=True, slots=True)
class Level:
    """The results of one load. `load` is the number of clients, or requests per second in the open loop."""

    mode: Literal["closed", "open"]
    load: float
    seconds: float = 0.0
    busy_seconds: float = 0.0
    failed: int = 0
    answers: list[TimedAnswer] = field(default_factory=list)

    def to_dict(self, target: float) -> dict[str, Any]:
        """JSON-ready. Goodput counts answers whose first canvas came within `target` seconds."""
        tokens = sum(a.tokens for a in self.answers)
        canvases, forwards = sum(a.canvases for a in self.answers), sum(a.forwards for a in self.answers)
        good = sum(a.first <= target for a in self.answers)
        return {
            "mode": self.mode,
            "load": self.load,
            "requests": len(self.answers) + self.failed,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "first_canvas_p50": round(quantile([a.first for a in self.answers], 0.5), 4),
            "first_canvas_p95": round(quantile([a.first for a in self.answers], 0.95), 4),
            "answer_p50": round(quantile([a.whole for a in self.answers], 0.5), 4),
            "answer_p95": round(quantile([a.whole for a in self.answers], 0.95), 4),
            "goodput": round(good / self.seconds, 3),
            "tokens_per_second": round(tokens / self.seconds, 2),
            "steps_per_canvas": round(sum(a.steps for a in self.answers) / max(canvases, 1), 2),
            "tokens_per_forward": round(tokens / max(forwards, 1), 2),
            "model_busy": round(self.busy_seconds / self.seconds, 4),
        }


def read_lengths(file: Path | None) -> list[tuple[int, int]]:
    """(prompt tokens, max_tokens) from a JSONL file with these two keys; the built-in mix without a file."""
    if file is None:
        return list(DEFAULT_LENGTHS)
    pairs = []
    for number, row in read_objects(file):
        pair = row.get("prompt_tokens"), row.get("max_tokens")
        if any(type(length) is not int or length < 1 for length in pair):
            fail(file, number, "prompt_tokens and max_tokens must be whole numbers of at least 1")
        pairs.append(pair)
    if not pairs:
        raise InputError(f"{file} holds no lengths.")
    return pairs


class Target:
    """A Redraft server to put under load."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """Raises `InputError` for an invalid address."""
        self._host, self._port = _host_and_port(url)
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})

    def model(self) -> str:
        """The name of the first model that is served. Raises `InputError` if something else answers."""
        listed = self.get("/v1/models")
        try:
            return str(listed["data"][0]["id"])
        except (TypeError, KeyError, IndexError):
            raise InputError(f"The server at {self._host}:{self._port} lists no models.") from None

    def get(self, path: str) -> Any:
        """The JSON at a path, or its text."""
        return self._call("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """The JSON response to a body."""
        return self._call("POST", path, body)

    def busy_seconds(self) -> float:
        """Seconds that the server's model has worked so far, averaged over its replicas."""
        lines = re.findall(r"^redraft_forward_seconds_total(?:\{.*\})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        return mean(map(float, lines)) if lines else 0.0

    def stream(self, body: Any) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed chat answer."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=600)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise OSError(f"status {answer.status}")
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])
        finally:
            connection.close()

    def _call(self, method: str, path: str, body: Any) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=600)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status != 200:
                raise InputError(f"{path} answered {answer.status}: {' '.join(text.split())[:200]}")
            return json.loads(text) if "json" in (answer.getheader("content-type") or "") else text
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path} at {self._host}:{self._port} answered with something that is not JSON."
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = " ".join(str(error).split()).rstrip(".")  # it may quote the response
            raise InputError(f"No server answers at {self._host}:{self._port}: {reason}.") from error
        finally:
            connection.close()


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError:  # an unclosed bracket, or an invalid port
        parts = host = port = None
    if parts is None or parts.scheme != "http" or not host or not port:
        raise InputError(f"{url!r} is not the http:// address of a server.")
    return host, port


def make_questions(target: Target, lengths: Sequence[tuple[int, int]], text: str, count: int) -> list[ChatQuestion]:
    """Requests of these lengths in turn, each with a different piece of `text` as far as it goes."""
    ids: list[int] = target.post("/tokenize", {"text": text})["tokens"]
    wanted = [lengths[i % len(lengths)] for i in range(count)]
    starts = [(997 * i) % max(len(ids) - size, 1) for i, (size, _) in enumerate(wanted)]
    pieces = [ids[start : start + size] for start, (size, _) in zip(starts, wanted, strict=True)]
    texts = target.post("/detokenize", {"tokens": pieces})["text"]
    return [ChatQuestion(piece, answer) for piece, (_, answer) in zip(texts, wanted, strict=True)]


class LoadGenerator:
    """Runs levels of load against one target."""

    def __init__(self, target: Target, model: str, questions: Sequence[ChatQuestion], settings: dict[str, Any]) -> None:
        self._target, self._model, self._questions, self._settings = target, model, questions, settings

    def closed(self, clients: int, progress: Callable[[], None]) -> Level:
        """All questions, `clients` at a time."""
        level, lock, left = Level(mode="closed", load=clients), threading.Lock(), iter(list(enumerate(self._questions)))

        def work() -> None:
            while True:
                with lock:
                    number, question = next(left, (0, None))
                if question is None:
                    return
                self._record(level, lock, number, question, time.perf_counter())
                progress()

        threads = [threading.Thread(target=work) for _ in range(clients)]
        return self._timed(level, threads, lambda: [thread.start() for thread in threads])

    def open(self, rate: float, progress: Callable[[], None]) -> Level:
        """All questions, at random times, `rate` per second on average."""
        level, lock, moments = Level(mode="open", load=rate), threading.Lock(), random.Random(0)
        threads: list[threading.Thread] = []

        def work(number: int, question: ChatQuestion, due: float) -> None:
            self._record(level, lock, number, question, due)
            progress()

        def start() -> None:
            due = time.perf_counter()
            for number, question in enumerate(self._questions):
                due += moments.expovariate(rate)
                time.sleep(max(0.0, due - time.perf_counter()))  # one that comes late delays no other
                threads.append(threading.Thread(target=work, args=(number, question, due)))
                threads[-1].start()

        return self._timed(level, threads, start)

    def _timed(self, level: Level, threads: Sequence[threading.Thread], start: Callable[[], object]) -> Level:
        busy, began = self._target.busy_seconds(), time.perf_counter()
        start()
        for thread in threads:
            thread.join()
        level.seconds = time.perf_counter() - began
        level.busy_seconds = self._target.busy_seconds() - busy
        return level

    def _record(self, level: Level, lock: threading.Lock, number: int, question: ChatQuestion, due: float) -> None:
        try:
            answer = self._ask(number, question, due)
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            answer = None
        with lock:
            if answer is None:
                level.failed += 1
            else:
                level.answers.append(answer)

    def _ask(self, number: int, question: ChatQuestion, due: float) -> TimedAnswer:
        first, stats = None, None
        body = {"model": self._model, "messages": [{"role": "user", "content": question.prompt}], "stream": True,
                "max_tokens": question.max_tokens, "seed": number} | self._settings  # fmt: skip
        for chunk in self._target.stream(body):
            choice = chunk["choices"][0]
            if first is None and (choice["delta"].get("content") or choice["finish_reason"]):
                first = time.perf_counter() - due
            stats = (choice.get("redraft") or {}).get("stats", stats)
        if first is None or stats is None:
            raise ValueError("the stream ended early")
        return TimedAnswer(
            first=first,
            whole=time.perf_counter() - due,
            tokens=stats["tokens"],
            steps=sum(stats["steps"]),
            canvases=stats["canvases"],
            forwards=stats["forwards"],
        )
