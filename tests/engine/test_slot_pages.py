"""Who gets a page that another request has left finds only finite numbers in it, whatever became of that request."""

import random
from collections.abc import Mapping, Sequence

import pytest
import torch

from redraft.cache.pages import PAGE, pages_for
from redraft.config import FULL, SLIDING, LayerType
from redraft.engine.scheduler import ForwardPlan, Job, JobTurn, Scheduler
from redraft.engine.settings import EngineSettings
from redraft.engine.slot_pages import SlotPages
from redraft.engine.work import Encode, Limits, Segment

LIMITS = Limits(slots=4, full_pages=24, sliding_pages=24, window=300, context=20_000, canvas=64, forward=1024)
KINDS: tuple[LayerType, ...] = (FULL, SLIDING)


class Stored:
    """Pages of which only is known which are broken: they hold numbers that are not finite."""

    device = torch.device("cpu")

    def __init__(self, luck: random.Random) -> None:
        self.broken: dict[LayerType, set[int]] = {kind: set() for kind in KINDS}
        self._luck = luck

    def clean(self, pages: Mapping[LayerType, Sequence[int]]) -> bool:
        """Returns whether any was broken."""
        if self._luck.random() < 0.1:
            raise torch.OutOfMemoryError("no room")
        found = any(self.broken[kind].intersection(numbers) for kind, numbers in pages.items())
        for kind, numbers in pages.items():
            self.broken[kind].difference_update(numbers)
        return found


class Crowd:
    """Requests, some of which have an adapter that writes nothing finite, on the real scheduler."""

    def __init__(self, luck: random.Random) -> None:
        self.luck, self.stored, self.jobs = luck, Stored(luck), list[Job]()
        prompt_tokens, share = luck.choice((256, 1024)), luck.random() < 0.5
        self.scheduler = Scheduler(LIMITS, EngineSettings(slots=4, prompt_tokens=prompt_tokens, prefix_cache=share))
        self.pages = SlotPages((self.stored,), LIMITS)  # type: ignore[arg-type]
        self.damaged = set[Job]()

    def come(self) -> None:
        length, damaged = self.luck.choice((5, 300, 900, 3000)), self.luck.random() < 0.3
        keys = [bytes([damaged, page]) for page in range(length // PAGE)]
        self.jobs.append(job := Job(len(self.jobs), length, length + 3 * 64, 64, keys))
        if damaged:
            self.damaged.add(job)
        self.scheduler.add(job)

    def leave(self) -> None:
        left = [*self.scheduler.waiting, *self.scheduler.running.values()]
        if left:
            self.end(self.luck.choice(left))

    def end(self, job: Job, *, distrust: bool = False) -> None:
        """As `Engine` does it."""
        clean = job.slot < 0 or self.pages.release(job.slot)
        if distrust or not clean:
            self.scheduler.distrust(job)
        self.scheduler.remove(job)

    def end_all(self) -> None:
        running = list(self.scheduler.running.values())
        for job in running:
            self.scheduler.distrust(job)
        for job in running:
            self.end(job)

    def forward(self) -> None:
        """Plan and run one, in which anything may happen."""
        self.scheduler.admit()
        if not (plan := self.scheduler.plan()).turns:
            return
        self.assign(plan)
        try:
            self.pages.begin([segment for turn in plan.turns for segment in segments(turn)])
        except torch.OutOfMemoryError:
            self.end_all()
            return
        fails = self.luck.random() < 0.03
        for turn in plan.turns:
            self.run(turn, fails=fails)
        stepped = [turn.job for turn in plan.turns if turn.denoise]
        failed, done = self.damaged.intersection(stepped), {job for job in stepped if self.luck.random() < 0.3}
        self.scheduler.ran(plan)
        begun = set[int]()
        if self.luck.random() < 0.7 and not self.scheduler.prompts_alone:
            self.assign(following := self.scheduler.plan())  # while the forward runs
            begun = set() if fails else self.begin_early(following, done)
        if fails:
            self.end_all()
            return
        finite = (job for job in stepped if job not in failed)
        self.pages.trust(job.slot for job in finite if job in done or job.slot not in begun)
        for job in stepped:
            if job in failed:
                self.end(job, distrust=True)
            elif job in done:
                self.end(job) if job.canvas_index == 2 else self.scheduler.next_canvas(job, 64, 64)

    def begin_early(self, plan: ForwardPlan, done: set[Job]) -> set[int]:
        """The first part of the next forward, if all canvases in it go on, as `GraphRunner` does it; the slots in it.

        A request may give its first numbers that are not finite in it, but not if its canvas is done.
        """
        if not all(turn.denoise and turn.job.step > 0 for turn in plan.turns) or self.luck.random() < 0.2:
            return set()
        slots = {turn.job.slot for turn in plan.turns}
        self.pages.doubt(slots)
        for turn in plan.turns:
            if turn.job not in done:
                if self.luck.random() < 0.1:
                    self.damaged.add(turn.job)
                self.run(turn, fails=False)
        return slots

    def assign(self, plan: ForwardPlan) -> None:
        for job in plan.moved:
            self.pages.assign(job.slot, job.table.full, job.table.sliding)

    def run(self, turn: JobTurn, *, fails: bool) -> None:
        """Read all pages up to the turn's end, and write to its own."""
        first, stop = turn.encode[0] // PAGE, pages_for(turn.encode[0] + turn.tokens)
        for kind, table in zip(KINDS, (turn.job.table.full, turn.job.table.sliding), strict=True):
            if turn.job not in self.damaged:
                assert not self.stored.broken[kind].intersection(table[:stop])
            if turn.job in self.damaged or fails:
                self.stored.broken[kind].update(table[first:stop])


def segments(turn: JobTurn) -> list[Segment]:
    """Where a turn writes."""
    return [Encode(slot=turn.job.slot, start=turn.encode[0], token_ids=(0,) * turn.tokens)]


@pytest.mark.parametrize("seed", range(60))
def test_whoever_gets_a_page_finds_finite_numbers(seed: int) -> None:
    luck = random.Random(seed)
    crowd = Crowd(luck)
    for _ in range(120):
        while luck.random() < 0.5 and len(crowd.jobs) < 80:
            crowd.come()
        if luck.random() < 0.1:
            crowd.leave()
        crowd.forward()
    assert crowd.damaged
