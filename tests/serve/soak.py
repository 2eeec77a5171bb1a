"""A server under everything at once: `python tests/serve/soak.py [REQUESTS] [KILLS]`; the last line is JSON.

A random model of about 1 M parameters with few pages answers short, long, seeded, streamed, cancelled, malformed and
oversized requests. None may be lost, none mixed up (a seeded answer equals the one that its request gets alone), no
answer may be a 5xx, and afterwards memory, pages and open files are what they were.
"""

import asyncio
import collections
import dataclasses
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
from serving import ServerProcess, server_process, write_model

import redraft
from redraft.llm import LLM

OPTIONS = ("--name", "random", "--slots", "8", "--memory-gb", "0.004", "--max-open", "48", "--max-body", "200000",
           "--grace", "20")  # fmt: skip
CONCURRENCY = 40
PROMPTS = ("Hello!", "Tell me a story about rain.", "word " * 60, "Ein längerer Satz, der über Zeilen geht.\n" * 8)


@dataclasses.dataclass
class Report:
    """What happened."""

    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)
    retries: int = 0
    server_errors: int = 0


@dataclasses.dataclass(frozen=True)
class Seeded:
    """A request whose answer is known."""

    prompt: str
    seed: int
    max_tokens: int
    steps: int
    text: str

    @property
    def body(self) -> dict[str, Any]:
        """The chat request."""
        messages = [{"role": "user", "content": self.prompt}]
        return {"model": "random", "messages": messages, "seed": self.seed, "max_tokens": self.max_tokens,
                "steps": self.steps}  # fmt: skip


def known_answers(llm: LLM, lengths: tuple[int, ...] = (4, 16, 48)) -> list[Seeded]:
    """Requests of all kinds with the answers that they get alone."""
    seeded = []
    for seed, (prompt, tokens, steps) in enumerate(itertools.product(PROMPTS, lengths, (1, 3))):
        reply = llm.chat([{"role": "user", "content": prompt}], seed=seed, max_tokens=tokens, steps=steps)
        seeded.append(Seeded(prompt, seed, tokens, steps, reply.content))
    return seeded


