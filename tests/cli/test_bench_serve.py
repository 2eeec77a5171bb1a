"""`redraft bench serve`: a small run from start to plot, and what it refuses."""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from socket import create_server
from types import SimpleNamespace

import pytest
from outcome import Cli

from redraft.bench import load
from redraft.bench.quantile import quantile


@pytest.mark.parametrize(
    ("share", "count", "rank"), [(0.5, 1, 1), (0.5, 2, 1), (0.5, 3, 2), (0.95, 20, 19), (0.95, 21, 20), (1.0, 4, 4)]
)
def test_a_quantile_is_the_nearest_rank(share: float, count: int, rank: int) -> None:
    assert quantile(range(count, 0, -1), share) == rank
    assert quantile([], share) == 0


def test_a_small_run_measures_every_load(cli: Cli, folder: Path, tmp_path: Path) -> None:
    lengths, plot = tmp_path / "lengths.jsonl", tmp_path / "load.svg"
    lengths.write_text('{"prompt_tokens": 8, "max_tokens": 16}\n{"prompt_tokens": 20, "max_tokens": 32}\n')
    done = cli("bench", "serve", "--model", folder, "--concurrency", "1,2", "--rates", "20", "--requests", 4,
               "--lengths", lengths, "--plot", plot, "--steps", 2)  # fmt: skip
    assert done.code == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    assert [(row["mode"], row["load"]) for row in result["results"]] == [("closed", 1), ("closed", 2), ("open", 20)]
    for row in result["results"]:
        assert row["failed"] == 0
        assert row["requests"] == 4
        assert 0 < row["first_canvas_p50"] <= row["answer_p50"] <= row["answer_p95"]
        assert row["tokens_per_second"] > 0
        assert row["steps_per_canvas"] <= 2
        assert 0 < row["model_busy"] <= 1.05
    assert "<svg" in plot.read_text()
    assert "good/s" in done.out


