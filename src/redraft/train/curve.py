"""The quality-speed curve of a run: a task's score at several step budgets, measured while training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from redraft.eval.curve import CurvePoint, draw, of_folder
from redraft.train.progress import CsvLog, read_log
from redraft.train.recipe import Recipe

_FILE, _PICTURE = "curve.csv", "curve.png"
_COLUMNS = ("step", "budget", "solved", "total", "mean_steps")


def measure_curve(recipe: Recipe, exported: Path, step: int, device: torch.device) -> str:
    """Measure the exported model, or adapter, of step `step` and add it to the run's curve file.

    Returns a sentence about the largest budget.
    """
    run = recipe.run
    folder, adapter = (exported, None) if recipe.lora is None else (Path(run.init), exported)
    points = of_folder(folder, run.curve_task, run.curve_items, run.curve_budgets, device=device.type, adapter=adapter)
    log_curve(Path(run.out) / _FILE, step, points)
    best = points[-1]
    return f"step {step}: {best.share:.0%} of {best.total} solved at {best.mean_steps:.1f} steps a canvas"


def log_curve(file: Path, step: int, points: Sequence[CurvePoint]) -> None:
    """Add the curve of a step to a CSV file, replacing any measured at that step or later."""
    log = CsvLog(file, _COLUMNS, step - 1)
    for p in points:
        log.add({"step": step, "budget": p.budget, "solved": p.solved, "total": p.total,
                 "mean_steps": f"{p.mean_steps:.4f}"})  # fmt: skip


def first_and_last(file: Path) -> tuple[list[CurvePoint], list[CurvePoint]]:
    """The curves of the first and the last step in such a file."""
    rows = read_log(file)
    steps = [int(row["step"]) for row in rows]
    first, last = ([_point(row) for row in rows if int(row["step"]) == step] for step in (min(steps), max(steps)))
    return first, last


def _point(row: Mapping[str, str]) -> CurvePoint:
    counts = {name: int(row[name]) for name in ("budget", "solved", "total")}
    return CurvePoint(**counts, mean_steps=float(row["mean_steps"]))


def draw_curve(recipe: Recipe) -> None:
    """Draw the run's first and last curve, if there are any. Raises `SettingError` if matplotlib is not installed."""
    folder = Path(recipe.run.out)
    if (folder / _FILE).exists():
        first, last = first_and_last(folder / _FILE)
        draw({"before": first, "after": last}, folder / _PICTURE, title=recipe.run.curve_task)
