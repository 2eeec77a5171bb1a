"""`bench card` without a card: what it runs, how it judges, and that nothing that fails takes the rest along."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from redraft.bench.card import MILLISECONDS, PATIENCE, Card, gain, measure_card, wins
from redraft.cli.main import main
from redraft.kernels.triton.tables import CANDIDATES

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")


def operations(**microseconds: float) -> list[dict[str, Any]]:
    return [{"name": name, "layer": "", "us": us, "ratio": 1.0} for name, us in microseconds.items()]


def kernels(ratio: float = 1.0, **microseconds: float) -> list[dict[str, Any]]:
    return [{"batch": 4, "context": 1024, "operations": [one | {"ratio": ratio} for one in operations(**microseconds)]}]


class FakeCard:
    """Answers as the commands of a card would: `tall-experts` halves the experts' time, `flat-router` breaks down."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        line = " ".join(command)
        self.commands.append(line)
        if command[0] == "pytest":
            return subprocess.CompletedProcess(command, 1, "FAILED a.py::b - c\n1 failed, 41 passed in 9.1s\n", "")
        if "flat-router" in line and "kernels" in line:
            return subprocess.CompletedProcess(command, 1, "", "Traceback\nRuntimeError: illegal address\n")
        return subprocess.CompletedProcess(command, 0, "a table\n" + json.dumps(self.answer(line)) + "\n", "")

    def answer(self, line: str) -> dict[str, Any]:
        words, tall = line.split(), "tall-experts" in line

        def option(name: str, otherwise: str) -> str:
            return words[words.index(name) + 1] if name in words else otherwise

        if "kernels" in words:
            found = {"attention": 30.0, "experts": 50.0 if tall else 100.0, "route": 20.0}
            only = option("--only", ",".join(found)).split(",")
            return kernels(**{name: us for name, us in found.items() if name in only})[0]
        case = {"quantization": option("--quantization", "bf16"), "ms_per_forward": 8.0 if tall else 12.0}
        case |= {"device": "NVIDIA H200", "memory": {"weights": 15.0, "process": 17.5, "sampler": 2.5}}
        batches, contexts = option("--batch", "1").split(","), option("--context", "1024").split(",")
        return {"results": [case | {"batch": int(b), "context": int(c)} for c in contexts for b in batches]}


def test_a_faster_candidate_goes_through_the_steps_and_every_goal_is_judged() -> None:
    fake, said = FakeCard(), []
    found = measure_card(Card(1e6, said.append, fake), Path("tests"))
    assert found["winners"] == ["tall-experts"]
    assert found["gains"] == {name: {"tall-experts": 0.5, "flat-router": None}.get(name, 1.0) for name in CANDIDATES}
    assert found["device"] == "NVIDIA H200"
    assert found["left_out"] == []
    assert len(found["runs"]) == len(fake.commands) == len(said)
    goals = {one["goal"]: one for one in found["goals"]}
    judged = {"goal": "fp8, ms per forward of 4", "at_most": 17.0, "measured": 8.0, "met": True}
    assert goals["fp8, ms per forward of 4"] == judged
    assert goals["fp8, ms per forward of 1"]["met"] is False  # nothing that won changes a single canvas
    assert goals["int4, GB of process at 1 behind 8192 tokens"]["met"]
    assert goals["fp8, GB of sampler at 32 behind 1024 tokens"]["measured"] == 2.5
    assert goals["failed tests"]["measured"] == 1
    assert sum("ms per forward" in name for name in goals) == len(MILLISECONDS)
    assert all(one["measured"] is not None for one in goals.values())
    broken = next(run for run in found["runs"] if "flat-router" in run["command"])
    assert broken["error"] == "RuntimeError: illegal address"


def test_when_the_time_is_up_the_rest_is_listed_and_its_goals_are_open() -> None:
    fake = FakeCard()
    found = measure_card(Card(0, print, fake), Path("tests"))
    assert fake.commands == []
    assert len(found["left_out"]) > len(CANDIDATES)
    assert all(one["met"] is None for one in found["goals"])


def test_a_process_that_takes_too_long_is_ended() -> None:
    def slow(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> Any:
        allowed.append(seconds)
        raise subprocess.TimeoutExpired(command, seconds)

    allowed: list[float] = []
    card = Card(1000, print, slow)
    assert card.bench("kernels") == []
    assert card.outcomes[0].error == "the time was up"
    assert allowed == [PATIENCE]  # and others still have theirs


def test_a_candidate_wins_by_time_and_only_if_it_is_exact() -> None:
    shipped = kernels(attention=30.0, experts=100.0)
    assert gain(shipped, kernels(experts=60.0)) == 0.6
    assert wins(shipped, kernels(experts=60.0))
    assert not wins(shipped, kernels(experts=99.0))
    assert not wins(shipped, kernels(ratio=2.5, experts=60.0))
    assert not wins(shipped, kernels(ratio=float("nan"), experts=60.0))
    assert not wins(shipped, [])
    assert not wins([], kernels(experts=60.0))


def test_commands_run_in_processes_of_their_own() -> None:
    said: list[str] = []
    card = Card(200, said.append)
    (found,) = card.bench("roofline", "--batch", "4")
    assert found["bench"] == "roofline"
    assert card.bench("roofline", "--model", "no-such-model") == []
    assert "no-such-model" in str(card.outcomes[1].error)
    assert len(said) == 2


@no_gpu
def test_without_a_gpu_one_sentence_and_exit_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "card"]) == 2
    assert "this machine has none" in capfd.readouterr().err
    assert main(["bench", "card", "--tests", str(tmp_path)]) == 2
    assert "has no folder gpu" in capfd.readouterr().err
