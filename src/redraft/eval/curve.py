"""The quality-speed curve: a task's score when every canvas may take at most a given number of steps.

A model that stops by itself rarely needs its largest budget, so a point's position on the axis is the mean number of
steps really taken. With it comes the entropy curve: how unsure a canvas still is after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from redraft.diffusion.records import DenoiseStep
from redraft.errors import InputError, SettingError, one_of
from redraft.eval import extraction, smalltalk, sudoku, tool_results, tools
from redraft.eval.result import EvalResult
from redraft.eval.task import Task, spread

LABEL_WIDTH = 40
"""Characters in a line of a legend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """A task at one step budget."""

    budget: int
    solved: int
    total: int
    mean_steps: float

    @property
    def share(self) -> float:
        return self.solved / self.total

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "budget": self.budget,
            "solved": self.solved,
            "total": self.total,
            "share": round(self.share, 4),
            "mean_steps": round(self.mean_steps, 3),
        }


def check_budgets(budgets: Sequence[int]) -> None:
    """Raise `SettingError` unless there are budgets, of at least one step and increasing."""
    if not budgets or any(budget < 1 for budget in budgets) or sorted(set(budgets)) != list(budgets):
        raise SettingError(f"The budgets are {list(budgets)}; they must be increasing numbers of at least 1.")


def measure(evaluate: Callable[[int], EvalResult], budgets: Sequence[int]) -> list[CurvePoint]:
    """The points of one model; `evaluate` runs the task with a step budget. Raises `SettingError` for bad budgets."""
    check_budgets(budgets)
    points = []
    for budget in budgets:
        result = evaluate(budget)
        points.append(CurvePoint(budget=budget, solved=result.solved, total=result.total, mean_steps=result.mean_steps))
    return points


TASKS: dict[str, Task[Any]] = {
    "sudoku": sudoku.TASK,
    "tools": tools.TASK,
    "results": tool_results.TASK,
    "extraction": extraction.TASK,
    "smalltalk": smalltalk.TASK,
}


def task_of(name: str) -> Task[Any]:
    """The task with this name. Raises `InputError`."""
    if name not in TASKS:
        raise InputError(f"The task is {name!r}; it must be {one_of(TASKS)}.")
    return TASKS[name]


def of_folder(
    folder: Path, task: str, count: int, budgets: Sequence[int], *, device: str, adapter: Path | None = None
) -> list[CurvePoint]:
    """The curve of a model folder, with an adapter if there is one, over `count` of a task's own items."""
    from redraft.loading import load

    asked = task_of(task)
    items, llm = spread(asked.items(), count), load(folder, device=device, adapter=adapter)
    return measure(lambda budget: asked.evaluate(llm, items, steps=budget), budgets)


def entropies(answers: Iterable[Iterable[Any]]) -> list[float]:
    """Mean entropy in nats per position of the first canvas after each step, over answers that got that far.

    Each of `answers` is what `LLM.stream` gives.
    """
    sums: list[list[float]] = []
    for records in answers:
        for record in records:
            if not isinstance(record, DenoiseStep) or record.canvas_index:
                continue
            if record.step == len(sums):
                sums.append([])
            sums[record.step].append(sum(record.entropy) / len(record.entropy))
    return [sum(values) / len(values) for values in sums]


def draw(
    curves: Mapping[str, Sequence[CurvePoint]], picture: Path, *, title: str,
    entropy: Mapping[str, Sequence[float]] | None = None,
) -> None:  # fmt: skip
    """Draw named curves, such as before and after; with `entropy` the entropy curves next to them.

    Raises `SettingError` if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError("The picture needs matplotlib: pip install 'redraft[train]'.") from None
    figure = Figure(figsize=(10 if entropy else 6, 4.5), layout="constrained")
    axes = figure.subplots(1, 2 if entropy else 1, squeeze=False)[0]
    for name, points in curves.items():
        axes[0].plot([p.mean_steps for p in points], [100 * p.share for p in points], marker="o", label=_label(name))
        for point in points:
            place = (point.mean_steps, 100 * point.share)
            axes[0].annotate(str(point.budget), place, (0, 5), textcoords="offset points", ha="center", fontsize=7)
    axes[0].set(xlabel="steps per canvas (labels: most steps allowed)", ylabel="solved, %", title=title, ylim=(0, 102))
    for name, values in (entropy or {}).items():
        axes[1].plot(range(1, len(values) + 1), values, marker=".", label=_label(name))
    if entropy:
        axes[1].set(xlabel="step", ylabel="nats per position", yscale="log", title="entropy of the first canvas")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(picture, dpi=120)


def _label(name: str) -> str:
    """A name in lines short enough for a legend: that of a folder far away would leave the curves no room."""
    return "\n".join(wrap(name, LABEL_WIDTH))
