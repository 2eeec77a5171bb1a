"""A plot of the simulations: throughput when all requests come at once, and waiting times under load."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from redraft.engine.policy import POLICIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from redraft.bench.schedule import Row

COLOURS = ("#24507f", "#c97b2b", "#8a8f98", "#4f7f5b", "#8c4a6e")
"""Of the policies in their order, again from the first where there are more."""


def draw(rows: Sequence[Row], file: Path) -> None:
    """One row of plots per cost model."""
    from matplotlib.figure import Figure

    costs = list(dict.fromkeys(row.cost for row in rows))
    loads = sorted({row.load for row in rows if row.load is not None})
    figure = Figure(figsize=(10, 2.6 * len(costs)), layout="constrained")
    plots = figure.subplots(len(costs), 1 + len(loads), squeeze=False)
    for line, cost in zip(plots, costs, strict=True):
        of_cost = [row for row in rows if row.cost == cost]
        _bars(line[0], [r for r in of_cost if r.load is None], "canvases/s", f"{cost}: all at once")
        for plot, load in zip(line[1:], loads, strict=True):
            _bars(plot, [r for r in of_cost if r.load == load], "s", f"first canvas, p95, at {load:.0%} load")
    plots[0][0].legend(fontsize=7)
    figure.savefig(file, dpi=120)


def _bars(plot: Axes, rows: Sequence[Row], unit: str, title: str) -> None:
    """A group of bars per step-count distribution, with one bar per policy."""
    names = list(dict.fromkeys(row.steps for row in rows))
    width = 0.8 / len(POLICIES)
    for place, (policy, colour) in enumerate(zip(POLICIES, cycle(COLOURS), strict=False)):
        mine = {row.steps: row for row in rows if row.policy == policy}
        heights = [mine[name].canvases_per_second if unit == "canvases/s" else mine[name].first_canvas[1]
                   for name in names]  # fmt: skip
        plot.bar([i + place * width for i in range(len(names))], heights, width, label=policy, color=colour)
    plot.set_xticks([i + (0.8 - width) / 2 for i in range(len(names))], names, fontsize=7)
    plot.set_ylabel(unit, fontsize=7)
    plot.set_title(title, fontsize=8, loc="left")
    plot.tick_params(labelsize=7)
