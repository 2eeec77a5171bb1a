"""The real scheduler with a simulated clock: what a policy would do, found out in milliseconds instead of hours.

Nothing is computed. A forward takes as long as a cost model says, and a canvas is done after the number of steps
recorded for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from redraft.engine.scheduler import ForwardPlan, Job, Scheduler
from redraft.engine.settings import EngineSettings
from redraft.engine.work import Limits

Cost = Callable[[ForwardPlan], float]
"""Seconds of a forward."""

Watch = Callable[[Scheduler, ForwardPlan], None]
"""Called before every forward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """One future request: when it arrives, how long its prompt is, and how many steps each of its canvases takes."""

    arrival: float
    prompt: int
    steps: tuple[int, ...]
    canvas: int = 256
    keys: tuple[bytes, ...] = ()

    def job(self, request_id: int) -> Job:
        """The request as the scheduler sees it."""
        return Job(
            request_id=request_id,
            prompt_length=self.prompt,
            positions=self.prompt + len(self.steps) * self.canvas,
            length=self.canvas,
            keys=self.keys,
        )


@dataclass(slots=True)
class Life:
    """When a simulated request arrived, got its slot, committed its first canvas, and ended; seconds."""

    load: Load
    admitted: float = 0.0
    first_commit: float = 0.0
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        """From arrival to end."""
        return self.ended - self.load.arrival


@dataclass(frozen=True, slots=True)
class Simulated:
    """The lives of all requests, in order, and totals."""

    lives: list[Life]
    seconds: float
    forwards: int
    canvas_steps: int
    waits: list[int] = field(default_factory=list)
    """Forwards between two turns of a running request, one entry per turn."""

    @property
    def canvases_per_second(self) -> float:
        return sum(len(life.load.steps) for life in self.lives) / self.seconds

    @property
    def occupancy(self) -> float:
        """Canvases denoised per forward."""
        return self.canvas_steps / self.forwards


def simulate(
    loads: Sequence[Load], limits: Limits, settings: EngineSettings, cost: Cost, watch: Watch | None = None
) -> Simulated:
    """Run all loads to their end."""
    scheduler = Scheduler(limits, settings)
    lives = [Life(load) for load in loads]
    coming = sorted(range(len(loads)), key=lambda i: (loads[i].arrival, i), reverse=True)
    now, forwards, canvas_steps, waits = 0.0, 0, 0, list[int]()
    while coming or scheduler.waiting or scheduler.running:
        while coming and loads[coming[-1]].arrival <= now:
            request_id = coming.pop()
            scheduler.add(_checked(scheduler, loads[request_id].job(request_id)))
        for job in scheduler.admit():
            lives[job.request_id].admitted = now
        served = {job.request_id: job.served for job in scheduler.running.values()}
        plan = scheduler.plan()
        if not plan.turns:
            now = loads[coming[-1]].arrival
            continue
        if watch is not None:
            watch(scheduler, plan)
        now += cost(plan)
        forwards += 1
        canvas_steps += sum(turn.denoise for turn in plan.turns)
        _finish(scheduler, plan, lives, now)
        waits += [turn.job.served - served[turn.job.request_id] for turn in plan.turns]
    return Simulated(lives, now, forwards, canvas_steps, waits)


def _checked(scheduler: Scheduler, job: Job) -> Job:
    scheduler.check(job)
    return job


def _finish(scheduler: Scheduler, plan: ForwardPlan, lives: list[Life], now: float) -> None:
    """Move every job of the plan on; finished canvases commit, finished requests leave."""
    scheduler.ran(plan)
    for job in _finished(plan, lives):
        life = lives[job.request_id]
        life.first_commit = life.first_commit or now
        if job.canvas_index + 1 == len(life.load.steps):
            life.ended = now
            scheduler.remove(job)
        else:
            scheduler.next_canvas(job, job.length, job.length)


def _finished(plan: ForwardPlan, lives: list[Life]) -> Iterator[Job]:
    for turn in plan.turns:
        if turn.denoise and turn.job.step == lives[turn.job.request_id].load.steps[turn.job.canvas_index]:
            yield turn.job
