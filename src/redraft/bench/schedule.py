"""Scheduling policies compared: in simulation at any scale, and on a real model at small scale.

The simulation runs the real scheduler against a cost model. The value of a policy depends on one number above all: how
much of a forward's time does not depend on how many canvases share it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redraft.bench.quantile import quantile
from redraft.bench.simulation import Load, Simulated, simulate
from redraft.bench.step_counts import NAMES, draw_steps
from redraft.engine.policy import POLICIES, PolicyName
from redraft.engine.request import Finished, Request
from redraft.engine.scheduler import ForwardPlan
from redraft.engine.settings import EngineSettings
from redraft.engine.work import Limits
from redraft.llm import LLM

SLOTS = 8
LOADS = (0.5, 0.8)
"""Requests per second, as a share of what the mixed policy can serve."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Milliseconds of a forward at some numbers of tokens, with linear interpolation and extrapolation."""

    name: str
    points: tuple[tuple[int, float], ...]
    source: str

    def seconds(self, plan: ForwardPlan) -> float:
        """Seconds of a forward with the plan's tokens."""
        points = self.points
        at = next((i for i, (tokens, _) in enumerate(points[1:-1], 1) if plan.tokens <= tokens), len(points) - 1)
        (low, fast), (high, slow) = points[at - 1], points[at]
        return max(fast + (slow - fast) * (plan.tokens - low) / (high - low), 0.2 * points[0][1]) / 1e3


COSTS = (
    CostModel("h200-fp8-floor", ((256, 7.1), (1024, 12.6), (2048, 20.0)),
              "roofline of the 26B model in fp8 on one H200, 1, 4 and 8 canvases"),
    CostModel("h200-bf16-vllm", ((256, 22.7), (1024, 48.5)),
              "vLLM 0.26.0 in bf16 on one H200, measured at 1 and 4 canvases"),
    CostModel("cpu", ((256, 300.0), (1024, 1200.0)),
              "time in proportion to tokens, as the embedded model takes it on a CPU"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One policy under one load. Times in seconds; `load` is None when all requests arrive at once.

    first_canvas, answer   (median, 95th percentile) from arrival to the first commit, and to the end
    occupancy              canvases denoised per forward
    """

    policy: PolicyName
    steps: str
    cost: str
    load: float | None
    canvases_per_second: float
    first_canvas: tuple[float, float]
    answer: tuple[float, float]
    occupancy: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "policy": self.policy,
            "steps": self.steps,
            "cost": self.cost,
            "load": self.load,
            "canvases_per_second": round(self.canvases_per_second, 4),
            "first_canvas_seconds": {"p50": round(self.first_canvas[0], 4), "p95": round(self.first_canvas[1], 4)},
            "answer_seconds": {"p50": round(self.answer[0], 4), "p95": round(self.answer[1], 4)},
            "occupancy": round(self.occupancy, 3),
        }


def simulate_all(
    names: Sequence[str] = NAMES, costs: Sequence[CostModel] = COSTS, *, requests: int, slots: int = SLOTS
) -> list[Row]:
    """Every policy under every distribution, cost and load, with the same requests."""
    rows = []
    for cost in costs:
        for name in names:
            at_once: dict[PolicyName, Simulated] = {
                policy: _run(policy, _loads(name, requests, None), cost, slots) for policy in POLICIES
            }
            rows += [_row(policy, name, cost, None, done) for policy, done in at_once.items()]
            most = requests / at_once["mixed"].seconds
            for load in LOADS:
                loads = _loads(name, requests, load * most)
                rows += [_row(policy, name, cost, load, _run(policy, loads, cost, slots)) for policy in POLICIES]
    return rows


def _loads(name: str, count: int, rate: float | None) -> list[Load]:
    """Requests with prompts of 50 to 2,000 tokens and 1 to 4 canvases, arriving at random at `rate` per second."""
    luck = random.Random(name)
    now, loads = 0.0, []
    for _ in range(count):
        steps = tuple(draw_steps(name, luck) for _ in range(luck.choice((1, 1, 2, 4))))
        prompt = round(50 * 40 ** luck.random())
        now += 0.0 if rate is None else luck.expovariate(rate)
        loads.append(Load(arrival=now, prompt=prompt, steps=steps))
    return loads


def _run(policy: PolicyName, loads: Sequence[Load], cost: CostModel, slots: int) -> Simulated:
    limits = Limits(
        slots=slots, full_pages=64 * slots, sliding_pages=16 * slots, window=1024, context=262_144, 
        canvas=256, forward=8192,
    )  # fmt: skip
    settings = EngineSettings(slots=slots, policy=policy, max_waiting=len(loads))
    return simulate(loads, limits, settings, cost.seconds)


def _row(policy: PolicyName, name: str, cost: CostModel, load: float | None, done: Simulated) -> Row:
    return Row(
        policy=policy,
        steps=name,
        cost=cost.name,
        load=load,
        canvases_per_second=done.canvases_per_second,
        first_canvas=_percentiles([life.first_commit - life.load.arrival for life in done.lives]),
        answer=_percentiles([life.seconds for life in done.lives]),
        occupancy=done.occupancy,
    )


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    return quantile(values, 0.5), quantile(values, 0.95)


QUESTIONS = (
    "Hello!", "Why is the sky blue?", "Tell me a joke.", "Write a poem about rain.", "List three fruits.",
    "How do I boil an egg?", "Who are you?", "Write a short story about a dog that finds a key.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One policy on a real model, all requests at once. `scheduler_share` is its time as a share of the forwards'."""

    row: Row
    seconds: float
    forwards: int
    tokens: int
    scheduler_share: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return self.row.to_dict() | {
            "seconds": round(self.seconds, 3),
            "forwards": self.forwards,
            "tokens": self.tokens,
            "tokens_per_second": round(self.tokens / self.seconds, 2),
            "scheduler_share": round(self.scheduler_share, 5),
        }


def measure(llm: LLM, policy: PolicyName, *, requests: int, slots: int, max_tokens: int) -> Measured:
    """Answer `requests` everyday questions at once on a fresh engine."""
    engine = llm.new_engine(EngineSettings(slots=slots, policy=policy, max_waiting=requests, prefix_cache=False))
    asked = [_question(llm, i, max_tokens) for i in range(requests)]
    started = time.perf_counter()
    ends = [event for event in engine.answer(asked) if isinstance(event, Finished)]
    seconds, counters = time.perf_counter() - started, engine.stats().counters
    first = [end.stats.first_commit_seconds or 0.0 for end in ends]
    row = Row(
        policy=policy,
        steps="measured",
        cost=str(llm.model.device),
        load=None,
        canvases_per_second=counters.canvases / seconds,
        first_canvas=_percentiles(first),
        answer=_percentiles([end.stats.seconds for end in ends]),
        occupancy=counters.canvas_steps / counters.forwards,
    )
    share = counters.schedule_seconds / counters.forward_seconds
    return Measured(row=row, seconds=seconds, forwards=counters.forwards, tokens=counters.tokens, scheduler_share=share)


def _question(llm: LLM, i: int, max_tokens: int) -> Request:
    return llm.request(
        QUESTIONS[i % len(QUESTIONS)], request_id=i, seed=i, drafts=False, max_tokens=max_tokens, fit_canvas=True
    )
