"""The quality-speed curve of a run: a task's score at several step budgets, measured while training."""

from __future__ import annotations

from pathlib import Path

import torch

from redraft.eval.curve import append_curve, draw, of_folder, read_curve
from redraft.train.recipe import Recipe

FOLDER = "curve"
"""Where a run writes what it measures."""
_FILE, _PICTURE = "curve.csv", "curve.png"


def measure_curve(recipe: Recipe, exported: Path, step: int, device: torch.device) -> str:
    """Measure the exported model, or adapter, of step `step` and add it to the run's curve file.

    Returns a sentence about the largest budget.
    """
    run = recipe.run
    folder, adapter = (exported, None) if recipe.lora is None else (Path(run.init), exported)
    points = of_folder(folder, run.curve_task, run.curve_items, run.curve_budgets, device=device.type, adapter=adapter)
    append_curve(Path(run.out) / _FILE, step, points)
    best = points[-1]
    return f"step {step}: {best.share:.0%} of {best.total} solved at {best.mean_steps:.1f} steps a canvas"


def draw_curve(recipe: Recipe) -> None:
    """Draw the run's first and last curve, if there are any. Raises `SettingError` if matplotlib is not installed."""
    folder = Path(recipe.run.out)
    if (folder / _FILE).exists():
        first, last = read_curve(folder / _FILE)
        draw({"before": first, "after": last}, folder / _PICTURE, title=recipe.run.curve_task)
