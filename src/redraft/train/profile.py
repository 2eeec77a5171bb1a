"""Where the time of a recipe's step goes on this device, and how many clean tokens it trains on per second.

`python -m redraft.train.profile recipes/nano.toml [--rows 96] [--steps 20] [--data]` uses random batches of the
recipe's shape, or with `--data` the recipe's own sources and workers. A step takes as many batches as `data.accumulate`
says. The last line is JSON. How fast a model of some shape trains at all is for `redraft bench train` (`bench.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice

import torch

from redraft.errors import InputError
from redraft.train.batch import Batch
from redraft.train.bench import random_batch, wait
from redraft.train.loader import Loader
from redraft.train.passes import EagerPass
from redraft.train.recipe import Recipe, SourceSettings, read_recipe
from redraft.train.trainer import Trainer

_RECENT = 5


class PartTimer:
    """Milliseconds between marks, by CUDA events or, on a CPU, by the clock."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, torch.cuda.Event | float]] = []

    def mark(self, name: str) -> None:
        """End the part `name` here."""
        if not self._cuda:
            self._marks.append((name, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((name, event))

    def parts(self) -> dict[str, float]:
        """Milliseconds of every part, of all batches of a step, as a mean over steps; the mark `start` begins one."""
        if self._cuda:
            torch.cuda.synchronize()
        sums: dict[str, float] = defaultdict(float)
        for (_, before), (name, after) in zip(self._marks, self._marks[1:], strict=False):
            if name != "start":
                sums[name] += _milliseconds(before, after)
        steps = sum(name == "start" for name, _ in self._marks)
        return {name: total / steps for name, total in sums.items()}


def _milliseconds(before: torch.cuda.Event | float, after: torch.cuda.Event | float) -> float:
    if isinstance(before, torch.cuda.Event) and isinstance(after, torch.cuda.Event):
        return before.elapsed_time(after)
    assert isinstance(before, float)
    assert isinstance(after, float)
    return 1e3 * (after - before)


def profile(recipe: Recipe, steps: int, *, from_data: bool) -> dict[str, object]:
    """Warm up, time `steps` plain steps, then a few with marks between the parts."""
    with ExitStack() as stack:
        trainer = Trainer(recipe if from_data else _without_sources(recipe))
        count, size = steps + 2 * _RECENT, recipe.data.accumulate
        needed = range(count * size)
        loader = stack.enter_context(Loader(trainer.packer, needed, recipe.data.workers)) if from_data else None
        batches = iter(loader) if loader else _random_batches(recipe)
        groups = (tuple(islice(batches, size)) for _ in range(count))
        stack.enter_context(trainer.world.joined(trainer.device, always=recipe.run.shard))
        trainer.build()
        started = time.perf_counter()
        for group in islice(groups, _RECENT):
            _step(trainer, group)
        wait(trainer.device)
        warm_up = time.perf_counter() - started
        started = time.perf_counter()
        losses = [_step(trainer, group) for group in islice(groups, steps)]
        final = float(losses[-1])
        seconds = (time.perf_counter() - started) / steps
        parts = _parts(trainer, groups)
        return _summary(recipe, trainer, seconds, warm_up, final, parts)


def _step(trainer: Trainer, group: Sequence[Batch]) -> torch.Tensor:
    """One step from its batches; returns its loss."""
    return trainer.train_step(*[batch.to(trainer.device) for batch in group])


def _parts(trainer: Trainer, groups: Iterator[Sequence[Batch]]) -> dict[str, float]:
    """Milliseconds of the parts of a step, kernel by kernel."""
    timer = PartTimer(trainer.device)
    trainer.stream.mark, trainer.batch_pass = timer.mark, EagerPass(trainer.stream)
    for group in islice(groups, _RECENT):
        timer.mark("start")
        _step(trainer, group)
    return {name: round(value, 2) for name, value in timer.parts().items()}


def _summary(
    recipe: Recipe, trainer: Trainer, seconds: float, warm_up: float, loss: float, parts: dict[str, float]
) -> dict[str, object]:
    rows = recipe.data.rows * recipe.data.accumulate
    clean = rows * recipe.data.tokens
    canvas = rows * recipe.data.canvases * recipe.model.canvas_length
    gpu = trainer.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "torch": torch.__version__,
        "rows": recipe.data.rows,
        "accumulate": recipe.data.accumulate,
        "milliseconds_per_step": round(1e3 * seconds, 2),
        "clean_tokens_per_second": round(clean / seconds),
        "all_tokens_per_second": round((clean + canvas) / seconds),
        "warm_up_seconds": round(warm_up, 1),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if gpu else None,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "loss": loss,
        "parts_ms": parts,
    }


def _without_sources(recipe: Recipe) -> Recipe:
    """The recipe with a source that needs no files; its batches are not used."""
    rollout = max(source.rollout for source in recipe.data.sources)
    toy = SourceSettings(name="random", kind="reverse", share=1.0, rollout=rollout)
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, sources=(toy,)))


def _random_batches(recipe: Recipe) -> Iterator[Batch]:
    kept = [random_batch(recipe, seed) for seed in range(4)]
    while True:
        yield from kept


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, profile, print the parts and a JSON line. Wrong input is a sentence and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m redraft.train.profile", description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--data", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; it must be at least 1.")
    try:
        result = profile(_recipe(options), options.steps, from_data=options.data)
    except InputError as error:
        parser.error(str(error))
    parts = result["parts_ms"]
    assert isinstance(parts, dict)
    for name, value in parts.items():
        print(f"{name:>12} {value:9.2f} ms")
    print(json.dumps(result))


def _recipe(options: argparse.Namespace) -> Recipe:
    """The recipe with what the command line changes."""
    recipe = read_recipe(options.recipe)
    if options.rows is not None:
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, rows=options.rows))
    if options.no_compile:
        recipe = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, compile=False, capture=True))
    return recipe


if __name__ == "__main__":
    main()