def test_in_the_open_loop_requests_are_due_at_their_time_however_late_they_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever sleeps takes a second too long here."""
    now, due = 100.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds + (seconds > 0)

    def ask(self: load.LoadGenerator, number: int, job: load.ChatQuestion, since: float) -> load.TimedAnswer:
        due.append(since)
        return load.TimedAnswer(first=0, whole=0, tokens=1, steps=1, canvases=1, forwards=1)

    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: now, sleep=sleep))
    monkeypatch.setattr(load.LoadGenerator, "_ask", ask)
    idle = SimpleNamespace(busy_seconds=lambda: 0.0)
    runner = load.LoadGenerator(idle, "", [load.ChatQuestion("", 1)] * 20, {})  # type: ignore[arg-type]
    level, luck = runner.open(5, lambda: None), random.Random(0)
    gaps = [luck.expovariate(5) for _ in range(20)]
    assert sorted(due) == pytest.approx([100 + end for end in accumulate(gaps)])
    assert level.seconds <= sum(gaps) + 1


def test_a_level_sums_up_what_its_clients_saw() -> None:
    level = load.Level(mode="closed", load=2, seconds=4.0, busy_seconds=3.0, failed=1)
    for first, whole, tokens, steps, canvases, forwards in (
        (0.5, 0.6, 100, 12, 2, 14), (1.0, 3.0, 60, 8, 1, 9), (1.1, 2.0, 40, 10, 2, 11),
    ):  # fmt: skip
        level.answers.append(load.TimedAnswer(first=first, whole=whole, tokens=tokens, steps=steps, canvases=canvases,
                                              forwards=forwards))  # fmt: skip
    assert level.to_dict(target=1.0) == {
        "mode": "closed", "load": 2, "requests": 4, "failed": 1, "seconds": 4.0, "first_canvas_p50": 1.0,
        "first_canvas_p95": 1.1, "answer_p50": 2.0, "answer_p95": 3.0, "goodput": 0.5, "tokens_per_second": 50.0,
        "steps_per_canvas": 6.0, "tokens_per_forward": 5.88, "model_busy": 0.75,
    }  # fmt: skip


def test_a_servers_model_is_as_busy_as_its_replicas_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    target = load.Target("http://127.0.0.1:1")
    name = "redraft_forward_seconds_total"
    told = {"/metrics": f'{name}{{replica="0"}} 3.0\n{name}{{replica="1"}} 5\n'}
    monkeypatch.setattr(target, "get", told.get)
    assert target.busy_seconds() == 4.0
    told["/metrics"] = f"{name} 2.5\nredraft_forward_seconds_created 9\n"
    assert target.busy_seconds() == 2.5


def test_the_first_canvas_is_the_first_text_and_both_times_count_from_when_it_was_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stats = {"tokens": 7, "steps": [3, 2], "canvases": 2, "forwards": 6}
    chunks = [
        {"delta": {"role": "assistant"}, "finish_reason": None},
        {"delta": {"content": "a"}, "finish_reason": None},
        {"delta": {"content": "b"}, "finish_reason": None},
        {"delta": {}, "finish_reason": "stop", "redraft": {"stats": stats}},
    ]
    now, asked = 100.0, []

    def stream(body: dict[str, object]) -> Iterator[dict[str, object]]:
        nonlocal now
        asked.append(body)
        for chunk in chunks:
            now += 1
            yield {"choices": [chunk]}

    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: now))
    runner = load.LoadGenerator(SimpleNamespace(stream=stream), "m", [], {"steps": 3})  # type: ignore[arg-type]
    sample = runner._ask(5, load.ChatQuestion("Hi", 9), due=99.0)
    assert sample == load.TimedAnswer(first=3.0, whole=5.0, tokens=7, steps=5, canvases=2, forwards=6)
    expected = {"model": "m", "stream": True, "max_tokens": 9, "seed": 5, "steps": 3}
    assert asked == [expected | {"messages": [{"role": "user", "content": "Hi"}]}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--concurrency", "0"), "concurrency is '0'"),
        (("--concurrency", "1.5"), "concurrency is '1.5'"),
        (("--concurrency", "", "--rates", ""), "There is no load"),
        (("--url", "http://127.0.0.1:9", "--model", "tiny"), "give one of them"),
        (("--url", "ftp://x"), "is not the http:// address"),
        (("--url", "http://127.0.0.1:99999"), "is not the http:// address"),
        (("--url", "http://[::1"), "is not the http:// address"),
        (("--url", "http://127.0.0.1:9"), "No server answers at 127.0.0.1:9"),
        (("--lengths", "none.jsonl"), "cannot be read"),
        (("--preset", "quick"), "preset is 'quick'"),
        (("--target", "nan"), "--target is nan; it must be above 0"),
        (("--plot", "/no/such/folder/load.png"), "the folder /no/such/folder does not exist"),
        (("--plot", "load.txt"), "must end in .png, .svg or .pdf"),
    ],
)
def test_what_cannot_be_measured_is_said(cli: Cli, options: tuple[str, ...], said: str) -> None:
    done = cli("bench", "serve", *options)
    assert done.code == 2
    assert said in done.err


LENGTHS = "prompt_tokens and max_tokens must be whole numbers of at least 1"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1", "not valid JSON (Expecting ',' delimiter at column 3)"),
        ("[1]", "not a JSON object"),
        ("4", "not a JSON object"),
        ("{}", LENGTHS),
        ('{"prompt_tokens": 8, "max_tokens": 1e999}', "not valid JSON (the number 1e999 is too large)"),
        *((f'{{"prompt_tokens": 8, "max_tokens": {n}}}', LENGTHS) for n in ("0", "1.5", '"a"', "1e99", "true")),
    ],
)
def test_a_bad_line_of_lengths_is_named(cli: Cli, tmp_path: Path, line: str, reason: str) -> None:
    lengths = tmp_path / "lengths.jsonl"
    lengths.write_text(f'{{"prompt_tokens": 8, "max_tokens": 16}}\n{line}\n')
    done = cli("bench", "serve", "--lengths", lengths, "--url", "http://127.0.0.1:9")
    assert (done.code, done.err) == (2, f"error: {lengths}, line 2: {reason}.\n")


@contextmanager
def answering(said: bytes) -> Iterator[str]:
    """The address of something that answers every request with these bytes."""
    with create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "No server answers at 127.0.0.1:"),
        (b"HTTP/1.0 200 OK\r\ncontent-type: text/html\r\n\r\n<html>", "lists no models."),
        (
            b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n<html>",
            "answered with something that is not JSON.",
        ),
        (b"HTTP/1.0 404 No\r\n\r\n<html>\n<p>\n", "/v1/models answered 404: <html> <p>"),
    ],
)
def test_a_server_of_another_kind_is_one_sentence(cli: Cli, said: bytes, words: str) -> None:
    with answering(said) as url:
        done = cli("bench", "serve", "--url", url)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert words in done.err
