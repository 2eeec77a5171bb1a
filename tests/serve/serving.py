"""Servers for tests: the real command in a process of its own, and the application around an engine with a script."""

import asyncio
import contextlib
import dataclasses
import itertools
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import uvicorn

import redraft
from redraft.diffusion.records import Commit, DenoiseStep, TokenConfidence
from redraft.engine.async_engine import AsyncEngine
from redraft.engine.request import AnswerStats, Event, Finished, Request
from redraft.engine.settings import EngineSettings
from redraft.llm import LLM
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.serve.app import create_app
from redraft.serve.server import listen
from redraft.serve.service import Service
from redraft.serve.settings import ServeSettings

CONTEXT = 1024
CHAT = {"model": "random", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16, "seed": 1}
ENDLESS = CHAT | {"max_tokens": 900, "steps": 10_000, "confidence_threshold": 1e-9}
"""Takes every step, which is minutes of work; for requests that are to be open whenever a test comes to it."""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def write_model(where: Path, **shape: Any) -> Path:
    """A random model of about 1 M parameters with the embedded model's tokenizer and template."""
    fields = {"vocab_size": 16384, "canvas_length": 16, "max_position_embeddings": CONTEXT, "sliding_window": 64}
    network = Transformer(dataclasses.replace(preset("nano"), **(fields | shape)))
    initialise(network, 0)
    redraft.save_model(network, where)
    assets = Path(str(files("redraft") / "assets" / "tiny"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(assets / name, where / name)
    (where / "generation_config.json").write_text('{"eos_token_id": [1, 16], "max_denoising_steps": 4}')
    return where


class ServerProcess:
    """`redraft serve` as users run it."""

    def __init__(self, model: Path | str, *options: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "redraft", "serve", "--model", str(model), "--port", "0"]
        command += ["--dtype", "float32", *options]  # some processors would choose bfloat16
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
        variables.pop("REDRAFT_API_KEYS", None) if environment is None else None
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
        self.lines: list[str] = []
        self._started = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r" at (http://\S+) ", line):
                self.url = found[1]
                self._started.set()
        self._started.set()

    def wait(self, seconds: float = 240) -> "ServerProcess":
        """Until requests are taken."""
        assert self._started.wait(seconds), "".join(self.lines)
        assert self.url, "".join(self.lines)
        return self

    def stop(self, number: int = signal.SIGTERM, seconds: float = 120) -> int:
        """Tell it to stop; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def stopping(self) -> bool:
        """Whether it, or the last of its replicas, refuses requests since it was told to stop."""
        return httpx.get(f"{self.url}/health").json()["phase"] == "stopping"

    def close(self) -> None:
        """End it in any case."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def metric(self, name: str) -> float:
        """A metric's value, all its labels added up."""
        text = httpx.get(f"{self.url}/metrics").text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}(\{{|\s)", line))


@contextlib.contextmanager
def server_process(model: Path | str, *options: str, **more: Any) -> Iterator[ServerProcess]:
    """A running server, stopped at the end."""
    server = ServerProcess(model, *options, **more)
    try:
        yield server.wait()
    finally:
        server.close()


class ScriptedEngine:
    """Stands in for the asynchronous engine: answers every request with the next pieces of text of a script.

    A script may also end in the error that ends its answer.
    """

    def __init__(self, llm: LLM, script: Callable[[Request], Sequence[str | Exception]]) -> None:
        self._llm, self._script = llm, script
        self.go_on = threading.Event()
        """Answers wait for it; tests may clear it."""
        self.go_on.set()
        self._ids = itertools.count(1)
        self.requests: list[Request] = []
        self.closed: list[int] = []
        self.refusal: Exception | None = None
        self.finish_reason: Any = "stop"
        self.stop_text: str | None = None

    def next_id(self) -> int:
        return next(self._ids)

    def rehearse(self, request: Request) -> None:
        pass

    async def submit(self, requests: Sequence[Request], *, most_unread: float) -> list[AsyncGenerator[Event, None]]:
        assert most_unread < math.inf, "a client may never read"
        if self.refusal is not None:
            raise self.refusal
        self.requests += requests
        return [self._events(request) for request in requests]

    async def _events(self, request: Request) -> AsyncGenerator[Event, None]:
        ended = False
        try:
            pieces, text, ids = list(self._script(request)), "", list[int]()
            for canvas, piece in enumerate(pieces):
                await asyncio.sleep(0)
                while not self.go_on.is_set():
                    await asyncio.sleep(0.01)
                if isinstance(piece, Exception):
                    raise piece
                tokens = tuple(self._llm.tokenizer.encode(piece))
                if request.drafts:
                    yield _step(request.request_id, canvas, tokens)
                reason = "stop" if canvas == len(pieces) - 1 else None
                yield Commit(request_id=request.request_id, canvas_index=canvas, token_ids=tokens, text=piece,
                             finish_reason=reason)  # fmt: skip
                text, ids = text + piece, [*ids, *tokens]
            yield self._finished(request, text, ids, len(pieces))
            ended = True
        finally:
            if not ended:
                self.closed.append(request.request_id)

    def _finished(self, request: Request, text: str, ids: list[int], canvases: int) -> Finished:
        asked = request.settings.logprobs
        tokens = tuple(
            TokenConfidence(
                token_id=token, entropy=0.5, settled_step=1, logprob=None if asked is None else -0.25,
                top=tuple((token + i, -0.25 - i) for i in range(asked or 0)),
            ) for token in ids
        )  # fmt: skip
        stats = AnswerStats(
            canvases=canvases, steps=(1,) * canvases, forwards=canvases, tokens=len(ids), seconds=0.5,
            prompt_tokens=len(request.prompt), cached_tokens=3, queue_seconds=0.0, first_commit_seconds=0.25,
            step_budgets=(4,) * canvases,
        )  # fmt: skip
        return Finished(
            request_id=request.request_id, finish_reason=self.finish_reason, stop_text=self.stop_text, text=text,
            token_ids=tuple(ids), tokens=tokens, stats=stats,
        )  # fmt: skip

    async def run(self, function: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(function)

    healthy = True

    def stats(self) -> None:
        return None

    async def close(self, **options: Any) -> None:
        pass


def _step(request_id: int, canvas_index: int, ids: tuple[int, ...]) -> DenoiseStep:
    return DenoiseStep(
        request_id=request_id, canvas_index=canvas_index, step=0, canvas=ids, argmax_canvas=ids,
        accepted=(True,) * len(ids), entropy=(0.123456789,) * len(ids), temperature=0.8, converged=True,
    )  # fmt: skip


@contextlib.contextmanager
def scripted_server(llm: LLM, engine: ScriptedEngine | AsyncEngine, **settings: Any) -> Iterator[str]:
    """The application around a scripted engine, in a thread; yields its address."""
    chosen = ServeSettings(names=("scripted", "other"), engine=EngineSettings(), port=0, **settings)
    service = Service(chosen)
    service.start(llm, engine)  # type: ignore[arg-type]
    listener = listen(chosen)
    server = uvicorn.Server(uvicorn.Config(create_app(service), log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 120
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


def until(happened: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
