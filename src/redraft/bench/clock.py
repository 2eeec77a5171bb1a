"""A card's clock and power during some work: at its power limit a card lowers its clock."""

from __future__ import annotations

import subprocess
from statistics import median
from types import TracebackType
from typing import Self

import torch

FIELDS = {"clock_mhz": "clocks.sm", "power_watts": "power.draw", "power_limit_watts": "enforced.power.limit"}
"""What is recorded, and what `nvidia-smi` calls it. The power is already a mean over a second."""

EVERY_MS = 50


class ClockWatch:
    """Samples a card inside a `with` block; afterwards `medians` has the medians of `FIELDS`.

    They are empty if `nvidia-smi` is missing, or if the block was too short for it.
    """

    def __init__(self, device: torch.device) -> None:
        self.medians: dict[str, float] = {}
        card = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        self._command = [
            "nvidia-smi", f"--id={card}", f"--query-gpu={','.join(FIELDS.values())}", "--format=csv,noheader,nounits",
            f"--loop-ms={EVERY_MS}",
        ]  # fmt: skip
        self._program: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            self._program = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            self._program = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._program is not None:
            self._program.terminate()
            self.medians = medians_of(self._program.communicate()[0])


def medians_of(text: str) -> dict[str, float]:
    """The medians of lines of comma-separated numbers, one for each of `FIELDS`; other lines are ignored."""
    samples = []
    for line in text.splitlines():
        try:
            samples.append([float(number) for number in line.split(",")])
        except ValueError:
            continue
    whole = [sample for sample in samples if len(sample) == len(FIELDS)]
    return {name: median(column) for name, column in zip(FIELDS, zip(*whole, strict=True), strict=False)}