class Client:
    """Sends requests of one kind each, and judges what comes back."""

    def __init__(self, http: httpx.AsyncClient, known: list[Seeded], report: Report, seed: int) -> None:
        self._http, self._known, self._report = http, known, report
        self._random = random.Random(seed)
        self._kinds: list[tuple[str, Callable[[], Awaitable[None]], int]] = [
            ("whole", self._whole, 40), ("streamed", self._streamed, 22), ("anthropic", self._anthropic, 8),
            ("cancelled", self._cancelled, 8), ("unseeded", self._unseeded, 6), ("malformed", self._malformed, 8),
            ("oversized", self._oversized, 4), ("small things", self._small, 4),
        ]  # fmt: skip

    async def one(self) -> None:
        """One request of a random kind."""
        names, calls, weights = zip(*self._kinds, strict=True)
        index = self._random.choices(range(len(names)), weights)[0]
        try:
            await calls[index]()
        except httpx.HTTPError as error:
            self._wrong(f"{names[index]}: {type(error).__name__} {error}")
        self._report.outcomes[names[index]] += 1

    async def _whole(self) -> None:
        item = self._random.choice(self._known)
        answer = await self._post("/v1/chat/completions", item.body)
        self._same(item, answer.json()["choices"][0]["message"]["content"])

    async def _streamed(self) -> None:
        item, text = self._random.choice(self._known), ""
        async with self._stream("/v1/chat/completions", item.body | {"stream": True}) as lines:
            done = False
            async for data in lines:
                done = data == "[DONE]"
                text += "" if done else json.loads(data)["choices"][0]["delta"].get("content") or ""
        self._same(item, text)
        if not done:
            self._wrong("a stream without its end")

    async def _anthropic(self) -> None:
        item = self._random.choice(self._known)
        answer = await self._post("/v1/messages", item.body)
        self._same(item, "".join(block["text"] for block in answer.json()["content"]))

    async def _cancelled(self) -> None:
        item = self._random.choice(self._known)
        async with self._stream("/v1/drafts", item.body | {"max_tokens": 400}) as lines:
            for _ in range(self._random.randrange(1, 6)):
                await anext(lines)

    async def _unseeded(self) -> None:
        item = self._random.choice(self._known)
        body = {name: value for name, value in item.body.items() if name != "seed"} | {"n": 2}
        answer = await self._post("/v1/chat/completions", body)
        if len(answer.json()["choices"]) != 2:
            self._wrong("n=2 gave another number")

    async def _malformed(self) -> None:
        item = self._random.choice(self._known)
        content = json.dumps(item.body).encode()
        bad = self._random.choice(
            [content[:-3], b"", b"\xff\xfe", json.dumps(item.body | {"tempo": 1}).encode(),
             json.dumps(item.body | {"steps": -1}).encode(), json.dumps(item.body | {"messages": "x"}).encode()]
        )  # fmt: skip
        await self._post("/v1/chat/completions", bad, expected=400)

    async def _oversized(self) -> None:
        item = self._random.choice(self._known)
        if self._random.random() < 0.5:
            await self._post("/v1/chat/completions", b"x" * 250_000, expected=413)
        else:
            body = item.body | {"messages": [{"role": "user", "content": "long " * 3000}]}
            await self._post("/v1/chat/completions", body, expected=400)

    async def _small(self) -> None:
        answer = await self._post("/tokenize", {"text": self._random.choice(PROMPTS)})
        back = await self._post("/detokenize", {"tokens": answer.json()["tokens"]})
        if back.json()["text"] not in PROMPTS:
            self._wrong("text changed on its way through tokens")

    async def _post(self, path: str, body: Any, *, expected: int = 200) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        while True:
            answer = await self._http.post(path, content=content, headers={"content-type": "application/json"})
            if answer.status_code != 429:
                break
            await self._wait()
        self._status(answer.status_code, expected, path)
        return answer

    def _stream(self, path: str, body: dict[str, Any]) -> Any:
        return _Stream(self, self._http, path, body)

    async def _wait(self) -> None:
        self._report.retries += 1
        await asyncio.sleep(0.05 + 0.2 * self._random.random())

    def _status(self, status: int, expected: int, path: str) -> None:
        self._report.server_errors += status >= 500
        if status != expected:
            self._wrong(f"{path} answered {status} instead of {expected}")

    def _same(self, item: Seeded, text: str) -> None:
        if text != item.text:
            self._wrong(
                f"seed {item.seed} of {item.max_tokens} tokens gave {text[:40]!r} instead of {item.text[:40]!r}"
            )

    def _wrong(self, what: str) -> None:
        self._report.wrong.append(what)


