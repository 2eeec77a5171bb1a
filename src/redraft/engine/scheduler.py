"""Which requests run next, and where their keys and values go. No tensors, tokens or text, only counts and pages.

A request's life:

    waiting   in a queue, first come first served, until a slot is free and all pages it may ever need can be promised
    prefill   its prompt is encoded in page-sized chunks, several per forward; known pages are not encoded again
    denoise   one step of its canvas per forward; the last chunk and the first step share a forward
    commit    the finished canvas is encoded in the same forward as the first step of the next one
    gone      slot and pages are returned at once

Chunks are on a fixed grid, whatever else is in the forward and whatever was found in the prefix cache: they end where
pages do. Only an image that crosses a page end is a separate chunk, because its tokens see each other. So the same
tokens are always encoded together, and neither load nor a cache hit can change an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from redraft.cache.pages import PAGE, PageManager, PageTable, pages_for
from redraft.engine.policy import POLICIES, Ready
from redraft.engine.settings import EngineSettings
from redraft.engine.work import Limits
from redraft.errors import PromptError, SettingError
from redraft.text.images import cut_outside


@dataclass(slots=True, eq=False)
class Job:
    """A request as the scheduler sees it. `positions` is the most it may need: its prompt and all its canvases.

    length    positions of its canvas
    keys      of its prompt's whole pages, by which others find what is written in them
    images    positions of the images in its prompt
    order     how many jobs were added before it
    table     its pages; none while it has no slot
    encoded   positions whose keys and values are in its pages
    commit    tokens of a finished canvas that have yet to be encoded
    step      steps taken on its canvas, the `canvas_index`th
    served    number of the last forward it had a turn in, or else of the one it was admitted after
    """

    request_id: int
    prompt_length: int
    positions: int
    length: int
    keys: Sequence[bytes] = ()
    images: Sequence[range] = ()
    order: int = 0
    slot: int = -1
    table: PageTable = field(default_factory=PageTable)
    encoded: int = 0
    commit: int = 0
    canvas_index: int = 0
    step: int = 0
    served: int = 0
    moved: bool = True
    """Whether its page table has changed since the runner was last told."""

    @property
    def start(self) -> int:
        """Where its canvas begins once the prompt is encoded."""
        return self.encoded + self.commit

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are not encoded yet."""
        return max(0, self.prompt_length - self.encoded)

    def chunk_end(self, first: int) -> int:
        """Where the prompt chunk that begins at `first` ends."""
        return cut_outside(self.images, first, min((first // PAGE + 1) * PAGE, self.prompt_length))

    def begun_key(self) -> Sequence[bytes]:
        """If its prompt is encoded up to the middle of a page: the key of the page that others would begin with."""
        if not self.prompt_left or not self.encoded % PAGE:
            return ()
        first = next(pages for pages in range(self.encoded // PAGE, -1, -1) if pages not in self.table.broken)
        return self.table.keys[first : first + 1]

    @property
    def broken_pages(self) -> frozenset[int]:
        """Page counts after which the prompt cannot be resumed, because they end in the middle of an image."""
        return frozenset(end for image in self.images for end in range(image.start // PAGE + 1, pages_for(image.stop)))


@dataclass(frozen=True, slots=True)
class JobTurn:
    """What one job does in a forward: encode positions `encode`, [first, stop), in chunks, and perhaps take a step."""

    job: Job
    encode: tuple[int, int]
    denoise: bool

    @property
    def tokens(self) -> int:
        return self.encode[1] - self.encode[0] + (self.job.length if self.denoise else 0)

    def chunks(self) -> list[tuple[int, int]]:
        """Encoded ranges: chunks of a prompt, or one commit."""
        first, stop = self.encode
        if first >= self.job.prompt_length:
            return [(first, stop)] if stop > first else []
        chunks = []
        while first < stop:
            chunks.append((first, self.job.chunk_end(first)))
            first = chunks[-1][1]
        return chunks


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """Who runs in one forward, and who holds other pages than before, so that the runner knows who holds any page."""

    turns: tuple[JobTurn, ...]
    moved: tuple[Job, ...]

    @property
    def tokens(self) -> int:
        """Rows of the forward."""
        return sum(turn.tokens for turn in self.turns)


@dataclass(slots=True)
class _Room:
    """What is left of a forward while it is being filled: tokens, prompt tokens, and pages promised to no one."""

    tokens: int
    prompt: int
    spare_pages: int
    writing: dict[bytes, Job]
    """Which job is writing each prompt page: others that need the same page wait and share it."""
    fresh: bool = True
    """Whether no prompt has taken any room yet."""


class Scheduler:
    """Admits jobs, plans forwards, and keeps track of slots and pages."""

    def __init__(self, limits: Limits, settings: EngineSettings) -> None:
        self.limits, self.settings = limits, settings
        self.slots = min(limits.slots, settings.slots)
        self.pages = PageManager(limits.full_pages, limits.sliding_pages, limits.window)
        self.waiting: deque[Job] = deque()
        self.running: dict[int, Job] = {}
        self._policy = POLICIES[settings.policy]()
        self._free_slots = list(range(self.slots - 1, -1, -1))
        self._planned: ForwardPlan | None = None
        self._forwards = 0
        self._arrivals = 0
        self._prompt_room = min(pages_for(settings.prompt_tokens) * PAGE, limits.forward)
        self._prompt_room_alone = max(self._prompt_room, limits.prompt)
        assert limits.forward >= max(PAGE, 2 * limits.canvas)

    def check(self, job: Job) -> None:
        """Raise `PromptError` or `SettingError`, with the numbers, for a job that can never be admitted."""
        if job.positions > self.limits.context:
            raise PromptError(
                f"A prompt of {job.prompt_length} tokens and canvases up to position {job.positions} exceed the "
                f"context of {self.limits.context}.",
                "prompt",
            )
        if (longest := max(map(len, job.images), default=0)) > self.limits.forward:
            raise PromptError(
                f"An image of {longest} tokens is encoded at once, but a forward has only {self.limits.forward}; "
                "a lower detail makes it shorter.",
                "prompt",
            )
        full, sliding = pages_for(job.positions), self.pages.sliding_most(job.positions, self._span(job))
        for kind, needed, there in (("", full, self.pages.full.count), ("sliding ", sliding, self.pages.sliding.count)):
            if needed > there:
                raise SettingError(
                    f"A prompt of {job.prompt_length} tokens and canvases up to position {job.positions} need {needed} "
                    f"{kind}pages of {PAGE} tokens; the engine has only {there}."
                )

    def add(self, job: Job) -> None:
        """Queue a checked job."""
        job.order = self._arrivals
        self._arrivals += 1
        self.waiting.append(job)

    def remove(self, job: Job) -> None:
        """Remove a job that has ended, wherever it was, and return its slot and pages."""
        if job.slot < 0:
            with suppress(ValueError):  # it was not queued yet
                self.waiting.remove(job)
            return
        self._planned = None
        self.pages.close(job.table)
        self._free_slots.append(job.slot)
        del self.running[job.request_id]
        job.slot = -1

    def distrust(self, job: Job) -> None:
        """Stop others from reusing pages of a running job, because something in them is wrong."""
        self.pages.unname(job.table)

    def forget_prefixes(self) -> None:
        """Stop sharing all pages written so far, and those that running jobs will write after them."""
        self.pages.forget()
        for job in self.running.values():
            job.table.keys = ()

    @property
    def may_admit(self) -> bool:
        """Whether a job is waiting and a slot is free; there may still be too few pages."""
        return bool(self.waiting and self._free_slots)

    @property
    def prompts_alone(self) -> bool:
        """Whether no canvas waits for the prompts: they may then be longer in a forward, with borrowed pages."""
        return all(job.prompt_left for job in self.running.values())

    def admit(self) -> list[Job]:
        """Give slots and page tables to waiting jobs, strictly in order of arrival, as long as they fit."""
        assert not (self.may_admit and any(job.table.borrows for job in self.running.values()))
        admitted = []
        while self.may_admit:
            job = self.waiting[0]
            keys = job.keys if self.settings.prefix_cache else ()
            table = self.pages.open(job.positions, self._span(job), keys, job.broken_pages)
            if table is None:
                break
            self.waiting.popleft()
            self._planned = None
            job.slot, job.table, job.served = self._free_slots.pop(), table, self._forwards
            job.encoded = len(table.full) * PAGE
            self.running[job.request_id] = job
            admitted.append(job)
        return admitted

    def plan(self) -> ForwardPlan:
        """The next forward of the running jobs; it has no turns if nothing can be done.

        It is the same object until that forward has begun, or a job has come, gone, or finished a canvas.
        """
        if self._planned is None:
            self._planned = self._new_plan()
        return self._planned

    def ran(self, plan: ForwardPlan) -> None:
        """Advance the jobs of a plan whose forward runs, or has run, and let others use the prompt pages it writes.

        Until `next_canvas` says otherwise, their canvases go on.
        """
        self._planned = None
        self._forwards += 1
        for job in plan.moved:
            job.moved = False
        for turn in plan.turns:
            job, (first, stop) = turn.job, turn.encode
            if stop <= job.prompt_length:
                self.pages.name(job.table, first // PAGE, stop // PAGE)
            else:
                job.commit = 0
            job.encoded = stop
            job.step += turn.denoise
            job.served = self._forwards
            job.moved = self.pages.leave_behind(job.table, stop)

    def next_canvas(self, job: Job, commit: int, length: int) -> None:
        """The job's canvas is finished: encode `commit` of its tokens next, then start a canvas of `length`."""
        self._planned = None
        job.commit, job.length = commit, length
        job.canvas_index += 1
        job.step = 0

    def _new_plan(self) -> ForwardPlan:
        ready = [
            Ready(job.request_id, job.canvas_index, job.step, job.order, self._forwards + 1 - job.served)
            for job in self.running.values()
        ]
        prompt = self._prompt_room_alone if self.prompts_alone else self._prompt_room
        writing = {key: job for job in self.running.values() for key in job.begun_key()}
        room = _Room(self.limits.forward, prompt, self.pages.spare, writing)
        turns: list[JobTurn] = []
        for chosen in self._policy.choose(ready):
            job = self.running[chosen.request_id]
            self._adopt(job)
            if (turn := self._turn(job, room)) is not None:
                self._take_pages(job, turn, room)
                turns.append(turn)
        assert turns or not ready, "nobody could be served"
        return ForwardPlan(tuple(turns), tuple(job for job in self.running.values() if job.moved))

    def _adopt(self, job: Job) -> None:
        """Skip prompt pages that others have written since the job was admitted."""
        while job.prompt_left and len(job.table.full) * PAGE == job.encoded and self.pages.adopt(job.table):
            job.encoded = len(job.table.full) * PAGE
            self.pages.leave_behind(job.table, job.encoded)
            job.moved = True

    def _turn(self, job: Job, room: _Room) -> JobTurn | None:
        """The turn that there is room for, if any; takes it from `room`."""
        if job.prompt_left:
            stop = self._prompt_stop(job, room)
            steps = stop == job.prompt_length and stop - job.encoded + job.length <= room.tokens
            turn = JobTurn(job, (job.encoded, stop), steps)
        else:
            turn = JobTurn(job, (job.encoded, job.start), True)
        if not 0 < turn.tokens <= room.tokens:
            return None
        room.tokens -= turn.tokens
        if job.prompt_left:
            room.prompt -= turn.encode[1] - turn.encode[0]
            room.fresh = False
        return turn

    def _prompt_stop(self, job: Job, room: _Room) -> int:
        """How far to encode the prompt: whole chunks, while there is room and no one else is writing the same pages.

        The first chunk of all may exceed the share of prompts, because an image can be longer than that.
        """
        stop = job.encoded
        covered = self.pages.most_covered(job.table, stop, room.spare_pages)
        most = min(stop + min(room.prompt, room.tokens), covered - job.length)
        while stop < job.prompt_length:
            end = job.chunk_end(stop)
            fits = end <= most or (room.fresh and stop == job.encoded and end - stop <= room.tokens)
            keys = job.table.keys[stop // PAGE : pages_for(end)]
            if not fits or any(room.writing.get(key, job) is not job for key in keys):
                break
            room.writing |= dict.fromkeys(keys, job)
            stop = end
        return stop

    def _span(self, job: Job) -> int:
        """The most positions that the job adds in one forward."""
        longest = max(map(len, job.images), default=0)
        return max(self._prompt_room, self.limits.canvas, longest) + self.limits.canvas

    def _take_pages(self, job: Job, turn: JobTurn, room: _Room) -> None:
        """Take pages for everything the turn touches."""
        end = turn.encode[1] + (job.length if turn.denoise else 0)
        if self.pages.cover(job.table, end, room.spare_pages):
            room.spare_pages -= max(0, job.table.sliding_held - job.table.sliding_most)
            job.moved = True
