"""What a card has to show: the goals of a step, every kernel, and the tests, in limited time.

Each measurement is a separate process, so one that fails, or leaves the device unusable, does not affect the others.
The most decisive measurements come first; those that there is no time for are listed and left out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MILLISECONDS = {
    ("bf16", 1): 16.5, ("bf16", 4): 24.0, ("bf16", 16): 62.0, ("fp8", 1): 9.0, ("fp8", 4): 17.0, ("fp8", 16): 48.0,
    ("int4", 1): 7.5, ("int4", 4): 17.0,
}  # fmt: skip
"""The most milliseconds per forward of a batch after 1,024 tokens on an H200."""

STEPS = (
    ("fp8", "1,4,16", "--repeats 3"),
    ("int4", "1", "--context 1024,8192 --repeats 3"),
    ("bf16", "1,4,16", "--repeats 2"),
    ("fp8", "32", "--steps 2 --repeats 1"),
    ("int4", "4", "--repeats 2"),
)
"""Arguments of `bench step`: format, batches, options."""
LEAST = 15.0
"""With fewer seconds left, nothing more is started."""
PATIENCE = 240.0
"""The most seconds for one process, so that one that hangs leaves time for the others."""
SAID = 6000
"""How many characters of a failed process' output are kept."""

Process = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One process: its command, its seconds, and the JSON that it printed last; on failure, what it `said`."""

    command: str
    seconds: float
    result: dict[str, Any] | None = None
    error: str | None = None
    said: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        known = {"command": self.command, "seconds": round(self.seconds, 1), "result": self.result, "error": self.error}
        return known | ({"said": self.said} if self.said else {})


class Card:
    """Runs measurements until the time is up. `say` gets a line after each."""

    def __init__(self, seconds: float, say: Callable[[str], None], process: Process | None = None) -> None:
        self._end, self._say, self._process = time.monotonic() + seconds, say, process or _process
        self.measurements: list[Measurement] = []
        self.left_out: list[str] = []

    def bench(self, *arguments: str) -> list[dict[str, Any]]:
        """The records of a `redraft bench` command; none if it failed or was left out."""
        result = self._run(["redraft", "bench", *arguments, "--json"], _last_json)
        return [] if result is None else result.get("results", [result])

    def tests(self, folders: Sequence[Path]) -> dict[str, Any] | None:
        """How many of the tests that need a GPU passed, and the names of those that did not."""
        quiet = ["-o", "addopts=-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning"]
        command = ["pytest", *map(str, folders), "-m", "gpu", *quiet]
        return self._run(command, _test_counts)

    def _run(self, command: list[str], read: Callable[[str], dict[str, Any] | None]) -> dict[str, Any] | None:
        left, shown = self._end - time.monotonic(), " ".join(command)
        if left < LEAST:
            self.left_out.append(shown)
            return None
        started, result, error, said = time.monotonic(), None, None, ""
        try:
            done = self._process(command, min(left, PATIENCE))
            result = read(done.stdout)
            error = None if result is not None else _last_line(done.stderr or done.stdout)
            if done.returncode:
                said = (done.stdout + done.stderr)[-SAID:]
        except subprocess.TimeoutExpired:
            error = "ran out of time"
        except OSError as failed:
            error = str(failed)
        measurement = Measurement(
            command=shown, seconds=time.monotonic() - started, result=result, error=error, said=said
        )
        self.measurements.append(measurement)
        self._say(f"{measurement.seconds:5.0f} s  {shown}{f': {error}' if error else ''}")
        return result


def measure_card(card: Card, tests: Path | None) -> dict[str, Any]:
    """Everything in order of importance: kernels, steps, tests, other formats' errors."""
    kernels = card.bench("kernels", "--quantization", "fp8", "--batch", "4,16")
    steps = _steps(card, STEPS[:2])
    tested = card.tests([tests / "gpu", tests / "kernels"]) if tests else None
    steps += _steps(card, STEPS[2:])
    for name in ("int4", "bf16"):
        kernels += card.bench("kernels", *_format(name), "--batch", "2")
    device = next(iter(steps + kernels), {})
    return {name: device[name] for name in ("device", "device_memory_gb", "versions") if name in device} | {
        "bench": "card",
        "goals": goals(steps, kernels, tested),
        "left_out": card.left_out,
        "runs": [measurement.to_dict() for measurement in card.measurements],
    }


def _steps(card: Card, cases: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Records of steps."""
    return [
        record
        for format, batches, options in cases
        for record in card.bench("step", "--random-weights", *_format(format), *options.split(), "--batch", batches)
    ]


def _format(name: str) -> tuple[str, ...]:
    return () if name == "bf16" else ("--quantization", name)


def goals(
    steps: Sequence[Mapping[str, Any]], kernels: Sequence[Mapping[str, Any]], tested: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Every goal: what is measured, its upper limit, and its best measurement (None: not measured)."""
    found = []
    for (format, batch), limit in MILLISECONDS.items():
        times = [step["ms_per_forward"] for step in steps if _case(step) == (format, batch, 1024)]
        found.append(_goal(f"{format}, ms per forward of {batch}", limit, times))
    memory = {name: [step["memory"][name] for step in steps] for name in ("weights", "process", "sampler")}
    for name, limit, case in (
        ("weights", 16.5, ("int4", 1, 1024)), ("process", 18.0, ("int4", 1, 8192)), ("process", 28.0, ("fp8", 1, 1024)),
        ("sampler", 6.0, ("fp8", 32, 1024)),
    ):  # fmt: skip
        sizes = [size for size, step in zip(memory[name], steps, strict=True) if _case(step) == case]
        format, batch, context = case
        found.append(_goal(f"{format}, GB of {name} at {batch} after {context} tokens", limit, sizes))
    ratios = [one["ratio"] for record in kernels for one in record["operations"] if one["ratio"] is not None]
    found.append(_goal("largest ratio of a kernel's error to eager bf16's", 2.0, [max(ratios)] if ratios else []))
    found.append(_goal("failed tests", 0, [tested["failed"]] if tested else []))
    return found


def _goal(name: str, limit: float, measured: Sequence[float]) -> dict[str, Any]:
    best = min(measured) if measured else None
    return {"goal": name, "at_most": limit, "measured": best, "met": None if best is None else best <= limit}


def _case(step: Mapping[str, Any]) -> tuple[str, int, int]:
    return step["quantization"] or "bf16", step["batch"], step["context"]


def _process(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run `redraft ...` or `pytest ...` with this Python."""
    whole = [sys.executable, "-m", *command]
    return subprocess.run(whole, capture_output=True, text=True, timeout=seconds, check=False)


def _last_json(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(_last_line(text))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _test_counts(text: str) -> dict[str, Any] | None:
    """The counts in pytest's summary; None if it has none."""
    counts = {
        name: int(number) for number, name in re.findall(r"(\d+) (passed|failed|errors?|skipped)", _last_line(text))
    }
    if not counts:
        return None
    broken = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return {"passed": counts.get("passed", 0), "failed": broken, "names": names}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
