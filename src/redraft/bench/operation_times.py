"""How long the operations of a step take, one by one, and the components of the roofline that they make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from redraft.bench.board import Board
from redraft.bench.roofline import Ceilings, Component
from redraft.kernels.switches import Operation, watching
from redraft.kernels.triton.routing import Routing

PAUSE_CYCLES = 400_000_000
"""Long enough for the host to queue a whole step."""

PARTS = {
    "experts": ("experts", "sum_of_experts"),
    "attention projections": ("qkv_linear", "out_linear"),
    "dense MLP": ("gated_linear", "mlp_linear"),
    "attention": ("attention", "quantize"),
    "router": ("route",),
    "head": ("predict",),
    "soft embeddings": ("soft_embeddings",),
    "self-conditioning MLP": ("soft_norm", "soft_gated_linear", "soft_linear"),
    "norms, rotation, sampling": (
        "enter_tokens", "rope", "enter", "qkv", "after_attention", "add_attention", "feed_forward_norms",
        "after_experts", "add_experts", "next_norm", "class_sums", "automaton_terms", "best_tokens", "add_by_class",
        "finish_step",
    ),
}  # fmt: skip
"""The operations of `kernels.switches` that make up each component of the roofline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTime:
    """One component: its time, its floor, and its operations' times, in milliseconds per step."""

    name: str
    ms: float
    floor_ms: float | None
    operations: dict[str, float]


def operation_times(board: Board, rounds: int = 3) -> tuple[dict[str, float], list[Routing]]:
    """Milliseconds per step of every operation, and the routing of every layer.

    The step runs operation by operation; a pause on the device lets the host queue all of it first, so the events
    around an operation enclose only its work. Still, each operation starts on an empty device here and nothing runs
    next to it, so the times add up to more than a step takes. Of several GPUs only the first one's operations are
    timed, with what they wait for the others.
    """
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {}
    routings: list[Routing] = []
    first = board.runner.model.device

    def watch(operation: Operation) -> Any:
        if torch.cuda.current_device() != first.index:
            return operation.run()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = operation.run()
        end.record()
        events.setdefault(operation.name, []).append((start, end))
        if isinstance(result, Routing):
            routings.append(result)
        return result

    board.runner.run(board.steps_at(1))
    bucket = board.runner.bucket(board.case.batch)
    with torch.inference_mode(), watching(watch):
        for number in range(rounds + 1):
            if number == 1:  # the first round warms up
                events.clear()
            routings.clear()
            torch.cuda._sleep(PAUSE_CYCLES)
            bucket.launch_singly()
            torch.cuda.synchronize()
    empty = _empty_pair_ms()
    times = {
        name: sum(max(start.elapsed_time(end) - empty, 0.0) for start, end in pairs) / rounds
        for name, pairs in events.items()
    }
    return times, routings


def _empty_pair_ms() -> float:
    """The time between two events with nothing between them."""
    torch.cuda._sleep(PAUSE_CYCLES // 100)
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(50)]
    for start, end in pairs:
        start.record()
        end.record()
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in pairs)


def distinct_experts(routings: list[Routing]) -> float:
    """How many experts a forward touches, averaged over the layers."""
    touched = [len(torch.unique(routing.index[routing.index >= 0])) for routing in routings]
    return sum(touched) / len(touched)


def part_times(times: dict[str, float], components: Sequence[Component], ceilings: Ceilings) -> tuple[PartTime, ...]:
    floors = {component.name: component.floor_ms(ceilings) for component in components}
    found = []
    for name, operations in PARTS.items():
        mine = {operation: times[operation] for operation in operations if operation in times}
        if not mine:
            continue
        found.append(PartTime(name=name, ms=sum(mine.values()), floor_ms=floors.get(name), operations=mine))
    return tuple(found)
