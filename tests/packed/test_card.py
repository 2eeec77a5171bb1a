"""`bench card` without a card: what it runs, how it judges, and that nothing that fails takes the rest along."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from redraft.bench.card import MILLISECONDS, PATIENCE, STEPS, Card, measure_card
from redraft.cli.main import main

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")


class FakeCard:
    """Answers as the commands of a card would; INT4 kernels break down."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def __call__(self, command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
        line = " ".join(command)
        self.commands.append(line)
        if command[0] == "pytest":
            return subprocess.CompletedProcess(command, 1, "FAILED a.py::b - c\n1 failed, 41 passed in 9.1s\n", "")
        if "int4" in line and "kernels" in line:
            return subprocess.CompletedProcess(command, 1, "", "Traceback\nRuntimeError: illegal address\n")
        return subprocess.CompletedProcess(command, 0, "a table\n" + json.dumps(self.answer(line)) + "\n", "")

    def answer(self, line: str) -> dict[str, Any]:
        words = line.split()

        def option(name: str, otherwise: str) -> str:
            return words[words.index(name) + 1] if name in words else otherwise

        if "kernels" in words:
            ratios = {"attention": 0.4, "experts": 1.9, "route": None}
            return {"operations": [{"name": name, "ratio": ratio} for name, ratio in ratios.items()]}
        case = {"quantization": option("--quantization", "bf16"), "device": "NVIDIA H200"}
        case |= {"memory": {"weights": 15.0, "process": 17.5, "sampler": 2.5}}
        batches, contexts = option("--batch", "1").split(","), option("--context", "1024").split(",")
        sizes = [(int(b), int(c)) for c in contexts for b in batches]
        return {"results": [case | {"batch": b, "context": c, "ms_per_forward": 8.0 * b} for b, c in sizes]}


def test_every_goal_is_judged_and_what_fails_is_told() -> None:
    fake, said = FakeCard(), []
    found = measure_card(Card(1e6, said.append, fake), Path("tests"))
    assert found["device"] == "NVIDIA H200"
    assert found["left_out"] == []
    assert len(found["runs"]) == len(fake.commands) == len(said)
    goals = {one["goal"]: one for one in found["goals"]}
    judged = {"goal": "fp8, ms per forward of 4", "at_most": 17.0, "measured": 32.0, "met": False}
    assert goals["fp8, ms per forward of 4"] == judged
    assert goals["fp8, ms per forward of 1"]["met"]
    assert goals["int4, GB of process at 1 after 8192 tokens"]["met"]
    assert goals["fp8, GB of sampler at 32 after 1024 tokens"]["measured"] == 2.5
    assert goals["largest ratio of a kernel's error to eager bf16's"]["measured"] == 1.9
    assert goals["failed tests"]["measured"] == 1
    assert sum("ms per forward" in name for name in goals) == len(MILLISECONDS)
    assert all(one["measured"] is not None for one in goals.values())
    broken = next(run for run in found["runs"] if "int4" in run["command"] and "kernels" in run["command"])
    assert broken["error"] == "RuntimeError: illegal address"
    assert "Traceback" in broken["said"]


def test_when_the_time_is_up_the_rest_is_listed_and_its_goals_are_open() -> None:
    fake = FakeCard()
    found = measure_card(Card(0, print, fake), Path("tests"))
    assert fake.commands == []
    assert len(found["left_out"]) > len(STEPS)
    assert all(one["met"] is None for one in found["goals"])


def test_a_process_that_takes_too_long_is_ended() -> None:
    def slow(command: Sequence[str], seconds: float) -> Any:
        allowed.append(seconds)
        raise subprocess.TimeoutExpired(command, seconds)

    allowed: list[float] = []
    card = Card(1000, print, slow)
    assert card.bench("kernels") == []
    assert card.measurements[0].error == "ran out of time"
    assert allowed == [PATIENCE]  # and others still have theirs


def test_commands_run_in_processes_of_their_own() -> None:
    said: list[str] = []
    card = Card(200, said.append)
    (found,) = card.bench("roofline", "--batch", "4")
    assert found["bench"] == "roofline"
    assert card.bench("roofline", "--model", "no-such-model") == []
    assert "no-such-model" in str(card.measurements[1].error)
    assert len(said) == 2


@no_gpu
def test_without_a_gpu_one_sentence_and_exit_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "card"]) == 2
    assert "this machine has none" in capfd.readouterr().err
    assert main(["bench", "card", "--tests", str(tmp_path)]) == 2
    assert "has no folder gpu" in capfd.readouterr().err
