"""`redraft bench serve`: a small run from start to plot, and what it refuses."""

import json
from pathlib import Path

import pytest
from outcome import Cli


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--concurrency", "0"), "concurrency is '0'"),
        (("--concurrency", "1.5"), "concurrency is '1.5'"),
        (("--concurrency", "", "--rates", ""), "There is no load"),
        (("--url", "ftp://x"), "is not the http:// address"),
        (("--url", "http://127.0.0.1:9"), "No server answers at 127.0.0.1:9"),
        (("--lengths", "none.jsonl"), "cannot be read"),
        (("--preset", "quick"), "preset is 'quick'"),
        (("--plot", "load.txt"), "must end in .png, .svg or .pdf"),
    ],
)
def test_what_cannot_be_measured_is_said(cli: Cli, options: tuple[str, ...], said: str) -> None:
    done = cli("bench", "serve", *options)
    assert done.code == 2
    assert said in done.err