class _Stream:
    """Data of server-sent events; asks again while the queue is full."""

    def __init__(self, client: Client, http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
        self._client, self._http, self._path, self._body = client, http, path, body

    async def __aenter__(self) -> AsyncIterator[str]:
        while True:
            self._context = self._http.stream("POST", self._path, json=self._body)
            answer = await self._context.__aenter__()
            if answer.status_code != 429:
                break
            await self._context.__aexit__(None, None, None)
            await self._client._wait()
        self._client._status(answer.status_code, 200, self._path)
        return self._data(answer)

    async def __aexit__(self, *error: Any) -> None:
        await self._context.__aexit__(*error)

    async def _data(self, answer: httpx.Response) -> AsyncIterator[str]:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield line[6:]


async def drive(url: str, known: list[Seeded], requests: int, concurrency: int = CONCURRENCY) -> Report:
    """Send `requests` requests, `concurrency` at a time."""
    report, left = Report(), iter(range(requests))
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:

        async def work(worker: int) -> None:
            client = Client(http, known, report, worker)
            for number in left:
                await client.one()
                if sys.stderr.isatty() and number % 100 == 0:
                    sys.stderr.write(f"\r{number} of {requests}")

        await asyncio.gather(*(work(worker) for worker in range(concurrency)))
    return report


async def kill(url: str, known: list[Seeded], times: int) -> None:
    """Read a little of a long stream and hang up, `times` times."""
    left = iter(range(times))
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:

        async def work(worker: int) -> None:
            for number in left:
                body = known[number % len(known)].body | {"max_tokens": 500, "stream": True}
                async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                    async for _ in answer.aiter_lines():
                        break

        await asyncio.gather(*(work(worker) for worker in range(12)))


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What a server holds when nothing is going on."""

    rss_mb: float
    files: int
    running: float
    waiting: float
    pages_used: float

    @classmethod
    def of(cls, server: ServerProcess) -> "Footprint":
        """Measured once everything has ended."""
        deadline = time.monotonic() + 20
        while (server.metric("redraft_running") or server.metric("redraft_waiting")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process, text = psutil.Process(server.process.pid), httpx.get(f"{server.url}/metrics").text
        used = [line for line in text.splitlines() if line.startswith("redraft_pages{") and 'use="used"' in line]
        return cls(
            rss_mb=round(process.memory_info().rss / 2**20, 1),
            files=process.num_fds(),
            running=server.metric("redraft_running"),
            waiting=server.metric("redraft_waiting"),
            pages_used=sum(float(line.rsplit(" ", 1)[1]) for line in used),
        )


async def terminate(server: ServerProcess, known: list[Seeded], clients: int) -> dict[str, int]:
    """SIGTERM under load: how many requests got their answer, a clear error, were never accepted, or were lost."""
    results: collections.Counter[str] = collections.Counter()
    ids: dict[str, str] = {}

    async def one(http: httpx.AsyncClient, number: int) -> None:
        item, name = known[number % len(known)], f"stop-{number}"
        try:
            answer = await http.post("/v1/chat/completions", json=item.body | {"stream": number % 2 == 0},
                                     headers={"x-request-id": name})  # fmt: skip
        except httpx.HTTPError as error:
            ids[name] = type(error).__name__
            return
        ids[name] = _outcome(answer, item)

    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=httpx.Limits(max_connections=clients)) as http:
        tasks = [asyncio.create_task(one(http, number)) for number in range(clients)]
        while await asyncio.to_thread(server.metric, "redraft_running") < 4:
            await asyncio.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*tasks)
    code = await asyncio.to_thread(server.process.wait, 60)
    server._reader.join(5)
    log = "".join(server.lines)
    for name, outcome in ids.items():
        accepted = f'"id": "{name}"' in log
        results[outcome if outcome in ("answered", "told") else "lost" if accepted else "never accepted"] += 1
    return {**results, "exit code": code}


def _outcome(answer: httpx.Response, item: Seeded) -> str:
    if answer.status_code in (429, 503):
        return "told"
    if answer.headers["content-type"].startswith("text/event-stream"):
        return "answered" if "data: [DONE]" in answer.text else "told" if '"error"' in answer.text else "broken off"
    return "answered" if answer.json()["choices"][0]["message"]["content"] == item.text else "wrong"


def soak(requests: int, kills: int, *, clients: int = 32) -> dict[str, Any]:
    """The whole soak; returns what is to be judged."""
    with tempfile.TemporaryDirectory() as where:
        model = write_model(Path(where) / "random")
        llm = redraft.load(model, device="cpu", dtype="float32")
        known, slow = known_answers(llm), known_answers(llm, (200, 240))
        with server_process(model, *OPTIONS) as server:
            asyncio.run(drive(server.url, known, max(requests // 10, 100)))
            before, began = Footprint.of(server), time.monotonic()
            report = asyncio.run(drive(server.url, known, requests))
            seconds, after = time.monotonic() - began, Footprint.of(server)
            asyncio.run(kill(server.url, known, kills))
            killed = Footprint.of(server)
            stopped = asyncio.run(terminate(server, slow, clients))
    return {
        "requests": requests, "answered": sum(report.outcomes.values()), "kinds": dict(report.outcomes),
        "wrong": report.wrong[:10], "wrong_count": len(report.wrong), "server_errors": report.server_errors,
        "retries_after_429": report.retries, "seconds": round(seconds, 1), "kills": kills,
        "before": dataclasses.asdict(before), "after": dataclasses.asdict(after),
        "after_kills": dataclasses.asdict(killed), "sigterm": stopped,
    }  # fmt: skip


if __name__ == "__main__":
    counts = [int(argument) for argument in sys.argv[1:]]
    print(json.dumps(soak(*(counts + [20_000, 1_000][len(counts) :]))))
